"""Message format `kairosdb-json`: bodies of KairosDB's POST /api/v1/datapoints.

A metric object or an array of them per line, an array with one object per line, or one document over several
lines. `read_metric` reads any metric object. Plain objects, with numbers of at most one declared type under
`datapoints`, or `timestamp` and `value`, are read by typed decoders and become columns together.

A metric has one point (`timestamp` or `time`, and `value`), or `datapoints` with pairs of time in ms and
value, or both. The type is that of the metric, or the third element of a pair. Without one, numbers and
strings that look like numbers are double if they have a point, else long; all other values are strings.
Sources: DataPointsParser and Validator of KairosDB 1.3.0 (docs/spec/kairosdb.md §8), with their messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from timebeam.schema.bits.json_text import (
    DECODER,
    JsonPairs,
    NumberText,
    array_spans,
    check_string,
    elements,
    has_strings,
    members_of,
    record_spans,
)
from timebeam.schema.bits.lru_cache import CACHED_BYTES, LruCache
from timebeam.schema.bits.memory_limit import POINT_BYTES, charge, charge_json
from timebeam.schema.bits.reasons import Reason, RejectedError, short
from timebeam.schema.bits.text_columns import integer
from timebeam.schema.core.batches import PointBuilder
from timebeam.schema.core.points import Series
from timebeam.schema.formats.base import Framing, Message, MessageFormat, Parsed, RejectedPoints, Rejections
from timebeam.schema.formats.kairosdb.text_format import check_ttl, checked_long, double_of, long_of
from timebeam.schema.formats.options import DEFAULTS, FormatOptions, Ttl

Long = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Pair = tuple[Long, Long | float]

_MARKS = bytes(48 if 48 <= byte < 58 else 101 if byte == 69 else byte for byte in range(256))
_EXPONENT = b"0e"  # in a text translated by `_MARKS`
_MINUS_ZERO = re.compile(rb"-0[^.0-9]")


class _Plain(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A metric object whose values are numbers, all of its type if it has one."""

    name: str
    tags: msgspec.Raw
    datapoints: list[Pair] | msgspec.UnsetType = msgspec.UNSET
    timestamp: Long | msgspec.UnsetType = msgspec.UNSET
    value: Long | float | msgspec.UnsetType = msgspec.UNSET
    type: Literal["long", "double"] | msgspec.UnsetType = msgspec.UNSET


_PLAIN = msgspec.json.Decoder(_Plain)


class KairosDbJson(MessageFormat):
    """`{"name": "sys.cpu", "tags": {"host": "web01"}, "datapoints": [[1356998400000, 42.5]]}`.

    >>> body = b'{"name":"m","tags":{"host":"a"},"datapoints":[[1300000000000,42],[1300000001000,42.5]]}'
    >>> batch = KairosDbJson().parse(Message(body, arrival_ms=0)).batch
    >>> [(str(series), time_ms, value) for series, time_ms, value in batch.points()]
    [('m{host=a}', 1300000000000, 42), ('m{host=a}', 1300000001000, 42.5)]
    """

    name = "kairosdb-json"
    example = b'{"name":"sys.cpu","tags":{"host":"web01"},"datapoints":[[1356998400000,42.5]]}'
    framing = Framing.JSON

    def __init__(self, options: FormatOptions = DEFAULTS) -> None:
        super().__init__(options)
        self._series: LruCache[tuple[str, bytes], Series] = LruCache(options.remembered)

    def _parse(self, message: Message) -> Parsed:
        """See `MessageFormat.parse`. Blank lines are skipped."""
        charge_json(message.text)
        points = PointBuilder(message.text, message.arrival_ms, message.source, message.offset)
        rejections = Rejections(message)
        for start, end in record_spans(message.text):
            for number, (first, last) in enumerate(_elements(message.text, start, end)):
                if not self._plain(message.text[first:last], first, last, points):
                    self._slow(message.text, number, first, last, points, rejections)
        return Parsed(points.batch(), rejections.rejected())

    def _plain(self, raw: bytes, start: int, end: int, gathered: PointBuilder) -> bool:
        """Gathers a metric object if it is plain; `read_metric` would read the same points."""
        if _EXPONENT in raw.translate(_MARKS):
            return False  # 1e3 is a long, but the decoder reads it as 1000.0
        try:
            metric = _PLAIN.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        points = [] if metric.datapoints is msgspec.UNSET else metric.datapoints
        fields = 2 + (metric.datapoints is not msgspec.UNSET)
        if metric.timestamp is not msgspec.UNSET and metric.value is not msgspec.UNSET:
            points = [(metric.timestamp, metric.value), *points]
            fields += 2
        if metric.type is not msgspec.UNSET:
            fields += 1
            if metric.type == "double":
                if _MINUS_ZERO.search(raw):
                    return False  # a double can be -0, an integer cannot
                points = [(time, float(value)) for time, value in points]
            elif any(type(value) is float for _, value in points):
                return False
        tags = bytes(metric.tags)
        strings = fields + 1 + (metric.type is not msgspec.UNSET)
        if not has_strings(raw, strings + tags.count(b'"') // 2):
            return False  # a duplicate key, or half a point
        series = self._series.get((metric.name, tags))
        if series is None:
            try:
                value = DECODER.decode('{"name":"x","datapoints":[],"tags":' + tags.decode() + "}")
                series_points = read_metric(value, 0, self._options.kairosdb_ttl).series
            except (ValueError, RecursionError):
                return False
            if not metric.name:
                return False
            series = series_points._replace(metric=metric.name)
            if len(metric.name) + len(tags) <= CACHED_BYTES:
                self._series[metric.name, tags] = series
        if points:
            times, values = zip(*points, strict=True)
            gathered.add_many(gathered.number_of(series), times, values, start, end)
        return True

    def _slow(
        self, text: bytes, number: int, start: int, end: int, gathered: PointBuilder, rejections: Rejections
    ) -> None:
        """Gathers the metric objects in a span one by one, with their rejections.

        Args:
          number: of the first object in its array, for error messages.
        """
        for i, element in enumerate(elements(text, start, end, trailing_comma=True), number):
            try:
                if isinstance(element.value, RejectedError):
                    raise element.value
                metric = read_metric(element.value, i, self._options.kairosdb_ttl)
            except RejectedError as error:
                rejections.add(element.start, element.end, error)
                continue
            charge(2 * len(metric.points) * POINT_BYTES)  # each is an object
            if metric.points:
                times, values = zip(*metric.points, strict=True)
                series = gathered.number_of(metric.series)
                gathered.add_many(series, times, values, element.start, element.end)
            for rejected in metric.rejected:
                rejections.add(element.start, element.end, rejected)


def _elements(text: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The spans of the elements of an array; the whole span if it is not a well-formed array."""
    spans = array_spans(text, start, end)
    if spans is not None:
        return zip(map(int, spans[0]), map(int, spans[1]), strict=True)  # no list: they may be millions
    line = text[start:end].rstrip()
    return iter([(start, start + len(line) - (len(line) > 1 and line.endswith(b",")))])


Value = int | float | str

_FIELDS = {"name", "tags", "timestamp", "time", "value", "datapoints", "type", "ttl", "skip_validate"}
_JAVA_LONG = re.compile(r"[+-]?\d+")  # digits of any script, as in Character.isDigit


class Metric(NamedTuple):
    """The content of a metric object: good points as (time in ms, value), and a rejection for each reason."""

    series: Series
    points: list[tuple[int, Value]]
    rejected: list[RejectedError]


def read_metric(value: object, number: int, ttl: Ttl) -> Metric:
    """The points of a metric object.

    Args:
      value: as `json_text.DECODER` reads it.
      number: of the element in the array, for error messages.

    Raises:
      RejectedError: no point of it can be stored.
    """
    subject = f"metric[{number}]"
    fields = members_of(value, subject, _FIELDS, where=f"{subject}: ")
    name = _text(fields.get("name"), f"metric[{number}].name", Reason.BAD_METRIC)
    tags = _tags(fields.get("tags"), f"metric[{number}]")
    time = fields.get("timestamp") if fields.get("time") is None else fields["time"]
    context = f"metric[{number}](name={short(name)})" if name else f"metric[{number}]"
    seconds = fields.get("ttl")
    if seconds is not None:
        check_ttl(long_of(_text(seconds, f"{context}.ttl", Reason.BAD_SYNTAX) or "", Reason.BAD_SYNTAX), ttl)
    skip = fields.get("skip_validate")
    if not (skip is True or (isinstance(skip, str) and skip.lower() == "true")):
        _validate(name, tags, time, fields, number)
    if not name or None in tags.values():
        raise RejectedError(
            Reason.BAD_METRIC if not name else Reason.BAD_TAG, f"{context}: a name is missing"
        )
    series = Series.of(name, {key: text for key, text in tags.items() if text is not None})
    data_type = _text(fields.get("type"), f"{context}.type", Reason.BAD_SYNTAX)
    reader = _PointReader(context, data_type)
    if time is not None and "value" in fields:
        reader.add("", [time, fields["value"]])
    points = fields.get("datapoints")
    if points is not None and type(points) is not list:
        raise RejectedError(Reason.BAD_SYNTAX, f"{context}.datapoints must be an array of arrays")
    for i, pair in enumerate(points or ()):
        reader.add(f".datapoints[{i}]", pair)
    return Metric(series, reader.points, reader.rejected.of_record("the metric's points"))


def _validate(
    name: str | None, tags: dict[str, str | None], time: Any, fields: dict[str, Any], number: int
) -> None:
    """Rejects a metric that DataPointsParser rejects, with all of its messages."""
    errors: list[tuple[Reason, str]] = []
    context = f"metric[{number}]"
    if name:
        context += f"(name={short(name)})"
    else:
        errors.append((Reason.BAD_METRIC, f"{context}.name {_missing(name)}"))
    value = fields.get("value")
    if time is not None:
        if value is None or value == "":
            errors.append(
                (Reason.EMPTY_VALUE, f"{context}.value {_missing('' if 'value' in fields else None)}")
            )
    elif value is not None:
        errors.append((Reason.BAD_TIMESTAMP, f"{context}.timestamp may not be null."))
    if not tags:
        errors.append((Reason.NO_TAGS, f"{context}.tags count must be greater than or equal to 1."))
    for i, (key, text) in enumerate(tags.items()):
        if not key:
            errors.append((Reason.BAD_TAG, f"{context}.tag[{i}].name may not be empty."))
        if not text:
            errors.append((Reason.BAD_TAG, f"{context}.tag[{short(key) or i}].value {_missing(text)}"))
    if errors:
        raise RejectedError(errors[0][0], " ".join(text for _, text in errors))


def _missing(text: str | None) -> str:
    return "may not be null." if text is None else "may not be empty."


def _tags(value: Any, context: str) -> dict[str, str | None]:
    """The tags of a metric; numbers and booleans become strings."""
    if value is None:
        return {}
    if not isinstance(value, JsonPairs):
        raise RejectedError(Reason.BAD_TAG, f"{context}.tags must be a JSON object of strings")
    tags: dict[str, str | None] = {}
    for key, text in value:
        if key in tags:
            raise RejectedError(Reason.DUPLICATE_TAG, f"duplicate key: {short(key)}")
        check_string(key)
        tags[key] = _text(text, f"{context}.tag[{short(key)}].value", Reason.BAD_TAG)
    return tags


def _text(value: Any, context: str, reason: Reason) -> str | None:
    """A string; numbers and booleans become strings, as with Gson."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        raise RejectedError(reason, f"{context}: expected a string")
    check_string(value)
    return str(value)


class _PointReader:
    """Reads the points of one metric."""

    def __init__(self, context: str, data_type: str | None) -> None:
        self._context, self._type = context, data_type
        self.rejected = RejectedPoints()
        self.points: list[tuple[int, Value]] = []

    def add(self, place: str, pair: Any) -> None:
        """Reads a pair into `points`, or keeps its rejection.

        Args:
          place: of the pair in the metric.
        """
        try:
            self.points.append(self._point(self._context + place, pair))
        except RejectedError as error:
            self.rejected.add(error)

    def _point(self, place: str, pair: Any) -> tuple[int, Value]:
        if type(pair) is not list:
            raise RejectedError(Reason.BAD_SYNTAX, f"{place} must be an array of a time and a value")
        if not pair:
            raise RejectedError(Reason.BAD_TIMESTAMP, f"{place}.timestamp cannot be null or empty.")
        if len(pair) == 1:
            raise RejectedError(Reason.EMPTY_VALUE, f"{place}.value cannot be null or empty.")
        time, value = pair[0], pair[1]
        if time is None:
            raise RejectedError(Reason.BAD_TIMESTAMP, f"{place}.timestamp may not be null.")
        if not isinstance(time, str):
            raise RejectedError(Reason.BAD_TIMESTAMP, f"{place}.timestamp must be an integer")
        time_ms = long_of(time, Reason.BAD_TIMESTAMP, Reason.TIMESTAMP_OUT_OF_RANGE)
        if value is None or value == "":
            raise RejectedError(Reason.EMPTY_VALUE, f"{place}.value may not be empty.")
        if value == []:
            raise RejectedError(Reason.EMPTY_VALUE, f"{place}.value may not be an empty array.")
        data_type = self._type
        if len(pair) > 2:
            data_type = _text(pair[2], f"{place}.type", Reason.BAD_SYNTAX)
            if data_type is None:
                raise RejectedError(Reason.BAD_SYNTAX, f"{place}.type may not be null.")
        if not isinstance(value, str | bool):
            raise RejectedError(Reason.BAD_NUMBER, f"{self._context} value is an invalid type")
        return time_ms, _value(value, _type_of(value) if data_type is None else data_type)


def _type_of(value: str | bool) -> str:
    """The type of a value without a declared type."""
    if isinstance(value, str) and (isinstance(value, NumberText) or _looks_like_number(value)):
        return "double" if "." in value else "long"
    return "string"


def _looks_like_number(text: str) -> bool:
    """Util.isNumber: a sign or a point, then digits with at most one point, the last one a digit."""
    unsigned = text[1:] if text[0] in "+-." else text
    return (
        bool(unsigned)
        and unsigned[-1] != "."
        and unsigned.count(".") <= 1
        and unsigned.replace(".", "").isdecimal()
    )


def _value(value: str | bool, data_type: str) -> Value:
    if data_type == "string":
        return _text(value, "value", Reason.BAD_NUMBER) or ""
    if data_type not in ("long", "double"):
        raise RejectedError(Reason.VALUE_NOT_STORABLE, f"Unregistered data point type '{short(data_type)}'")
    if isinstance(value, bool):
        raise RejectedError(Reason.BAD_NUMBER, f"{str(value).lower()} is not a {data_type}")
    if data_type == "double":
        return double_of(value)
    if isinstance(value, NumberText):
        return long_of(value, Reason.BAD_NUMBER)
    if not _JAVA_LONG.fullmatch(value):
        raise RejectedError(Reason.BAD_NUMBER, f'For input string: "{short(value)}"')
    return checked_long(integer(value), value)
