"""Row keys of the archive: head of the series, span code, base time, tail (docs/spec/archive.md §1).

A span is the time of one row. Spans are nested: each divides the next one, and all divide a block. The rows
of a series in one block have one span, so they never overlap.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from timebeam.schema.bits.times import DAY_S, HOUR_S
from timebeam.schema.core.declared_options import Option, OptionKind
from timebeam.schema.core.points import SeriesKey
from timebeam.schema.core.selection import prefix_range

OPTION: Option = Option(
    "archive",
    "the tables have an archive of closed hours, table PREFIXarchive, which `timebeam seal` writes and "
    "queries read",
    OptionKind.FLAG,
    example="true",
    stored=True,
)
"""The option of layouts that can have an archive."""

SPANS_S = {1: HOUR_S, 2: 4 * HOUR_S, 3: DAY_S, 4: 5 * DAY_S, 5: 30 * DAY_S}
"""Seconds of the spans, by code."""

BLOCK_CODE = 5
BLOCK_S = SPANS_S[BLOCK_CODE]
"""The longest span, 30 days: for each block, a series has one span."""

BASE_BYTES = 4
LAST_S = 0xFFFFFFFF
"""The latest time that a row key can hold, in s."""

_ROW_POINTS = 20_000
"""Points of a row that a span is chosen for."""


class ArchiveKey(NamedTuple):
    """The fields of a row key; the base time in seconds."""

    series: SeriesKey
    code: int
    base_s: int

    @property
    def end_s(self) -> int:
        """The end of the row's span."""
        return self.base_s + SPANS_S[self.code]


class SeriesHeads(Protocol):
    """Finds the head of a row key: the bytes that data rows and archive rows of a series begin with."""

    def head_bytes(self, key: bytes) -> int:
        """The number of bytes before the time in a data row's key, or the span code in an archive row's.

        Raises:
          ValueError: the key is of neither kind.
        """


def span_for(points: int, hours: int) -> int:
    """The code of the longest span in which a series of this rate has at most 20,000 points; else an hour.

    >>> SPANS_S[span_for(360, hours=1)], SPANS_S[span_for(3600, hours=1)]  # a point each 10 s, each s
    (86400, 14400)

    Args:
      points: of the series, in this number of hours.
    """
    fitting = [code for code, span_s in SPANS_S.items() if points * span_s <= _ROW_POINTS * hours * HOUR_S]
    return max(fitting, default=min(SPANS_S))


def archive_key(series: SeriesKey, time_s: int, code: int) -> bytes:
    """The key of the archive row, with this span, that holds the points of a time.

    >>> series = SeriesKey(bytes.fromhex("000001"), bytes.fromhex("000001000002"))
    >>> archive_key(series, 1699488130, code=3).hex()  # metric, span of a day, its start, tag
    '00000103654c2100000001000002'
    """
    return series.head + bytes((code,)) + _base(time_s - time_s % SPANS_S[code]) + series.tail


def parse_key(heads: SeriesHeads, key: bytes) -> ArchiveKey:
    """Splits a row key of the archive.

    >>> from timebeam.schema.stores.opentsdb.keys import OpenTsdbOptions
    >>> key = parse_key(OpenTsdbOptions(), bytes.fromhex("00000103654c2100000001000002"))
    >>> SPANS_S[key.code], key.base_s, key.series.head.hex(), key.series.tail.hex()
    (86400, 1699488000, '000001', '000001000002')

    Raises:
      ValueError: its series, its span code or its base time cannot be that of an archive row.
    """
    code_at = heads.head_bytes(key)
    tail_at = code_at + 1 + BASE_BYTES
    if len(key) < tail_at:
        raise ValueError(f"archive row key {key[:80].hex()} ends before the tail of its series")
    code, base_s = key[code_at], int.from_bytes(key[code_at + 1 : tail_at], "big")
    if code not in SPANS_S:
        raise ValueError(f"archive row key {key[:80].hex()} has the unknown span code {code}")
    if base_s % SPANS_S[code]:
        raise ValueError(
            f"archive row key {key[:80].hex()} has the base time {base_s}: not a multiple of its span"
        )
    return ArchiveKey(SeriesKey(key[:code_at], key[tail_at:]), code, base_s)


def bases(start_ms: int, end_ms: int) -> Iterator[tuple[int, range]]:
    """(span code, base times in s) of the rows with times from start_ms to end_ms, both inclusive."""
    first_s, last_s = max(0, start_ms // 1000), min(end_ms // 1000, LAST_S)
    for code, span_s in SPANS_S.items():
        yield code, range(first_s - first_s % span_s, last_s + 1, span_s) if first_s <= last_s else range(0)


def ranges(head: bytes, start_ms: int, end_ms: int) -> Iterator[tuple[bytes, bytes]]:
    """The key ranges [start, end) of archive rows with times from start_ms to end_ms, both inclusive.

    One range for each span; none if there are no such times.

    Args:
      head: the bytes before the span code.
    """
    for code, bases_s in bases(start_ms, end_ms):
        if bases_s:
            before = head + bytes((code,))
            yield before + _base(bases_s[0]), prefix_range(before + _base(bases_s[-1]))[1]


def _base(base_s: int) -> bytes:
    return base_s.to_bytes(BASE_BYTES, "big")
