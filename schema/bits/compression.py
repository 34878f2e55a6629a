"""All decompression, within limits: of files, of the content encodings of messages, of single blocks.

| what | function | its limit |
|---|---|---|
| a file of any length, by its suffix | `content` | chunks of 8 MiB |
| a stream of members, by its name | `decompressed` | chunks of 8 MiB |
| a message with a content encoding | `unpack` | `LARGEST`, or what is asked for |
| a raw Snappy block | `snappy` | the same |
| a block of Avro's container, by its codec | `unpacked_block` | what is asked for |

Beam's own decompression treats the end of a truncated gzip file as the end of the data. Here it is an error,
raised after the readable bytes have been yielded.
"""

from __future__ import annotations

import base64
import binascii
import bz2
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, Protocol

import pyarrow as pa
import zstandard

from timebeam.schema.bits.protobuf import ProtoError, varint
from timebeam.schema.bits.reasons import Reason, RejectedError

LARGEST = 64 << 20
"""Bytes of a message after all decoding; a larger one is rejected."""

COMPRESSED = GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
"""How data compressed by gzip and zstd begin."""

_CHUNK = 1 << 20

_SLICE = 4096
"""Compressed bytes of one call. A call that meets corruption returns nothing, so the readable bytes of this
slice are lost. A slice of gzip expands to at most 1032 times its length."""

_ZSTD_SLICE = 256
"""The same for zstd, whose blocks of 4 bytes may expand to 128 KiB: a slice expands to at most 8 MiB."""

_ZSTD_BLOCK_SLICE = 1024
"""The same for a block, of which nothing is kept if it is corrupt."""

_XZ_MEMORY = 128 << 20  # a header may ask for 4 GiB; xz -9 needs 65 MiB


class TruncatedError(EOFError):
    """The data end inside the compressed data."""


class CorruptDataError(ValueError):
    """The compressed data are corrupt."""


class TooLargeError(ValueError):
    """The data are larger than their limit after decompression."""


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


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


def _gzip() -> _Decompressor:
    return zlib.decompressobj(wbits=31)


def _zstd() -> _Decompressor:
    return zstandard.ZstdDecompressor().decompressobj()


STREAMS: dict[str, Callable[[], _Decompressor]] = {"gzip": _gzip, "bzip2": _Bzip2, "zstd": _zstd}
"""What `decompressed` reads, by name."""

_BY_SUFFIX = {".gz": "gzip", ".bz2": "bzip2", ".zst": "zstd"}
_NO_SNAPPY = (ProtoError, IndexError, OSError)
_CORRUPT = (zlib.error, lzma.LZMAError, OSError, zstandard.ZstdError)


def compression(data: bytes) -> str:
    """The name of the compression that the first bytes of data show; empty if they show none."""
    if data.startswith(GZIP):
        return "gzip"
    return "zstd" if data.startswith(ZSTD) else ""


def _stream_of(path: str) -> str:
    """The compression of a file by its name; empty for none."""
    return next((name for suffix, name in _BY_SUFFIX.items() if path.endswith(suffix)), "")


def is_compressed(path: str) -> bool:
    """Whether a file's name ends in .gz, .bz2 or .zst."""
    return bool(_stream_of(path))


def content(path: str, file: BinaryIO, size: int) -> Iterator[bytes]:
    """The content of a file, decompressed by its name, in chunks of about `size` bytes.

    Raises:
      TruncatedError, CorruptDataError: after all readable bytes have been yielded.
    """
    if not is_compressed(path):
        while data := file.read(size):
            yield data
        return
    chunks: list[bytes] = []
    size_so_far = 0
    try:
        for chunk in decompressed(_stream_of(path), file):
            chunks.append(chunk)
            size_so_far += len(chunk)
            if size_so_far >= size:
                yield b"".join(chunks)
                chunks, size_so_far = [], 0
    except (TruncatedError, CorruptDataError):
        yield b"".join(chunks)
        raise
    yield b"".join(chunks)


def decompressed(name: str, file: BinaryIO) -> Iterator[bytes]:
    """The content of a compressed stream, of all its members, in chunks of at most 8 MiB.

    Args:
      name: one of `STREAMS`.

    Raises:
      TruncatedError, CorruptDataError: after all readable bytes have been yielded.
    """
    decompressor: _Decompressor | None = None
    ended = False
    for data in _slices(file, _ZSTD_SLICE if name == "zstd" else _SLICE):
        unfinished = False
        while data or unfinished:
            if decompressor is None:
                # Some writers pad the end of the file with zero bytes.
                data = data.lstrip(b"\0") if ended else data
                if not data:
                    break
                decompressor = STREAMS[name]()
            try:
                chunk = decompressor.decompress(data)
            except _CORRUPT as error:
                raise CorruptDataError(f"corrupt compressed data: {error}") from error
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


def unpack(encoding: str, data: bytes, limit: int = LARGEST) -> bytes:
    """The content of encoded data.

    Args:
      encoding: one of `ENCODINGS`.

    Raises:
      RejectedError: CORRUPT_MESSAGE; the data are corrupt or larger than `limit`, or the encoding is unknown.
    """
    if encoding not in ENCODINGS:
        why = f"content-encoding {encoding!r}: only {', '.join(ENCODINGS)} can be unpacked"
        raise RejectedError(Reason.CORRUPT_MESSAGE, why)
    try:
        content = ENCODINGS[encoding](data, limit)
    except (*_NO_SNAPPY, CorruptDataError, TruncatedError, binascii.Error) as error:
        raise RejectedError(Reason.CORRUPT_MESSAGE, f"corrupt {encoding}: {error}") from error
    if len(content) > limit:
        raise RejectedError(
            Reason.CORRUPT_MESSAGE, f"{encoding}: more than {limit} bytes after decompression"
        )
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


def is_snappy(data: bytes) -> bool:
    """Whether data are a raw Snappy block."""
    try:
        snappy(data)
    except _NO_SNAPPY:
        return False
    return True


def _joined(name: str) -> Callable[[bytes, int], bytes]:
    """What undoes a compression of files: all members, or their first bytes, more than the limit."""

    def content(data: bytes, limit: int) -> bytes:
        chunks: list[bytes] = []
        size = 0
        for chunk in decompressed(name, io.BytesIO(data)):
            chunks.append(chunk)
            size += len(chunk)
            if size > limit:
                break
        return b"".join(chunks)

    return content


def _base64(data: bytes, limit: int) -> bytes:
    return base64.b64decode(data.strip(), validate=True)


ENCODINGS: dict[str, Callable[[bytes, int], bytes]] = {
    "gzip": _joined("gzip"),
    "zstd": _joined("zstd"),
    "snappy": snappy,
    "base64": _base64,
}
"""What decodes each encoding; of more than the limit it returns at least one byte more."""


class _Limited(Protocol):
    @property
    def eof(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


_BLOCKS: dict[str, Callable[[], _Limited]] = {
    # Raw deflate; some writers append part of zlib's checksum.
    "deflate": lambda: zlib.decompressobj(wbits=-15),
    "bzip2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(memlimit=_XZ_MEMORY),
}

BLOCK_CODECS = (*_BLOCKS, "zstandard")
"""What `unpacked_block` reads."""


def unpacked_block(codec: str, data: bytes, limit: int) -> bytes:
    """The data of one compressed block, which may be followed by others that count for nothing.

    Args:
      codec: one of `BLOCK_CODECS`, which has the names of Avro's specification.
      limit: larger data take little more memory.

    Raises:
      TooLargeError: they are larger.
      TruncatedError, CorruptDataError: the block has no end mark, or is corrupt.
    """
    chunks: list[bytes] = []
    size = 0
    try:
        if codec == "zstandard":  # whose decompressor has no limit
            zstd = _zstd()
            for start in range(0, len(data), _ZSTD_BLOCK_SLICE):
                chunks.append(zstd.decompress(data[start : start + _ZSTD_BLOCK_SLICE]))
                size += len(chunks[-1])
                if zstd.eof or size > limit:
                    break
            is_whole = zstd.eof
        else:
            decompressor = _BLOCKS[codec]()
            chunks.append(decompressor.decompress(data, limit + 1))
            size, is_whole = len(chunks[0]), decompressor.eof
    except _CORRUPT as error:
        raise CorruptDataError(str(error)) from error
    if size > limit:
        raise TooLargeError(f"a block of more than {limit} bytes after decompression")
    if not is_whole:
        raise TruncatedError("the compressed data end before their end mark")
    return b"".join(chunks)
