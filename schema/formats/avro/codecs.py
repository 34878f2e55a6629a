"""The codecs of the blocks of Avro's object containers, and the numbers that frame them.

Source: Apache Avro 1.12 specification, "Required Codecs" and "Optional Codecs", and its binary
encoding of longs (zigzag, then 7 bits a byte, the lowest first).
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import zstandard

from timebeam.schema.bits.protobuf import encoded_varint

_XZ_MEMORY = 128 << 20  # a header may ask for 4 GiB; xz -9 needs 65 MiB
_ZSTD_STEP = 1024  # compressed bytes, which become 33 MiB at most
_LONGEST_LONG = 10


class ContainerError(ValueError):
    """The bytes are not an object container, or it is damaged."""


class EarlyEndError(ContainerError):
    """The container ends inside its header or a block."""


class TooLargeError(ContainerError):
    """The data of a block are too large."""


def decompress(codec: str, data: bytes, limit: int) -> bytes:
    """The data of a block, at most `limit` bytes; data that are larger take little more memory.

    Raises:
      TooLargeError: they are larger.
      ContainerError: they are damaged, or the codec is unknown.
    """
    if codec not in _CODECS:
        raise ContainerError(f"the codec {codec!r} is not one of null, {', '.join(_CODECS)}")
    try:
        plain = _CODECS[codec](data, limit)
    except (zlib.error, lzma.LZMAError, zstandard.ZstdError, OSError, EarlyEndError) as error:
        raise ContainerError(f"damaged block: {error}") from error
    if plain is None:
        raise ContainerError("damaged block: the compressed data end before their end mark")
    if len(plain) > limit:
        raise _too_large(limit)
    return plain


def _limited(decompressor: Any, data: bytes, limit: int) -> bytes | None:
    """What a decompressor with a limit makes of the data; more than `limit` bytes if they are too large."""
    plain: bytes = decompressor.decompress(data, limit + 1)
    return plain if decompressor.eof or len(plain) > limit else None


def _zstandard(data: bytes, limit: int) -> bytes | None:
    """Zstandard in small steps, since its decompressor has no limit and does not report an early end."""
    decompressor = zstandard.ZstdDecompressor().decompressobj()
    chunks: list[bytes] = []
    size = 0
    for offset in range(0, len(data), _ZSTD_STEP):
        chunks.append(decompressor.decompress(data[offset : offset + _ZSTD_STEP]))
        size += len(chunks[-1])
        if size > limit:
            raise _too_large(limit)
        if decompressor.eof:
            return b"".join(chunks)
    return None


def _snappy(data: bytes, limit: int) -> bytes:
    """Snappy's raw format, and the CRC-32 of the data."""
    size, _ = read_long(data, 0, zigzag=False)
    if size > limit:
        raise _too_large(limit)
    plain: bytes = pa.decompress(data[:-4], size, codec="snappy", asbytes=True)
    if zlib.crc32(plain) != int.from_bytes(data[-4:], "big"):
        raise ContainerError("damaged block: its checksum is wrong")
    return plain


def _too_large(limit: int) -> TooLargeError:
    return TooLargeError(f"a block of more than {limit} bytes after decompression")


_CODECS: dict[str, Callable[[bytes, int], bytes | None]] = {
    "snappy": _snappy,
    # Raw deflate; some writers append part of zlib's checksum.
    "deflate": lambda data, limit: _limited(zlib.decompressobj(wbits=-15), data, limit),
    "bzip2": lambda data, limit: _limited(bz2.BZ2Decompressor(), data, limit),
    "xz": lambda data, limit: _limited(lzma.LZMADecompressor(memlimit=_XZ_MEMORY), data, limit),
    "zstandard": _zstandard,
}


def read_long(data: bytes, offset: int, *, zigzag: bool = True) -> tuple[int, int]:
    """(the number that begins at `offset`, where it ends); snappy's numbers are not zigzag.

    >>> read_long(bytes.fromhex("8001"), 0), read_long(bytes.fromhex("01"), 0)
    ((64, 2), (-1, 1))

    Raises:
      EarlyEndError: the bytes end inside it.
      ContainerError: it needs more than 64 bits.
    """
    number = 0
    for i, byte in enumerate(data[offset : offset + _LONGEST_LONG]):
        number |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1) if zigzag else number, offset + i + 1
    if offset + _LONGEST_LONG <= len(data):
        raise ContainerError("damaged length: more than 64 bits")
    raise EarlyEndError("it ends inside a number")


def write_long(number: int) -> bytes:
    """A number of at least 0 as Avro writes a long."""
    return encoded_varint(number << 1)
