"""Message format `avro`: Avro records, one point each or a batch of points of one series.

Records come in object containers, which hold their schema, or singly in Avro's binary or JSON encoding.
Schemas: point.avsc and point_batch.avsc in this folder, or any other with `--avro-fields`. A rejection holds
the binary encoding of its record; its offset is the one after decompression.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Container, Iterable, Mapping
from typing import Any

import numpy as np

from timebeam.schema.bits.arrays import Bytes, Int64s, Kind, number_columns
from timebeam.schema.bits.json_text import line_spans
from timebeam.schema.bits.lru_cache import LruCache
from timebeam.schema.bits.memory_limit import POINT_BYTES, NoRoomError, charge, charge_series, text_bytes
from timebeam.schema.bits.reasons import Reason, RejectedError, shown
from timebeam.schema.core.batches import selected
from timebeam.schema.core.points import FIRST_MILLISECOND, LAST_MILLISECOND, PointBatch, Series, add_tag
from timebeam.schema.core.rejections import Origins, Rejected
from timebeam.schema.formats.avro.container import EarlyEndError, read_records, too_long, unpack
from timebeam.schema.formats.avro.schema import Schema, own_schema, read_binary, read_json
from timebeam.schema.formats.base import (
    NOT_FINITE,
    Framing,
    Message,
    MessageFormat,
    Parsed,
    RejectedPoints,
    Rejections,
    rejection,
)
from timebeam.schema.formats.options import DEFAULTS, OWN_SCHEMAS, AvroEncoding, FormatOptions, RecordFields

_POINT = RecordFields.of("metric=metric,timestamp=timestamp,value=value,tags=tags", "avro_fields")
_POINT_BATCH = RecordFields.of("metric=metric,timestamp=timestamps,value=values,tags=tags", "avro_fields")


def default_fields(names: Container[str]) -> RecordFields:
    """The fields of point.avsc or point_batch.avsc, whichever has these field names."""
    return _POINT_BATCH if "timestamps" in names else _POINT


PER_MILLISECOND = {"timestamp-millis": 1, "timestamp-micros": 1_000, "timestamp-nanos": 1_000_000}
"""Units in a millisecond, for the logical types that are times."""


_AT_ONCE = 1 << 16  # points or records that are Python objects at one time


class AvroGatherer:
    """Gathers the points of the records of one message.

    Each record only looks up its series; the numbers of many records are checked and converted together.
    """

    def __init__(
        self, fields: RecordFields | None, logical: Mapping[str, str], *, skips_nan: bool = False
    ) -> None:
        """See `Schema.logical` and `MessageFormat.skips_nan`.

        Without `fields`, records are as in point.avsc and point_batch.avsc.
        """
        self._fields, self._logical, self._skips_nan = fields, logical, skips_nan
        self._keys: dict[tuple[object, ...], int] = {}
        self._series: dict[Series, int] = {}
        self._records: list[tuple[int, int, int, int, int]] = []
        """(number of the series, `_units` of its times, start, end, number of points) of each record."""
        self._times: list[int] = []
        self._values: list[int | float] = []
        self._columns: list[tuple[Any, Int64s, Int64s, Bytes]] = []
        """(the first four of their record int64[n, 4], times, bits, kinds) of n points."""

    def add(self, record: Any, start: int, end: int) -> None:
        """Adds the record with this span in the bytes.

        Raises:
          RejectedError: BAD_SYNTAX, BAD_METRIC, BAD_TAG, DUPLICATE_TAG, BAD_ENCODING, BAD_TIMESTAMP,
            EMPTY_VALUE, BAD_NUMBER.
        """
        if not isinstance(record, dict):
            raise RejectedError(Reason.BAD_SYNTAX, f"no record with fields, but {shown(record)!r}")
        fields = self._fields or default_fields(record)
        try:
            if max(len(self._records), len(self._times)) >= _AT_ONCE:
                charge(len(self._times) * POINT_BYTES)
                self._take()
            series = self._number_of(fields, record)
            times, values = record[fields.timestamp], record[fields.value]
        except KeyError as error:
            why = f"the record has no field {error}: --avro-fields tells which field is what"
            raise RejectedError(Reason.BAD_SYNTAX, why) from error
        except NoRoomError as error:  # the records before are stored
            raise RejectedError(Reason.CORRUPT_FILE, str(error)) from error
        units = self._units(fields.timestamp)
        if type(times) is int and type(values) in (int, float):
            self._records.append((series, units, start, end, 1))
            self._times.append(times)
            self._values.append(values)
        else:
            times, values = _checked(times, values)
            self._records.append((series, units, start, end, len(times)))
            self._times += times
            self._values += values

    def finish(self, message: Message, rejections: Rejections) -> Parsed:
        """The points of all records, and all rejections.

        Args:
          message: its text holds the spans of the records.
        """
        self._take()
        columns = [np.concatenate(column) for column in zip(*self._columns, strict=True)]
        self._columns = []
        (series, units, starts, ends), (raw, bits, kinds) = columns[0].T, columns[1:]
        in_ms = (units > 0) | (raw >= FIRST_MILLISECOND)
        times_ms = np.where(in_ms, raw // np.maximum(units, 1), raw * 1000)
        has_time = (raw > 0) & (times_ms > 0) & (times_ms <= LAST_MILLISECOND)
        finite = (kinds == Kind.INTEGER) | np.isfinite(bits.view(np.float64))
        good = has_time & finite
        rejected = ~good & finite if self._skips_nan else ~good
        origins = Origins(message.text, starts, ends, message.source, message.offset)
        arrivals = np.full(len(raw), message.arrival_ms, np.int64)
        index = series.astype(np.int32)
        batch = PointBatch(tuple(self._series), index, times_ms, in_ms, kinds, bits, arrivals, origins)
        rejected_records: dict[tuple[int, int], RejectedPoints] = {}
        for point in np.flatnonzero(rejected).tolist():
            if has_time[point]:
                value = float(bits[point : point + 1].view(np.float64)[0])
                error = RejectedError(Reason.BAD_NUMBER, f"value is NaN or Infinite: {value}")
            else:
                error = _time_error(int(raw[point]), times_ms[point] <= 0)
            span = int(starts[point]), int(ends[point])
            rejected_records.setdefault(span, RejectedPoints()).add(error)
        for span, points in rejected_records.items():
            for why in points.of_record("the record's points"):
                rejections.add(*span, why)
        skipped = {NOT_FINITE: int(np.count_nonzero(~finite))} if self._skips_nan else {}
        return Parsed(selected(batch, good), rejections.rejected(), skipped=skipped)

    def _take(self) -> None:
        """Turns the points of the collected records into columns."""
        records = np.array(self._records, np.int64).reshape(-1, 5)
        bits, kinds = number_columns(self._values)
        times = np.array(self._times, np.int64)
        self._columns.append((np.repeat(records[:, :4], records[:, 4], axis=0), times, bits, kinds))
        self._records, self._times, self._values = [], [], []

    def _number_of(self, fields: RecordFields, record: Mapping[str, Any]) -> int:
        metric = fields.metric.text if fields.metric.constant else record[fields.metric.text]
        tags = (record[fields.tags] if fields.tags else None) or {}
        tag_values = [
            source.text if source.constant else _tag_text(key, record[source.text])
            for key, source in fields.tag
        ]
        if not isinstance(metric, str) or not metric:
            raise RejectedError(Reason.BAD_METRIC, f"the metric must be a string, not {shown(metric)!r}")
        try:
            cache_key = (metric, *tags.items(), *tag_values)
            number = self._keys.get(cache_key)
        except (AttributeError, TypeError):  # no map, or one of lists
            raise RejectedError(Reason.BAD_TAG, "the tags must be a map of strings") from None
        if number is None:
            record_tags = [
                (key, tag_value)
                for (key, _), tag_value in zip(fields.tag, tag_values, strict=True)
                if tag_value is not None
            ]
            series = _series(metric, [*tags.items(), *record_tags])
            charge_series(len(metric) + text_bytes(series.tags), len(series.tags))
            number = self._keys[cache_key] = self._series.setdefault(series, len(self._series))
        return number

    def _units(self, field: str) -> int:
        """Units in a ms of the times in a field; 0 if the size of a time tells seconds from ms."""
        logical = self._logical.get(field)
        if logical is None:
            return 0
        if logical not in PER_MILLISECOND:
            units = ", ".join(PER_MILLISECOND)
            raise RejectedError(
                Reason.BAD_TIMESTAMP,
                f"the logical type {logical[:40]} of {field} is not an instant: use {units}",
            )
        return PER_MILLISECOND[logical]


def _series(metric: str, tags: Iterable[tuple[str, object]]) -> Series:
    """The series of a metric and tags; equal tags may repeat."""
    named_tags: dict[str, str] = {}
    try:
        metric.encode()
        for key, text in tags:
            if not isinstance(text, str):
                raise RejectedError(Reason.BAD_TAG, f"the tag {key[:40]} is not a string")
            (key + text).encode()
            add_tag(named_tags, key, text)
    except UnicodeEncodeError as error:
        raise RejectedError(
            Reason.BAD_ENCODING, f"a string that is not UTF-8: {error.object[:40]!a}"
        ) from error
    return Series.of(metric, named_tags)


def _tag_text(key: str, value: object) -> str | None:
    """The value of a tag from its field; None if the field is null."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    raise RejectedError(Reason.BAD_TAG, f"the tag {key[:40]} is neither string, integer nor boolean")


def _checked(times: Any, values: Any) -> tuple[list[int], list[int | float]]:
    """The times and values of a record as lists; rejects other types and different lengths."""
    if not isinstance(times, list) and not isinstance(values, list):
        times, values = [times], [values]
    if not isinstance(times, list) or not isinstance(values, list) or len(times) != len(values):
        raise RejectedError(Reason.BAD_SYNTAX, "timestamps and values must be arrays of one length")
    if set(map(type, times)) - {int}:
        raise RejectedError(Reason.BAD_TIMESTAMP, "Invalid timestamp: give an integer (a long)")
    other_types = set(map(type, values)) - {int, float}
    if other_types:
        reason = Reason.EMPTY_VALUE if other_types == {type(None)} else Reason.BAD_NUMBER
        names = ", ".join(sorted(kind.__name__ for kind in other_types))
        raise RejectedError(reason, f"a value must be a long or a double, not {names}")
    return times, values


def _time_error(time: int, below_a_ms: bool) -> RejectedError:
    if time <= 0 or below_a_ms:
        return RejectedError(Reason.BAD_TIMESTAMP, f"Invalid timestamp {time}: it must be above 0 ms")
    return RejectedError(
        Reason.TIMESTAMP_OUT_OF_RANGE, f"bad timestamp {time}: after 2106-02-07; is the unit right?"
    )


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

    def __init__(self, options: FormatOptions = DEFAULTS) -> None:
        """See `MessageFormat`; `avro_schema` is one of `OWN_SCHEMAS`, or the JSON text of a schema."""
        super().__init__(options)
        self._encoding, text, mapping = options.avro_encoding, options.avro_schema, options.avro_fields
        self._fields = RecordFields.of(mapping, "avro_fields") if mapping else None
        self._schema: Schema | None = None
        self._schemas: LruCache[bytes, Schema] = LruCache(_SCHEMAS)
        self.framing = {
            AvroEncoding.CONTAINER: Framing.AVRO,
            AvroEncoding.BINARY: Framing.NONE,
            AvroEncoding.JSON: Framing.LINES,
        }[self._encoding]
        if self._encoding is AvroEncoding.CONTAINER:
            if text:
                raise ValueError("avro_schema: a container holds its own schema; leave the option out")
            return
        text = text or OWN_SCHEMAS[0]
        schema = self._schema = Schema.of(own_schema(text) if text in OWN_SCHEMAS else text)
        missing = (self._fields or default_fields(schema.fields)).names() - schema.fields
        if missing:
            raise ValueError(f"avro_fields: the schema has no field {', '.join(sorted(missing))}")

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
        if container.corruption:
            truncated = isinstance(container.corruption, EarlyEndError)
            reason = Reason.TRUNCATED_FILE if truncated else Reason.CORRUPT_FILE
            why = f"{container.corruption}: the records before are stored, these bytes are not"
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
