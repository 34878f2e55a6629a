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

_SLICE = 4096
"""Compressed bytes decompressed at once. A call that meets damage gives nothing, so only what stands in
the same slice before the damage is lost; and little data that expand to much come in portions."""


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


def content(path: str, file: BinaryIO, size: int) -> Iterator[bytes]:
    """The content of a file, decompressed if need be, in portions of about `size` bytes.

    Raises:
      TruncatedError, DamagedError: after everything readable before has been yielded.
    """
    if not is_compressed(path):
        while data := file.read(size):
            yield data
        return
    held: list[bytes] = []
    held_bytes = 0
    try:
        for chunk in decompressed(path, file):
            held.append(chunk)
            held_bytes += len(chunk)
            if held_bytes >= size:
                yield b"".join(held)
                held, held_bytes = [], 0
    except (TruncatedError, DamagedError):
        yield b"".join(held)
        raise
    yield b"".join(held)


def decompressed(path: str, file: BinaryIO) -> Iterator[bytes]:
    """The content of a compressed file in chunks; several members one behind the other are one.

    Raises:
      TruncatedError, DamagedError: after everything readable before has been yielded.
    """
    new = next(make for suffix, make in _BY_SUFFIX.items() if path.endswith(suffix))
    decompressor: _Decompressor | None = None
    ended = False
    for data in _slices(file):
        while data:
            if decompressor is None:
                # Some writers pad the end of the file with zero bytes.
                data = data.lstrip(b"\0") if ended else data
                if not data:
                    break
                decompressor = new()
            try:
                chunk = decompressor.decompress(data)
            except _DAMAGE as error:
                raise DamagedError(f"damaged compressed data: {error}") from error
            if chunk:
                yield chunk
            data = b""
            if decompressor.eof:
                data = decompressor.unused_data
                decompressor, ended = None, True
    if decompressor is not None or not ended:
        raise TruncatedError("the compressed data end before their end mark")


def _slices(file: BinaryIO) -> Iterator[bytes]:
    """The bytes of a file in small pieces, read in large ones."""
    while data := file.read(_CHUNK):
        for at in range(0, len(data), _SLICE):
            yield data[at : at + _SLICE]
