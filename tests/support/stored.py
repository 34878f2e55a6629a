"""Tables of the OpenTSDB layout in the emulator: made for a test, and read back as plain Python."""

from __future__ import annotations

import dataclasses
from typing import Any

from google.cloud.bigtable.data import DeleteAllFromRow, RowMutationEntry, SetCell

from tests.support.data_client import open_table
from tests.support.decoded import decode_row
from tests.support.layout_words import layout_words
from timebeam.pipelines.options.use_settings import FAMILY, VERSION, settings_table
from timebeam.schema.archive.view import find_archive
from timebeam.schema.core import contract
from timebeam.schema.core.point_fragments import Name
from timebeam.schema.core.points import Series
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.stores.opentsdb.columns import annotation_cells
from timebeam.schema.stores.opentsdb.keys import parse_key
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions
from timebeam.transforms.bigtable.create_tables import create_tables
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.bigtable.write_rows import write_all
from timebeam.transforms.read.table_reader import scan_table

CellBytes = tuple[bytes, bytes, int, bytes]
"""(row key, qualifier, timestamp in ms, value)."""


def store_archive(target: Target, layout: contract.Store) -> None:
    """Stores that the archive is that of a layout, as `tables adopt` does; nothing for one without."""
    archive = find_archive(layout)
    if archive is None:
        return
    spec = settings_table(archive.table.removesuffix("archive"))
    list(create_tables(target, [spec], dry_run=False))
    columns = {b"version": VERSION.encode(), b"archive": b"true"}
    cells = [Cell(FAMILY, name, 0, value) for name, value in columns.items()]
    write_all(target, spec.name, [Row(spec.name, layout.name.encode(), cells)])


@dataclasses.dataclass(frozen=True)
class Store:
    """The tables of one layout, for one test."""

    target: Target
    layout: OpenTsdb

    @classmethod
    def create(
        cls, bigtable: tuple[str, str], prefix: str, *, max_versions: int = 1, **options: Any
    ) -> Store:
        """New tables, in the instance of the fixture `bigtable`.

        Args:
          max_versions: the versions of a cell that garbage collection keeps. Once any test has changed the
            rule of a family, the emulator collects in all tables, about every second: a test that compares
            older versions of two reads needs more than one.
        """
        store = cls(
            Target(*bigtable),
            OpenTsdb(OpenTsdbOptions(table_prefix=prefix, **options)),
        )
        tables = [
            dataclasses.replace(table, families=dict.fromkeys(table.families, max_versions))
            for table in store.layout.tables()
        ]
        for _ in create_tables(store.target, tables, dry_run=False):
            pass
        store_archive(store.target, store.layout)
        return store

    @property
    def flags(self) -> list[str]:
        """The options that name these tables, for any command."""
        defaults, options = OpenTsdbOptions(), self.layout.options
        changed = {
            field.name: getattr(options, field.name)
            for field in dataclasses.fields(options)
            if getattr(options, field.name) != getattr(defaults, field.name)
        }
        place = [f"--project={self.target.project}", f"--instance={self.target.instance}"]
        return ["--layout=opentsdb", *place, *layout_words(changed)]

    def rows(self) -> list[Row]:
        """The rows of the data table."""
        return list(scan_table(self.target, self.layout.data_table))

    def cells(self) -> set[CellBytes]:
        """The cells of the data table, newest versions only."""
        return {
            (row.key, cell.qualifier, cell.timestamp_ms, cell.value)
            for row in self.rows()
            for cell in row.cells
        }

    def uid_cells(self) -> set[tuple[bytes, str, bytes, bytes]]:
        """(row key, family, qualifier, value) of the UID table."""
        return {
            (row.key, cell.family, cell.qualifier, cell.value)
            for row in scan_table(self.target, self.layout.options.uid_table)
            for cell in row.cells
        }

    def uids(self) -> dict[Name, bytes]:
        """The forward mappings, as they stand in the table."""
        return {
            Name(qualifier.decode(), key.decode("iso-8859-1")): value
            for key, family, qualifier, value in self.uid_cells()
            if family == "id" and key != b"\0"
        }

    def names(self) -> dict[tuple[str, bytes], str]:
        """The reverse mappings, as they stand in the table: names by (kind, UID)."""
        return {
            (qualifier.decode(), key): value.decode("iso-8859-1")
            for key, family, qualifier, value in self.uid_cells()
            if family == "name"
        }

    def counters(self) -> dict[str, int]:
        """The counter of each kind that has one."""
        return {
            qualifier.decode(): int.from_bytes(value, "big", signed=True)
            for key, family, qualifier, value in self.uid_cells()
            if family == "id" and key == b"\0"
        }

    def series(self, key: bytes) -> Series:
        """The series of a row, by the reverse mappings."""
        names = self.names()
        metric, *tags = [names[pair] for pair in parse_key(self.layout.options, key).uids]
        return Series.of(metric, dict(zip(tags[::2], tags[1::2], strict=True)))

    def points(self) -> dict[Series, dict[int, int | float]]:
        """The values of every series by their time in ms; asserts that nothing is corrupt.

        Rows of global annotations have none.
        """
        found: dict[Series, dict[int, int | float]] = {}
        names = self.names()
        for row in self.rows():
            if annotation_cells.is_global(self.layout.options, row.key):
                continue
            metric, *tags = [names[pair] for pair in parse_key(self.layout.options, row.key).uids]
            series = Series.of(metric, dict(zip(tags[::2], tags[1::2], strict=True)))
            decoded = decode_row(self.layout, row, series)
            assert not decoded.corruption
            for _, time_ms, value in decoded.batch.points():
                assert time_ms not in found.setdefault(series, {})
                found[series][time_ms] = value
        return found

    def copy(self, other: Store) -> None:
        """Writes all cells of the tables of another store, of the same options, into these."""
        for mine, theirs in zip(self.layout.tables(), other.layout.tables(), strict=True):
            entries = [
                RowMutationEntry(
                    row.key, [SetCell(*cell[:2], cell.value, cell.timestamp_ms * 1000) for cell in row.cells]
                )
                for row in scan_table(other.target, theirs.name)
            ]
            open_table(self.target, mine.name).bulk_mutate_rows(entries)

    def set_cell(self, table: str, key: bytes, family: str, qualifier: bytes, value: bytes) -> None:
        """Writes one cell by hand, at one second after 1970."""
        open_table(self.target, table).mutate_row(key, SetCell(family, qualifier, value, 1_000_000))

    def remove_row(self, table: str, key: bytes) -> None:
        """Removes one row by hand."""
        open_table(self.target, table).mutate_row(key, DeleteAllFromRow())

    def set_uid(self, kind: str, family: str, key: bytes, value: bytes) -> None:
        """Writes one cell of the UID table by hand."""
        self.set_cell(self.layout.options.uid_table, key, family, kind.encode(), value)

    def set_counter(self, kind: str, number: int) -> None:
        """Sets the counter of a kind."""
        self.set_uid(kind, "id", b"\0", number.to_bytes(8, "big"))
