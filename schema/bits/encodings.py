"""Content encodings of messages: gzip, zstd, raw Snappy blocks and base64, decoded within a limit."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Callable

import pyarrow as pa

from timebeam.schema.bits.decompress import DamagedError, TruncatedError, decompressed
from timebeam.schema.bits.protobuf import ProtoError, varint
from timebeam.schema.bits.reasons import Reason, RefusedError

LARGEST = 64 << 20
"""Bytes of a message after all decoding; a larger one is refused."""

COMPRESSED = GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
"""How data compressed by gzip and zstd begin."""


def compression(data: bytes) -> str:
    """The name of the compression that the first bytes of data show; empty if they show none."""
    if data.startswith(GZIP):
        return "gzip"
    return "zstd" if data.startswith(ZSTD) else ""


def unpack(encoding: str, data: bytes, limit: int = LARGEST) -> bytes:
    """The content of encoded data.

    Args:
      encoding: one of `ENCODINGS`.

    Raises:
      RefusedError: CORRUPT_MESSAGE; the data are damaged or larger than `limit`, or the encoding is unknown.
    """
    if encoding not in ENCODINGS:
        why = f"content-encoding {encoding!r}: only {', '.join(ENCODINGS)} can be unpacked"
        raise RefusedError(Reason.CORRUPT_MESSAGE, why)
    try:
        content = ENCODINGS[encoding](data, limit)
    except _DAMAGE as error:
        raise RefusedError(Reason.CORRUPT_MESSAGE, f"damaged {encoding}: {error}") from error
    if len(content) > limit:
        raise RefusedError(Reason.CORRUPT_MESSAGE, f"{encoding}: more than {limit} bytes after decompression")
    return content


def snappy(data: bytes, limit: int = LARGEST) -> bytes:
    """The content of a raw Snappy block, which begins with its size.

    >>> snappy(bytes.fromhex("05106370752e61"))
    b'cpu.a'

    Raises:
      ProtoError, IndexError, OSError: it is none, or too large.
    """
    size, _ = varint(data, 0)
    if size > limit:
        raise ProtoError(f"{size} bytes; at most {limit} are read")
    content: bytes = pa.decompress(data, size, codec="snappy", asbytes=True)
    return content


def _stream(suffix: str) -> Callable[[bytes, int], bytes]:
    """What undoes a compression of files: all members, or their first bytes, more than the limit."""

    def content(data: bytes, limit: int) -> bytes:
        chunks: list[bytes] = []
        size = 0
        for chunk in decompressed(suffix, io.BytesIO(data)):
            chunks.append(chunk)
            size += len(chunk)
            if size > limit:
                break
        return b"".join(chunks)

    return content


def _base64(data: bytes, limit: int) -> bytes:
    return base64.b64decode(data.strip(), validate=True)


ENCODINGS: dict[str, Callable[[bytes, int], bytes]] = {
    "gzip": _stream(".gz"),
    "zstd": _stream(".zst"),
    "snappy": snappy,
    "base64": _base64,
}
"""What decodes each encoding; of more than the limit it returns at least one byte more."""

_DAMAGE = (ProtoError, IndexError, OSError, DamagedError, TruncatedError, binascii.Error)
