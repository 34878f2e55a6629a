"""Audits the stored tables: rows must decode, and the series table must lead to each of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from timebeam.schema.layouts.heroic import series_table
from timebeam.schema.layouts.heroic.keys import HeroicRowKey, KeyForm
from timebeam.schema.layouts.heroic.rows import read_row
from timebeam.schema.layouts.heroic.select import ResourceNames
from timebeam.schema.layouts.heroic.series_table import SeriesEntry
from timebeam.schema.layouts.reading import Finding, Severity
from timebeam.schema.layouts.tables import Row
from timebeam.schema.points import Series

_UNFINISHED = " (left by an interrupted write)"


@dataclasses.dataclass(slots=True)
class SeriesTable:
    """The content of the series table.

    Attributes:
      series: the entries of the rows of series, by key.
      index_keys: the keys of metric and tag rows.
      damaged: (row key, why it cannot be read).
    """

    series: dict[bytes, SeriesEntry]
    index_keys: set[bytes]
    damaged: list[tuple[bytes, str]]

    @classmethod
    def of(cls, rows: Iterable[Row]) -> SeriesTable:
        """Reads the rows of the table."""
        table = cls({}, set(), [])
        for row in rows:
            if row.key.startswith(series_table.SERIES + b"\x00"):
                try:
                    table.series[row.key] = series_table.read_series(row)
                except ValueError as error:
                    table.damaged.append((row.key, str(error)))
            elif row.key[:2] in (series_table.METRIC + b"\x00", series_table.TAG + b"\x00"):
                table.index_keys.add(row.key)
            else:
                table.damaged.append((row.key, "no row of the series table has such a key"))
        return table

    def findings(self, name: str) -> Iterator[Finding]:
        """Rows that cannot be read, that are missing, or that lead to no series."""
        for key, message in self.damaged:
            yield Finding(Severity.DAMAGE, name, key, message)
        needed: set[bytes] = set()
        for key, entry in self.series.items():
            for row in series_table.index_rows(name, entry.series, entry.first_ms):
                needed.add(row.key)
                if row.key not in self.index_keys and row.key != key:
                    message = f"missing: queries may not find {entry.series}"
                    yield Finding(Severity.DAMAGE, name, row.key, message)
        for key in sorted(self.index_keys - needed):
            yield Finding(Severity.NOTE, name, key, "no series row belongs to it" + _UNFINISHED)


def data_findings(rows: Iterable[Row], table: SeriesTable, name: str, form: KeyForm) -> Iterator[Finding]:
    """Data rows that do not decode or that no query finds, and series without data rows.

    Args:
      name: of the series table.
    """
    names = ResourceNames(form)
    keys = {entry.series: key for key, entry in table.series.items()}
    for series in keys:
        names.add(series)
    unseen = set(keys)
    for row in rows:
        try:
            row_key = form.parse(row.key)
            series = names.series_of(row_key)
        except ValueError as error:
            yield Finding(Severity.DAMAGE, row.table, row.key, str(error))
            continue
        unseen.discard(series)
        entry = table.series[keys[series]] if series in keys else None
        for message in _row_damage(row, row_key, series, entry, form):
            yield Finding(Severity.DAMAGE, row.table, row.key, message)
    for series in unseen:
        message = f"{series} has no row of points" + _UNFINISHED
        yield Finding(Severity.NOTE, name, keys[series], message)


def _row_damage(
    row: Row, row_key: HeroicRowKey, series: Series, entry: SeriesEntry | None, form: KeyForm
) -> Iterator[str]:
    """What is wrong with a row of this series."""
    if row_key.base_ms < 0:
        yield f"base {row_key.base_ms}: Heroic reads times before 1970 back as other times"
    if entry is None:
        yield f"{series} is not in the series table: queries do not find it"
    elif not entry.first_ms <= row_key.base_ms <= entry.last_ms:
        bases = f"{entry.first_ms} to {entry.last_ms}"
        yield f"base {row_key.base_ms} is not within the bases of the series table, {bases}"
    yield from read_row(row.cells, row_key.base_ms, series, form).damage
