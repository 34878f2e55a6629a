"""Copies the rows of a day into the table of the day, with all cells, timestamps and versions."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterator

import apache_beam as beam

from timebeam.schema.declared.codec.days import day_pattern, day_piece, is_of_day, table_of
from timebeam.schema.declared.model import DayTables, TableLayout
from timebeam.schema.layouts import Row, Scan, TableSpec
from timebeam.schema.points import Reason, Stage
from timebeam.transforms import metrics
from timebeam.transforms.bigtable.rows import KeyRange
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.dead_letters.rejected import RejectedOutput, refuse, refused_row
from timebeam.transforms.ingest.pack import mutations
from timebeam.transforms.readers.table_reader import TableReader


@dataclasses.dataclass(frozen=True, slots=True)
class DayCopy:
    """One day of one source."""

    target: Target
    tables: DayTables
    source: TableLayout
    day: datetime.date

    @property
    def table(self) -> str:
        """The name of the day's table."""
        return table_of(self.tables, self.day)

    @property
    def spec(self) -> TableSpec:
        """The day's table, with the families of the source."""
        return TableSpec(self.table, {self.source.family: self.source.max_versions}, holds_points=True)


class CopyDayFn(beam.DoFn):
    """Key ranges in; `Row` mutations of the day's table out, rows with invalid keys to `REJECTED`."""

    def __init__(self, copy: DayCopy) -> None:
        self._copy = copy
        self._key_part = day_piece(copy.source, copy.day)

    def process(self, keys: KeyRange) -> Iterator[Row | RejectedOutput]:
        """See the class."""
        copy, source = self._copy, self._copy.source
        pattern = day_pattern(source, self._key_part)
        scan = Scan(source.table, (keys,), key_pattern=pattern, versions=source.max_versions)
        for row in TableReader(copy.target).scan(scan):
            metrics.count("messages_read")
            try:
                is_wanted = is_of_day(source, row.key, self._key_part)
            except ValueError as error:
                yield refuse(refused_row(row, Reason.CORRUPT_FILE, str(error), Stage.READ))
                continue
            if is_wanted:
                yield from mutations([row._replace(table=copy.table)])
        metrics.work_done()
