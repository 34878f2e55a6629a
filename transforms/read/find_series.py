"""Finds series in stores whose rows or row keys tell their names; says why a command has no points."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from timebeam.schema.archive import archive_rows
from timebeam.schema.archive.view import find_archive
from timebeam.schema.core.contract import ReadableStore
from timebeam.schema.core.points import Series
from timebeam.schema.core.selection import Finding, Selection
from timebeam.schema.series.series_patterns import Listed, SeriesQuery
from timebeam.transforms.bigtable.read_ranges import scan_keys
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.query.budget import metered, metered_keys

_YEAR_9999_MS = 253_402_300_799_999

Found = Listed | tuple[bytes, str]
"""A series; or the key of a row that cannot be read, and why."""


def from_keys(target: Target, layout: ReadableStore, query: SeriesQuery) -> Iterator[Found]:
    """The series of a layout whose row keys hold the names; memory for all of them."""
    seen: set[Series] = set()
    index = layout.index
    assert index is not None
    for key in metered_keys(target, _data_keys(target, layout)):
        try:
            series, base_ms = index.entry_of(key)
        except ValueError as error:
            yield key, str(error)
            continue
        if series not in seen and query.takes(series):
            seen.add(series)
            yield Listed(series, seen_ms=base_ms)


def _data_keys(target: Target, layout: ReadableStore) -> Iterator[bytes]:
    """The keys of all data rows, then those of archive rows, each as the key of a data row of its series."""
    for spec in layout.tables():
        if spec.holds_points:
            yield from scan_keys(target, spec.name)
    archive = find_archive(layout)
    if archive is not None:
        for key in scan_keys(target, archive.table):
            with contextlib.suppress(ValueError):  # not a key of an archive row
                yield archive.data_key(archive_rows.parse_key(archive.heads, key))


def from_rows(target: Target, layout: ReadableStore, query: SeriesQuery) -> Iterator[Found]:
    """The series of a layout whose rows say them; all that are found are held in memory."""
    seen: set[Series] = set()
    for row in layout.select(Selection(None, {}, 0, _YEAR_9999_MS), metered(target)):
        if isinstance(row, Finding):
            yield row.key, row.text
        elif row.series not in seen and query.takes(row.series):
            seen.add(row.series)
            yield Listed(row.series)


_SAMPLED_KEYS = 100  # of a table, to explain an empty result


def why_nothing(target: Target, layout: ReadableStore) -> str:
    """Why a command has no points: whether the data tables have rows, and whether they fit the options."""
    tables = [spec.name for spec in layout.tables() if spec.holds_points]
    keys = [key for name in tables for key in scan_keys(target, name, limit=_SAMPLED_KEYS)]
    names, is_many = " and ".join(tables), len(tables) > 1
    if not keys:
        archive = find_archive(layout)
        if archive and any(scan_keys(target, archive.table, limit=1)):
            return f"table {names} is empty, and nothing in {archive.table} matches the selection"
        return f"tables {names} are empty" if is_many else f"table {names} is empty"
    having_rows = f"tables {names} have rows" if is_many else f"table {names} has rows"
    errors = [error for key in keys if (error := layout.key_error(key))]
    if len(errors) == len(keys):
        return (
            f"{having_rows}, but none of the first {len(keys):,} fits these options ({errors[0]}): "
            f"give --layout {layout.name} and its options (salt, UID widths, row spec) as they were when the "
            "rows were written"
        )
    unfit = f", {len(errors):,} of the first {len(keys):,} do not" if errors else ""
    return f"{having_rows} that fit these options{unfit}; none matches the selection"
