"""Avro's object container files: header, blocks, sync markers, codecs.

    container = "Obj" 1, metadata map (avro.schema, avro.codec), sync marker of 16 bytes, block...
    block     = count of records (long), size in bytes (long), data by the codec, sync marker

Source: Apache Avro 1.12 specification, "Object Container Files". A container is handed on in pieces
of whole blocks, each a container of its own, with its blocks decompressed.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator
from typing import NamedTuple

from timebeam.schema.messages.avro.codecs import (
    LARGEST_BLOCK,
    ContainerError,
    EarlyEndError,
    TooLargeError,
    decompress,
    read_long,
    write_long,
)

LARGEST_CONTAINER = 64 << 20
"""Bytes of all blocks of a container that is unpacked at once."""

LARGEST_HEADER = 1 << 20
"""Bytes of a header; a larger one is taken for damage."""

_EARLY = "the Avro object container ends inside its header or a block"
_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Header:
    """The header of a container.

    Attributes:
      schema: the JSON text of the schema of its records.
      raw: its own bytes.
    """

    schema: bytes
    codec: str
    sync: bytes
    raw: bytes

    @property
    def plain(self) -> bytes:
        """The header of a container of the same records, not compressed."""
        if self.codec == "null":
            return self.raw
        key = b"avro.schema"
        pair = write_long(len(key)) + key + write_long(len(self.schema)) + self.schema
        return _MAGIC + write_long(1) + pair + write_long(0) + self.sync


class Block(NamedTuple):
    """A block in some bytes: how many records, where their data stand, where the next block begins."""

    records: int
    start: int
    end: int
    next: int


def read_header(data: bytes) -> Header:
    """The header that the bytes begin with.

    Raises:
      EarlyEndError: it does not end in them.
      ContainerError: they are no container.
    """
    if data[:4] != _MAGIC[: len(data)]:
        raise ContainerError("no Avro object container: it does not begin with Obj 01")
    metadata: dict[bytes, bytes] = {}
    count, offset = read_long(data, 4)
    while count:
        if count < 0:  # then the size of this part of the map follows
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
    """The block that begins at a place.

    Raises:
      EarlyEndError: it does not end in the bytes.
      ContainerError: it is damaged.
    """
    count, start = read_long(data, offset)
    size, start = read_long(data, start)
    if count < 0 or not 0 <= size <= LARGEST_BLOCK:
        raise ContainerError(f"damaged block: {count} records in {size} bytes")
    end = start + size
    if end + _SYNC_BYTES > len(data):
        raise EarlyEndError("it ends inside a block")
    if data[end : end + _SYNC_BYTES] != sync:
        raise ContainerError("damaged block: no sync marker behind it")
    return Block(count, start, end, end + _SYNC_BYTES)


class Container(NamedTuple):
    """A container whose blocks are not compressed, of the whole blocks of some bytes.

    Attributes:
      header: of the bytes; None if they hold none.
      text: the container; the bytes themselves if they are one.
      read_bytes: how many of the bytes are the header and whole blocks.
      damage: why the bytes behind them are no more blocks, if there are any.
    """

    header: Header | None
    text: bytes
    read_bytes: int
    damage: ContainerError | None

    def blocks(self) -> Iterator[Block]:
        """The blocks in `text`."""
        if self.header is not None:
            offset = len(self.header.plain)
            while offset < len(self.text):
                block = read_block(self.text, offset, self.header.sync)
                offset = block.next
                yield block


def unpack(data: bytes) -> Container:
    """The whole blocks of a container; of compressed ones as many as become `LARGEST_CONTAINER` bytes."""
    try:
        header = read_header(data)
    except EarlyEndError:
        return Container(None, b"", 0, EarlyEndError(_EARLY))
    except ContainerError as error:
        return Container(None, b"", 0, error)
    offset = len(header.raw)
    plain = io.BytesIO()
    plain.write(header.plain)
    damage: ContainerError | None = None
    while offset < len(data) and damage is None:
        try:
            block = read_block(data, offset, header.sync)
            if header.codec == "null":
                _check_count(block.records, block.next - offset)
            else:
                plain.write(_plain(header, block, data, LARGEST_CONTAINER - plain.tell()))
            offset = block.next
        except EarlyEndError:
            damage = EarlyEndError(_EARLY)
        except TooLargeError:
            damage = TooLargeError(f"more than {LARGEST_CONTAINER} bytes after decompression")
        except ContainerError as error:
            damage = error
    if header.codec == "null":
        return Container(header, data if offset == len(data) else data[:offset], offset, damage)
    return Container(header, plain.getvalue(), offset, damage)


def _plain(header: Header, block: Block, data: bytes, limit: int) -> bytes:
    """A block of a compressed container as that of one that is not.

    Raises:
      ContainerError: it is damaged, or would have more than `limit` bytes.
    """
    content = decompress(header.codec, data[block.start : block.end], max(min(limit, LARGEST_BLOCK), 0))
    framed = write_long(block.records) + write_long(len(content)) + content + header.sync
    _check_count(block.records, len(framed))
    return framed


def _check_count(records: int, size: int) -> None:
    """Refuses a block with more records than bytes, with its frame."""
    if records > size:
        raise ContainerError(f"damaged block: {records} records in {size} bytes")


class ContainerCutter:
    """Cuts the bytes of a container, as they come, into containers that are not compressed.

    Attributes:
      rest: the bytes not handed on: the beginning of a block, or what came from damage on.
      offset: where `rest` begins in the bytes that came.
      damage: why nothing is handed on any more, if so; all before `rest` has been.
    """

    def __init__(self, size: int) -> None:
        """A piece is handed on as soon as it has `size` bytes."""
        self.rest = b""
        self.offset = 0
        self.damage: ContainerError | None = None
        self._size = size
        self._header: Header | None = None
        self._buffered: list[bytes] = []
        self._buffered_bytes = 0
        self._plain_offset = 0  # of the first block held, as if no block had been compressed

    def add(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The pieces that are complete with `data`, each as (offset, container), one by one.

        The offset and a place in the container add up to the place in the bytes that came, or to
        what it were if their blocks were not compressed.
        """
        data = self.rest + data
        start, position = self.offset, 0
        self.rest = b""
        try:
            if self._header is None and self.damage is None:
                self._header = read_header(data)
                position = len(self._header.raw)
                self._plain_offset = len(self._header.plain)
            while self._header and self.damage is None:
                block = read_block(data, position, self._header.sync)
                self._hold(self._header, block, data, position)
                position = block.next
                if self._buffered_bytes >= self._size:
                    self.offset = start + position
                    yield from self._take()
        except EarlyEndError:
            pass  # until more bytes come
        except ContainerError as error:
            self.damage = error
        self.rest, self.offset = data[position:], start + position
        if self.damage:
            yield from self._take()

    def finish(self) -> Iterator[tuple[int, bytes]]:
        """The last pieces; then bytes that end inside a block or the header are damage too."""
        if self.damage is None and (self.rest or self._header is None):
            self.damage = EarlyEndError(_EARLY)
        yield from self._take()

    def _hold(self, header: Header, block: Block, data: bytes, offset: int) -> None:
        """Keeps the block that begins at a place for the next piece, decompressed."""
        if header.codec == "null":
            _check_count(block.records, block.next - offset)
            raw = data[offset : block.next]
        else:
            raw = _plain(header, block, data, LARGEST_BLOCK)
        self._buffered.append(raw)
        self._buffered_bytes += len(raw)

    def _take(self) -> list[tuple[int, bytes]]:
        """What is held as one piece, if anything is."""
        if self._header is None or not self._buffered:
            return []
        header = self._header.plain
        piece = self._plain_offset - len(header), b"".join([header, *self._buffered])
        self._plain_offset += self._buffered_bytes
        self._buffered, self._buffered_bytes = [], 0
        return [piece]


def _read_bytes(data: bytes, offset: int) -> tuple[bytes, int]:
    """(the bytes or text that begin at a place, where they end)."""
    size, start = read_long(data, offset)
    end = start + size
    if size < 0 or end > LARGEST_HEADER:
        raise ContainerError(f"damaged header: {size} bytes of metadata")
    if end > len(data):
        raise EarlyEndError("it ends inside its header")
    return data[start:end], end
