"""Tables of any layout in the emulator: made for a test, and read back through the layout."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.schema.stores.plain_opentsdb import Number, number
from tests.support.layout_words import layout_words
from tests.support.model import Content, SeriesName
from tests.support.stored import store_archive
from timebeam.pipelines.options.catalogue import layout_parameters
from timebeam.schema.core.contract import Store
from timebeam.schema.core.rows import Row
from timebeam.schema.core.selection import Selected, Selection
from timebeam.schema.stores import make_store
from timebeam.transforms.bigtable.create_tables import create_tables
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.read.table_reader import TableReader, scan_table

EVER_MS = 1 << 42
"""Behind every time of a test."""


class AnyCell(NamedTuple):
    """The newest version of one cell of any table."""

    table: str
    key: bytes
    family: str
    qualifier: bytes
    timestamp_ms: int
    value: bytes


VARIANTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "opentsdb-salted": ("opentsdb", {"salt_width": 1}),
    "heroic": ("heroic", {}),
    "heroic-readable-names": ("heroic-readable", {"resource_names": True}),
    "kairosdb-milliseconds": ("kairosdb", {"row_spec": "milliseconds"}),
    "opentsdb": ("opentsdb", {}),
    "heroic-readable": ("heroic-readable", {}),
    "kairosdb-legacy": ("kairosdb", {"row_spec": "legacy"}),
    "kairosdb-retention": ("kairosdb", {"retention": "7,90", "retention_class": 90}),
}
"""Layouts with options, by a name for tests; the first four are of different layouts."""


@dataclasses.dataclass(frozen=True)
class AnyStore:
    """The tables of one layout, for one test."""

    target: Target
    layout: Store
    options: Mapping[str, Any]

    @classmethod
    def create(cls, bigtable: tuple[str, str], prefix: str, variant: str, **more: Any) -> AnyStore:
        """New tables of a variant of `VARIANTS`, in the instance of the fixture `bigtable`.

        Args:
          more: options of the layout, in addition to those of the variant.
        """
        name, given = VARIANTS[variant]
        options = {"table_prefix": prefix, **given, **more}
        defaults = {parameter.name: parameter.default for parameter in layout_parameters()}
        store = cls(Target(*bigtable), make_store(name, {**defaults, **options}), options)
        for _ in create_tables(store.target, store.layout.tables(), dry_run=False):
            pass
        store_archive(store.target, store.layout)
        return store

    @property
    def place(self) -> list[str]:
        """The options that name the instance."""
        return [f"--project={self.target.project}", f"--instance={self.target.instance}"]

    @property
    def flags(self) -> list[str]:
        """The options that name these tables, for any command."""
        return [f"--layout={self.layout.name}", *self.place, *self.layout_flags()]

    def layout_flags(self, start: str = "") -> list[str]:
        """The options of the layout; `to_` for the one that `copy` writes."""
        options = {name: self.options[name] for name in self.options if start or name != "retention_class"}
        return layout_words(options, start)

    @property
    def auto_create(self) -> list[str]:
        """What an ingest of new names needs."""
        return ["--auto-create-metrics"] if self.layout.uids else []

    @property
    def retention_class(self) -> list[str]:
        """The option of an ingest for the class that points are written to, if there is one."""
        return layout_words({name: self.options[name] for name in self.options if name == "retention_class"})

    def cells(self) -> set[AnyCell]:
        """The cells of all tables, newest versions only."""
        return {
            AnyCell(spec.name, row.key, *cell)
            for spec in self.layout.tables()
            for row in scan_table(self.target, spec.name)
            for cell in row.cells
        }

    def rows(self) -> list[Row]:
        """The rows of the data table."""
        return list(scan_table(self.target, self.layout.tables()[0].name))

    def content(self) -> Content:
        """What the layout finds and decodes; asserts that nothing is corrupt."""
        return {at: value for at, (_, value) in self.arrived().items()}

    def arrived(self) -> dict[tuple[SeriesName, int], tuple[int, Number]]:
        """The same, with the arrival in ms of each value.

        Of two values of one instant the one that arrived last counts, as with a query; of two that arrived
        together that of the later row, which in KairosDB's layout is a text, then a double.
        """
        found: dict[tuple[SeriesName, int], tuple[int, Number]] = {}
        everything = Selection(None, {}, 0, EVER_MS)
        for selected in self.layout.select(everything, TableReader(self.target)):
            assert isinstance(selected, Selected), selected
            decoded = self.layout.decode_rows([selected])
            assert not decoded.corruption
            for i, (series, time_ms, value) in enumerate(decoded.batch.points()):
                assert not series.resources
                name, arrival_ms = (series.metric, series.tags), int(decoded.batch.arrivals_ms[i])
                held = found.get((name, time_ms))
                if held is None or held[0] <= arrival_ms:
                    found[name, time_ms] = arrival_ms, number(value)  # type: ignore[arg-type]
        return found
