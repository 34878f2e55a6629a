"""Message format `avro`: Avro records, one point each or a batch of points of one series.

As object containers, which hold their schema, or as single records in Avro's binary or JSON encoding.
Schemas: point.avsc and point_batch.avsc here, or any other with `--avro_fields`. The bytes of a record
in refusals are its binary encoding; of a compressed container they are counted as if it were not.
"""

from __future__ import annotations

import dataclasses
import enum
import io
import sys
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from schema.lru import LruCache
from schema.messages.avro_codecs import EarlyEndError
from schema.messages.avro_container import Block, ContainerCutter, read_block, read_header
from schema.messages.avro_fields import Fields, default_fields
from schema.messages.avro_points import Gatherer
from schema.messages.avro_schema import OWN_SCHEMAS, Schema, own_schema, read_binary, read_json
from schema.messages.base import Framing, Message, MessageFormat, Parsed, member
from schema.points import PointBatch, Reason, RefusedError, Rejected, Stage

_SCHEMAS = 16  # schemas of containers that are remembered


class Encoding(str, enum.Enum):
    """What a message is."""

    CONTAINER = "container"
    BINARY = "binary"
    JSON = "json"


class Avro(MessageFormat):
    """An object container, or single records of a schema that is known."""

    name = "avro"
    example = (
        b"Obj\x01\x02\x16avro.schema\xa4\x03"
        b'{"type":"record","name":"Point","fields":[{"name":"metric","type":"string"},'
        b'{"name":"timestamp","type":"long"},{"name":"value","type":["long","double"]},'
        b'{"name":"tags","type":{"type":"map","values":"string"}}]}'
        b"\x00sixteen letters.\x02\x46\x0esys.cpu\x80\x9c\x91\x8e\x0a\x02\x00\x00\x00\x00\x00\x40\x45\x40"
        b"\x02\x08host\x0aweb01\x00sixteen letters."
    )

    def __init__(
        self,
        encoding: Encoding = Encoding.CONTAINER,
        schema: Schema | None = None,
        fields: Fields | None = None,
    ) -> None:
        """A format of messages in one encoding.

        Args:
          schema: of binary and JSON records.
          fields: without them, records are as in point.avsc and point_batch.avsc.
        """
        self._encoding, self._schema, self._fields = encoding, schema, fields
        self._schemas: LruCache[bytes, Schema] = LruCache(_SCHEMAS)
        self.framing = {
            Encoding.CONTAINER: Framing.AVRO,
            Encoding.BINARY: Framing.NONE,
            Encoding.JSON: Framing.LINES,
        }[encoding]

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Avro:
        """See `MessageFormat.from_options`: `avro_encoding`, `avro_schema`, `avro_fields`.

        `avro_schema` is one of `OWN_SCHEMAS`, or the JSON text of a schema.
        """
        encoding = member(Encoding, "avro_encoding", options.get("avro_encoding", Encoding.CONTAINER))
        text, mapping = options.get("avro_schema"), options.get("avro_fields")
        fields = Fields.of(mapping) if mapping else None
        if encoding is Encoding.CONTAINER:
            if text:
                raise ValueError("avro_schema: a container holds its own schema; leave the option out")
            return cls(encoding, None, fields)
        text = text or OWN_SCHEMAS[0]
        schema = Schema.of(own_schema(text) if text in OWN_SCHEMAS else text)
        missing = (fields or default_fields(schema.fields)).names() - schema.fields
        if missing:
            raise ValueError(f"avro_fields: the schema has no field {', '.join(sorted(missing))}")
        return cls(encoding, schema, fields)

    def parse(self, message: Message) -> Parsed:
        """See `MessageFormat.parse`."""
        if self._schema is None:
            return self._container(message)
        gatherer = Gatherer(self._fields, self._schema.logical)
        rejected: list[Rejected] = []
        is_json = self._encoding is Encoding.JSON
        for start, end in _lines(message.text) if is_json else [(0, len(message.text))]:
            raw = message.text[start:end]
            try:
                record = read_json(raw, self._schema) if is_json else _only_record(raw, self._schema)
                gatherer.add(record, start, end)
            except RefusedError as error:
                rejected.append(_rejected(message, start, end, error.reason, error.message))
        return gatherer.finish(message, rejected)

    def _container(self, message: Message) -> Parsed:
        """The points of a container; damage costs what follows it, a damaged record the rest of its block."""
        cutter = ContainerCutter(sys.maxsize)
        pieces = cutter.add(message.text) + cutter.finish()
        rejected: list[Rejected] = []
        if cutter.damage:
            start, end = cutter.offset, cutter.offset + len(cutter.rest)
            truncated = isinstance(cutter.damage, EarlyEndError)
            reason = Reason.TRUNCATED_FILE if truncated else Reason.CORRUPT_FILE
            why = f"{cutter.damage}: the records before are stored, these bytes are not"
            rejected.append(_rejected(message, start, end, reason, why))
        if not pieces:
            return Parsed(PointBatch.of([], message.arrival_ms), rejected)
        ((offset, text),) = pieces
        plain = dataclasses.replace(message, text=text, offset=message.offset + offset)
        header = read_header(text)
        try:
            schema = self._schema_of(header.schema)
        except ValueError as error:
            why = f"the schema of the container: {error}"[:180]
            rejected.append(_rejected(plain, 0, len(text), Reason.CORRUPT_FILE, why))
            return Parsed(PointBatch.of([], message.arrival_ms), rejected)
        gatherer = Gatherer(self._fields, schema.logical)
        file, at = io.BytesIO(text), len(header.raw)
        while at < len(text):
            block = read_block(text, at, header.sync)
            rejected += _read_block(plain, file, block, schema, gatherer)
            at = block.next
        return gatherer.finish(plain, rejected)

    def _schema_of(self, text: bytes) -> Schema:
        """A schema by its JSON text; remembered."""
        schema = self._schemas.get(text)
        if schema is None:
            schema = self._schemas[text] = Schema.of(text)
        return schema


def _read_block(
    message: Message, file: BinaryIO, block: Block, schema: Schema, gatherer: Gatherer
) -> Iterator[Rejected]:
    """Gathers the records of a block, and yields the refusals of what is none."""
    file.seek(block.start)
    start = block.start
    why = "its records do not end where it ends"
    for _ in range(block.records):
        try:
            record = read_binary(file, schema)
        except RefusedError as error:
            why = error.message
            break
        end = file.tell()
        if end > block.end:
            break
        try:
            gatherer.add(record, start, end)
        except RefusedError as error:
            yield _rejected(message, start, end, error.reason, error.message)
        start = end
    else:
        if start == block.end:
            return
    why = f"damaged block: {why}; its records before are stored, these bytes are not"
    yield _rejected(message, start, block.end, Reason.CORRUPT_FILE, why)


def _only_record(raw: bytes, schema: Schema) -> Any:
    """The record that some bytes are.

    Raises:
      RefusedError: BAD_SYNTAX.
    """
    file = io.BytesIO(raw)
    record = read_binary(file, schema)
    if file.tell() < len(raw):
        raise RefusedError(Reason.BAD_SYNTAX, f"{len(raw) - file.tell()} bytes behind the record")
    return record


def _lines(text: bytes) -> Iterator[tuple[int, int]]:
    """(start, end) of the lines that hold more than blanks."""
    start = 0
    for line in text.split(b"\n"):
        if line.strip():
            yield start, start + len(line)
        start += len(line) + 1


def _rejected(message: Message, start: int, end: int, reason: Reason, why: str) -> Rejected:
    return Rejected(message.text[start:end], reason, why, Stage.PARSE, message.source, message.offset + start)
