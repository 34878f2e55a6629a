"""Reads any JSON document of Heroic's: the slow path of `heroic-json`.

| document | recognized by | source (docs/spec/heroic.md §7) |
|---|---|---|
| body of POST /write | `series` or `data`, no `version` | com.spotify.heroic.metric.WriteMetric |
| Spotify100 v1, v2 | `version` 1.x.y, 2.x.y | consumers of Kafka and Pub/Sub |

Unknown members are ignored, as by Heroic.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from typing import Any, NamedTuple

from timebeam.schema.bits.json_text import JsonPairs, check_string, members_of
from timebeam.schema.bits.number_text import integer
from timebeam.schema.bits.reasons import Reason, RefusedError, shown
from timebeam.schema.core.points import Series
from timebeam.schema.formats.heroic.gathering import Value, check_number, check_time, distribution, series_of
from timebeam.schema.formats.refusals import RefusedPoints

_VERSION = re.compile(r"([12])\.[0-9]+\.[0-9]+")


class DocumentPoints(NamedTuple):
    """The good points of a document, and the refusals of its other points."""

    series: Series
    times_ms: list[int]
    values: list[Value]
    refused: RefusedPoints


_DECODER = json.JSONDecoder(object_pairs_hook=JsonPairs, parse_int=integer, parse_constant=lambda _: math.nan)
"""Reads NaN, and the infinities as NaN: all are refused as values."""


def version_of(text: object) -> int:
    """The major version of a consumer's message: 1 or 2.

    Raises:
      RefusedError: BAD_SYNTAX.
    """
    match = _VERSION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        why = f"version {shown(text)!r}: give three numbers, the first one 1 or 2"
        raise RefusedError(Reason.BAD_SYNTAX, why)
    return int(match[1])


def read_document(raw: bytes) -> DocumentPoints:
    """The points of one document.

    Raises:
      RefusedError: no point of it can be stored.
    """
    try:
        document = _DECODER.decode(raw.decode())
    except UnicodeDecodeError as error:
        why = f"not UTF-8 at byte {error.start} of the record"
        raise RefusedError(Reason.BAD_ENCODING, why) from error
    except (ValueError, RecursionError) as error:
        raise RefusedError(Reason.BAD_SYNTAX, f"not JSON: {str(error)[:80]}") from error
    members = members_of(document, "a document")
    if members.get("version") is not None:
        return _consumed(members)
    if "series" in members or "data" in members:
        return _written(members)
    raise RefusedError(
        Reason.BAD_SYNTAX,
        "neither a write (series, data) nor a consumer's message (version, key, time, value)",
    )


def _consumed(members: dict[str, Any]) -> DocumentPoints:
    """The point of a consumer's message."""
    major = version_of(members["version"])
    host = members.get("host")
    tags = _texts(members.get("attributes"), "attributes", skip_null=True)
    if host is not None:
        tags = [pair for pair in tags if pair[0] != "host"] + _pairs((("host", host),), "attributes")
    resources = _texts(members.get("resource"), "resource", skip_null=True)
    series = _series(members.get("key"), tags, resources)
    time_ms = check_time(members.get("time"))
    value = members.get("value")
    number = _number(value) if major == 1 else _typed_value(value)
    return DocumentPoints(series, [time_ms], [number], RefusedPoints())


def _typed_value(value: object) -> Value:
    """The value of version 2: an object with one member; a distribution comes before a double."""
    if value is None:
        raise RefusedError(Reason.EMPTY_VALUE, "Empty value: give a doubleValue or a distributionValue")
    members = members_of(value, "the value of version 2") if isinstance(value, JsonPairs) else {}
    if members.get("distributionValue") is not None:
        return distribution(members["distributionValue"])
    if "doubleValue" in members:
        return _number(members["doubleValue"])
    raise RefusedError(Reason.BAD_NUMBER, "a value must have a doubleValue or a distributionValue")


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
        raise RefusedError(Reason.VALUE_NOT_STORABLE, why)
    if not points:
        raise RefusedError(Reason.EMPTY_VALUE, "write batch must not be empty: it has no points")
    if not isinstance(points, list):
        raise RefusedError(Reason.BAD_SYNTAX, "the points must be an array")
    document = DocumentPoints(series, [], [], RefusedPoints())
    read = _number_point if kind == "points" else _distribution_point
    for point in points:
        try:
            time_ms, value = read(point)
        except RefusedError as error:
            document.refused.add(error)
        else:
            document.times_ms.append(time_ms)
            document.values.append(value)
    return document


def _number(value: object) -> int | float:
    return check_number(value, infinite=Reason.NUMBER_OUT_OF_RANGE)


def _number_point(point: object) -> tuple[int, Value]:
    """(time in ms, value) of an array of two numbers."""
    if not isinstance(point, list) or len(point) != 2:
        raise RefusedError(Reason.BAD_SYNTAX, f"a point must be [ms, number], not {shown(point)}")
    return check_time(point[0], first=0), _number(point[1])


def _distribution_point(point: object) -> tuple[int, Value]:
    """(time in ms, bytes) of an object with a timestamp and a value in base64."""
    members = members_of(point, "a point of a distribution")
    return check_time(members.get("timestamp"), first=0), distribution(members.get("value"))


def _texts(value: object, subject: str, *, skip_null: bool) -> list[tuple[str, str]]:
    """Tags or resources.

    Args:
      skip_null: drop those with a null value, as consumers do; else they are refused.
    """
    if value is None:
        return []
    if not isinstance(value, JsonPairs):
        raise RefusedError(Reason.BAD_TAG, f"{subject} must be a JSON object of strings")
    return list(_pairs((pair for pair in value if not skip_null or pair[1] is not None), subject))


def _pairs(pairs: Any, subject: str) -> list[tuple[str, str]]:
    """Pairs of strings; refuses other values."""
    string_pairs = []
    for key, text in pairs:
        if not isinstance(text, str):
            raise RefusedError(Reason.BAD_TAG, f"{subject}: {key[:40]} must be a string, not {shown(text)}")
        string_pairs.append((key, text))
    return string_pairs


def _series(metric: object, tags: list[tuple[str, str]], resources: list[tuple[str, str]]) -> Series:
    """The series of a document; refuses half a surrogate pair, which JSON's escapes can express."""
    if not isinstance(metric, str):
        raise RefusedError(Reason.BAD_METRIC, f"the key must be a string, not {shown(metric)}")
    series = series_of(metric, tags, resources)
    for text in (metric, *itertools.chain.from_iterable(series.tags + series.resources)):
        check_string(text)
    return series
