"""Decompresses streams, and detects truncation and damage.

Beam's own decompression treats the end of a truncated gzip file as the end of the data. Here it is an error,
raised after the readable bytes have been yielded.
"""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, Protocol

import zstandard

_CHUNK = 1 << 20

_SLICE = 4096
"""Compressed bytes of one call. A call that meets damage returns nothing, so the readable bytes of this slice
are lost. A slice of gzip expands to at most 1032 times its length."""

_ZSTD_SLICE = 256
"""The same for zstd, whose blocks of 4 bytes may expand to 128 KiB: a slice expands to at most 8 MiB."""


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


class _Bzip2:
    """bz2's decompressor with bounded output for each call: 40 bytes may expand to 45 MB."""

    def __init__(self) -> None:
        self._decompressor = bz2.BZ2Decompressor()

    @property
    def eof(self) -> bool:
        return self._decompressor.eof

    @property
    def unused_data(self) -> bytes:
        return self._decompressor.unused_data

    @property
    def unfinished(self) -> bool:
        """Whether a call without data returns more bytes."""
        return not self._decompressor.eof and not self._decompressor.needs_input

    def decompress(self, data: bytes, /) -> bytes:
        return self._decompressor.decompress(data, _CHUNK)


def _zstd() -> _Decompressor:
    return zstandard.ZstdDecompressor().decompressobj()


_BY_SUFFIX: dict[str, Callable[[], _Decompressor]] = {".gz": _gzip, ".bz2": _Bzip2, ".zst": _zstd}
_DAMAGE = (zlib.error, OSError, zstandard.ZstdError)


def is_compressed(path: str) -> bool:
    """Whether a file's name ends in .gz, .bz2 or .zst."""
    return any(path.endswith(suffix) for suffix in _BY_SUFFIX)


def content(path: str, file: BinaryIO, size: int) -> Iterator[bytes]:
    """The content of a file, decompressed by its name, in chunks of about `size` bytes.

    Raises:
      TruncatedError, DamagedError: after all readable bytes have been yielded.
    """
    if not is_compressed(path):
        while data := file.read(size):
            yield data
        return
    chunks: list[bytes] = []
    size_so_far = 0
    try:
        for chunk in decompressed(path, file):
            chunks.append(chunk)
            size_so_far += len(chunk)
            if size_so_far >= size:
                yield b"".join(chunks)
                chunks, size_so_far = [], 0
    except (TruncatedError, DamagedError):
        yield b"".join(chunks)
        raise
    yield b"".join(chunks)


def decompressed(path: str, file: BinaryIO) -> Iterator[bytes]:
    """The content of a compressed file, of all its members, in chunks of at most 8 MiB.

    Raises:
      TruncatedError, DamagedError: after all readable bytes have been yielded.
    """
    new_decompressor = next(new for suffix, new in _BY_SUFFIX.items() if path.endswith(suffix))
    decompressor: _Decompressor | None = None
    ended = False
    for data in _slices(file, _ZSTD_SLICE if path.endswith(".zst") else _SLICE):
        unfinished = False
        while data or unfinished:
            if decompressor is None:
                # Some writers pad the end of the file with zero bytes.
                data = data.lstrip(b"\0") if ended else data
                if not data:
                    break
                decompressor = new_decompressor()
            try:
                chunk = decompressor.decompress(data)
            except _DAMAGE as error:
                raise DamagedError(f"damaged compressed data: {error}") from error
            if chunk:
                yield chunk
            data = b""
            unfinished = isinstance(decompressor, _Bzip2) and decompressor.unfinished
            if decompressor.eof:
                data = decompressor.unused_data
                decompressor, ended = None, True
    if decompressor is not None or not ended:
        raise TruncatedError("the compressed data end before their end mark")


def _slices(file: BinaryIO, size: int) -> Iterator[bytes]:
    """The bytes of a file in small slices, read in large chunks."""
    while data := file.read(_CHUNK):
        for start in range(0, len(data), size):
            yield data[start : start + size]
