"""What messages are packed in: gzip, zstd, raw Snappy blocks and base64, undone within a limit."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Callable

import pyarrow as pa

from timebeam.schema.common.decompress import DamagedError, TruncatedError, decompressed
from timebeam.schema.common.protobuf import ProtoError, varint
from timebeam.schema.points import Reason, RefusedError

LARGEST = 64 << 20
"""Bytes of a message after all unpacking; a larger one is refused."""

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
"""How data packed by gzip and zstd begin."""


def unpack(packing: str, data: bytes, limit: int = LARGEST) -> bytes:
    """The content of packed data.

    Args:
      packing: one of `PACKINGS`.

    Raises:
      RefusedError: CORRUPT_MESSAGE; the data are damaged or larger than `limit`, or the packing is unknown.
    """
    if packing not in PACKINGS:
        why = f"content-encoding {packing!r}: only {', '.join(PACKINGS)} can be unpacked"
        raise RefusedError(Reason.CORRUPT_MESSAGE, why)
    try:
        content = PACKINGS[packing](data, limit)
    except _DAMAGE as error:
        raise RefusedError(Reason.CORRUPT_MESSAGE, f"damaged {packing}: {error}") from error
    if len(content) > limit:
        raise RefusedError(Reason.CORRUPT_MESSAGE, f"{packing}: more than {limit} bytes after decompression")
    return content


def snappy(data: bytes, limit: int = LARGEST) -> bytes:
    """The content of a raw Snappy block, which begins with its size.

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


PACKINGS: dict[str, Callable[[bytes, int], bytes]] = {
    "gzip": _stream(".gz"),
    "zstd": _stream(".zst"),
    "snappy": snappy,
    "base64": _base64,
}
"""What undoes each packing; of more than the limit it returns at least one byte more."""

_DAMAGE = (ProtoError, IndexError, OSError, DamagedError, TruncatedError, binascii.Error)
