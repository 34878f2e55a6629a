"""Finds series by patterns, and metadata without points; says why a command has no points."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from google.api_core.exceptions import NotFound

from timebeam.schema.archive import archive_rows
from timebeam.schema.archive.archive_rows import archive_table
from timebeam.schema.archive.view import find_archive
from timebeam.schema.core.contract import ReadableStore
from timebeam.schema.core.points import Series
from timebeam.schema.core.row_deletion import deletions
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.core.selection import Finding, Reader, Scan, Selection, prefix_range
from timebeam.schema.series import series_patterns
from timebeam.schema.series.series_patterns import Listed, SeriesQuery
from timebeam.schema.stores.opentsdb import keys, meta_documents
from timebeam.schema.stores.opentsdb.keys import tsuid_of_key, tsuid_pairs
from timebeam.schema.stores.opentsdb.meta_documents import FAMILY, meta_table
from timebeam.schema.stores.opentsdb.uids import uid_table
from timebeam.schema.stores.opentsdb.uids.uid_directory import UidDirectory
from timebeam.transforms.bigtable.read_ranges import scan_keys
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.bigtable.write_rows import write_all
from timebeam.transforms.query.budget import Meter, metered, metered_keys
from timebeam.transforms.read.table_reader import TableReader, scan_table

if TYPE_CHECKING:
    from timebeam.schema.stores import OpenTsdb

_LAST_MS = (1 << 32) * 1000 - 1
_YEAR_9999_MS = 253_402_300_799_999

Found = Listed | tuple[bytes, str]
"""A series; or the key of a row that cannot be read, and why."""


def from_meta(
    target: Target, layout: OpenTsdb, query: SeriesQuery, meter: Meter | None = None
) -> Iterator[Found]:
    """The series in the meta table, ascending by TSUID.

    Args:
      meter: counts what is read, here and below; it stops the scan, and what it raises goes through.
    """
    table, reader = meta_table(layout.options.table_prefix).name, metered(TableReader(target), meter)
    ranges = [prefix_range(uid) for uid in _metrics(layout, query, reader)]
    rows = reader.scan(Scan(table, ranges)) if ranges else ()
    with_meta = (row for row in rows if any(cell.family == FAMILY for cell in row.cells))
    return meta_documents.listed(with_meta, UidDirectory(layout.options, layout.uid_table, reader), query)


def from_data(
    target: Target,
    layout: OpenTsdb,
    query: SeriesQuery,
    meter: Meter | None = None,
    *,
    once: bool = True,
    start_ms: int = 0,
) -> Iterator[Found]:
    """The series that have rows in the data table, in the order of the rows.

    Args:
      start_ms: without rows that begin before the hour of this time.
      once: each series once, which holds those of one metric in memory; else one for each of its rows.
    """
    reader = metered(TableReader(target), meter)
    rows = (
        row
        for uid in _metrics(layout, query, reader)
        for row in _series_rows(layout, metered_keys(metric_keys(target, layout, uid, start_ms), meter), once)
    )
    return meta_documents.listed(rows, UidDirectory(layout.options, layout.uid_table, reader), query)


def from_keys(
    target: Target, layout: ReadableStore, query: SeriesQuery, meter: Meter | None = None
) -> Iterator[Found]:
    """The series of a layout whose row keys hold the names; memory for all of them."""
    seen: set[Series] = set()
    index = layout.index
    assert index is not None
    for key in metered_keys(_data_keys(target, layout), meter):
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


def from_rows(
    target: Target, layout: ReadableStore, query: SeriesQuery, meter: Meter | None = None
) -> Iterator[Found]:
    """The series of a layout whose rows say them; all that are found are held in memory."""
    seen: set[Series] = set()
    reader = metered(TableReader(target), meter)
    for row in layout.select(Selection(None, {}, 0, _YEAR_9999_MS), reader):
        if isinstance(row, Finding):
            yield row.key, row.text
        elif row.series not in seen and query.takes(row.series):
            seen.add(row.series)
            yield Listed(row.series)


def has_rows(target: Target, table: str) -> bool:
    """Whether a table exists and has a row."""
    try:
        return any(True for _ in scan_keys(target, table, limit=1))
    except NotFound:
        return False


def _metrics(layout: OpenTsdb, query: SeriesQuery, reader: Reader) -> list[bytes]:
    """The UIDs of the matching metrics, ascending."""
    start = series_patterns.fixed_start(query.metric)
    names = uid_table.names_from(layout.options.names, layout.uid_table, "metrics", start, reader)
    return sorted(uid for name, uid in names if series_patterns.matches(name, [query.metric]))


def metric_keys(target: Target, layout: OpenTsdb, metric: bytes, start_ms: int = 0) -> Iterator[bytes]:
    """The keys of the data rows of a metric, by its UID, from the hour of a time on.

    Those of its archive rows follow, as keys of data rows; from the span of that time on.
    """
    for start, end in keys.ranges(layout.options, metric, start_ms, _LAST_MS):
        yield from scan_keys(target, layout.data_table, start, end)
    if layout.options.archive:
        table = archive_table(layout.options.table_prefix).name
        heads = keys.heads(layout.options, metric)
        for start, end in (span for head in heads for span in archive_rows.ranges(head, start_ms, _LAST_MS)):
            for key in scan_keys(target, table, start, end):
                with contextlib.suppress(ValueError):  # no key of the archive
                    archived = archive_rows.parse_key(layout.options, key)
                    yield keys.row_key(archived.series, archived.base_s)


def _series_rows(layout: OpenTsdb, data_keys: Iterable[bytes], once: bool) -> Iterator[Row]:
    """A row with the TSUID as key for each series of these keys, or for each of its rows.

    Its only cell has no content, and the base time of the row as its timestamp.
    """
    seen: set[bytes] = set()
    for key in data_keys:
        try:
            tsuid, base_s = tsuid_of_key(layout.options, key)
        except ValueError:
            tsuid, base_s = key, 0  # `search.listed` reports it
        if not once or tsuid not in seen:
            seen.add(tsuid)
            yield Row(layout.data_table, tsuid, (Cell("", b"", base_s * 1000, b""),))


def orphans(target: Target, layout: OpenTsdb) -> Iterator[Row]:
    """The rows of the meta table whose series have no row in the data table; memory for one metric's series.

    Rows whose key is not a TSUID are left out.
    """
    options = layout.options
    rows = scan_table(target, meta_table(options.table_prefix).name)
    for metric, of_metric in itertools.groupby(rows, lambda row: row.key[: options.uid_width_metric]):
        meta_rows = {row.key: row for row in of_metric if _is_tsuid(layout, row.key)}
        for key in metric_keys(target, layout, metric) if meta_rows else ():
            with contextlib.suppress(ValueError):  # not the key of a series
                meta_rows.pop(tsuid_of_key(options, key)[0], None)
            if not meta_rows:
                break
        yield from meta_rows.values()


def _is_tsuid(layout: OpenTsdb, key: bytes) -> bool:
    try:
        tsuid_pairs(layout.options, key)
    except ValueError:
        return False
    return True


def remove(target: Target, rows: Sequence[Row]) -> None:
    """Deletes the cells of these rows; cells written since they were read stay.

    Raises:
      GoogleAPICallError: cells could not be deleted; others may have been.
    """
    write_all(target, rows[0].table, [row._replace(cells=(), deleted=deletions(row.cells)) for row in rows])


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
