"""The records of a container, one by one, and what of its blocks is none."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, NamedTuple

from timebeam.schema.messages.avro.container import Block, Container
from timebeam.schema.messages.avro.schema import Schema, read_binary
from timebeam.schema.points import Reason, RefusedError


class Record(NamedTuple):
    """A record, or why some bytes are none, and where it is in the text of its container."""

    value: Any
    start: int
    end: int


def read_records(container: Container, schema: Schema) -> Iterator[Record]:
    """The records; a damaged one costs the rest of its block.

    As many records as the schema allows are read; what is behind them is refused as one.
    """
    most = schema.most
    for block in container.blocks():
        if block.records > most:
            why = f"a container of more than {schema.most} records: send smaller ones"
            refused = RefusedError(Reason.CORRUPT_FILE, f"{why}; its records before are stored")
            yield Record(refused, block.start, len(container.text))
            return
        most -= block.records
        yield from _read_block(container.text, block, schema)


def too_long(schema: Schema) -> str:
    """Why a record is refused unread."""
    return f"a record of more than {schema.longest} bytes, the most for its schema"


def _read_block(text: bytes, block: Block, schema: Schema) -> Iterator[Record]:
    """The records of a block; fastavro sees no more than `Schema.longest` bytes from any of them on."""
    start, records = block.start, block.records
    why = "its records do not end where it ends"
    while records:
        first, end = start, min(start + schema.longest, block.end)
        file = io.BytesIO(text[first:end])
        try:
            while records:
                value = read_binary(file, schema)
                yield Record(value, start, first + file.tell())
                start = first + file.tell()
                records -= 1
        except RefusedError as error:
            if end < block.end and start > first:
                continue  # perhaps the record ends behind the bytes seen
            why = error.message if end == block.end else too_long(schema)
            break
    if records or start < block.end:
        why = f"damaged block: {why}; its records before are stored, these bytes are not"
        yield Record(RefusedError(Reason.CORRUPT_FILE, why), start, block.end)
