"""What messages are packed in: gzip, zstd, raw Snappy blocks and base64, undone within a limit."""

from __future__ import annotations

import base64
import binascii
import io
import zlib
from collections.abc import Callable

import pyarrow as pa
import zstandard

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


def _gzip(data: bytes, limit: int) -> bytes:
    """The content of all members, or its first bytes, more than `limit`."""
    members: list[bytes] = []
    size = 0
    while data and size <= limit:
        decompressor = zlib.decompressobj(wbits=31)
        members.append(decompressor.decompress(data, limit + 1 - size))
        size += len(members[-1])
        if not decompressor.eof and size <= limit:
            raise ProtoError("it ends before its end mark")
        data = decompressor.unused_data.lstrip(b"\0")
    return members[0] if len(members) == 1 else b"".join(members)


def _zstd(data: bytes, limit: int) -> bytes:
    """The content of all frames, or its first bytes, more than `limit`."""
    decompressor = zstandard.ZstdDecompressor()
    expected = zstandard.frame_content_size(data)
    with decompressor.stream_reader(io.BytesIO(data), read_across_frames=True) as reader:
        content = reader.read(limit + 1)
    if expected > len(content):
        raise ProtoError("it ends before its end mark")
    return content


def _base64(data: bytes, limit: int) -> bytes:
    return base64.b64decode(data.strip(), validate=True)


PACKINGS: dict[str, Callable[[bytes, int], bytes]] = {
    "gzip": _gzip,
    "zstd": _zstd,
    "snappy": snappy,
    "base64": _base64,
}
"""What undoes each packing; of more than the limit it returns at least one byte more."""

_DAMAGE = (ProtoError, IndexError, OSError, zlib.error, zstandard.ZstdError, binascii.Error)
