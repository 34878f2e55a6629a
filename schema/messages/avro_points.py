"""Avro records into points: those of many records as columns.

A record is one point, or the points of one series, its timestamps and values then being arrays of one
length. Per record only its series is looked up; numbers are checked and converted all at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from schema.messages.avro_fields import Fields, default_fields
from schema.messages.base import Message, Parsed
from schema.messages.opentsdb_rules import FIRST_MILLISECOND, LAST_MILLISECOND, add_tag
from schema.points import (
    Bools,
    Bytes,
    Int64s,
    Kind,
    Origins,
    PointBatch,
    Reason,
    RefusedError,
    Rejected,
    Series,
    Stage,
)

PER_MILLISECOND = {"timestamp-millis": 1, "timestamp-micros": 1_000, "timestamp-nanos": 1_000_000}
"""Of the logical types that are instants: how many make a millisecond."""


class _Record(NamedTuple):
    """What the points of a record have in common: numbers, so that many records are one array.

    Attributes:
      series: the number of their series.
      units: units of time in a ms; 0: the size of a time tells seconds from ms.
      start, end: the bytes of the record.
      points: how many.
    """

    series: int
    units: int
    start: int
    end: int
    points: int


class Gatherer:
    """Gathers the points of the records of one message."""

    def __init__(self, fields: Fields | None, logical: Mapping[str, str]) -> None:
        """See `Schema.logical`. Without `fields`, records are as in point.avsc and point_batch.avsc."""
        self._fields, self._logical = fields, logical
        self._keys: dict[tuple[object, ...], int] = {}
        self._series: dict[Series, int] = {}
        self._records: list[_Record] = []
        self._times: list[int] = []
        self._values: list[int | float] = []

    def add(self, record: Any, start: int, end: int) -> None:
        """Takes the record that stands from `start` to `end` in the bytes.

        Raises:
          RefusedError: BAD_SYNTAX, BAD_METRIC, BAD_TAG, DUPLICATE_TAG, BAD_ENCODING, BAD_TIMESTAMP,
            EMPTY_VALUE, BAD_NUMBER.
        """
        if not isinstance(record, dict):
            raise RefusedError(Reason.BAD_SYNTAX, f"no record with fields, but {str(record)[:40]!r}")
        fields = self._fields or default_fields(record)
        try:
            series = self._number_of(fields, record)
            times, values = record[fields.timestamp], record[fields.value]
        except KeyError as error:
            why = f"the record has no field {error}: --avro_fields tells which field is what"
            raise RefusedError(Reason.BAD_SYNTAX, why) from error
        units = self._units(fields.timestamp)
        if type(times) is int and type(values) in (int, float):
            self._records.append(_Record(series, units, start, end, 1))
            self._times.append(times)
            self._values.append(values)
        else:
            times, values = _checked(times, values)
            self._records.append(_Record(series, units, start, end, len(times)))
            self._times += times
            self._values += values

    def finish(self, message: Message, rejected: Sequence[Rejected]) -> Parsed:
        """The points of all records, and refusals beside those `rejected` before.

        Args:
          message: the one in whose text `start` and `end` of the records count.
        """
        records = np.array(self._records, np.int64).reshape(-1, 5)
        owner = np.repeat(np.arange(len(records)), records[:, 4])
        series, units, starts, ends = records[owner, :4].T
        raw = np.array(self._times, np.int64)
        in_ms = (units > 0) | (raw >= FIRST_MILLISECOND)
        times_ms = np.where(in_ms, raw // np.maximum(units, 1), raw * 1000)
        timely = (raw > 0) & (times_ms > 0) & (times_ms <= LAST_MILLISECOND)
        bits, kinds = _columns(self._values)
        good = timely & ((kinds == Kind.INTEGER) | np.isfinite(bits.view(np.float64)))
        origins = Origins(message.text, starts, ends, message.source, message.offset)
        arrivals = np.full(len(raw), message.arrival_ms, np.int64)
        batch = PointBatch(
            tuple(self._series), series.astype(np.int32), times_ms, in_ms, kinds, bits, arrivals, origins
        )
        refused: dict[tuple[int, Reason], list[tuple[int, str]]] = {}
        for point in np.flatnonzero(~good).tolist():
            time, value = self._times[point], self._values[point]
            error = _not_finite(value) if timely[point] else _time_error(time, times_ms[point] <= 0)
            refused.setdefault((int(owner[point]), error.reason), []).append((point, error.message))
        more = [_rejected(origins, reason, points) for (_, reason), points in refused.items()]
        return Parsed(_with_used_series(batch, good), [*rejected, *more])

    def _number_of(self, fields: Fields, record: Mapping[str, Any]) -> int:
        """The number of the series of a record."""
        metric = fields.metric.text if fields.metric.constant else record[fields.metric.text]
        tags = (record[fields.tags] if fields.tags else None) or {}
        texts = [
            source.text if source.constant else _tag_text(key, record[source.text])
            for key, source in fields.tag
        ]
        if not isinstance(metric, str) or not metric:
            raise RefusedError(Reason.BAD_METRIC, f"the metric must be a text, not {str(metric)[:40]!r}")
        try:
            known = (metric, *tags.items(), *texts)
            number = self._keys.get(known)
        except (AttributeError, TypeError):  # no map, or one of lists
            raise RefusedError(Reason.BAD_TAG, "the tags must be a map of texts") from None
        if number is None:
            own = [(key, text) for (key, _), text in zip(fields.tag, texts, strict=True) if text is not None]
            series = _series(metric, [*tags.items(), *own])
            number = self._keys[known] = self._series.setdefault(series, len(self._series))
        return number

    def _units(self, field: str) -> int:
        """Units of the time in that field in a ms; 0 if the size of a time tells."""
        logical = self._logical.get(field)
        if logical is None:
            return 0
        if logical not in PER_MILLISECOND:
            known = ", ".join(PER_MILLISECOND)
            raise RefusedError(
                Reason.BAD_TIMESTAMP, f"the logical type {logical[:40]} of {field} is no instant: use {known}"
            )
        return PER_MILLISECOND[logical]


def _series(metric: str, tags: Iterable[tuple[str, object]]) -> Series:
    """The series of a metric and tags, which may stand twice."""
    found: dict[str, str] = {}
    try:
        metric.encode()
        for key, text in tags:
            if not isinstance(text, str):
                raise RefusedError(Reason.BAD_TAG, f"the tag {key[:40]} is no text")
            (key + text).encode()
            add_tag(found, key, text)
    except UnicodeEncodeError as error:
        raise RefusedError(Reason.BAD_ENCODING, f"a text that is not UTF-8: {error.object[:40]!a}") from error
    return Series.of(metric, found)


def _tag_text(key: str, value: object) -> str | None:
    """The text of a tag that is a field of its own; None if the field is null."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    raise RefusedError(Reason.BAD_TAG, f"the tag {key[:40]} is neither text, integer nor boolean")


def _checked(times: Any, values: Any) -> tuple[list[int], list[int | float]]:
    """The times and values of a record as lists; refuses them unless they are as many, and numbers."""
    if not isinstance(times, list) and not isinstance(values, list):
        times, values = [times], [values]
    if not isinstance(times, list) or not isinstance(values, list) or len(times) != len(values):
        raise RefusedError(Reason.BAD_SYNTAX, "timestamps and values must be arrays of one length")
    if set(map(type, times)) - {int}:
        raise RefusedError(Reason.BAD_TIMESTAMP, "Invalid timestamp: give an integer (a long)")
    odd = set(map(type, values)) - {int, float}
    if odd:
        reason = Reason.EMPTY_VALUE if odd == {type(None)} else Reason.BAD_NUMBER
        names = ", ".join(sorted(kind.__name__ for kind in odd))
        raise RefusedError(reason, f"a value must be a long or a double, not {names}")
    return times, values


def _columns(values: list[int | float]) -> tuple[Int64s, Bytes]:
    """(bits int64[n], kinds uint8[n]) of numbers; integers have 64 bits at most."""
    types = set(map(type, values))
    if types <= {float}:
        floats = np.array(values, np.float64)
        return floats.view(np.int64), np.full(len(values), Kind.FLOAT, np.uint8)
    if types == {int}:
        return np.array(values, np.int64), np.full(len(values), Kind.INTEGER, np.uint8)
    is_float = np.fromiter((isinstance(value, float) for value in values), np.bool_, len(values))
    bits = np.zeros(len(values), np.int64)
    bits.view(np.float64)[is_float] = [value for value in values if isinstance(value, float)]
    bits[~is_float] = [value for value in values if isinstance(value, int)]
    return bits, np.where(is_float, np.uint8(Kind.FLOAT), np.uint8(Kind.INTEGER))


def _time_error(time: int, below_a_ms: bool) -> RefusedError:
    """Why a time is refused."""
    if time <= 0 or below_a_ms:
        return RefusedError(Reason.BAD_TIMESTAMP, f"Invalid timestamp {time}: it must be above 0 ms")
    return RefusedError(
        Reason.TIMESTAMP_OUT_OF_RANGE, f"bad timestamp {time}: beyond 2106-02-07; is the unit right?"
    )


def _not_finite(value: float) -> RefusedError:
    return RefusedError(Reason.BAD_NUMBER, f"value is NaN or Infinite: {value}")


def _rejected(origins: Origins, reason: Reason, points: list[tuple[int, str]]) -> Rejected:
    """The refusal of points of one record."""
    point, message = points[0]
    more = f" (and {len(points) - 1} more of the record's points)" if len(points) > 1 else ""
    return origins.refuse(point, reason, message + more, Stage.PARSE)


def _with_used_series(batch: PointBatch, good: Bools) -> PointBatch:
    """The good points of a batch, with their series only."""
    kept = batch if good.all() else batch.take(np.flatnonzero(good))
    used = np.bincount(kept.index, minlength=len(kept.series)) > 0
    if used.all():
        return kept
    rank = np.cumsum(used) - 1
    series = tuple(series for series, is_used in zip(kept.series, used.tolist(), strict=True) if is_used)
    return dataclasses.replace(kept, series=series, index=rank[kept.index].astype(np.int32))
