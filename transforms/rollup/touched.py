"""Marks for metrics and hours that received points after their day was complete: what to roll up again.

| table | row | family, qualifier | value | timestamp |
|---|---|---|---|---|
| `*-touched` | metric, start of the hour in s (4 bytes) | `t`, empty | empty | when it was marked, in ms |

The table is named after the data table. The metric is its UID in OpenTSDB's layout, its name in others.

A mark is written after its points, and deleted only in the version that was read before its day was
rolled up again: of points that come meanwhile the newer mark stays.
"""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Iterable, Sequence

from schema.layouts import Cell, Deletion, Layout, Row, TableSpec
from transforms.bigtable.mutate import mutate_rows
from transforms.bigtable.reader import scan_table
from transforms.bigtable.target import Target
from transforms.bigtable.wire import AnyRow
from transforms.write import data_tables

_FAMILY, _QUALIFIER = "t", b""
_DAY_S = 86_400


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

    @property
    def day(self) -> datetime.date:
        """The UTC day of the hour."""
        return datetime.datetime.fromtimestamp(self.start_s, datetime.timezone.utc).date()


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
        written = [row for row in rows if isinstance(row, Row)]
        found = sorted((metric, hour) for metric, hour in self.layout.hours(written) if hour < today_s)
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
