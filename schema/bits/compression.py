"""Compressed data: streams of files, with truncation and corruption detected, and encodings of messages.

Beam's own decompression treats the end of a truncated gzip file as the end of the data. Here it is an error,
raised after the readable bytes have been yielded. Messages are decoded within a limit.
"""

from __future__ import annotations

import base64
import binascii
import bz2
import io
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, Protocol

import pyarrow as pa
import zstandard

from timebeam.schema.bits.protobuf import ProtoError, varint
from timebeam.schema.bits.reasons import Reason, RefusedError

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
    except _UNREADABLE as error:
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

_UNREADABLE = (ProtoError, IndexError, OSError, DamagedError, TruncatedError, binascii.Error)
