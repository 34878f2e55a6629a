"""Avro's object container files: header, blocks, sync markers, and records one by one.

    container = "Obj" 1, metadata map (avro.schema, avro.codec), sync marker of 16 bytes, block...
    block     = count of records (long), size in bytes (long), data by the codec, sync marker

Source: Apache Avro 1.12 specification, "Object Container Files" with its codecs, and its binary encoding of
longs (zigzag, then 7 bits a byte, the lowest first). A container is cut into smaller containers of whole
blocks, which are decompressed.
"""

from __future__ import annotations

import dataclasses
import io
import sys
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from timebeam.schema.bits.compression import (
    BLOCK_CODECS,
    LARGEST,
    CorruptDataError,
    TooLargeError,
    TruncatedError,
    snappy,
    unpacked_block,
)
from timebeam.schema.bits.protobuf import ProtoError, encoded_varint
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.formats.avro.schema import Schema, read_binary

LARGEST_HEADER = 1 << 20
"""Bytes of a header; a larger one counts as corruption."""

_EARLY = "the Avro object container ends inside its header or a block"
_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_LONGEST_LONG = 10


class ContainerError(ValueError):
    """The bytes are not an object container, or it is corrupt."""


class EarlyEndError(ContainerError):
    """The container ends inside its header or a block."""


class TooLargeBlockError(ContainerError):
    """The data of a block are too large."""


@dataclasses.dataclass(frozen=True, slots=True)
class Header:
    """The header of a container.

    Attributes:
      schema: of the records, as JSON text.
      raw: the bytes of the header.
    """

    schema: bytes
    codec: str
    sync: bytes
    raw: bytes

    @property
    def plain(self) -> bytes:
        """The header of an uncompressed container of the same records."""
        if self.codec == "null":
            return self.raw
        key = b"avro.schema"
        pair = write_long(len(key)) + key + write_long(len(self.schema)) + self.schema
        return _MAGIC + write_long(1) + pair + write_long(0) + self.sync


class Block(NamedTuple):
    """A block: its number of records, the span of their data, the start of the next block."""

    records: int
    start: int
    end: int
    next: int


def read_header(data: bytes) -> Header:
    """The header that the bytes begin with.

    Raises:
      EarlyEndError: the bytes end inside it.
      ContainerError: they are not a container.
    """
    if data[:4] != _MAGIC[: len(data)]:
        raise ContainerError("no Avro object container: it does not begin with Obj 01")
    metadata: dict[bytes, bytes] = {}
    count, offset = read_long(data, 4)
    while count:
        if count < 0:  # then the size in bytes follows
            count, (_, offset) = -count, read_long(data, offset)
        for _ in range(count):
            key, offset = _read_bytes(data, offset)
            metadata[key], offset = _read_bytes(data, offset)
        count, offset = read_long(data, offset)
    end = offset + _SYNC_BYTES
    if end > len(data):
        raise EarlyEndError("it ends inside its header")
    if b"avro.schema" not in metadata:
        raise ContainerError("its header has no avro.schema")
    codec = metadata.get(b"avro.codec", b"null").decode("latin-1")
    return Header(metadata[b"avro.schema"], codec, data[offset:end], data[:end])


def read_block(data: bytes, offset: int, sync: bytes) -> Block:
    """The block that begins at `offset`.

    Raises:
      EarlyEndError: the bytes end inside it.
      ContainerError: it is corrupt.
    """
    count, start = read_long(data, offset)
    size, start = read_long(data, start)
    if count < 0 or not 0 <= size <= LARGEST:
        raise ContainerError(f"corrupt block: {count} records in {size} bytes")
    end = start + size
    if end + _SYNC_BYTES > len(data):
        raise EarlyEndError("it ends inside a block")
    if data[end : end + _SYNC_BYTES] != sync:
        raise ContainerError("corrupt block: no sync marker after it")
    return Block(count, start, end, end + _SYNC_BYTES)


class Container(NamedTuple):
    """An uncompressed container with the whole blocks of some bytes.

    Attributes:
      header: of the bytes; None if they have none.
      text: the bytes of the uncompressed container.
      read_bytes: number of bytes in the header and the whole blocks.
      corruption: why the bytes after them cannot be read; None if there are none.
    """

    header: Header | None
    text: bytes
    read_bytes: int
    corruption: ContainerError | None

    def blocks(self) -> Iterator[Block]:
        """The blocks in `text`."""
        if self.header is not None:
            offset = len(self.header.plain)
            while offset < len(self.text):
                block = read_block(self.text, offset, self.header.sync)
                offset = block.next
                yield block


class ContainerCutter:
    """Cuts the bytes of a container, as they arrive, into containers that are not compressed.

    Attributes:
      header: of the container; None until it has arrived.
      rest: the bytes not handed on: the beginning of a block, or everything from corruption on.
      offset: where `rest` begins in the bytes that arrived.
      corruption: why nothing more is handed on; everything before `rest` has been.
    """

    def __init__(self, size: int, limit: int | None = None) -> None:
        """A cutter that hands on a container as soon as it has `size` bytes, and no more than `limit`."""
        self.header: Header | None = None
        self.rest = b""
        self.offset = 0
        self.corruption: ContainerError | None = None
        self._size, self._limit = size, limit
        self._buffered: list[bytes] = []
        self._buffered_bytes = 0
        self._plain_offset = 0  # of the first buffered block, as if no block had been compressed

    def add(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The containers that are complete with `data`, each as (offset, container).

        The offset plus a position in the container is the position in the bytes that arrived or, of a
        compressed container, in these bytes with their blocks decompressed.
        """
        data = self.rest + data
        start, position = self.offset, 0
        self.rest = b""
        try:
            if self.header is None and self.corruption is None:
                self.header = read_header(data)
                position = len(self.header.raw)
                self._plain_offset = len(self.header.plain)
            while self.header and self.corruption is None:
                position = self._buffer(self.header, data, position)
                if self._buffered_bytes >= self._size:
                    self.offset = start + position
                    yield from self._flush()
        except EarlyEndError:
            pass  # the block or header is complete when more bytes arrive, or `finish` calls it corruption
        except ContainerError as error:
            self.corruption = error
        self.rest, self.offset = data[position:], start + position
        if self.corruption:
            yield from self._flush()

    def finish(self) -> Iterator[tuple[int, bytes]]:
        """The last container; if the bytes end inside a block or the header, sets `corruption`."""
        if self.corruption is None and (self.rest or self.header is None):
            self.corruption = EarlyEndError(_EARLY)
        yield from self._flush()

    def _buffer(self, header: Header, data: bytes, offset: int) -> int:
        """Buffers the block that begins at `offset`, decompressed; returns where it ends.

        Raises:
          EarlyEndError: the bytes end inside it.
          ContainerError: it is corrupt, or too large.
        """
        block = read_block(data, offset, header.sync)
        if header.codec == "null":
            raw = data[offset : block.next]
        else:
            limit = LARGEST
            if self._limit is not None:
                limit = max(min(limit, self._limit - len(header.plain) - self._buffered_bytes), 0)
            content = _plain(header.codec, data[block.start : block.end], limit)
            raw = write_long(block.records) + write_long(len(content)) + content + header.sync
        if block.records > len(raw):
            raise ContainerError(f"corrupt block: {block.records} records in {len(raw)} bytes")
        self._buffered.append(raw)
        self._buffered_bytes += len(raw)
        return block.next

    def _flush(self) -> list[tuple[int, bytes]]:
        """The buffered blocks as one container, if there are any."""
        if self.header is None or not self._buffered:
            return []
        plain_header = self.header.plain
        offset = self._plain_offset - len(plain_header)
        container = b"".join([plain_header, *self._buffered])
        self._plain_offset += self._buffered_bytes
        self._buffered, self._buffered_bytes = [], 0
        return [(offset, container)]


def unpack(data: bytes) -> Container:
    """The whole blocks of a container; if compressed, up to `LARGEST` bytes of them."""
    cutter = ContainerCutter(sys.maxsize, LARGEST)
    containers = [*cutter.add(data), *cutter.finish()]
    corruption = cutter.corruption
    if isinstance(corruption, TooLargeBlockError):
        corruption = TooLargeBlockError(f"more than {LARGEST} bytes after decompression")
    header_only = cutter.header.plain if cutter.header else b""
    text = containers[0][1] if containers else header_only
    return Container(cutter.header, text, cutter.offset, corruption)


def _read_bytes(data: bytes, offset: int) -> tuple[bytes, int]:
    """(the bytes or string that begin at `offset`, where they end)."""
    size, start = read_long(data, offset)
    end = start + size
    if size < 0 or end > LARGEST_HEADER:
        raise ContainerError(f"corrupt header: {size} bytes of metadata")
    if end > len(data):
        raise EarlyEndError("it ends inside its header")
    return data[start:end], end


class AvroRecord(NamedTuple):
    """A record, or a RejectedError for bytes that are none, and its span in the text of the container."""

    value: Any
    start: int
    end: int


def read_records(container: Container, schema: Schema) -> Iterator[AvroRecord]:
    """The records; after a corrupt one, the rest of its block is rejected.

    Reads as many records as the schema allows and rejects all bytes after them as one.
    """
    most = schema.most
    for block in container.blocks():
        if block.records > most:
            why = f"a container of more than {schema.most} records: send smaller ones"
            rejected = RejectedError(Reason.CORRUPT_FILE, f"{why}; its records before are stored")
            yield AvroRecord(rejected, block.start, len(container.text))
            return
        most -= block.records
        yield from _read_block(container.text, block, schema)


def too_long(schema: Schema) -> str:
    """The message for a record that is too long to be read."""
    return f"a record of more than {schema.longest} bytes, the most for its schema"


def _read_block(text: bytes, block: Block, schema: Schema) -> Iterator[AvroRecord]:
    """The records of a block; fastavro gets at most `Schema.longest` bytes from the start of a record."""
    start, records = block.start, block.records
    why = "its records do not end where it ends"
    while records:
        first, end = start, min(start + schema.longest, block.end)
        file = io.BytesIO(text[first:end])
        try:
            while records:
                value = read_binary(file, schema)
                yield AvroRecord(value, start, first + file.tell())
                start = first + file.tell()
                records -= 1
        except RejectedError as error:
            if end < block.end and start > first:
                continue  # the record may end after these bytes
            why = error.message if end == block.end else too_long(schema)
            break
    if records or start < block.end:
        why = f"corrupt block: {why}; its records before are stored, these bytes are not"
        yield AvroRecord(RejectedError(Reason.CORRUPT_FILE, why), start, block.end)


def _plain(codec: str, data: bytes, limit: int) -> bytes:
    """The data of a block, at most `limit` bytes; data that are larger take little more memory.

    Raises:
      TooLargeBlockError: they are larger.
      ContainerError: they are corrupt, or the codec is unknown.
    """
    if codec not in ("snappy", *BLOCK_CODECS):
        raise ContainerError(f"the codec {codec!r} is not one of null, snappy, {', '.join(BLOCK_CODECS)}")
    try:
        return _snappy(data, limit) if codec == "snappy" else unpacked_block(codec, data, limit)
    except TooLargeError as error:
        raise TooLargeBlockError(str(error)) from error
    except (CorruptDataError, TruncatedError, EarlyEndError, ProtoError, IndexError, OSError) as error:
        raise ContainerError(f"corrupt block: {error}") from error


def _snappy(data: bytes, limit: int) -> bytes:
    """Snappy's raw format, and the CRC-32 of the data."""
    size, _ = read_long(data, 0, zigzag=False)
    if size > limit:
        raise TooLargeError(f"a block of more than {limit} bytes after decompression")
    plain = snappy(data[:-4], limit)
    if zlib.crc32(plain) != int.from_bytes(data[-4:], "big"):
        raise CorruptDataError("its checksum is wrong")
    return plain


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
        raise ContainerError("corrupt length: more than 64 bits")
    raise EarlyEndError("it ends inside a number")


def write_long(number: int) -> bytes:
    """A number of at least 0 as Avro writes a long."""
    return encoded_varint(number << 1)
