"""Marks for metrics and hours that received points after their day was complete: what to roll up again.

| table | row | family, qualifier | value | timestamp |
|---|---|---|---|---|
| `*-touched` | metric, start of the hour in s (4 bytes) | `t`, empty | empty | when it was marked, in ms |
| `*-touched` | `end` | `t`, empty | empty | up to when points are rolled up, in ms; the latest counts |

The table is named after the data table. The metric is its UID in OpenTSDB's layout, its name in others.

Before a rollup reads, it notes up to when it makes complete intervals; after a writer has written, it reads
that note. So whichever comes first, a late point is in the rollup or is marked, in whatever zone days are
counted.
What no rollup has read is marked too if its UTC day is over: other tools leave no note.

A mark is written after its points, and deleted only in the version that was read before its hour was
rolled up again: of points that come meanwhile the newer mark stays.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from timebeam.schema.layouts import Cell, Deletion, HourMarks, Row, StoredLayout, TableSpec
from timebeam.transforms.bigtable.mutate import mutate_rows
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.dead_letters.rows import AnyRow, plain_row
from timebeam.transforms.ingest.write import data_tables
from timebeam.transforms.readers.table_reader import read_rows, scan_table

_FAMILY, _QUALIFIER = "t", b""
_HOUR_S, _DAY_S = 3600, 86_400
_LAST_S = 1 << 32
_NOTE = b"end"
"""The key of the note of the rollups: shorter than that of any mark."""


def touched_table(layout: StoredLayout) -> TableSpec:
    """The table of marks."""
    return TableSpec(f"{data_tables(layout)[0]}-touched", {_FAMILY: 1}, holds_points=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Mark:
    """One mark, as it was read.

    Attributes:
      metric: its UID, or its name.
      start_s: the start of the hour, in seconds.
    """

    metric: bytes
    start_s: int
    marked_ms: int


class Touched(NamedTuple):
    """What is rolled up again at once: [start_s, end_s), for the metrics of these marks."""

    start_s: int
    end_s: int
    marks: Sequence[Mark]

    @property
    def metrics(self) -> frozenset[bytes]:
        """Their UIDs, or names."""
        return frozenset(mark.metric for mark in self.marks)


@dataclasses.dataclass(frozen=True, slots=True)
class Marker:
    """Marks the hours of rows that were written."""

    layout: HourMarks
    clock: Callable[[], float] = time.time

    @property
    def table(self) -> TableSpec:
        """The table of marks."""
        return touched_table(self.layout)

    def mark(self, target: Target, rows: Iterable[AnyRow]) -> None:
        """Marks the hours that a rollup has read, and those of UTC days that are over, each once.

        Raises:
          GoogleAPICallError: the marks could not be written, or the note of the rollups not be read.
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
        for start in range(0, len(marks), 10_000):
            for _, error in mutate_rows(target, table, marks[start : start + 10_000]):
                raise error


def note_rolled_up(target: Target, layout: StoredLayout, end_s: int) -> None:
    """Notes, before a rollup reads, that it makes complete intervals up to a time in seconds.

    Raises:
      GoogleAPICallError: it could not be noted.
    """
    table = touched_table(layout).name
    note = Row(table, _NOTE, [Cell(_FAMILY, _QUALIFIER, end_s * 1000, b"")])
    for _, error in mutate_rows(target, table, [note] if end_s else []):
        raise error


def rolled_up_to(target: Target, layout: StoredLayout) -> int:
    """The latest end, in seconds, that a rollup has noted; 0 if none has."""
    note = read_rows(target, touched_table(layout).name, [_NOTE]).get(_NOTE)
    return max(cell.timestamp_ms for cell in note.cells) // 1000 if note else 0


def read_marks(target: Target, layout: StoredLayout) -> list[Mark]:
    """Every mark."""
    return [
        Mark(row.key[:-4], int.from_bytes(row.key[-4:], "big"), row.cells[0].timestamp_ms)
        for row in scan_table(target, touched_table(layout).name)
        if row.key != _NOTE
    ]


def touched_ranges(marks: Iterable[Mark], lengths: Sequence[int], complete_s: int = _LAST_S) -> list[Touched]:
    """The ranges of time with all intervals that have points of marked hours, ascending.

    So they are hours, or days if there are intervals of a day. Those of one UTC day with nothing between
    them are one range, of all their metrics. Hours that are not over stay marked. An interval that is not
    over is left to the run of its last day.

    Args:
      lengths: of the intervals, in seconds.
      complete_s: what ends up to this time, in seconds, is over.
    """
    ranges: list[tuple[int, int, list[Mark]]] = []
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
        if ranges and start_s <= ranges[-1][1] and start_s // _DAY_S == ranges[-1][0] // _DAY_S:
            first_s, before_s, range_marks = ranges[-1]
            ranges[-1] = first_s, max(before_s, end_s), [*range_marks, mark]
        else:
            ranges.append((start_s, end_s, [mark]))
    return [Touched(*mark) for mark in ranges]


def clear_marks(target: Target, layout: StoredLayout, marks: Sequence[Mark]) -> None:
    """Deletes marks that have not changed since they were read.

    Raises:
      GoogleAPICallError: they could not be deleted.
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
    for start in range(0, len(rows), 10_000):
        for _, error in mutate_rows(target, table, rows[start : start + 10_000]):
            raise error
