"""Message format `avro`: Avro records, one point each or a batch of points of one series.

Records come in object containers, which hold their schema, or singly in Avro's binary or JSON encoding.
Schemas: point.avsc and point_batch.avsc in this folder, or any other with `--avro_fields`. A rejection holds
the binary encoding of its record; its offset is the one after decompression.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping
from typing import Any

from timebeam.schema.bits.json_text import line_spans
from timebeam.schema.bits.lru_cache import LruCache
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.declared_options import member
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.formats.avro.avro_points import AvroGatherer, default_fields
from timebeam.schema.formats.avro.container import EarlyEndError, read_records, too_long, unpack
from timebeam.schema.formats.avro.schema import Schema, own_schema, read_binary, read_json
from timebeam.schema.formats.base import Framing, Message, MessageFormat, Parsed
from timebeam.schema.formats.options import OWN_SCHEMAS, AvroEncoding, RecordFields
from timebeam.schema.formats.record_rejections import Rejections, rejection

_SCHEMAS = 16  # cached schemas of containers


class Avro(MessageFormat):
    """An object container, or single records of a given schema.

    >>> batch = Avro().parse(Message(Avro.example, arrival_ms=0)).batch
    >>> str(batch.series[0]), batch.times_ms.tolist(), batch.value(0)
    ('sys.cpu{host=web01}', [1356998400000], 42.5)
    """

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
        encoding: AvroEncoding = AvroEncoding.CONTAINER,
        schema: Schema | None = None,
        fields: RecordFields | None = None,
    ) -> None:
        """A format for messages in one encoding.

        Args:
          schema: of binary and JSON records.
          fields: None for records as in point.avsc and point_batch.avsc.
        """
        self._encoding, self._schema, self._fields = encoding, schema, fields
        self._schemas: LruCache[bytes, Schema] = LruCache(_SCHEMAS)
        self.framing = {
            AvroEncoding.CONTAINER: Framing.AVRO,
            AvroEncoding.BINARY: Framing.NONE,
            AvroEncoding.JSON: Framing.LINES,
        }[encoding]

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Avro:
        """See `MessageFormat.from_options`: `avro_encoding`, `avro_schema`, `avro_fields`.

        `avro_schema` is one of `OWN_SCHEMAS`, or the JSON text of a schema.
        """
        encoding = member(AvroEncoding, "avro_encoding", options.get("avro_encoding", AvroEncoding.CONTAINER))
        text, mapping = options.get("avro_schema"), options.get("avro_fields")
        fields = RecordFields.of(mapping, "avro_fields") if mapping else None
        if encoding is AvroEncoding.CONTAINER:
            if text:
                raise ValueError("avro_schema: a container holds its own schema; leave the option out")
            return cls(encoding, None, fields)
        text = text or OWN_SCHEMAS[0]
        schema = Schema.of(own_schema(text) if text in OWN_SCHEMAS else text)
        missing = (fields or default_fields(schema.fields)).names() - schema.fields
        if missing:
            raise ValueError(f"avro_fields: the schema has no field {', '.join(sorted(missing))}")
        return cls(encoding, schema, fields)

    def _parse(self, message: Message) -> Parsed:
        if self._schema is None:
            return self._container(message)
        gatherer = AvroGatherer(self._fields, self._schema.logical, skips_nan=self.skips_nan)
        rejections = Rejections(message)
        is_json = self._encoding is AvroEncoding.JSON
        for start, end in line_spans(message.text) if is_json else [(0, len(message.text))]:
            raw = message.text[start:end]
            try:
                record = read_json(raw, self._schema) if is_json else _only_record(raw, self._schema)
                gatherer.add(record, start, end)
            except RejectedError as error:
                rejections.add(start, end, error)
        return gatherer.finish(message, rejections)

    def _container(self, message: Message) -> Parsed:
        """The points of a container: those before corruption, and those before a corrupt record in its
        block."""
        container = unpack(message.text)
        rejected: list[Rejected] = []
        if container.damage:
            truncated = isinstance(container.damage, EarlyEndError)
            reason = Reason.TRUNCATED_FILE if truncated else Reason.CORRUPT_FILE
            why = f"{container.damage}: the records before are stored, these bytes are not"
            rejected.append(rejection(message, container.read_bytes, len(message.text), reason, why))
        if container.header is None:
            return Parsed(PointBatch.of([], message.arrival_ms), rejected)
        plain = dataclasses.replace(message, text=container.text)
        try:
            schema = self._schema_of(container.header.schema)
        except ValueError as error:
            why = f"the schema of the container: {error}"[:180]
            rejected.append(rejection(message, 0, container.read_bytes, Reason.CORRUPT_FILE, why))
            return Parsed(PointBatch.of([], message.arrival_ms), rejected)
        gatherer = AvroGatherer(self._fields, schema.logical, skips_nan=self.skips_nan)
        rejections = Rejections(plain, separator=b"")
        for record in read_records(container, schema):
            try:
                if isinstance(record.value, RejectedError):
                    raise record.value
                gatherer.add(record.value, record.start, record.end)
            except RejectedError as error:
                rejections.add(record.start, record.end, error)
        parsed = gatherer.finish(plain, rejections)
        return dataclasses.replace(parsed, rejected=[*rejected, *parsed.rejected])

    def _schema_of(self, text: bytes) -> Schema:
        """The schema of a JSON text, cached."""
        schema = self._schemas.get(text)
        if schema is None:
            schema = self._schemas[text] = Schema.of(text)
        return schema


def _only_record(raw: bytes, schema: Schema) -> Any:
    """The only record in some bytes.

    Raises:
      RejectedError: BAD_SYNTAX.
    """
    if len(raw) > schema.longest:
        raise RejectedError(Reason.BAD_SYNTAX, too_long(schema))
    file = io.BytesIO(raw)
    record = read_binary(file, schema)
    if file.tell() < len(raw):
        raise RejectedError(Reason.BAD_SYNTAX, f"{len(raw) - file.tell()} bytes after the record")
    return record
