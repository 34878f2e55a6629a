"""Marks of metrics and hours whose points changed, which are rolled up again.

| table | row | family, qualifier | value | timestamp |
|---|---|---|---|---|
| `*-touched` | metric, start of a UTC day in s | `t`, hour of the day, writer | empty, or `01` | ms |

The start has 4 bytes, the hour 1, the writer 8 random ones. The value is 01 while the writer has a request
with points of the hour under way. The table is named after the data table. The
metric is its UID in OpenTSDB's layout, its name in others. A writer is a process. Its times increase
strictly; they are about the time of the mark. Nothing compares the times of two writers, whose clocks may
differ.

A writer marks the hours of its rows before it sends them, and again after they are stored. A rollup reads the
marks, then the points, and writes; then it deletes of each mark the columns that it has read, up to the times
that it has read. So the rollup has read the points, or a mark stays: the first mark of points that are not
stored yet may be deleted, but not the second one.

`rollup --follow` takes a lease (`timebeam.transforms.rollup.row_leases`) in the row of a metric and day
before it reads the points. The note of the lease, 3 bytes, has a bit for each hour in which it may write.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from timebeam.schema.bits.times import DAY_S, HOUR_S, ceil_to, floor_to
from timebeam.schema.core.contract import ReadableStore, Store
from timebeam.schema.core.rows import WHOLE_TABLE, Cell, Deletion, EncodedRow, Row, RowMutation, TableSpec
from timebeam.schema.core.selection import Reader, Scan
from timebeam.schema.rollup.day_plan import LAST_S
from timebeam.transforms.bigtable.mutation_bytes import encoded_mutations
from timebeam.transforms.bigtable.target import BigtableError, Target
from timebeam.transforms.bigtable.write_rows import write_all
from timebeam.transforms.ingest.row_mutations import Hours, data_tables
from timebeam.transforms.read.table_reader import TableReader
from timebeam.transforms.rollup.row_leases import DEAD_MS, FAMILY, Lease, LeaseRow, is_lease

_QUALIFIER_BYTES = 9
_OPEN = b"\1"


def changed_hours_table(layout: ReadableStore) -> TableSpec:
    """The table of marks."""
    return TableSpec(f"{data_tables(layout)[0]}-touched", {FAMILY: 1}, holds_points=False)


class ChangedHour(NamedTuple):
    """The marks of one hour.

    Attributes:
      metric: its UID, or its name.
      start_s: the start of the hour, in seconds.
      times_ms: (the column of a writer, its newest time in ms) of each writer.
      open: the columns of writers that have a request under way.
    """

    metric: bytes
    start_s: int
    times_ms: tuple[tuple[bytes, int], ...]
    open: frozenset[bytes] = frozenset()

    def settled(self, now_ms: int) -> ChangedHour:
        """The marks of those that have no request under way, or are dead."""
        return self._replace(
            times_ms=tuple(
                (column, time_ms)
                for column, time_ms in self.times_ms
                if column not in self.open or time_ms + DEAD_MS <= now_ms
            )
        )


class ChangedDay(NamedTuple):
    """A row of marks.

    Attributes:
      start_s: start of the day, in seconds.
      hours: the changed hours.
      leases: the leases of processes that recompute hours of the day.
    """

    metric: bytes
    start_s: int
    hours: Sequence[ChangedHour]
    leases: LeaseRow

    @property
    def changing(self) -> set[int]:
        """The starts, in s, of the hours whose rollups may differ from their points: marked or leased."""
        leases = [*self.leases.lost, *([self.leases.lease] if self.leases.lease else [])]
        return {hour.start_s for hour in self.hours}.union(*map(self.noted, leases))

    def noted(self, lease: Lease) -> list[int]:
        """The starts, in s, of the hours in the note of a lease."""
        bits = int.from_bytes(lease.note, "big")
        return [self.start_s + hour * HOUR_S for hour in range(24) if bits >> hour & 1]


def hours_note(starts_s: Iterable[int]) -> bytes:
    """The note of a lease for hours of one day.

    >>> hours_note([1356998400 + 3600 * hour for hour in (0, 2, 23)]).hex()  # a bit for each hour of the day
    '800005'
    """
    return sum({1 << start_s % DAY_S // HOUR_S for start_s in starts_s}).to_bytes(3, "big")


class ChangedRange(NamedTuple):
    """A range of time to roll up again, [start_s, end_s), for the metrics of these marks."""

    start_s: int
    end_s: int
    hours: Sequence[ChangedHour]

    @property
    def metrics(self) -> frozenset[bytes]:
        """Their UIDs, or names."""
        return frozenset(hour.metric for hour in self.hours)


class _HourWriter:
    """This process as a writer of marks."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begins as a new process, with a name of its own."""
        self._name = secrets.token_bytes(8)
        self._lock = threading.Lock()
        self._last_ms = 0
        self._open = collections.Counter[tuple[bytes, int]]()  # requests under way, by hour

    def column(self, start_s: int) -> bytes:
        """The qualifier of the marks of an hour."""
        return bytes((start_s % DAY_S // HOUR_S,)) + self._name

    def next_ms(self) -> int:
        """The time of the next marks: now, but after all times before."""
        with self._lock:
            return self._next_ms()

    def _next_ms(self) -> int:
        self._last_ms = max(int(time.time() * 1000), self._last_ms + 1)
        return self._last_ms

    def count(self, hours: Hours, *, stored: bool) -> tuple[int, set[tuple[bytes, int]]]:
        """Counts a request before it is sent, or after it is stored; (its time, hours with others under way).

        The order of the times is that of the counts.
        """
        with self._lock:
            if stored:
                self._open.subtract(hours)
                still_open = {hour for hour in hours if self._open[hour] > 0}
                for hour in hours:
                    if hour not in still_open:
                        del self._open[hour]
            else:
                self._open.update(hours)
                still_open = set(hours)
            return self._next_ms(), still_open


_WRITER = _HourWriter()
# A stream forks for each batch. A child cannot begin on first use: a lock that another thread of its parent
# held at the fork is never released in it, and two threads could begin as two writers.
os.register_at_fork(after_in_child=_WRITER.begin)


@dataclasses.dataclass(frozen=True, slots=True)
class ChangedHoursWriter:
    """Marks the hours of rows that are written."""

    layout: Store

    @property
    def table(self) -> TableSpec:
        """The table of marks."""
        return changed_hours_table(self.layout)

    def hours(self, rows: Sequence[RowMutation]) -> Hours:
        """The hours that have points in rows."""
        counts, qualifiers = list[int](), list[bytes]()
        for row in rows:
            if isinstance(row, EncodedRow):
                counts.append(row.mutation_count)
                qualifiers.append(row.qualifiers)
            else:
                counts.append(len(row.cells))
                qualifiers += [cell.qualifier for cell in row.cells]
        return self.layout.hours([row.key for row in rows], counts, b"".join(qualifiers))

    def mark(self, target: Target, hours: Hours, *, stored: bool) -> None:
        """Marks hours; to be called before their points are sent, and again after they are stored.

        Raises:
          GoogleAPICallError: the marks could not be written.
        """
        table = self.table.name
        time_ms, still_open = _WRITER.count(hours, stored=stored)
        encoded = {
            (start_s, value): encoded_mutations([Cell(FAMILY, _WRITER.column(start_s), time_ms, value)], ())
            for start_s in {start_s % DAY_S for _, start_s in hours}
            for value in (_OPEN, b"")
        }
        write_all(
            target,
            table,
            [
                EncodedRow(
                    table,
                    day_key(*hour),
                    encoded[hour[1] % DAY_S, _OPEN if hour in still_open else b""],
                    1,
                )
                for hour in hours
            ],
        )


def hour_cell(start_s: int) -> Cell:
    """A mark of this process for an hour, without a request."""
    return Cell(FAMILY, _WRITER.column(start_s), _WRITER.next_ms(), b"")


def day_key(metric: bytes, time_s: int) -> bytes:
    """The row key of the marks of a metric in the day of a time."""
    return metric + floor_to(time_s, DAY_S).to_bytes(4, "big")


def read_days(
    reader: Reader, layout: ReadableStore, metric: bytes = b"", start_s: int = 0, end_s: int = LAST_S - 1
) -> Iterator[ChangedDay]:
    """The rows of marks, ascending by key; with a metric, its rows of days that have hours in [start, end).

    Args:
      metric: its UID; empty for all metrics, and for all times.

    Raises:
      BigtableError: a row has other columns, such as those of the table before the first release.
    """
    keys = (day_key(metric, start_s), metric + end_s.to_bytes(4, "big")) if metric else WHOLE_TABLE
    for row in reader.scan(Scan(changed_hours_table(layout).name, [keys])):
        row_metric, row_s = row.key[:-4], int.from_bytes(row.key[-4:], "big")
        times_ms = collections.defaultdict[int, list[tuple[bytes, int]]](list)
        still_open = frozenset(cell.qualifier for cell in row.cells if cell.value == _OPEN)
        for cell in row.cells:
            if is_lease(cell.qualifier):
                continue
            if len(cell.qualifier) != _QUALIFIER_BYTES:
                raise BigtableError(
                    f"table {row.table}: row {row.key.hex()} has column {cell.qualifier.hex() or '(empty)'}, "
                    "which is not a mark: delete the table, create it with `timebeam tables create`, and "
                    "roll up again the days whose points changed"
                )
            hour_s = row_s + cell.qualifier[0] * HOUR_S
            times_ms[hour_s].append((cell.qualifier, cell.timestamp_ms))
        hours = [
            ChangedHour(row_metric, hour_s, tuple(times), still_open)
            for hour_s, times in sorted(times_ms.items())
        ]
        yield ChangedDay(row_metric, row_s, hours, LeaseRow.of(row.key, row.cells))


def read_changed_hours(target: Target, layout: ReadableStore) -> Iterator[ChangedHour]:
    """Every mark."""
    return (hour for day in read_days(TableReader(target), layout) for hour in day.hours)


def changed_ranges(
    hours: Iterable[ChangedHour], lengths: Sequence[int], complete_s: int = LAST_S
) -> list[ChangedRange]:
    """The ranges of time of all intervals with points of changed hours, ascending.

    The ranges are hours, or days if an interval has a day. Adjacent ranges of one UTC day are one range, of
    all their metrics, as are ranges that overlap, so that no interval is in two. Incomplete hours stay
    marked. The run of its last day rolls up an incomplete interval.

    Args:
      lengths: of the intervals, in s.
      complete_s: hours and intervals that end up to this time, in s, are complete.
    """
    ranges: list[tuple[int, int, list[ChangedHour]]] = []
    for hour in sorted(hours, key=lambda hour: hour.start_s):
        behind_s = hour.start_s + HOUR_S
        if behind_s > complete_s:
            continue
        start_s, end_s = hour.start_s, behind_s
        for length in lengths:
            first_s = floor_to(hour.start_s, length)
            last_end_s = ceil_to(behind_s, length)
            if first_s + length <= complete_s:
                start_s = min(start_s, first_s)
            if last_end_s <= complete_s:
                end_s = max(end_s, last_end_s)
        first_s, before_s, range_hours = ranges[-1] if ranges else (0, 0, [])
        if start_s < before_s or (start_s == before_s and start_s // DAY_S == first_s // DAY_S):
            range_hours.append(hour)
            ranges[-1] = first_s, max(before_s, end_s), range_hours
        else:
            ranges.append((start_s, end_s, [hour]))
    return [ChangedRange(*each) for each in ranges]


def clear_hours(target: Target, layout: ReadableStore, hours: Iterable[ChangedHour]) -> None:
    """Deletes marks up to the times that were read.

    Raises:
      GoogleAPICallError: marks could not be deleted.
    """
    table = changed_hours_table(layout).name
    deletions = collections.defaultdict[bytes, list[Deletion]](list)
    for hour in hours:
        deletions[day_key(hour.metric, hour.start_s)] += hour_deletions(hour)
    write_all(target, table, [Row(table, key, [], deleted) for key, deleted in deletions.items()])


def hour_deletions(hour: ChangedHour) -> list[Deletion]:
    """What deletes a mark up to the times that were read."""
    return [Deletion(FAMILY, column, time_ms + 1) for column, time_ms in hour.times_ms]
