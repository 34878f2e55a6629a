"""Message format `kairosdb-json`: bodies of KairosDB's POST /api/v1/datapoints.

A metric object or an array of them per line, an array with one object per line, or one document over several
lines. Module `metric` reads any metric object. Plain objects, with numbers of at most one declared type under
`datapoints`, or `timestamp` and `value`, are read by typed decoders and become columns together.
Format: docs/spec/kairosdb.md §8.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec

from timebeam.schema.bits.json_text import DECODER, elements, has_strings, record_spans
from timebeam.schema.bits.lru_cache import CACHED_BYTES, LruCache
from timebeam.schema.bits.memory_limit import POINT_BYTES, charge, charge_json
from timebeam.schema.bits.reasons import RejectedError
from timebeam.schema.core.batches import PointBuilder
from timebeam.schema.core.points import Series
from timebeam.schema.formats.base import Framing, Message, MessageFormat, Parsed
from timebeam.schema.formats.kairosdb.json_metric import read_metric, ttl_option
from timebeam.schema.formats.options import Ttl
from timebeam.schema.formats.record_rejections import Rejections

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
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])


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

    def __init__(self, ttl: Ttl = Ttl.REFUSE, remembered: int = 200_000) -> None:
        """`ttl`: what to do with points with a lifetime; `remembered`: the number of cached series."""
        self._ttl = ttl
        self._series: LruCache[tuple[str, bytes], Series] = LruCache(remembered)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> KairosDbJson:
        """See `MessageFormat.from_options`: `kairosdb_ttl`."""
        return cls(ttl_option(options))

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
                series_points = read_metric(value, 0, self._ttl).series
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
                metric = read_metric(element.value, i, self._ttl)
            except RejectedError as error:
                rejections.add(element.start, element.end, error)
                continue
            charge(2 * len(metric.points) * POINT_BYTES)  # each is an object
            if metric.points:
                times, values = zip(*metric.points, strict=True)
                series = gathered.number_of(metric.series)
                gathered.add_many(series, times, values, element.start, element.end)
            for rejected in metric.refused:
                rejections.add(element.start, element.end, rejected)


def _elements(text: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The spans of the elements of an array; the whole span if it is not a well-formed array."""
    try:
        documents = _ARRAY.decode(text[start:end])
    except (msgspec.DecodeError, RecursionError):
        documents = None
    if documents is None:
        line = text[start:end].rstrip()
        yield start, start + len(line) - (len(line) > 1 and line.endswith(b","))
        return
    position = start
    for document in documents:
        raw = bytes(document)
        position = text.find(raw, position, end)
        yield position, position + len(raw)
        position += len(raw)
