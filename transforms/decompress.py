"""Compressed files as a stream of decompressed bytes, told apart from truncated and damaged ones.

Beam's own decompression takes the end of a truncated gzip file for the end of the data; here it is
an error, raised after the readable part has been handed out.
"""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Iterator
from typing import BinaryIO, Protocol

import zstandard

_CHUNK = 1 << 20


class TruncatedError(EOFError):
    """The file ends inside the compressed data."""


class DamagedError(ValueError):
    """The compressed data are damaged."""


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


def _gzip() -> _Decompressor:
    return zlib.decompressobj(wbits=31)


def _bzip2() -> _Decompressor:
    return bz2.BZ2Decompressor()


def _zstd() -> _Decompressor:
    return zstandard.ZstdDecompressor().decompressobj()


_BY_SUFFIX = {".gz": _gzip, ".bz2": _bzip2, ".zst": _zstd}
_DAMAGE = (zlib.error, OSError, zstandard.ZstdError)


def is_compressed(path: str) -> bool:
    """Whether a file's name says that it is compressed: .gz, .bz2 or .zst."""
    return any(path.endswith(suffix) for suffix in _BY_SUFFIX)


def decompressed(path: str, file: BinaryIO) -> Iterator[bytes]:
    """The content of a compressed file in chunks; several members one behind the other are one.

    Raises:
      TruncatedError, DamagedError: after everything readable before has been yielded.
    """
    new = next(make for suffix, make in _BY_SUFFIX.items() if path.endswith(suffix))
    decompressor: _Decompressor | None = None
    while data := file.read(_CHUNK):
        while data:
            if decompressor is None:
                decompressor = new()
            try:
                chunk = decompressor.decompress(data)
            except _DAMAGE as error:
                raise DamagedError(f"damaged compressed data: {error}") from error
            if chunk:
                yield chunk
            data = b""
            if decompressor.eof:
                # Some writers pad the end of the file with zero bytes.
                data = decompressor.unused_data.lstrip(b"\0")
                decompressor = None
    if decompressor is not None:
        raise TruncatedError("the compressed data end before their end mark")
