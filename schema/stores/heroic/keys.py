r"""Row keys: what both forms share, and the form of layout `heroic-readable`.

A row holds 2^32 ms (49.7 days) of one series and begins at its base (docs/spec/heroic.md §2).

The readable form is text, for people who read tables with `cbt` (docs/spec/heroic.md §8):

metric,tagk=tagv,...,base[,resource]*         1297080123392: the base, decimal

Resources are in the order of their names. One is its value alone, and its name is in the series table; or
`name=value`, which makes keys decode without that table. `,` `=` `\` are escaped by a backslash, control
characters are written as `\x1f`. The qualifier is the offset from the base as 10 decimal digits.
"""

from __future__ import annotations

import abc
import dataclasses
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from timebeam.schema.bits.arrays import Int64s
from timebeam.schema.core.points import Series, SeriesKey

PERIOD_MS = 1 << 32
LAST_BASE_MS = (1 << 63) - PERIOD_MS
KEY_LIMIT = 4000
"""Heroic drops points whose row key has this many bytes or more."""

Offsets = npt.NDArray[np.uint32]
Pair = tuple[str, str]
Range = tuple[bytes, bytes]


class HeroicRowKey(NamedTuple):
    """The fields of a row key.

    Attributes:
      series: with the resources whose names the key holds.
      base_ms: signed, as Heroic writes it for times before 1970.
      head, tail: the bytes before and after the base, as in `SeriesKey`.
      is_whole: False if the key holds values of resources without their names.
    """

    series: Series
    base_ms: int
    head: bytes
    tail: bytes
    is_whole: bool


class KeyForm(abc.ABC):
    """One form of row keys and qualifiers, without state.

    Attributes:
      qualifier_bytes: bytes of each qualifier.
    """

    qualifier_bytes: int

    @abc.abstractmethod
    def series_key(self, series: Series) -> SeriesKey:
        """The bytes before and after the base.

        Raises:
          UnicodeEncodeError: a name or value holds half a surrogate pair.
        """

    def nameless_key(self, series: Series) -> SeriesKey:
        """Like `series_key`, without the names of resources, in a form that can leave them out."""
        return self.series_key(series)

    @abc.abstractmethod
    def base_text(self, base_ms: int) -> bytes:
        """The bytes of a base in the key."""

    @abc.abstractmethod
    def head_bytes(self, key: bytes) -> int:
        """The bytes of metric and tags, which data rows and archive rows begin with.

        Raises:
          ValueError: neither table has rows with such keys.
        """

    @abc.abstractmethod
    def parse(self, key: bytes) -> HeroicRowKey:
        """Splits a row key into its fields.

        Raises:
          ValueError: Heroic, or this layout, would not have written it.
        """

    @abc.abstractmethod
    def ranges(self, head: bytes, first_ms: int, last_ms: int) -> Iterator[Range]:
        """The rows of a metric and tags, with any resources, from one base to another, both inclusive.

        Half-open ranges in the order of time.
        """

    @abc.abstractmethod
    def qualifiers(self, offsets: Offsets) -> bytes:
        """The concatenated qualifiers of offsets uint32[n] in ms since the base."""

    @abc.abstractmethod
    def offsets(self, qualifiers: bytes) -> Int64s:
        """int64[n]: the offsets of n concatenated qualifiers; -1 for one that is none."""

    def row_key(self, key: SeriesKey, base_ms: int) -> bytes:
        """The key of the row of a series that begins at `base_ms`."""
        return key.head + self.base_text(base_ms) + key.tail


def base_of(time_ms: int) -> int:
    """The base of the row that holds a time, both in ms; for times from 0.

    >>> base_of(1300000000000), 1300000000000 - base_of(1300000000000)  # row and qualifier
    (1297080123392, 2919876608)
    """
    return time_ms & -PERIOD_MS  # -2**32: its lower 32 bits are 0, all others 1


def sorted_pairs(pairs: Iterable[Pair]) -> list[Pair]:
    """Tags or resources in Java's order, that of UTF-16 code units.

    Raises:
      UnicodeEncodeError: a name holds half a surrogate pair.
    """
    return sorted(pairs, key=lambda pair: pair[0].encode("utf-16-be"))


def check_base(base_ms: int) -> None:
    """Checks that a row may begin at `base_ms`.

    Raises:
      ValueError: it may not.
    """
    if base_ms % PERIOD_MS or not -LAST_BASE_MS - PERIOD_MS <= base_ms <= LAST_BASE_MS:
        raise ValueError(f"base {base_ms} is not a 64-bit multiple of {PERIOD_MS} ms")


_PART = re.compile(r"((?:[^,=\\]|\\.)*)(?:=((?:[^,=\\]|\\.)*))?(,|\Z)")
_HEAD = re.compile(
    rb"(?:[^,=\\\x00-\x1f]|\\.)*,(?:(?:[^,=\\\x00-\x1f]|\\.)*=(?:[^,=\\\x00-\x1f]|\\.)*,)*", re.DOTALL
)
_PLAIN = re.compile(r"[^,=\\\x00-\x1f\x7f-\x9f]*")
_ESCAPE = re.compile(r"\\(x[0-9a-f]{2}|.)")
_DIGITS = 10 ** np.arange(9, -1, -1, dtype=np.int64)


@dataclasses.dataclass(frozen=True, slots=True)
class ReadableKeys(KeyForm):
    r"""Keys and qualifiers as text.

    >>> keys = ReadableKeys()
    >>> key = keys.row_key(keys.series_key(Series.of("cpu", {"host": "a"}, {"pod": "p,1"})), 1297080123392)
    >>> print(key.decode())
    cpu,host=a,1297080123392,p\,1
    >>> keys.qualifiers(np.array([2919876608], np.uint32))
    b'2919876608'

    Attributes:
      with_names: write resources as `name=value`; both forms are read.
    """

    with_names: bool = False

    qualifier_bytes = 10

    def series_key(self, series: Series) -> SeriesKey:
        tags = [f"{_escaped(key)}={_escaped(value)}" for key, value in sorted_pairs(series.tags)]
        head = ",".join([_escaped(series.metric), *tags, ""])
        tail = "".join(
            f",{_escaped(name)}={_escaped(value)}" if self.with_names else f",{_escaped(value)}"
            for name, value in sorted_pairs(series.resources)
        )
        return SeriesKey(head.encode(), tail.encode())

    def nameless_key(self, series: Series) -> SeriesKey:
        return ReadableKeys().series_key(series)

    def base_text(self, base_ms: int) -> bytes:
        return b"%d" % base_ms

    def head_bytes(self, key: bytes) -> int:
        """See `KeyForm.head_bytes`: neither a base nor a span code is `name=value,`."""
        match = _HEAD.match(key)
        if match is None:
            raise ValueError(f"row key {key[:80]!r} is not of this layout: it is not metric and tags")
        return match.end()

    def parse(self, key: bytes) -> HeroicRowKey:
        try:
            text = key.decode()
            (metric, metric_value), *fields = _split(text)
            numbers = [i for i, (_, value) in enumerate(fields) if value is None]
            if metric_value is not None or not numbers:
                raise ValueError("it is not metric, tags and base")
            tags, (base, _), resources = fields[: numbers[0]], fields[numbers[0]], fields[numbers[0] + 1 :]
            if not base.isascii() or not base.isdigit():
                raise ValueError(f"the base {base[:40]!r} is not a number")
        except UnicodeDecodeError as error:
            raise ValueError(f"row key {key[:80].hex()} is not UTF-8") from error
        except ValueError as error:
            raise ValueError(f"row key {key[:80]!r} is not of this layout: {error}") from error
        base_ms = int(base)
        check_base(base_ms)
        named = {name: value for name, value in resources if value is not None}
        series = Series.of(metric, {name: value or "" for name, value in tags}, named)
        values = ReadableKeys(with_names=bool(named)).series_key(series)
        tail = values.tail if named else "".join("," + _escaped(value) for value, _ in resources).encode()
        if values.head + self.base_text(base_ms) + tail != key:
            raise ValueError(f"row key {key[:80]!r}: this layout writes this series with other bytes")
        return HeroicRowKey(series, base_ms, values.head, tail, is_whole=len(named) == len(resources))

    def ranges(self, head: bytes, first_ms: int, last_ms: int) -> Iterator[Range]:
        """See `KeyForm.ranges`; two for each base, since decimal numbers do not sort by time.

        One is the row without resources, one the rows that continue with a comma. A bare prefix would match
        both 4294967296 and 42949672960.
        """
        for base_ms in range(first_ms, last_ms + 1, PERIOD_MS):
            key = head + self.base_text(base_ms)
            yield key, key + b"\x00"
            yield key + b",", key + b"-"

    def qualifiers(self, offsets: Offsets) -> bytes:
        digits = offsets.astype(np.int64)[:, None] // _DIGITS % 10
        return (digits + ord("0")).astype(np.uint8).tobytes()

    def offsets(self, qualifiers: bytes) -> Int64s:
        digits = np.frombuffer(qualifiers, np.uint8).reshape(-1, 10) - np.uint8(ord("0"))
        offsets = digits.astype(np.int64) @ _DIGITS
        return np.where((digits < 10).all(axis=1) & (offsets < PERIOD_MS), offsets, -1)


def _escaped(text: str) -> str:
    """A name or value as it is written in a key."""
    if _PLAIN.fullmatch(text):
        return text
    return "".join(
        f"\\x{ord(character):02x}"
        if unicodedata.category(character) == "Cc"
        else "\\" + character
        if character in ",=\\"
        else character
        for character in text
    )


def _split(text: str) -> list[tuple[str, str | None]]:
    """The fields of a key between its commas: (text before the `=`, text after it or None).

    Raises:
      ValueError: a stray backslash or a second `=`.
    """
    fields: list[tuple[str, str | None]] = []
    offset, separator = 0, ","
    while separator:
        match = _PART.match(text, offset)
        if match is None:
            raise ValueError(f"surplus = or backslash in {text[offset : offset + 40]!r}")
        name, value, separator = match.groups()
        fields.append((_plain(name), None if value is None else _plain(value)))
        offset = match.end()
    return fields


def _plain(text: str) -> str:
    """The name or value that was escaped."""
    if "\\" not in text:
        return text
    return _ESCAPE.sub(
        lambda match: chr(int(match[1][1:], 16)) if match[1][0] == "x" and len(match[1]) == 3 else match[1],
        text,
    )
