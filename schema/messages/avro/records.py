"""The records of a container, one by one, and the bytes of its blocks that are not records."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, NamedTuple

from timebeam.schema.messages.avro.container import Block, Container
from timebeam.schema.messages.avro.schema import Schema, read_binary
from timebeam.schema.points import Reason, RefusedError


class AvroRecord(NamedTuple):
    """A record, or a RefusedError for bytes that are none, and its span in the text of the container."""

    value: Any
    start: int
    end: int


def read_records(container: Container, schema: Schema) -> Iterator[AvroRecord]:
    """The records; after a damaged one, the rest of its block is refused.

    Reads as many records as the schema allows and refuses all bytes after them as one.
    """
    most = schema.most
    for block in container.blocks():
        if block.records > most:
            why = f"a container of more than {schema.most} records: send smaller ones"
            refused = RefusedError(Reason.CORRUPT_FILE, f"{why}; its records before are stored")
            yield AvroRecord(refused, block.start, len(container.text))
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
        except RefusedError as error:
            if end < block.end and start > first:
                continue  # the record may end after these bytes
            why = error.message if end == block.end else too_long(schema)
            break
    if records or start < block.end:
        why = f"damaged block: {why}; its records before are stored, these bytes are not"
        yield AvroRecord(RefusedError(Reason.CORRUPT_FILE, why), start, block.end)
