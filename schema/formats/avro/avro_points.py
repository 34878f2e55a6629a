"""Turns Avro records into points, many records at once.

A record is one point, or points of one series, with arrays of timestamps and values. Each record only looks
up its series; the numbers of all records are checked and converted together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from timebeam.schema.bits.arrays import Bools, Bytes, Int64s, Kind
from timebeam.schema.bits.memory_limit import POINT_BYTES, NoRoomError, charge, charge_series, text_bytes
from timebeam.schema.bits.reasons import Reason, RejectedError, shown
from timebeam.schema.bits.text_columns import number_columns
from timebeam.schema.core.points import FIRST_MILLISECOND, LAST_MILLISECOND, PointBatch, Series, add_tag
from timebeam.schema.core.rejections import Origins
from timebeam.schema.formats.base import NOT_FINITE, Message, Parsed
from timebeam.schema.formats.options import RecordFields
from timebeam.schema.formats.record_rejections import Rejections

_POINT = RecordFields.of("metric=metric,timestamp=timestamp,value=value,tags=tags", "avro_fields")
_POINT_BATCH = RecordFields.of("metric=metric,timestamp=timestamps,value=values,tags=tags", "avro_fields")


def default_fields(names: Container[str]) -> RecordFields:
    """The fields of point.avsc or point_batch.avsc, whichever has these field names."""
    return _POINT_BATCH if "timestamps" in names else _POINT


PER_MILLISECOND = {"timestamp-millis": 1, "timestamp-micros": 1_000, "timestamp-nanos": 1_000_000}
"""Units in a millisecond, for the logical types that are times."""


_AT_ONCE = 1 << 16  # points or records that are Python objects at one time


class _RecordNumbers(NamedTuple):
    """What the points of a record share, as numbers, so that many records become one array.

    Attributes:
      series: its number.
      units: units of time in a ms; 0 if the size of a time tells seconds from ms.
      start, end: the bytes of the record.
      points: their number.
    """

    series: int
    units: int
    start: int
    end: int
    points: int


class _GatheredPoints(NamedTuple):
    """n points: int64[n, 4] the first fields of their `_RecordNumbers`, and times, bits, kinds."""

    records: np.ndarray[tuple[int, int], np.dtype[np.int64]]
    times: Int64s
    bits: Int64s
    kinds: Bytes


class AvroGatherer:
    """Gathers the points of the records of one message."""

    def __init__(
        self, fields: RecordFields | None, logical: Mapping[str, str], *, skips_nan: bool = False
    ) -> None:
        """See `Schema.logical` and `MessageFormat.skips_nan`.

        Without `fields`, records are as in point.avsc and point_batch.avsc.
        """
        self._fields, self._logical, self._skips_nan = fields, logical, skips_nan
        self._keys: dict[tuple[object, ...], int] = {}
        self._series: dict[Series, int] = {}
        self._records: list[_RecordNumbers] = []
        self._times: list[int] = []
        self._values: list[int | float] = []
        self._columns: list[_GatheredPoints] = []

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
            why = f"the record has no field {error}: --avro_fields tells which field is what"
            raise RejectedError(Reason.BAD_SYNTAX, why) from error
        except NoRoomError as error:  # the records before are stored
            raise RejectedError(Reason.CORRUPT_FILE, str(error)) from error
        units = self._units(fields.timestamp)
        if type(times) is int and type(values) in (int, float):
            self._records.append(_RecordNumbers(series, units, start, end, 1))
            self._times.append(times)
            self._values.append(values)
        else:
            times, values = _checked(times, values)
            self._records.append(_RecordNumbers(series, units, start, end, len(times)))
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
        batch = PointBatch(
            tuple(self._series), series.astype(np.int32), times_ms, in_ms, kinds, bits, arrivals, origins
        )
        rejected_records: dict[tuple[int, Reason], _RejectedRecord] = {}
        for point in np.flatnonzero(rejected).tolist():
            if has_time[point]:
                value = float(bits[point : point + 1].view(np.float64)[0])
                error = RejectedError(Reason.BAD_NUMBER, f"value is NaN or Infinite: {value}")
            else:
                error = _time_error(int(raw[point]), times_ms[point] <= 0)
            record = rejected_records.setdefault(
                (int(starts[point]), error.reason), _RejectedRecord(point, error)
            )
            record.points += 1
        for record in rejected_records.values():
            rejections.add(int(starts[record.point]), int(ends[record.point]), record.error())
        skipped = {NOT_FINITE: int(np.count_nonzero(~finite))} if self._skips_nan else {}
        return Parsed(_with_used_series(batch, good), rejections.rejected(), skipped=skipped)

    def _take(self) -> None:
        """Turns the points of the collected records into columns."""
        records = np.array(self._records, np.int64).reshape(-1, 5)
        bits, kinds = number_columns(self._values)
        times = np.array(self._times, np.int64)
        self._columns.append(
            _GatheredPoints(np.repeat(records[:, :4], records[:, 4], axis=0), times, bits, kinds)
        )
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
        Reason.TIMESTAMP_OUT_OF_RANGE, f"bad timestamp {time}: beyond 2106-02-07; is the unit right?"
    )


class _RejectedRecord:
    """Points of one record rejected for one reason: the first of them, and their number."""

    def __init__(self, point: int, why: RejectedError) -> None:
        self.point, self.points = point, 0
        self._why = why

    def error(self) -> RejectedError:
        """The rejection of all of them."""
        more = f" (and {self.points - 1} more of the record's points)" if self.points > 1 else ""
        return RejectedError(self._why.reason, self._why.message + more)


def _with_used_series(batch: PointBatch, good: Bools) -> PointBatch:
    """The good points of a batch, without unused series."""
    kept_points = batch if good.all() else batch.take(np.flatnonzero(good))
    used = np.bincount(kept_points.index, minlength=len(kept_points.series)) > 0
    if used.all():
        return kept_points
    rank = np.cumsum(used) - 1
    series = tuple(
        series for series, is_used in zip(kept_points.series, used.tolist(), strict=True) if is_used
    )
    return dataclasses.replace(kept_points, series=series, index=rank[kept_points.index].astype(np.int32))
