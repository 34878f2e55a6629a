"""Message format `opentsdb-histogram`: bodies of a TSD's /api/histogram, and telnet `histogram` lines.

    histogram <metric> <timestamp> <low,high=count:...:u=count:o=count> <tagk=tagv> [...]
    histogram <metric> <timestamp> <codec id> <base64> <tagk=tagv> [...]
    {"metric":…,"timestamp":…,"tags":{…},"buckets":{"low,high":count,…},"underflow":…,"overflow":…}
    {"metric":…,"timestamp":…,"tags":{…},"id":…,"value":"<base64>"}

One object, an array of objects, or one of either per line; also a document over several lines. Source:
tsd/HistogramDataPointRpc, core/HistogramPojo and core/SimpleHistogram of OpenTSDB 2.4 (docs/spec/opentsdb.md
§9.4). Stricter than a TSD where a TSD changes input silently: decimal times and counts, duplicate keys and
buckets, bounds that are no 32-bit floats, and characters that are not base64 are rejected.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator

import numpy as np

from timebeam.schema.bits.json_text import JsonPairs, members_of
from timebeam.schema.bits.reasons import Reason, RejectedError, short
from timebeam.schema.bits.text_columns import finite
from timebeam.schema.core.histograms import Bounds, Histogram, NotASimpleHistogramError, decode, encode
from timebeam.schema.core.points import HistogramBytes, Series
from timebeam.schema.formats.base import Framing, ParsedPoint
from timebeam.schema.formats.linewise import LineRecord, LinewiseFormat
from timebeam.schema.formats.opentsdb.put_points import (
    metric_and_time,
    parse_time,
    tags_of,
    tags_of_words,
    values,
)
from timebeam.schema.formats.options import DEFAULTS, FormatOptions

_LONG = re.compile(r"[+-]?[0-9]{1,19}")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_KEYS = frozenset(("metric", "timestamp", "tags", "id", "value", "buckets", "underflow", "overflow"))


class OpenTsdbHistogram(LinewiseFormat):
    """`histogram sys.latency 1356998400 0,1.75=12:1.75,3.5=16:u=2:o=1 host=web01`.

    >>> from timebeam.schema.formats.base import Message
    >>> line = b"histogram sys.latency 1356998407 0,1.75=12:1.75,3.5=16:u=2:o=1 host=a"
    >>> batch = OpenTsdbHistogram().parse(Message(line, arrival_ms=0)).batch
    >>> str(batch.series[0]), batch.value(0).hex()  # 2a: the codec 42; two buckets
    ('sys.latency{host=a}', '2a0002000000003fe000000c3fe0000040600000100201')
    """

    name = "opentsdb-histogram"
    example = b"histogram sys.latency 1356998400 0,1.75=12:1.75,3.5=16:u=2:o=1 host=web01"
    framing = Framing.JSON

    def __init__(self, options: FormatOptions = DEFAULTS) -> None:
        super().__init__(options)
        self._id = options.checked_histogram_id()

    def records(self, text: bytes, start: int, end: int) -> Iterator[LineRecord]:
        """The histogram of a telnet line or object, or those of an array."""
        if text[start:end].lstrip()[:1] in (b"{", b"[", b"]"):
            for first, last, outcome in values(text, start, end, self._of_object):
                yield LineRecord(first, last, outcome)
        else:
            yield LineRecord.of(text, start, end, self._of_line)

    def _of_line(self, line: str) -> ParsedPoint:
        """The histogram of a telnet line, checked in the order of HistogramDataPointRpc."""
        command, *words = line.rstrip("\r").split(" ")
        if command != "histogram":
            why = f"{short(command)!r} is neither a line that begins with histogram, nor JSON"
            raise RejectedError(Reason.BAD_SYNTAX, why)
        if len(words) < 4:
            why = f"not enough arguments (need least 5, got {len(words)}): metric timestamp value tagk=tagv"
            raise RejectedError(Reason.BAD_SYNTAX if len(words) < 3 else Reason.NO_TAGS, why)
        metric, time, value, *pairs = words
        if not metric:
            raise RejectedError(Reason.BAD_METRIC, "empty metric name")
        time_ms, in_ms = parse_time(time, dotted=True)
        if _LONG.fullmatch(value):
            histogram = self._of_codec(int(value), pairs[0])
            pairs = pairs[1:]
        else:
            histogram = encode(_of_buckets(value), self._id)
        return ParsedPoint(Series.of(metric, tags_of_words(pairs)), time_ms, in_ms, histogram)

    def _of_object(self, value: object) -> ParsedPoint:
        """The histogram of a JSON object, checked in the order of HistogramPojo.validate."""
        members = members_of(value, "a histogram", _KEYS, skip_null=True)
        metric, time_ms, in_ms = metric_and_time(members)
        tags = tags_of(members.get("tags"))
        packed, buckets = members.get("value"), members.get("buckets")
        if packed:
            histogram = self._of_codec(_long(members.get("id", "0")), packed)
        elif isinstance(buckets, JsonPairs) and buckets:
            counts = [(bounds, "0" if count is None else count) for bounds, count in buckets]
            under, over = (_long(members.get(key, "0")) for key in ("underflow", "overflow"))
            histogram = encode(Histogram(_buckets(counts), under, over), self._id)
        else:
            why = "Histogram buckets cannot be null or empty if 'value' is empty."
            raise RejectedError(Reason.EMPTY_VALUE, why)
        return ParsedPoint(Series.of(metric, tags), time_ms, in_ms, histogram)

    def _of_codec(self, codec: int, text: object) -> HistogramBytes:
        """A histogram in base64: that of SimpleHistogram decoded, any other as it is."""
        if not 0 <= codec <= 255:
            raise RejectedError(Reason.VALUE_NOT_STORABLE, "Invalid type. Must be from 0 to 255.")
        try:
            content = base64.b64decode(text if isinstance(text, str) else "!", validate=True)
        except (binascii.Error, ValueError) as error:
            raise RejectedError(Reason.VALUE_NOT_STORABLE, f"the histogram is not base64: {error}") from error
        packed = HistogramBytes(bytes([codec]) + content)
        if codec != self._id:
            return packed
        try:
            return encode(decode(packed), codec)
        except NotASimpleHistogramError as error:
            why = f"id {codec} is that of SimpleHistogram (--histogram-id), which this is not: {error}"
            raise RejectedError(Reason.VALUE_NOT_STORABLE, why) from error


def _of_buckets(text: str) -> Histogram:
    """The histogram in `low,high=count:...:u=count:o=count`."""
    flows = {"u": 0, "o": 0}
    buckets: list[tuple[str, object]] = []
    for bucket in text.split(":"):
        bounds, equals, count = bucket.partition("=")
        if not equals or "=" in count:
            raise RejectedError(Reason.VALUE_NOT_STORABLE, f"Improperly formatted bucket: {short(bucket)}")
        if bounds.lower() in flows:
            flows[bounds.lower()] = _long(count)
        else:
            buckets.append((bounds, count))
    return Histogram(_buckets(buckets), flows["u"], flows["o"])


def _buckets(counts: list[tuple[str, object]]) -> dict[Bounds, int]:
    """The counts of buckets by their bounds."""
    buckets: dict[Bounds, int] = {}
    for text, count in counts:
        low, comma, high = text.partition(",")
        if not comma or "," in high:
            raise RejectedError(Reason.VALUE_NOT_STORABLE, f"Unable to parse bucket bounds: {short(text)}")
        bounds = _bound(low), _bound(high)
        if bounds in buckets:
            raise RejectedError(Reason.VALUE_NOT_STORABLE, f"duplicate bucket: {short(text)}")
        buckets[bounds] = _long(count)
    return buckets


def _bound(text: str) -> float:
    """A bound as a 32-bit float; blanks around it are ignored, as by Java."""
    text = text.strip()
    if not _DECIMAL.fullmatch(text):
        raise RejectedError(
            Reason.VALUE_NOT_STORABLE, f"the bound {short(text)!r} of a bucket is not a number"
        )
    with np.errstate(over="ignore"):
        bound = float(np.float32(finite(text)))
    if not np.isfinite(bound):
        raise RejectedError(Reason.NUMBER_OUT_OF_RANGE, f"the bound {short(text)} is beyond a 32-bit float")
    return bound + 0.0  # -0.0 is 0.0


def _long(text: object) -> int:
    """A count or an id: an integer of 64 bits."""
    if not isinstance(text, str) or not _LONG.fullmatch(text) or not -(1 << 63) <= int(text) < 1 << 63:
        raise RejectedError(Reason.VALUE_NOT_STORABLE, f"{short(str(text))!r} is not a 64-bit integer")
    return int(text)
