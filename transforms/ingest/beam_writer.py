"""Rows for Beam's own writer. It imports Google's old client, which takes half a second."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import apache_beam as beam
from apache_beam.coders import registry
from apache_beam.io.gcp.bigtableio import FLUSH_COUNT, MAX_ROW_BYTES, WriteToBigTable, _BigTableWriteFn
from apache_beam.pvalue import PCollection
from google.cloud.bigtable.row import DirectRow
from google.cloud.bigtable.row_filters import TimestampRange

from timebeam.schema.core.rows import EncodedRow
from timebeam.transforms.bigtable.mutation_bytes import plain_row
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.flow.steps import OVERHEAD, RecordCoder

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


Around = Callable[[Sequence[EncodedRow]], AbstractContextManager[object]]
"""Makes a context in which rows are written."""


def write_with_beam(rows: PCollection[EncodedRow], target: Target, table: str, around: Around | None) -> None:
    """Writes the rows of one table; those of others are ignored."""
    registry.register_coder(DirectRow, _DirectRowCoder)
    if around is not None:
        rows | f"WriteMarked[{table}]" >> beam.ParDo(_WriteWithHoursFn(target, table, around))
        return
    (
        rows
        | f"RowsOf[{table}]" >> beam.FlatMap(_direct_rows, table).with_output_types(DirectRow)
        | f"WriteToBigTable[{table}]" >> WriteToBigTable(target.project, target.instance, table)
    )


def _direct_rows(row: EncodedRow, table: str) -> Iterator[DirectRow]:
    """The row, if it is of the table."""
    if row.table == table:
        yield _direct_row(row)


def _direct_row(row: EncodedRow) -> DirectRow:
    """A row as Google's old client takes it."""
    direct = DirectRow(row.key)
    _, _, cells, deleted = plain_row(row)
    for family, qualifier, before_ms in deleted:
        end = None if before_ms is None else _EPOCH + datetime.timedelta(milliseconds=before_ms)
        direct.delete_cell(family, qualifier, TimestampRange(end=end))
    for cell in cells:
        timestamp = _EPOCH + datetime.timedelta(milliseconds=cell.timestamp_ms)
        direct.set_cell(cell.family, cell.qualifier, cell.value, timestamp)
    return direct


class _WriteWithHoursFn(_BigTableWriteFn):
    """Rows in; the rows of its table are marked before Beam's writer gets them, and again after it sent them.

    Beam's writer may send rows at any time until its bundle ends, and has no output, so no later step could
    mark them. Therefore it gets a bundle of its own for each `FLUSH_COUNT` rows.
    """

    def __init__(self, target: Target, table: str, around: Around) -> None:
        super().__init__(target.project, target.instance, table, FLUSH_COUNT, MAX_ROW_BYTES)
        self.beam_options["around"] = around  # its state is this dictionary

    def start_bundle(self) -> None:
        self._rows: list[EncodedRow] = []

    def process(self, row: EncodedRow) -> None:
        if row.table == self.beam_options["table_id"]:
            self._rows.append(row)
        if len(self._rows) >= FLUSH_COUNT:
            self._write()

    def finish_bundle(self) -> None:
        self._write()

    def _write(self) -> None:
        """Marks the rows, and has Beam's writer send them."""
        rows, self._rows = self._rows, []
        super().start_bundle()
        with self.beam_options["around"](rows):
            for row in rows:
                super().process(_direct_row(row))
            super().finish_bundle()


class _DirectRowCoder(RecordCoder):
    def estimate_size(self, value: DirectRow) -> int:
        return int(value.get_mutations_size()) if len(value._get_mutations()) < 16 else OVERHEAD * 16
