"""Marks for metrics and hours that received points after their day was complete: what to roll up again.

| table | row | family, qualifier | value | timestamp |
|---|---|---|---|---|
| `*-touched` | metric, start of the hour in s (4 bytes) | `t`, empty | empty | when it was marked, in ms |

The table is named after the data table. The metric is its UID in OpenTSDB's layout, its name in others.

A mark is written after its points, and deleted only in the version that was read before its hour was
rolled up again: of points that come meanwhile the newer mark stays.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from schema.layouts import Cell, Deletion, Layout, Row, TableSpec
from transforms.bigtable.mutate import mutate_rows
from transforms.bigtable.reader import scan_table
from transforms.bigtable.target import Target
from transforms.bigtable.wire import AnyRow, row_of
from transforms.write import data_tables

_FAMILY, _QUALIFIER = "t", b""
_HOUR_S, _DAY_S = 3600, 86_400


def touched_table(layout: Layout) -> TableSpec:
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

    layout: Layout

    @property
    def table(self) -> TableSpec:
        """The table of marks."""
        return touched_table(self.layout)

    def mark(self, target: Target, rows: Iterable[AnyRow]) -> None:
        """Marks the hours of days that are complete, each once.

        Raises:
          GoogleAPICallError: the marks could not be written.
        """
        now_ms = int(time.time() * 1000)
        today_s = now_ms // 1000 // _DAY_S * _DAY_S
        hours = self.layout.hours([row_of(row) for row in rows])
        found = sorted((metric, hour) for metric, hour in hours if hour < today_s)
        table = self.table.name
        cell = Cell(_FAMILY, _QUALIFIER, now_ms, b"")
        marks = [Row(table, metric + hour.to_bytes(4, "big"), [cell]) for metric, hour in found]
        for at in range(0, len(marks), 10_000):
            for _, error in mutate_rows(target, table, marks[at : at + 10_000]):
                raise error


def read_marks(target: Target, layout: Layout) -> list[Mark]:
    """Every mark."""
    return [
        Mark(row.key[:-4], int.from_bytes(row.key[-4:], "big"), row.cells[0].timestamp_ms)
        for row in scan_table(target, touched_table(layout).name)
    ]


def touched_ranges(marks: Iterable[Mark], lengths: Sequence[int]) -> list[Touched]:
    """The ranges of time with all intervals that have points of marked hours, ascending.

    So they are hours, or days if there are intervals of a day. Those of one UTC day with nothing between
    them are one range, of all their metrics.

    Args:
      lengths: of the intervals, in seconds.
    """
    found: list[tuple[int, int, list[Mark]]] = []
    for mark in sorted(marks, key=lambda one: one.start_s):
        last_s = mark.start_s + _HOUR_S - 1
        start_s = min(mark.start_s // length * length for length in lengths)
        end_s = max(last_s // length * length + length for length in lengths)
        if found and start_s <= found[-1][1] and start_s // _DAY_S == found[-1][0] // _DAY_S:
            first_s, before_s, others = found[-1]
            found[-1] = first_s, max(before_s, end_s), [*others, mark]
        else:
            found.append((start_s, end_s, [mark]))
    return [Touched(*one) for one in found]


def clear_marks(target: Target, layout: Layout, marks: Sequence[Mark]) -> None:
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
    for at in range(0, len(rows), 10_000):
        for _, error in mutate_rows(target, table, rows[at : at + 10_000]):
            raise error
