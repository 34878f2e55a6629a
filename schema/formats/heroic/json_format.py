"""Message format `heroic-json`: bodies of Heroic's POST /write, and consumers' messages (Spotify100).

| document | recognized by | source (docs/spec/heroic.md §7) |
|---|---|---|
| body of POST /write | `series` or `data`, no `version` | com.spotify.heroic.metric.WriteMetric |
| Spotify100 v1, v2 | `version` 1.x.y, 2.x.y | consumers of Kafka and Pub/Sub |

One document, or one per line. Plain documents are read by msgspec; all others by `read_document`, the
reference that tests compare this fast path with. Times are in ms. Rejected points of a document become one
rejection for each reason. Unknown members are ignored, as by Heroic.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import re
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from timebeam.schema.bits.json_text import JsonPairs, check_string, has_strings, members_of, record_spans
from timebeam.schema.bits.reasons import Reason, RejectedError, decoded, shown
from timebeam.schema.bits.text_columns import integer
from timebeam.schema.core.points import LAST_MILLISECOND, Series
from timebeam.schema.formats.base import Framing, RejectedPoints
from timebeam.schema.formats.heroic.heroic_points import (
    HeroicFormat,
    HeroicGatherer,
    HeroicValue,
    check_number,
    check_time,
    distribution,
    series_of,
)
from timebeam.schema.formats.options import DEFAULTS, FormatOptions

_Texts = dict[str, str] | None
_Number = int | float


class _Double(msgspec.Struct):
    doubleValue: _Number  # noqa: N815


class _Identity(msgspec.Struct):
    key: str
    tags: _Texts = None
    resource: _Texts = None


class _WriteBody(msgspec.Struct):
    type: str
    data: list[tuple[int, _Number]]


class _Document(msgspec.Struct):
    """A document of any kind; its members tell which."""

    version: str | None = None
    key: str | None = None
    time: int = 0
    value: _Number | _Double | None = None
    attributes: _Texts = None
    resource: _Texts = None
    host: str | None = None
    series: _Identity | None = None
    data: _WriteBody | None = None


_Pairs = tuple[tuple[str, str], ...]
_Names = tuple[str, _Pairs, _Pairs]


class _PlainDocument(NamedTuple):
    """The points of one plain document.

    Attributes:
      names: the key, tags and resources of their series, in the order of the document.
      members: number of names in the document, without those of tags and resources.
    """

    names: _Names
    members: int
    times_ms: list[int]
    values: list[HeroicValue]


class _NotPlainError(Exception):
    """The document must take the slow path."""


class HeroicJson(HeroicFormat):
    """`{"version": "1.0.0", "key": "system", "time": 1300000000000, "value": 42.0, "attributes": {…}}`.

    >>> from timebeam.schema.formats.base import Message
    >>> body = (
    ...     b'{"version":"1.0.0","key":"system","time":1300000000000,"value":42.0,'
    ...     b'"attributes":{"what":"cpu"},"resource":{"host":"db1"}}'
    ... )
    >>> batch = HeroicJson().parse(Message(body, arrival_ms=0)).batch
    >>> batch.series[0].tags, batch.series[0].resources, batch.times_ms.tolist(), batch.value(0)
    ((('what', 'cpu'),), (('host', 'db1'),), [1300000000000], 42.0)
    """

    name = "heroic-json"
    example = (
        b'{"version":"1.0.0","key":"system","time":1300000000000,"value":42.0,'
        b'"attributes":{"what":"cpu-idle-percentage"},"resource":{"host":"database.example.com"}}'
    )
    framing = Framing.JSON

    def __init__(self, options: FormatOptions = DEFAULTS) -> None:
        super().__init__(options)
        self._decode = msgspec.json.Decoder(_Document).decode

    def read(self, text: bytes, start: int, end: int, points: HeroicGatherer) -> None:
        """See `HeroicFormat.read`. Blank lines are skipped.

        Duplicate and unknown names are detected by counting strings: besides names, two of a document and
        those of its tags and resources. So documents with escapes are not plain.
        """
        numbers: dict[_Names, int] = {}
        for first, last in record_spans(text[start:end], start):
            raw = text[first:last]
            try:
                names, members, times_ms, values = _read(self._decode(raw))
                strings = members + 2 + 2 * len(names[1]) + 2 * len(names[2])
                if b"\\" in raw or not has_strings(raw, strings):
                    raise _NotPlainError
            except (_NotPlainError, RejectedError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                _read_any(raw, first, last, points)
                continue
            number = numbers.get(names)
            if number is None:
                series = Series.of(names[0], dict(names[1]), dict(names[2]))
                number = numbers[names] = points.number_of(series)
            points.add_many(number, times_ms, values, first, last)


def _read(document: _Document) -> _PlainDocument:
    """The points of a plain document; raises _NotPlainError or RejectedError if the slow path decides."""
    if document.version is None:
        return _read_write(document)
    key, value, host, tags = document.key, document.value, document.host, document.attributes
    is_double = isinstance(value, _Double)
    number = value.doubleValue if isinstance(value, _Double) else value
    if key is None or number is None or _major(document.version) != 1 + is_double:
        raise _NotPlainError
    if not _fits(number) or not 0 < document.time <= LAST_MILLISECOND:
        raise _NotPlainError
    members = 4 + is_double + (tags is not None) + (document.resource is not None)
    if host is not None:
        tags = {**(tags or {}), "host": host}
    return _PlainDocument(_names(key, tags, document.resource), members, [document.time], [number])


def _read_write(document: _Document) -> _PlainDocument:
    """Like `_read`, for the body of a write."""
    series, data = document.series, document.data
    if series is None or data is None or data.type != "points" or not data.data:
        raise _NotPlainError
    members = 5 + (series.tags is not None) + (series.resource is not None)
    times_ms = list(map(itemgetter(0), data.data))
    values: list[HeroicValue] = list(map(itemgetter(1), data.data))
    if min(times_ms) < 0 or max(times_ms) > LAST_MILLISECOND:
        raise _NotPlainError
    if int in set(map(type, values)) and not all(map(_fits, values)):
        raise _NotPlainError
    return _PlainDocument(_names(series.key, series.tags, series.resource), members, times_ms, values)


def _read_any(raw: bytes, start: int, end: int, points: HeroicGatherer) -> None:
    """Gathers the good points of any document, and rejects the others."""
    try:
        document = read_document(raw)
    except RejectedError as error:
        points.reject(error, start, end)
        return
    if document.times_ms:
        points.add_many(points.number_of(document.series), document.times_ms, document.values, start, end)
    for why in document.rejected.of_record("the record's points"):
        points.reject(why, start, end)


def _names(key: str, tags: _Texts, resources: _Texts) -> _Names:
    """The identity of a series."""
    return key, tuple((tags or {}).items()), tuple((resources or {}).items())


def _fits(number: HeroicValue) -> bool:
    """Whether a number fits 64 bits; msgspec rejects doubles that do not."""
    return type(number) is not int or -(1 << 63) <= number < 1 << 63


_VERSION = re.compile(r"([12])\.[0-9]+\.[0-9]+")


class DocumentPoints(NamedTuple):
    """The good points of a document, and the rejections of its other points."""

    series: Series
    times_ms: list[int]
    values: list[HeroicValue]
    rejected: RejectedPoints


_DECODER = json.JSONDecoder(object_pairs_hook=JsonPairs, parse_int=integer, parse_constant=lambda _: math.nan)
"""Reads NaN, and the infinities as NaN: all are rejected as values."""


def _version_of(text: object) -> int:
    """The major version of a consumer's message: 1 or 2.

    Raises:
      RejectedError: BAD_SYNTAX.
    """
    match = _VERSION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        why = f"version {shown(text)!r}: give three numbers, the first one 1 or 2"
        raise RejectedError(Reason.BAD_SYNTAX, why)
    return int(match[1])


_major = functools.lru_cache(64)(_version_of)


def read_document(raw: bytes) -> DocumentPoints:
    """The points of one document.

    Raises:
      RejectedError: no point of it can be stored.
    """
    text = decoded(raw)
    try:
        document = _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise RejectedError(Reason.BAD_SYNTAX, f"not JSON: {str(error)[:80]}") from error
    members = members_of(document, "a document")
    if members.get("version") is not None:
        return _consumed(members)
    if "series" in members or "data" in members:
        return _written(members)
    raise RejectedError(
        Reason.BAD_SYNTAX,
        "neither a write (series, data) nor a consumer's message (version, key, time, value)",
    )


def _consumed(members: dict[str, Any]) -> DocumentPoints:
    """The point of a consumer's message."""
    major = _version_of(members["version"])
    host = members.get("host")
    tags = _texts(members.get("attributes"), "attributes", skip_null=True)
    if host is not None:
        tags = [pair for pair in tags if pair[0] != "host"] + _pairs((("host", host),), "attributes")
    resources = _texts(members.get("resource"), "resource", skip_null=True)
    series = _series(members.get("key"), tags, resources)
    time_ms = check_time(members.get("time"))
    value = members.get("value")
    number = _number(value) if major == 1 else _typed_value(value)
    return DocumentPoints(series, [time_ms], [number], RejectedPoints())


def _typed_value(value: object) -> HeroicValue:
    """The value of version 2: an object with one member; a distribution comes before a double."""
    if value is None:
        raise RejectedError(Reason.EMPTY_VALUE, "Empty value: give a doubleValue or a distributionValue")
    members = members_of(value, "the value of version 2") if isinstance(value, JsonPairs) else {}
    if members.get("distributionValue") is not None:
        return distribution(members["distributionValue"])
    if "doubleValue" in members:
        return _number(members["doubleValue"])
    raise RejectedError(Reason.BAD_NUMBER, "a value must have a doubleValue or a distributionValue")


def _written(members: dict[str, Any]) -> DocumentPoints:
    """The points of the body of a write; without `series` they have the empty series."""
    series_members = members_of(members.get("series") or JsonPairs(), "series")
    tags = _texts(series_members.get("tags"), "tags", skip_null=False)
    resources = _texts(series_members.get("resource"), "resource", skip_null=False)
    series = _series(series_members.get("key") if series_members else "", tags, resources)
    data = members_of(members.get("data") or JsonPairs(), "data")
    kind, points = data.get("type"), data.get("data")
    if kind not in ("points", "distributionPoints") and data:
        why = f"Unsupported metric type {shown(kind)!r}: send points or distributionPoints"
        raise RejectedError(Reason.VALUE_NOT_STORABLE, why)
    if not points:
        raise RejectedError(Reason.EMPTY_VALUE, "write batch must not be empty: it has no points")
    if not isinstance(points, list):
        raise RejectedError(Reason.BAD_SYNTAX, "the points must be an array")
    document = DocumentPoints(series, [], [], RejectedPoints())
    read = _number_point if kind == "points" else _distribution_point
    for point in points:
        try:
            time_ms, value = read(point)
        except RejectedError as error:
            document.rejected.add(error)
        else:
            document.times_ms.append(time_ms)
            document.values.append(value)
    return document


def _number(value: object) -> int | float:
    return check_number(value, infinite=Reason.NUMBER_OUT_OF_RANGE)


def _number_point(point: object) -> tuple[int, HeroicValue]:
    """(time in ms, value) of an array of two numbers."""
    if not isinstance(point, list) or len(point) != 2:
        raise RejectedError(Reason.BAD_SYNTAX, f"a point must be [ms, number], not {shown(point)}")
    return check_time(point[0], first=0), _number(point[1])


def _distribution_point(point: object) -> tuple[int, HeroicValue]:
    """(time in ms, bytes) of an object with a timestamp and a value in base64."""
    members = members_of(point, "a point of a distribution")
    return check_time(members.get("timestamp"), first=0), distribution(members.get("value"))


def _texts(value: object, subject: str, *, skip_null: bool) -> list[tuple[str, str]]:
    """Tags or resources.

    Args:
      skip_null: drop those with a null value, as consumers do; else they are rejected.
    """
    if value is None:
        return []
    if not isinstance(value, JsonPairs):
        raise RejectedError(Reason.BAD_TAG, f"{subject} must be a JSON object of strings")
    return list(_pairs((pair for pair in value if not skip_null or pair[1] is not None), subject))


def _pairs(pairs: Any, subject: str) -> list[tuple[str, str]]:
    """Pairs of strings; rejects other values."""
    string_pairs = []
    for key, text in pairs:
        if not isinstance(text, str):
            raise RejectedError(Reason.BAD_TAG, f"{subject}: {key[:40]} must be a string, not {shown(text)}")
        string_pairs.append((key, text))
    return string_pairs


def _series(metric: object, tags: list[tuple[str, str]], resources: list[tuple[str, str]]) -> Series:
    """The series of a document; rejects half a surrogate pair, which JSON's escapes can express."""
    if not isinstance(metric, str):
        raise RejectedError(Reason.BAD_METRIC, f"the key must be a string, not {shown(metric)}")
    series = series_of(metric, tags, resources)
    for text in (metric, *itertools.chain.from_iterable(series.tags + series.resources)):
        check_string(text)
    return series
