"""Avro's object container files: header, blocks, sync markers, codecs.

    container = "Obj" 1, metadata map (avro.schema, avro.codec), sync marker of 16 bytes, block...
    block     = count of records (long), size in bytes (long), data by the codec, sync marker

Source: Apache Avro 1.12 specification, "Object Container Files". A container is handed on in pieces
of whole blocks, each a container of its own, with its blocks decompressed.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from schema.messages.avro_codecs import (
    LARGEST_BLOCK,
    ContainerError,
    EarlyEndError,
    decompress,
    read_long,
    write_long,
)

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
    count, at = read_long(data, 4)
    while count:
        if count < 0:  # then the size of this part of the map follows
            count, (_, at) = -count, read_long(data, at)
        for _ in range(count):
            key, at = _read_bytes(data, at)
            metadata[key], at = _read_bytes(data, at)
        count, at = read_long(data, at)
    end = at + _SYNC_BYTES
    if end > len(data):
        raise EarlyEndError("it ends inside its header")
    if b"avro.schema" not in metadata:
        raise ContainerError("its header has no avro.schema")
    codec = metadata.get(b"avro.codec", b"null").decode("latin-1")
    return Header(metadata[b"avro.schema"], codec, data[at:end], data[:end])


def read_block(data: bytes, at: int, sync: bytes) -> Block:
    """The block that begins at a place.

    Raises:
      EarlyEndError: it does not end in the bytes.
      ContainerError: it is damaged.
    """
    count, start = read_long(data, at)
    size, start = read_long(data, start)
    if count < 0 or not 0 <= size <= LARGEST_BLOCK:
        raise ContainerError(f"damaged block: {count} records in {size} bytes")
    end = start + size
    if end + _SYNC_BYTES > len(data):
        raise EarlyEndError("it ends inside a block")
    if data[end : end + _SYNC_BYTES] != sync:
        raise ContainerError("damaged block: no sync marker behind it")
    return Block(count, start, end, end + _SYNC_BYTES)


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
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._plain_offset = 0  # of the first block held, as if no block had been compressed

    def add(self, data: bytes) -> list[tuple[int, bytes]]:
        """The pieces that are complete with `data`, each as (offset, container).

        The offset and a place in the container add up to the place in the bytes that came, or to
        what it were if their blocks were not compressed.
        """
        pieces: list[tuple[int, bytes]] = []
        data = self.rest + data
        at = 0
        try:
            if self._header is None and self.damage is None:
                self._header = read_header(data)
                at = len(self._header.raw)
                self._plain_offset = len(self._header.plain)
            while self._header and self.damage is None:
                block = read_block(data, at, self._header.sync)
                self._hold(self._header, block, data[at : block.next])
                at = block.next
                if self._held_bytes >= self._size:
                    pieces += self._take()
        except EarlyEndError:
            pass  # until more bytes come
        except ContainerError as error:
            self.damage = error
            pieces += self._take()
        self.rest, self.offset = data[at:], self.offset + at
        return pieces

    def finish(self) -> list[tuple[int, bytes]]:
        """The last pieces; then bytes that end inside a block or the header are damage too."""
        if self.damage is None and (self.rest or self._header is None):
            self.damage = EarlyEndError("the Avro object container ends inside its header or a block")
        return self._take()

    def _hold(self, header: Header, block: Block, raw: bytes) -> None:
        """Keeps a block for the next piece, decompressed."""
        if header.codec != "null":
            data = decompress(header.codec, raw[block.start - block.next : block.end - block.next])
            raw = write_long(block.records) + write_long(len(data)) + data + header.sync
        if block.records > len(raw):
            raise ContainerError(f"damaged block: {block.records} records in {len(raw)} bytes")
        self._held.append(raw)
        self._held_bytes += len(raw)

    def _take(self) -> list[tuple[int, bytes]]:
        """What is held as one piece, if anything is."""
        if self._header is None or not self._held:
            return []
        header = self._header.plain
        piece = self._plain_offset - len(header), b"".join([header, *self._held])
        self._plain_offset += self._held_bytes
        self._held, self._held_bytes = [], 0
        return [piece]


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    """(the bytes or text that begin at a place, where they end)."""
    size, start = read_long(data, at)
    end = start + size
    if size < 0 or end > LARGEST_BLOCK:
        raise ContainerError(f"damaged header: {size} bytes of metadata")
    if end > len(data):
        raise EarlyEndError("it ends inside its header")
    return data[start:end], end
