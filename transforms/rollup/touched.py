"""Marks for metrics and hours that received points after their day was complete: what to roll up again.

| table | row | family, qualifier | value | timestamp |
|---|---|---|---|---|
| `tsdb-touched` | metric UID, base time (4 bytes) | `t`, empty | empty | when it was marked, in ms |

A mark is written after its points, and deleted only in the version that was read before its day was
rolled up again: of points that come meanwhile the newer mark stays.
"""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Iterable, Sequence

from schema.layouts import Cell, Deletion, Row, TableSpec
from schema.layouts.opentsdb import keys
from schema.layouts.opentsdb.options import OpenTsdbOptions
from transforms.bigtable.mutate import mutate_rows
from transforms.bigtable.reader import scan_table
from transforms.bigtable.target import Target
from transforms.bigtable.wire import AnyRow

_FAMILY, _QUALIFIER = "t", b""
_DAY_S = 86_400


def touched_table(prefix: str) -> TableSpec:
    """The table of marks."""
    return TableSpec(f"{prefix}tsdb-touched", {_FAMILY: 1}, holds_points=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Mark:
    """One mark, as it was read.

    Attributes:
      metric: UID.
      base_s: the hour, in seconds.
    """

    metric: bytes
    base_s: int
    marked_ms: int

    @property
    def day(self) -> datetime.date:
        """The UTC day of the hour."""
        return datetime.datetime.fromtimestamp(self.base_s, datetime.timezone.utc).date()


@dataclasses.dataclass(frozen=True, slots=True)
class Marker:
    """Marks the hours of rows that were written."""

    options: OpenTsdbOptions

    @property
    def table(self) -> TableSpec:
        """The table of marks."""
        return touched_table(self.options.table_prefix)

    def mark(self, target: Target, rows: Iterable[AnyRow]) -> None:
        """Marks the hours of days that are complete, each once.

        Raises:
          GoogleAPICallError: the marks could not be written.
        """
        now_ms = int(time.time() * 1000)
        today_s = now_ms // 1000 // _DAY_S * _DAY_S
        found = set()
        for row in rows:
            parts = keys.parse_key(self.options, row.key)
            if parts.base_s < today_s:
                found.add((parts.metric, parts.base_s))
        table = self.table.name
        cell = Cell(_FAMILY, _QUALIFIER, now_ms, b"")
        marks = [Row(table, metric + base.to_bytes(4, "big"), [cell]) for metric, base in sorted(found)]
        for at in range(0, len(marks), 10_000):
            for _, error in mutate_rows(target, table, marks[at : at + 10_000]):
                raise error


def read_marks(target: Target, options: OpenTsdbOptions) -> list[Mark]:
    """Every mark."""
    return [
        Mark(row.key[:-4], int.from_bytes(row.key[-4:], "big"), row.cells[0].timestamp_ms)
        for row in scan_table(target, touched_table(options.table_prefix).name)
    ]


def clear_marks(target: Target, options: OpenTsdbOptions, marks: Sequence[Mark]) -> None:
    """Deletes marks that have not changed since they were read.

    Raises:
      GoogleAPICallError: they could not be deleted.
    """
    table = touched_table(options.table_prefix).name
    rows = [
        Row(
            table,
            mark.metric + mark.base_s.to_bytes(4, "big"),
            [],
            [Deletion(_FAMILY, _QUALIFIER, mark.marked_ms + 1)],
        )
        for mark in marks
    ]
    for at in range(0, len(rows), 10_000):
        for _, error in mutate_rows(target, table, rows[at : at + 10_000]):
            raise error
