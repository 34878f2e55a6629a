"""Marks of metrics and hours that received late points, which are rolled up again.

| table | row | family, qualifier | value | timestamp |
|---|---|---|---|---|
| `*-touched` | metric, start of the hour in s (4 bytes) | `t`, empty | empty | time of the mark, in ms |
| `*-touched` | `end` | `t`, empty | empty | end of the rolled-up points, in ms; the latest wins |

The table is named after the data table. The metric is its UID in OpenTSDB's layout, its name in others.

Before a rollup reads, it writes the row `end`: the end of its complete intervals. After a writer has written
points, it reads that row. So a late point is in the rollup or is marked, in any time zone. Points of past UTC
days are marked even without that row, since other tools do not write it.

A mark is written after its points. Only the version that was read before its hour is rolled up again is
deleted, so the newer mark of points that come meanwhile stays.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from timebeam.schema.layouts import Cell, Deletion, HourMarks, Row, StoredLayout, TableSpec
from timebeam.transforms.bigtable.mutate import write_all
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.dead_letters.rejected import AnyRow, plain_row
from timebeam.transforms.ingest.write import data_tables
from timebeam.transforms.readers.table_reader import read_rows, scan_table

_FAMILY, _QUALIFIER = "t", b""
_HOUR_S, _DAY_S = 3600, 86_400
_LAST_S = 1 << 32
_NOTE = b"end"
"""The row key of the note of the rollups: shorter than the key of any mark."""


def touched_table(layout: StoredLayout) -> TableSpec:
    """The table of marks."""
    return TableSpec(f"{data_tables(layout)[0]}-touched", {_FAMILY: 1}, holds_points=False)


@dataclasses.dataclass(frozen=True, slots=True)
class HourMark:
    """One mark.

    Attributes:
      metric: its UID, or its name.
      start_s: the start of the hour, in seconds.
    """

    metric: bytes
    start_s: int
    marked_ms: int


class Touched(NamedTuple):
    """A range of time to roll up again, [start_s, end_s), for the metrics of these marks."""

    start_s: int
    end_s: int
    marks: Sequence[HourMark]

    @property
    def metrics(self) -> frozenset[bytes]:
        """Their UIDs, or names."""
        return frozenset(mark.metric for mark in self.marks)


@dataclasses.dataclass(frozen=True, slots=True)
class TouchedMarker:
    """Marks the hours of rows that were written."""

    layout: HourMarks
    clock: Callable[[], float] = time.time

    @property
    def table(self) -> TableSpec:
        """The table of marks."""
        return touched_table(self.layout)

    def mark(self, target: Target, rows: Iterable[AnyRow]) -> None:
        """Marks the hours that a rollup has read, and hours of past UTC days, each once.

        Raises:
          GoogleAPICallError: the marks could not be written, or the note of the rollups could not be read.
        """
        now_ms = int(self.clock() * 1000)
        late_before_s = now_ms // 1000 // _DAY_S * _DAY_S
        hours = self.layout.hours([plain_row(row) for row in rows])
        if any(hour >= late_before_s for _, hour in hours):
            late_before_s = max(late_before_s, rolled_up_to(target, self.layout))
        late_hours = sorted((metric, hour) for metric, hour in hours if hour < late_before_s)
        table = self.table.name
        cell = Cell(_FAMILY, _QUALIFIER, now_ms, b"")
        marks = [Row(table, metric + hour.to_bytes(4, "big"), [cell]) for metric, hour in late_hours]
        write_all(target, table, marks)


def note_rolled_up(target: Target, layout: StoredLayout, end_s: int) -> None:
    """Writes the end of the complete intervals of a rollup, in s, before the rollup reads.

    Raises:
      GoogleAPICallError: the note could not be written.
    """
    table = touched_table(layout).name
    note = Row(table, _NOTE, [Cell(_FAMILY, _QUALIFIER, end_s * 1000, b"")])
    write_all(target, table, [note] if end_s else [])


def rolled_up_to(target: Target, layout: StoredLayout) -> int:
    """The latest end that a rollup has noted, in s; 0 without a note."""
    note = read_rows(target, touched_table(layout).name, [_NOTE]).get(_NOTE)
    return max(cell.timestamp_ms for cell in note.cells) // 1000 if note else 0


def read_marks(target: Target, layout: StoredLayout) -> list[HourMark]:
    """Every mark."""
    return [
        HourMark(row.key[:-4], int.from_bytes(row.key[-4:], "big"), row.cells[0].timestamp_ms)
        for row in scan_table(target, touched_table(layout).name)
        if row.key != _NOTE
    ]


def touched_ranges(
    marks: Iterable[HourMark], lengths: Sequence[int], complete_s: int = _LAST_S
) -> list[Touched]:
    """The ranges of time of all intervals with points of marked hours, ascending.

    The ranges are hours, or days if an interval has a day. Adjacent ranges of one UTC day are one range, of
    all their metrics, as are ranges that overlap, so that no interval is in two. Incomplete hours stay
    marked. The run of its last day rolls up an incomplete interval.

    Args:
      lengths: of the intervals, in s.
      complete_s: hours and intervals that end up to this time, in s, are complete.
    """
    ranges: list[tuple[int, int, list[HourMark]]] = []
    for mark in sorted(marks, key=lambda mark: mark.start_s):
        behind_s = mark.start_s + _HOUR_S
        if behind_s > complete_s:
            continue
        start_s, end_s = mark.start_s, behind_s
        for length in lengths:
            first_s = mark.start_s // length * length
            last_end_s = -(-behind_s // length) * length
            if first_s + length <= complete_s:
                start_s = min(start_s, first_s)
            if last_end_s <= complete_s:
                end_s = max(end_s, last_end_s)
        first_s, before_s, range_marks = ranges[-1] if ranges else (0, 0, [])
        if start_s < before_s or (start_s == before_s and start_s // _DAY_S == first_s // _DAY_S):
            range_marks.append(mark)
            ranges[-1] = first_s, max(before_s, end_s), range_marks
        else:
            ranges.append((start_s, end_s, [mark]))
    return [Touched(*mark) for mark in ranges]


def clear_marks(target: Target, layout: StoredLayout, marks: Sequence[HourMark]) -> None:
    """Deletes marks that have not changed since they were read.

    Raises:
      GoogleAPICallError: marks could not be deleted.
    """
    table = touched_table(layout).name
    rows = [
        Row(
            table,
            mark.metric + mark.start_s.to_bytes(4, "big"),
            [],
            [Deletion(_FAMILY, _QUALIFIER, mark.marked_ms + 1)],
        )
        for mark in marks
    ]
    write_all(target, table, rows)
