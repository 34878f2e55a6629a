"""Message format `telegraf-json`: Telegraf's JSON, a metric per object; one point per field.

    {"fields":{"usage_user":1.5},"name":"cpu","tags":{"host":"web01"},"timestamp":1458229140}
    {"metrics":[{...},...]}

Source: plugins/serializers/json of Telegraf. Metrics, booleans and strings are as in format `influx`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import msgspec

from timebeam.schema.bits.json_text import is_document, line_spans
from timebeam.schema.bits.memory_limit import charge_series, text_bytes
from timebeam.schema.bits.reasons import Reason, RejectedError, short, shown
from timebeam.schema.core.points import Series
from timebeam.schema.formats.base import ParsedPoint, RejectedPoints
from timebeam.schema.formats.influx.influx_format import MeasurementFormat
from timebeam.schema.formats.influx.line import parse_time
from timebeam.schema.formats.linewise import LineRecord
from timebeam.schema.formats.options import Booleans


class TelegrafJson(MeasurementFormat):
    """An object per line, or one document.

    >>> from timebeam.schema.formats.base import Message
    >>> line = b'{"fields":{"user":42.5},"name":"cpu","tags":{"host":"web01"},"timestamp":1356998400}'
    >>> batch = TelegrafJson().parse(Message(line, arrival_ms=0)).batch
    >>> str(batch.series[0]), batch.times_ms.tolist(), batch.value(0)
    ('cpu.user{host=web01}', [1356998400000], 42.5)
    """

    name = "telegraf-json"
    escapes_names = True
    example = b'{"fields":{"user":42.5},"name":"cpu","tags":{"host":"web01"},"timestamp":1356998400}'

    precision_option = "telegraf_precision"

    def is_whole(self, text: bytes) -> bool:
        """A document, or what is left of one: its first line is no object, and no line has a point."""
        if is_document(text):
            return True
        first, _, rest = text.strip().partition(b"\n")
        if not rest or first.rstrip().endswith(b"}"):
            return False
        spans = line_spans(text)
        records = itertools.chain.from_iterable(self.records(text, start, end) for start, end in spans)
        return all(isinstance(record.outcome, RejectedError) for record in records)

    def records(self, text: bytes, start: int, end: int) -> Iterator[LineRecord]:
        """A point per good field of each metric of a line, then one rejection per reason for the others."""
        rejected = RejectedPoints()
        try:
            document = msgspec.json.decode(text[start:end])
            batch = (
                document.get("metrics")
                if isinstance(document, dict) and "metrics" in document
                else [document]
            )
            if not isinstance(batch, list):
                raise RejectedError(Reason.BAD_SYNTAX, "metrics must be an array")
        except UnicodeDecodeError as error:
            yield LineRecord(start, end, RejectedError(Reason.BAD_ENCODING, f"not UTF-8: {error}"))
            return
        except (msgspec.DecodeError, RecursionError) as error:
            yield LineRecord(start, end, RejectedError(Reason.BAD_SYNTAX, f"not JSON: {error}"))
            return
        except RejectedError as error:
            yield LineRecord(start, end, error)
            return
        for metric in batch:
            try:
                for outcome in self._points(metric):
                    if isinstance(outcome, RejectedError):
                        rejected.add(outcome)
                    else:
                        yield LineRecord(start, end, outcome)
            except RejectedError as error:
                rejected.add(error)
        for rejection in rejected.of_record("this line's fields and metrics"):
            yield LineRecord(start, end, rejection)

    def _points(self, metric: Any) -> Iterator[ParsedPoint | RejectedError]:
        """The points of a metric, and the rejections of other fields.

        Raises:
          RejectedError: the whole metric is rejected; before the first point.
        """
        if not isinstance(metric, dict):
            raise RejectedError(
                Reason.BAD_SYNTAX, f"a metric must be an object, not {short(shown(metric, 41))!r}"
            )
        name, tags, fields = metric.get("name"), metric.get("tags", {}), metric.get("fields")
        if not isinstance(name, str) or not name:
            raise RejectedError(Reason.BAD_METRIC, f"name must be a string: {short(shown(name, 41))!r}")
        if not isinstance(tags, dict) or not all(isinstance(text, str) for text in tags.values()):
            raise RejectedError(
                Reason.BAD_TAG, f"tags must be an object of strings: {short(shown(tags, 41))}"
            )
        if not isinstance(fields, dict):
            raise RejectedError(Reason.BAD_SYNTAX, f"fields must be an object: {short(shown(fields, 41))!r}")
        time = metric.get("timestamp")
        if time is not None and type(time) is not int:
            raise RejectedError(
                Reason.BAD_TIMESTAMP, f"timestamp must be an integer: {short(shown(time, 41))!r}"
            )
        try:
            time_ms, in_ms = parse_time("" if time is None else str(time), self._precision)
        except RejectedError as error:
            message = error.message.replace("influx_precision", "telegraf_precision")
            raise RejectedError(error.reason, message) from None
        present = {key: text for key, text in tags.items() if text}
        charge_series(len(name) + text_bytes(present.items()), len(present), len(fields))
        for field, value in fields.items():
            try:
                number = self._number(value)
            except RejectedError as error:
                yield RejectedError(error.reason, f"field {field[:40]}: {error.message}")
                continue
            yield ParsedPoint(Series.of(self._metric_name(name, field), present), time_ms, in_ms, number)

    def _number(self, value: Any) -> int | float:
        """The number in a field.

        Raises:
          RejectedError: BAD_NUMBER, NUMBER_OUT_OF_RANGE, EMPTY_VALUE.
        """
        if isinstance(value, bool):
            if self._booleans is Booleans.NUMBER:
                return int(value)
            why = f"{value} is a boolean: --influx-booleans number makes it 1 or 0"
            raise RejectedError(Reason.BAD_NUMBER, why)
        if value is None:
            raise RejectedError(Reason.EMPTY_VALUE, "no value")
        if not isinstance(value, int | float):
            raise RejectedError(Reason.BAD_NUMBER, f"{short(shown(value, 41))!r} is not a number")
        if isinstance(value, float) and not math.isfinite(value):
            raise RejectedError(Reason.NUMBER_OUT_OF_RANGE, f"{value} is beyond a 64-bit float")
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise RejectedError(
                Reason.NUMBER_OUT_OF_RANGE, f"{short(shown(value, 41))} needs more than 64 bits"
            )
        return value
