"""Is what stands in the tables sound: rows that decode, and a series table that leads to each of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from timebeam.schema.layouts.heroic import series_table
from timebeam.schema.layouts.heroic.keys import KeyForm, KeyParts
from timebeam.schema.layouts.heroic.rows import read_row
from timebeam.schema.layouts.heroic.select import Names
from timebeam.schema.layouts.heroic.series_table import Known
from timebeam.schema.layouts.reading import Finding, Severity
from timebeam.schema.layouts.tables import Row
from timebeam.schema.points import Series

_UNFINISHED = " (left by an interrupted write)"


@dataclasses.dataclass(slots=True)
class SeriesTable:
    """The series table as it is stored, taken apart.

    Attributes:
      series: what the rows of series hold, by their keys.
      others: the keys of metric and tag rows.
      damaged: rows that cannot be read, and why.
    """

    series: dict[bytes, Known]
    others: set[bytes]
    damaged: list[tuple[bytes, str]]

    @classmethod
    def of(cls, rows: Iterable[Row]) -> SeriesTable:
        """The table with these rows."""
        table = cls({}, set(), [])
        for row in rows:
            if row.key.startswith(series_table.SERIES + b"\x00"):
                try:
                    table.series[row.key] = series_table.read_series(row)
                except ValueError as error:
                    table.damaged.append((row.key, str(error)))
            elif row.key[:2] in (series_table.METRIC + b"\x00", series_table.TAG + b"\x00"):
                table.others.add(row.key)
            else:
                table.damaged.append((row.key, "no kind of row of the series table has this key"))
        return table

    def findings(self, name: str) -> Iterator[Finding]:
        """Rows that cannot be read, are missing, or lead nowhere."""
        for key, text in self.damaged:
            yield Finding(Severity.DAMAGE, name, key, text)
        needed: set[bytes] = set()
        for key, known in self.series.items():
            for row in series_table.index_rows(name, known.series, known.first_ms):
                needed.add(row.key)
                if row.key not in self.others and row.key != key:
                    text = f"missing: queries for {known.series} may not find it"
                    yield Finding(Severity.DAMAGE, name, row.key, text)
        for key in sorted(self.others - needed):
            yield Finding(Severity.NOTE, name, key, "no series row belongs to it" + _UNFINISHED)


def data_findings(rows: Iterable[Row], table: SeriesTable, name: str, form: KeyForm) -> Iterator[Finding]:
    """Rows of the data table that do not decode or that no query finds, and series without such rows.

    Args:
      name: that of the series table.
    """
    names = Names(form)
    keys = {known.series: key for key, known in table.series.items()}
    for series in keys:
        names.add(series)
    unseen = set(keys)
    for row in rows:
        try:
            parts = form.parse(row.key)
            series = names.series_of(parts)
        except ValueError as error:
            yield Finding(Severity.DAMAGE, row.table, row.key, str(error))
            continue
        unseen.discard(series)
        known = table.series[keys[series]] if series in keys else None
        for text in _row_damage(row, parts, series, known, form):
            yield Finding(Severity.DAMAGE, row.table, row.key, text)
    for series in unseen:
        text = f"{series} has no row of points" + _UNFINISHED
        yield Finding(Severity.NOTE, name, keys[series], text)


def _row_damage(
    row: Row, parts: KeyParts, series: Series, known: Known | None, form: KeyForm
) -> Iterator[str]:
    """What is wrong with one row whose series is known."""
    if parts.base_ms < 0:
        yield f"base {parts.base_ms}: Heroic reads times before 1970 back as others"
    if known is None:
        yield f"{series} is not in the series table: queries do not find it"
    elif not known.first_ms <= parts.base_ms <= known.last_ms:
        among = f"{known.first_ms} to {known.last_ms}"
        yield f"base {parts.base_ms} is not among those of the series table, {among}"
    yield from read_row(row.cells, parts.base_ms, series, form).damage
