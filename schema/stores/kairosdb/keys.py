"""Row keys of `data_points` and `row_keys`.

Format: docs/spec/kairosdb.md §2. Source: datastore/cassandra/DataPointsRowKeySerializer of KairosDB 1.3.0.

A key is `metric 00 row_time:int64 [00 length:1 type] tags`; each tag is `name=value:`, with `:` before `:`
and `=` in a name, and `=` before `:` and `=` in a value.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from timebeam.schema.bits.arrays import Kind
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core import rows
from timebeam.schema.core.points import Series, SeriesKey
from timebeam.schema.core.rows import KEY_BYTES

TYPES = {Kind.INTEGER: b"kairos_long", Kind.FLOAT: b"kairos_double", Kind.TEXT: b"kairos_string"}
"""The data type of each kind of value that can be stored."""

LAST_MS = rows.LAST_MS
"""The last time of a point, in ms: that of the last cell."""

_TIME_BYTES = 8
_LONGEST_TYPE = max(map(len, TYPES.values()))
_SPECIAL = re.compile(r"[:=]")
_TAG = re.compile(rb"((?:[^:=]|:[:=])*)=((?:[^:=]|=[:=])*):")
_ESCAPED = {b":": re.compile(rb":(.)"), b"=": re.compile(rb"=(.)")}


class KairosDbRowKey(NamedTuple):
    """The fields of a row key.

    Attributes:
      row_ms: the row time in ms.
      data_type: such as `kairos_long`; None in rows without type (`kairos_legacy`).
    """

    row_ms: int
    data_type: bytes | None
    series: Series


_TYPE_PARTS = tuple(b"\0" + len(name).to_bytes(1, "big") + name for _, name in sorted(TYPES.items()))
"""The bytes between row time and tags of each kind, by its number."""


def reject_series(series: Series) -> RejectedError | None:
    """Why a series has no row key that reads back as itself, or None."""
    if series.resources:
        return RejectedError(Reason.SERIES_NOT_STORABLE, "KairosDB has no resources, only tags")
    if not series.metric or "\0" in series.metric:
        why = "may not contain NUL" if series.metric else "may not be empty"
        return RejectedError(Reason.BAD_METRIC, f"metric name: {why}")
    if not series.tags:
        return RejectedError(Reason.NO_TAGS, "tags count must be greater than or equal to 1.")
    for number, (name, value) in enumerate(series.tags):
        if not name:
            return RejectedError(Reason.BAD_TAG, f"tag[{number}].name may not be empty.")
        if not value:
            return RejectedError(Reason.BAD_TAG, f"tag[{name[:80]}].value may not be empty.")
    try:
        key = series_key(series)
    except UnicodeEncodeError as error:
        return RejectedError(Reason.BAD_ENCODING, f"half a surrogate pair: {error.object[:80]!a}")
    size = len(key.head) + _TIME_BYTES + 2 + _LONGEST_TYPE + len(key.tail)
    if size > KEY_BYTES:
        why = f"row key of {size} bytes; Bigtable takes at most {KEY_BYTES}: shorten the names"
        return RejectedError(Reason.OVER_BIGTABLE_LIMIT, why)
    return None


def series_key(series: Series) -> SeriesKey:
    """The bytes before the row time, and the escaped tags, ordered by UTF-16 units as Java's strings.

    >>> series_key(Series.of("m", {"a:b=c": "d:e=f"})).tail
    b'a::b:=c=d=:e==f:'
    """
    tags = sorted(series.tags, key=lambda tag: tag[0].encode("utf-16-be"))
    pairs = [_SPECIAL.sub(r":\g<0>", name) + "=" + _SPECIAL.sub(r"=\g<0>", value) for name, value in tags]
    return SeriesKey(series.metric.encode() + b"\0", "".join(pair + ":" for pair in pairs).encode())


def row_key(key: SeriesKey, row_ms: int, kind: int) -> bytes:
    r"""The key of the row of a series, row time (in ms, signed, 64 bits) and kind of value.

    >>> key = series_key(Series.of("cpu", {"host": "a"}))
    >>> row_key(key, 1299110400000, Kind.INTEGER)
    b'cpu\x00\x00\x00\x01.y\x03\x90\x00\x00\x0bkairos_longhost=a:'
    """
    return key.head + row_ms.to_bytes(_TIME_BYTES, "big", signed=True) + _TYPE_PARTS[kind] + key.tail


def series_key_of(key: bytes) -> SeriesKey:
    """The bytes before the row time and after the type of a row key that `parse_key` takes."""
    metric, nul, after_metric = key.partition(b"\0")
    tags = after_metric[_TIME_BYTES:]
    return SeriesKey(metric + nul, tags[2 + tags[1] :] if tags[:1] == b"\0" else tags)


def before_types(key: bytes) -> bytes:
    """The first bytes of a row key: those that all types of its metric and row time share."""
    metric, nul, after_metric = key.partition(b"\0")
    return metric + nul + after_metric[:_TIME_BYTES]


def parse_key(key: bytes) -> KairosDbRowKey:
    """Splits a row key into its fields.

    >>> key = parse_key(bytes.fromhex("637075000000012e79039000000d6b6169726f735f646f75626c65686f73743d613a"))
    >>> key.row_ms, key.data_type, str(key.series)
    (1299110400000, b'kairos_double', 'cpu{host=a}')

    Raises:
      ValueError: KairosDB would have written no such key, or could not read it back.
    """
    metric, nul, after_metric = key.partition(b"\0")
    if not metric or not nul or len(after_metric) < _TIME_BYTES:
        raise ValueError(f"row key {key[:80].hex()} is not metric, 00, row time, type and tags")
    row_ms = int.from_bytes(after_metric[:_TIME_BYTES], "big", signed=True)
    tags = after_metric[_TIME_BYTES:]
    data_type = None
    if tags[:1] == b"\0":
        size = tags[1] if len(tags) > 1 else 255
        data_type, tags = tags[2 : 2 + size], tags[2 + size :]
        if size > 127 or len(data_type) < size:
            raise ValueError(f"row key {key[:80].hex()} has a type of {size} bytes: KairosDB reads up to 127")
    elif not tags:
        raise ValueError(f"row key {key[:80].hex()} has neither type nor tags")
    try:
        return KairosDbRowKey(row_ms, data_type, Series.of(metric.decode(), _tags(tags)))
    except UnicodeDecodeError:
        raise ValueError(f"row key {key[:80].hex()} holds names that are not UTF-8") from None


def _tags(raw: bytes) -> dict[str, str]:
    """The tags in their escaped form."""
    tags: dict[str, str] = {}
    offset = 0
    while offset < len(raw):
        match = _TAG.match(raw, offset)
        if match is None:
            raise ValueError(f"tags {raw[offset : offset + 80]!r} are not name=value: with their escapes")
        name, value = _unescaped(match[1], b":"), _unescaped(match[2], b"=")
        if name in tags:
            raise ValueError(f"duplicate tag {name!r}")
        tags[name] = value
        offset = match.end()
    return tags


def _unescaped(raw: bytes, escape: bytes) -> str:
    return (_ESCAPED[escape].sub(rb"\1", raw) if escape in raw else raw).decode()


def metric_range(metric: str, first_ms: int, last_ms: int) -> tuple[bytes, bytes]:
    """The key range [start, end) of a metric's rows with row times from first to last, inclusive, >= 0."""
    head = metric.encode() + b"\0"
    return head + first_ms.to_bytes(_TIME_BYTES, "big"), head + (last_ms + 1).to_bytes(_TIME_BYTES, "big")
