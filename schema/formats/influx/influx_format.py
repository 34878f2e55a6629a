"""Message format `influx`: InfluxDB's line protocol, as Telegraf sends it; one point per field.

`measurement[,tagk=tagv...] field=value[,field=value...] timestamp`. Module `line` holds the grammar and reads
any line; its `PlainLines` reads plain lines in columns. Nanoseconds and microseconds are cut to milliseconds.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from timebeam.schema.bits.arrays import Bools, Int64s
from timebeam.schema.bits.lru_cache import CACHED_BYTES, LruCache
from timebeam.schema.bits.memory_limit import SERIES_BYTES, TAG_BYTES, charge_series, room, text_bytes
from timebeam.schema.bits.reasons import RejectedError, decoded
from timebeam.schema.core.batches import selected
from timebeam.schema.core.points import FIRST_MILLISECOND, LAST_MILLISECOND, PointBatch, Series
from timebeam.schema.core.rejections import Joined
from timebeam.schema.formats.base import Message, Parsed, ParsedPoint, RejectedPoints
from timebeam.schema.formats.influx.line import (
    PER_SECOND,
    PlainFields,
    PlainLines,
    auto_times_ms,
    parse_line,
    parse_time,
    parse_value,
)
from timebeam.schema.formats.linewise import NO_POINTS, LineRecord, LinewiseFormat, points_of_lines
from timebeam.schema.formats.options import DEFAULTS, FormatOptions, NoTime, Precision

_UNKNOWN_MS = -1
"""Stands for the time of a line without one, until the arrival of its message takes its place."""


class MeasurementFormat(LinewiseFormat):
    """A format of measurements with tags and several fields; a subclass has options of its own precision.

    Attributes:
      precision_option: the name of the option for the unit of timestamps.
    """

    precision_option: ClassVar[str]

    def __init__(self, options: FormatOptions = DEFAULTS) -> None:
        super().__init__(options)
        self._metric = metric_template(options.influx_metric)
        self._precision: Precision = getattr(options, self.precision_option)
        self._booleans = options.influx_booleans
        self._resolved: LruCache[tuple[bytes, bytes], ParsedPoint | RejectedError] = LruCache(
            options.remembered
        )

    def _metric_name(self, measurement: str, field: str) -> str:
        names = {"measurement": measurement, "field": field}
        return "".join(names[piece] if i % 2 else piece for i, piece in enumerate(self._metric))


class Influx(MeasurementFormat):
    """`cpu,host=web01 user=42.5,system=1.5 1356998400000000000`.

    >>> line = b"cpu,host=web01 user=42.5,system=1i 1356998400000000000"
    >>> batch = Influx().parse(Message(line, arrival_ms=0)).batch
    >>> [(str(series), time_ms, value) for series, time_ms, value in batch.points()]  # a point per field
    [('cpu.user{host=web01}', 1356998400000, 42.5), ('cpu.system{host=web01}', 1356998400000, 1)]
    """

    name = "influx"
    example = b"cpu,host=web01 user=42.5 1356998400000000000"
    precision_option = "influx_precision"
    _has_arrival = False

    def _read_lines(
        self, message: Message, starts: Int64s, ends: Int64s, joined: Joined | None = None
    ) -> Parsed:
        """See `LinewiseFormat`; strings may have newlines, and lines no time."""
        begins = joined.starts if joined else np.zeros(1, np.int64)
        starts, ends = joined_lines(message.text, starts, ends, begins)
        envelope = joined.envelopes[0] if joined else message.envelope
        self._has_arrival = self._options.influx_no_time is NoTime.PUBLISH and envelope is not None
        parsed = super()._read_lines(message, starts, ends, joined)
        batch, origins = parsed.batch, parsed.batch.origins
        lacking = np.flatnonzero(batch.times_ms == _UNKNOWN_MS)
        if not len(lacking) or origins is None:
            return parsed
        arrivals = joined.arrivals_at(origins.starts[lacking]) if joined else batch.arrivals_ms[lacking]
        times_ms, in_ms = batch.times_ms.copy(), batch.in_ms.copy()
        times_ms[lacking], in_ms[lacking] = self._cut_to_precision(arrivals)
        return dataclasses.replace(parsed, batch=dataclasses.replace(batch, times_ms=times_ms, in_ms=in_ms))

    def _time_of(self, text: str) -> tuple[int, bool]:
        """As `parse_time`; `_UNKNOWN_MS` where the publish time takes the place of a missing time."""
        if text or not self._has_arrival:
            try:
                return parse_time(text, self._precision)
            except RejectedError as error:
                more = "" if text else ", or take the publish time of messages: --influx-no-time publish"
                raise RejectedError(error.reason, error.message + more) from None
        return _UNKNOWN_MS, True

    def _cut_to_precision(self, times_ms: Int64s) -> tuple[Int64s, Bools]:
        """(times int64[n], bool[n] stored in ms) of publish times, as if senders had given them."""
        if self._precision is Precision.SECONDS:
            return times_ms // 1000 * 1000, np.zeros(len(times_ms), np.bool_)
        if self._precision is Precision.AUTO:
            return times_ms, times_ms % 1000 != 0
        return times_ms, np.ones(len(times_ms), np.bool_)

    def records(self, text: bytes, start: int, end: int) -> Iterator[LineRecord]:
        """One point per good field of a line, then one rejection for each reason to reject other fields."""
        try:
            line = parse_line(decoded(text[start:end], "line"))
            if line is None:
                return
            time_ms, in_ms = self._time_of(line.time)
        except RejectedError as error:
            yield LineRecord(start, end, error)
            return
        texts = len(line.measurement) + text_bytes(line.tags.items())
        charge_series(texts, len(line.tags), len(line.fields))
        rejected = RejectedPoints()
        for field, number in line.fields:
            try:
                value = parse_value(number, self._booleans)
            except RejectedError as error:
                rejected.add(RejectedError(error.reason, f"field {field[:40]}: {error.message}"))
                continue
            series = Series.of(self._metric_name(line.measurement, field), line.tags)
            yield LineRecord(start, end, ParsedPoint(series, time_ms, in_ms, value))
        for rejection in rejected.of_record("this line's fields"):
            yield LineRecord(start, end, rejection)

    def columnar(self, message: Message, starts: Int64s, ends: Int64s) -> tuple[PointBatch, Int64s]:
        lines = PlainLines.of(message.text, starts, ends)
        if len(lines.starts) == 0:
            return NO_POINTS, np.arange(len(starts))
        fields = PlainFields.of(lines)
        bits, kinds, good = fields.values()
        resolved = self._resolve(lines, fields)
        if resolved is None:
            return NO_POINTS, np.arange(len(starts))
        times_ms, in_ms, has_time = self._times_ms(lines)
        good &= resolved[1] >= 0
        is_plain = has_time
        is_plain[fields.line[~good]] = False
        plain = np.flatnonzero(lines.plain)
        spans = starts[plain][fields.line], ends[plain][fields.line]
        times = times_ms[fields.line], in_ms[fields.line]
        points = points_of_lines(message, resolved, times, (kinds, bits), spans)
        slow = np.ones(len(starts), np.bool_)
        slow[plain[is_plain]] = False
        points = points if is_plain.all() else selected(points, is_plain[fields.line])
        return points, np.flatnonzero(slow)

    def _times_ms(self, lines: PlainLines) -> tuple[Int64s, Bools, Bools]:
        """(times of lines in ms int64[n], bool[n] stored in ms, bool[n] whether the grammar accepts them)."""
        times, good = lines.timestamps()
        if self._precision is Precision.AUTO:
            times_ms, in_ms, valid = auto_times_ms(times)
            return times_ms, in_ms, good & valid
        in_ms = np.full(len(times), self._precision is not Precision.SECONDS)
        if self._precision is Precision.SECONDS:
            return times * 1000, in_ms, good & (times > 0) & (times <= LAST_MILLISECOND // 1000)
        times //= PER_SECOND[self._precision] // 1000
        return times, in_ms, good & (times >= FIRST_MILLISECOND) & (times <= LAST_MILLISECOND)

    def _resolve(self, lines: PlainLines, fields: PlainFields) -> tuple[list[Series], Int64s] | None:
        """(distinct series, int64[m] the number of each field's series; -1 for the slow path).

        None if there is no room for all series: each has the tags of its line.
        """
        head, heads = lines.distinct_heads()
        key, keys = fields.distinct_keys()
        pairs = pa.array(head[fields.line] * len(keys) + key).dictionary_encode()
        distinct = pairs.dictionary.to_numpy()
        sizes = np.array([len(text) + text.count(b",") * TAG_BYTES for text in heads], np.int64)
        if int(sizes[distinct // len(keys)].sum()) + len(distinct) * SERIES_BYTES > room():
            return None
        numbers: dict[Series, int] = {}
        number_of = []
        for pair in distinct.tolist():
            resolved = self._series_of(heads[pair // len(keys)], keys[pair % len(keys)])
            number_of.append(-1 if resolved is None else numbers.setdefault(resolved, len(numbers)))
        return list(numbers), np.array(number_of, np.int64)[pairs.indices.to_numpy()]

    def _series_of(self, head: bytes, key: bytes) -> Series | None:
        """The series of a head and a field key; None if such lines must take the slow path; cached.

        The slow path decides, on a line of both with a value and timestamp that it accepts.
        """
        cached = self._resolved.get((head, key))
        if cached is None:
            line = b"%s %s=1 %d" % (head, key, 1_700_000_000 * PER_SECOND.get(self._precision, 1))
            (record,) = self.records(line, 0, len(line))
            cached = record.outcome
            if len(line) <= CACHED_BYTES:
                self._resolved[head, key] = cached
        return None if isinstance(cached, RejectedError) else cached.series


def metric_template(text: str) -> list[str]:
    """A metric template split into text, name, text, ..., text.

    Raises:
      ValueError: it lacks {field}, without which all fields of a line would be one series; or it has
        braces around anything but `measurement` and `field`.
    """
    fragments = re.split(r"\{(measurement|field)\}", text)
    if "field" not in fragments[1::2] or any(
        "{" in fragment or "}" in fragment for fragment in fragments[::2]
    ):
        raise ValueError(
            f"influx_metric must hold {{field}} and may hold {{measurement}}, but no other braces: {text!r}"
        )
    return fragments


_OPENING = b'="'
_HEAD_END = re.compile(rb"(?<!\\) |[\x00-\x1f\x7f]")
_NAME_END = re.compile(rb"(?<!\\)[,= ]|[\x00-\x1f\x7f]")
_VALUE_END = re.compile(rb"[\x00-\x20\x7f,]")
_IN_STRING = re.compile(rb'\\.|"', re.DOTALL)
_RECORD_END = re.compile(rb" *(?:-?[0-9]+)? *\r?(?=\n|\Z)")
_SCANNED = 4
"""Bytes that are scanned for each byte of the text: beyond them, lines are read as they stand."""


class _Record(NamedTuple):
    """What was seen of a record: where it ends, -1 if it is none, and the first byte that was not seen."""

    end: int
    position: int


def joined_lines(text: bytes, starts: Int64s, ends: Int64s, messages: Int64s) -> tuple[Int64s, Int64s]:
    """(starts, ends) of lines, those of a record over several lines as one.

        log,host=web01 text="first line
        second line",count=2i 1556813561098000000

    A quote may also be missing, and the next one be lines away. So lines are joined only if they are one
    record from its measurement to its end; all others are read as they stand.

    Args:
      starts, ends: int64[n], spans of lines.
      messages: int64[m], where the messages begin that the text is joined from; none goes on in the next.
    """
    if _OPENING not in text:
        return starts, ends
    openings = np.fromiter((match.start() for match in re.finditer(_OPENING, text)), np.int64)
    candidates = np.unique(np.searchsorted(starts, openings, "right") - 1)
    begins_record = np.ones(len(starts), np.bool_)
    ends = ends.copy()
    free, unspent = 0, _SCANNED * len(text)
    for line in candidates[candidates >= 0].tolist():
        if line < free or unspent <= 0:
            continue
        number = int(np.searchsorted(messages, starts[line], "right"))
        limit = int(messages[number]) - 1 if number < len(messages) else len(text)
        scan = _scanned(text, int(starts[line]), limit)
        unspent -= scan.position - int(starts[line])
        last = int(np.searchsorted(starts, scan.end)) - 1
        if last > line:
            ends[line] = ends[last]
            begins_record[line + 1 : last + 1] = False
            free = last + 1
    return starts[begins_record], ends[begins_record]


def _scanned(text: bytes, position: int, limit: int) -> _Record:
    """The record that begins at a position and ends before `limit`."""
    while text[position : position + 1] == b" ":
        position += 1
    head = _HEAD_END.search(text, position, limit)
    if head is None or head[0] != b" " or text[position : position + 1] == b"#":
        return _Record(-1, position)
    position = head.start()
    while text[position : position + 1] == b" ":
        position += 1
    while True:
        equals = _NAME_END.search(text, position, limit)
        if equals is None or equals[0] != b"=" or equals.start() == position:
            return _Record(-1, position)
        position = equals.end()
        if text[position : position + 1] == b'"':
            marks = _IN_STRING.finditer(text, position + 1, limit)
            position = next((mark.end() for mark in marks if mark[0] == b'"'), -1)
            if position < 0:
                return _Record(-1, limit)
        else:
            end = _VALUE_END.search(text, position, limit)
            position = limit if end is None else end.start()
        if text[position : position + 1] != b"," or position >= limit:
            break
        position += 1
    end = _RECORD_END.match(text, position, limit)
    return _Record(-1 if end is None else end.end(), position)
