"""Rows for Beam's own writer. It imports Google's old client, which takes half a second."""

from __future__ import annotations

import datetime
from collections.abc import Iterable

import apache_beam as beam
from apache_beam.coders import registry
from apache_beam.io.gcp.bigtableio import WriteToBigTable
from apache_beam.pvalue import PCollection
from google.cloud.bigtable.row import DirectRow
from google.cloud.bigtable.row_filters import TimestampRange

from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.dead_letters.rejected import AnyRow, plain_row
from timebeam.transforms.ingest.coders import OVERHEAD, RecordCoder

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def write_with_beam(rows: PCollection[AnyRow], target: Target, table: str) -> None:
    """Writes the rows of one table; those of others are ignored."""
    registry.register_coder(DirectRow, _DirectRowCoder)
    (
        rows
        | f"RowsOf[{table}]" >> beam.ParDo(_DirectRowFn(table)).with_output_types(DirectRow)
        | f"WriteToBigTable[{table}]" >> WriteToBigTable(target.project, target.instance, table)
    )


class _DirectRowFn(beam.DoFn):
    """Rows in, those of one table out as DirectRow."""

    def __init__(self, table: str) -> None:
        self._table = table

    def process(self, row: AnyRow) -> Iterable[DirectRow]:
        if row.table != self._table:
            return
        direct = DirectRow(row.key)
        _, _, cells, deleted = plain_row(row)
        for family, qualifier, before_ms in deleted:
            end = None if before_ms is None else _EPOCH + datetime.timedelta(milliseconds=before_ms)
            direct.delete_cell(family, qualifier, TimestampRange(end=end))
        for cell in cells:
            timestamp = _EPOCH + datetime.timedelta(milliseconds=cell.timestamp_ms)
            direct.set_cell(cell.family, cell.qualifier, cell.value, timestamp)
        yield direct


class _DirectRowCoder(RecordCoder):
    def estimate_size(self, value: DirectRow) -> int:
        return int(value.get_mutations_size()) if len(value._get_mutations()) < 16 else OVERHEAD * 16
