"""Rows of layouts as mutations, written by our connector, by Beam's, or by appends; rejected rows become
dead letters.

| writer | rejected rows | retries | app profile |
|---|---|---|---|
| `beam` (WriteToBigTable) | fail the bundle | UNAVAILABLE, DEADLINE_EXCEEDED | default only |
| `direct` | go to the dead letters | also ABORTED, INTERNAL, RESOURCE_EXHAUSTED | any |
| appends | go to the dead letters | as direct; a lost answer may append twice, which is harmless | any |
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Protocol

import apache_beam as beam
from apache_beam.pvalue import PCollection

from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.contract import ReadableStore
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.core.rows import Cell, Deletion, EncodedRow, Row, RowMutation, TableSpec, stored_bytes_of
from timebeam.transforms import bigtable
from timebeam.transforms.bigtable.beam_steps import BUFFER_BYTES
from timebeam.transforms.bigtable.mutation_bytes import encoded_row, plain_row
from timebeam.transforms.bigtable.retry import REFUSALS
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.bigtable.write_rows import append_cells, mutate_rows, split_row
from timebeam.transforms.dead_letters.letter import over_limit, rejected_row
from timebeam.transforms.flow import metrics
from timebeam.transforms.flow.steps import BufferedDoFn, RejectedOutput, reject


def merged_rows(rows: Iterable[Row]) -> list[Row]:
    """One row for each table and key; of cells with one column and timestamp, the last one."""
    by_key: dict[tuple[str, bytes], list[Row]] = {}
    for row in rows:
        by_key.setdefault((row.table, row.key), []).append(row)
    return [group[0] if len(group) == 1 else _merged_row(group) for group in by_key.values()]


def _merged_row(rows: Sequence[Row]) -> Row:
    """One row of several with the same key."""
    cells = {cell[:3]: cell for row in rows for cell in row.cells}
    return rows[0]._replace(cells=list[Cell](cells.values()))


def overwriting(row: Row, existing: Iterable[Cell]) -> Row:
    """Replaces the row: sets its cells, deletes all others in `existing`."""
    new = {(cell.family, cell.qualifier): cell.timestamp_ms for cell in row.cells}
    stale = {
        (cell.family, cell.qualifier)
        for cell in existing
        if new.get((cell.family, cell.qualifier)) != cell.timestamp_ms
    }
    return row._replace(deleted=[Deletion(*column) for column in sorted(stale)])


def mutations(rows: Iterable[Row]) -> Iterator[EncodedRow | RejectedOutput]:
    """Mutations of rows within Bigtable's limits, counted as written; rejections of other rows."""
    count = cells = size = 0
    for row in rows:
        rejected = over_limit(row)
        if rejected is not None:
            yield reject(rejected)
            continue
        count += 1
        cells += len(row.cells)
        size += len(row.cells) * stored_bytes_of(len(row.key), 0, 0, 0)
        size += sum([len(family) + len(name) + len(value) for family, name, _, value in row.cells])
        yield from map(encoded_row, split_row(row))
    metrics.count("rows_written", count)
    metrics.count("cells_written", cells)
    metrics.count("bytes_written", size)


Hours = Collection[tuple[bytes, int]]
"""(metric, start in s) of hours."""


class HoursWriter(Protocol):
    """Marks the hours of rows before they are sent, and again after they are written."""

    @property
    def table(self) -> TableSpec:
        """The table of marks."""

    def hours(self, rows: Sequence[RowMutation]) -> Hours:
        """The hours that have points in rows."""

    def mark(self, target: Target, hours: Hours, *, stored: bool) -> None:
        """Marks hours whose points are about to be sent, or are stored."""


@contextlib.contextmanager
def hours_written(
    target: Target, hours_writer: HoursWriter | None, rows: Sequence[RowMutation]
) -> Iterator[None]:
    """A context in which rows are written: marks their hours before it and after it.

    Also after an error, since rows may have been written.

    Raises:
      GoogleAPICallError: the marks could not be written.
    """
    if hours_writer is None or not rows:
        yield
        return
    hours = hours_writer.hours(rows)
    try:
        hours_writer.mark(target, hours, stored=False)
        yield
    finally:
        hours_writer.mark(target, hours, stored=True)


@dataclasses.dataclass(eq=False)
class StoreRows(beam.PTransform):  # type: ignore[type-arg]
    """Writes rows: `EncodedRow` in, `Rejected` rows out.

    Attributes:
      tables: the names of all tables of the rows.
      writer: `beam` or `direct`.
      hours_writer: marks the hours of the rows; None for no marks.
      appends: qualifier of the column to which cells are appended; empty if all cells are set.
    """

    target: Target
    tables: Sequence[str]
    writer: str
    hours_writer: HoursWriter | None = None
    appends: bytes = b""

    def expand(self, rows: PCollection[EncodedRow]) -> PCollection[Rejected]:
        if self.appends:
            append = beam.ParDo(_AppendCellsFn(self.target, self.hours_writer, self.appends))
            return rows | "Append" >> append.with_output_types(Rejected)
        around = functools.partial(hours_written, self.target, self.hours_writer)
        if self.writer == "direct":
            writer = bigtable.WriteRows(self.target, BUFFER_BYTES, around=around, on_written=_observe)
            rejected = beam.MapTuple(refused_write).with_output_types(Rejected)
            return rows | "WriteDirect" >> writer | "RefusedRows" >> rejected
        from timebeam.transforms.ingest.beam_writer import write_with_beam  # its client takes half a second

        for table in self.tables:
            write_with_beam(rows, self.target, table, around=None if self.hours_writer is None else around)
        others = beam.FlatMap(_reject_others, frozenset(self.tables)).with_output_types(Rejected)
        return rows | "RowsOfOtherTables" >> others


def data_tables(layout: ReadableStore) -> list[str]:
    """The tables of a layout that hold points."""
    return [spec.name for spec in layout.tables() if spec.holds_points]


def _reject_others(row: EncodedRow, tables: frozenset[str]) -> Iterator[Rejected]:
    """The rejection of a row of none of the tables."""
    if row.table not in tables:
        why = f"table {row.table!r} is not a table of this run"
        yield rejected_row(plain_row(row), Reason.WRITE_REFUSED, why, Stage.WRITE)


def _observe(rows: Sequence[EncodedRow]) -> None:
    """Observes the number of rows of a request, and the delay since the arrival of their last cells."""
    metrics.observe("flush_rows", len(rows))
    now_ms = int(time.time() * 1000)
    for row in rows:
        if row.last_ms is not None:
            metrics.observe("delay_ms", max(0, now_ms - row.last_ms))


def write_batch(target: Target, table: str, rows: Sequence[RowMutation]) -> list[Rejected]:
    """Writes rows in one request, with retries; the rejected rows.

    Raises:
      GoogleAPICallError: a row could not be written for a reason that is not its own.
    """
    return [refused_write(rows[number], str(error)) for number, error in mutate_rows(target, table, rows)]


class _AppendCellsFn(BufferedDoFn[EncodedRow]):
    """`EncodedRow` in, its cells appended to existing ones as by a TSD with enable_appends; rejected rows
    out.

    Cells of other columns, as those of histograms, are set.
    """

    def __init__(self, target: Target, hours_writer: HoursWriter | None, qualifier: bytes) -> None:
        self._target, self._hours_writer, self._qualifier = target, hours_writer, qualifier
        self.most = 1 if hours_writer is None else 1000  # that are marked together

    def handle(self, rows: list[EncodedRow]) -> list[Rejected]:
        """Appends rows; the rejected ones."""
        rejected = list[Rejected]()
        with hours_written(self._target, self._hours_writer, rows):
            for row in map(plain_row, rows):
                others = [cell for cell in row.cells if cell.qualifier != self._qualifier]
                if others:
                    rejected += write_batch(self._target, row.table, [row._replace(cells=others)])
                    row = row._replace(
                        cells=[cell for cell in row.cells if cell.qualifier == self._qualifier]
                    )
                if not row.cells:
                    continue
                try:
                    append_cells(self._target, row)
                except REFUSALS as error:
                    rejected.append(refused_write(row, str(error)))
        return rejected


def refused_write(row: RowMutation, reason: str) -> Rejected:
    """The dead letter of a row that Bigtable refused."""
    why = f"Bigtable refused the row: {reason}"
    return rejected_row(plain_row(row), Reason.WRITE_REFUSED, why, Stage.WRITE)
