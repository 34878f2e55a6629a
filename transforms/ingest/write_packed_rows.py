"""Rows of layouts as mutations, written by our connector, by Beam's, or by appends; rejected rows become
dead letters.

| writer | rejected rows | retries | app profile |
|---|---|---|---|
| `beam` (WriteToBigTable) | fail the bundle | UNAVAILABLE, DEADLINE_EXCEEDED | default only |
| `direct` | go to the dead letters | also ABORTED, INTERNAL, RESOURCE_EXHAUSTED | any |
| appends | go to the dead letters | as direct; a lost answer may append twice, which is harmless | any |
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Iterator, Sequence

import apache_beam as beam
from apache_beam.pvalue import PCollection

from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.core.rows import EncodedRow
from timebeam.transforms import bigtable
from timebeam.transforms.bigtable.beam_steps import BUFFER_BYTES
from timebeam.transforms.bigtable.mutation_bytes import plain_row
from timebeam.transforms.bigtable.retry import REFUSALS
from timebeam.transforms.bigtable.service_calls import add_sink, count_call
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.bigtable.write_rows import append_cells
from timebeam.transforms.dead_letters.letter import rejected_row
from timebeam.transforms.flow import metrics
from timebeam.transforms.flow.steps import BufferedDoFn
from timebeam.transforms.ingest.row_mutations import HoursWriter, hours_written, refused_write, write_batch


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
            writer = bigtable.WriteRows(
                self.target, BUFFER_BYTES, around=around, on_written=_observe, keeps_windows=False
            )
            rejected = beam.MapTuple(refused_write).with_output_types(Rejected)
            return rows | "WriteDirect" >> writer | "RejectedRows" >> rejected
        from timebeam.transforms.ingest.beam_writer import write_with_beam  # its client takes half a second

        for table in self.tables:
            write_with_beam(rows, self.target, table, around=None if self.hours_writer is None else around)
        others = beam.FlatMap(_reject_others, frozenset(self.tables)).with_output_types(Rejected)
        return rows | "RowsOfOtherTables" >> others


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
                    count_call(self._target, row.table, "ReadModifyWriteRow", error)
                    rejected.append(refused_write(row, str(error)))
                else:
                    count_call(self._target, row.table, "ReadModifyWriteRow")
        for table in {row.table for row in rows}:
            add_sink(self._target, table)
        return rejected
