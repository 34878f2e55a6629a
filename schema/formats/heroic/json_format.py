"""Message format `heroic-json`: bodies of Heroic's POST /write, and consumers' messages (Spotify100).

One document, or one per line. Plain documents are read by msgspec; all others by module `document`, the
reference that tests compare this fast path with. Times are in ms. Refused points of a document become one
refusal for each reason.
"""

from __future__ import annotations

import functools
from operator import itemgetter
from typing import NamedTuple

import msgspec

from timebeam.schema.bits.json_text import has_strings, record_spans
from timebeam.schema.bits.reasons import RefusedError
from timebeam.schema.core.points import LAST_MILLISECOND, Series
from timebeam.schema.formats.base import Framing
from timebeam.schema.formats.heroic.document import read_document, version_of
from timebeam.schema.formats.heroic.gathering import HeroicFormat, HeroicGatherer, Value

_Texts = dict[str, str] | None
_Number = int | float

_major = functools.lru_cache(64)(version_of)


class _Double(msgspec.Struct):
    doubleValue: _Number  # noqa: N815


class _Identity(msgspec.Struct):
    key: str
    tags: _Texts = None
    resource: _Texts = None


class _WritePoints(msgspec.Struct):
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
    data: _WritePoints | None = None


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
    values: list[Value]


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

    def __init__(self) -> None:
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
                if not has_strings(raw, members + 2 + 2 * len(names[1]) + 2 * len(names[2])):
                    raise _NotPlainError
            except (_NotPlainError, RefusedError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                _read_any(raw, first, last, points)
                continue
            number = numbers.get(names)
            if number is None:
                series = Series.of(names[0], dict(names[1]), dict(names[2]))
                number = numbers[names] = points.number_of(series)
            points.add_many(number, times_ms, values, first, last)


def _read(document: _Document) -> _PlainDocument:
    """The points of a plain document; raises _NotPlainError or RefusedError if the slow path decides."""
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
    values: list[Value] = list(map(itemgetter(1), data.data))
    if min(times_ms) < 0 or max(times_ms) > LAST_MILLISECOND:
        raise _NotPlainError
    if int in set(map(type, values)) and not all(map(_fits, values)):
        raise _NotPlainError
    return _PlainDocument(_names(series.key, series.tags, series.resource), members, times_ms, values)


def _read_any(raw: bytes, start: int, end: int, points: HeroicGatherer) -> None:
    """Gathers the good points of any document, and refuses the others."""
    try:
        document = read_document(raw)
    except RefusedError as error:
        points.refuse(error, start, end)
        return
    if document.times_ms:
        points.add_many(points.number_of(document.series), document.times_ms, document.values, start, end)
    for why in document.refused.of_record("the record's points"):
        points.refuse(why, start, end)


def _names(key: str, tags: _Texts, resources: _Texts) -> _Names:
    """The identity of a series."""
    return key, tuple((tags or {}).items()), tuple((resources or {}).items())


def _fits(number: Value) -> bool:
    """Whether a number fits 64 bits; msgspec refuses doubles that do not."""
    return type(number) is not int or -(1 << 63) <= number < 1 << 63
