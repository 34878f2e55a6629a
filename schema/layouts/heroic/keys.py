"""What both forms of Heroic's row key share: bases, order, and the interface of a form.

A row holds 2^32 ms (49.7 days) of one series and begins at its base (docs/spec/heroic.md §2).
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from timebeam.schema.layouts.writing import SeriesKey
from timebeam.schema.points import Int64s, Series

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
    """The base of the row that holds a time, both in ms; for times from 0."""
    return time_ms & -PERIOD_MS


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
