"""The codecs of the blocks of Avro's object containers, and the numbers that frame them.

Source: Apache Avro 1.12 specification, "Required Codecs" and "Optional Codecs", and its binary
encoding of longs (zigzag, then 7 bits a byte, the lowest first).
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import Protocol

import pyarrow as pa
import zstandard

LARGEST_BLOCK = 64 << 20
"""Bytes of a block, compressed or not, and of a header; a larger one is taken for damage."""

_STEP = 4096
_LONGEST_LONG = 10


class ContainerError(ValueError):
    """The bytes are no object container, or a damaged one."""


class EarlyEndError(ContainerError):
    """The container ends inside its header or a block."""


def decompress(codec: str, data: bytes) -> bytes:
    """The data of a block, at most `LARGEST_BLOCK` bytes.

    Raises:
      ContainerError: they are damaged or larger, or the codec is unknown.
    """
    try:
        if codec == "snappy":
            return _unsnapped(data)
        if codec in _DECOMPRESSORS:
            return _inflated(_DECOMPRESSORS[codec](), data)
    except (zlib.error, lzma.LZMAError, zstandard.ZstdError, OSError, EarlyEndError) as error:
        raise ContainerError(f"damaged block: {error}") from error
    raise ContainerError(f"the codec {codec!r} is none of null, snappy, {', '.join(_DECOMPRESSORS)}")


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    def decompress(self, data: bytes, /) -> bytes: ...


_DECOMPRESSORS: dict[str, Callable[[], _Decompressor]] = {
    "deflate": lambda: zlib.decompressobj(wbits=-15),
    "bzip2": bz2.BZ2Decompressor,
    "xz": lzma.LZMADecompressor,
    "zstandard": lambda: zstandard.ZstdDecompressor().decompressobj(),
}


def _inflated(decompressor: _Decompressor, data: bytes) -> bytes:
    """Decompresses in small steps, so that little data that expand to very much are noticed in time."""
    chunks: list[bytes] = []
    size = 0
    for at in range(0, len(data), _STEP):
        chunks.append(decompressor.decompress(data[at : at + _STEP]))
        size += len(chunks[-1])
        if size > LARGEST_BLOCK:
            raise ContainerError(f"a block of more than {LARGEST_BLOCK} bytes")
        if decompressor.eof:  # some writers leave a part of zlib's check sum behind it
            return b"".join(chunks)
    raise ContainerError("damaged block: the compressed data end before their end mark")


def _unsnapped(data: bytes) -> bytes:
    """Snappy's raw format, and the CRC-32 of the data."""
    size, _ = read_long(data, 0, zigzag=False)
    if size > LARGEST_BLOCK:
        raise ContainerError(f"a block of {size} bytes; at most {LARGEST_BLOCK} are read")
    plain: bytes = pa.decompress(data[:-4], size, codec="snappy", asbytes=True)
    if zlib.crc32(plain) != int.from_bytes(data[-4:], "big"):
        raise ContainerError("damaged block: its check sum is wrong")
    return plain


def read_long(data: bytes, at: int, *, zigzag: bool = True) -> tuple[int, int]:
    """(the number that begins at a place, where it ends); snappy's are not in zigzag order.

    Raises:
      EarlyEndError: it does not end in the bytes.
      ContainerError: it needs more than 64 bits.
    """
    number = 0
    for i, byte in enumerate(data[at : at + _LONGEST_LONG]):
        number |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1) if zigzag else number, at + i + 1
    if at + _LONGEST_LONG <= len(data):
        raise ContainerError("damaged length: more than 64 bits")
    raise EarlyEndError("it ends inside a number")


def write_long(number: int) -> bytes:
    """A number from 0 on as Avro writes a long."""
    number <<= 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
