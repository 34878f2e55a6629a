"""Audits the data table and the archive: rows must decode, and their UIDs must have names."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator

from timebeam.schema.archive import archive_rows
from timebeam.schema.archive.archive_rows import ArchiveKey
from timebeam.schema.bits.lru_cache import batched
from timebeam.schema.core.rows import Row
from timebeam.schema.core.selection import Finding, Severity
from timebeam.schema.stores.opentsdb.columns import decode_rows
from timebeam.schema.stores.opentsdb.columns.annotation_cells import (
    is_annotation,
    is_global,
    read_annotations,
)
from timebeam.schema.stores.opentsdb.columns.decode_row import is_histogram, read_row
from timebeam.schema.stores.opentsdb.keys import SPAN_S, OpenTsdbRowKey, parse_key, row_key, salt
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions
from timebeam.schema.stores.opentsdb.uids.repair_uids import UidMaps

_ROWS_AT_ONCE, _POINTS_AT_ONCE = 1000, 100_000


def data_findings(rows: Iterable[Row], maps: UidMaps, options: OpenTsdbOptions) -> Iterator[Finding]:
    """Rows of the data table that do not decode, or whose UIDs have no names."""
    histograms = _HistogramCounts()
    for row, is_sound in _looked_through(rows):
        if is_global(options, row.key):
            yield from _global_findings(row, options)
            continue
        try:
            key_fields = parse_key(options, row.key)
        except ValueError as error:
            yield _corruption(row.table, row.key, str(error))
            continue
        if key_fields.base_s % SPAN_S:
            yield _corruption(row.table, row.key, f"base time {key_fields.base_s} is not a whole hour")
        yield from _series_findings(row, key_fields, maps, options)
        if is_sound:
            continue
        for message in read_row(row.cells).corruption:
            yield _corruption(row.table, row.key, message)
        for annotation in read_annotations(options, row):
            if annotation.note is None:
                yield _corruption(row.table, row.key, annotation.corruption)
        yield from histograms.add(row)
    yield from histograms.findings()


def archive_findings(rows: Iterable[Row], maps: UidMaps, options: OpenTsdbOptions) -> Iterator[Finding]:
    """See `archive_findings` of `timebeam.schema.archive.archive_rows`; also UIDs without names."""

    def of_series(row: Row, key: ArchiveKey) -> Iterator[Finding]:
        key_fields = parse_key(options, row_key(key.series, key.base_s))
        return _series_findings(row, key_fields, maps, options)

    return archive_rows.archive_findings(options, rows, of_series)


def _series_findings(
    row: Row, key_fields: OpenTsdbRowKey, maps: UidMaps, options: OpenTsdbOptions
) -> Iterator[Finding]:
    """What is wrong with the salt and the UIDs of a row."""
    bucket = salt(options, key_fields.metric, key_fields.tail)
    if key_fields.salt != bucket:
        message = f"salt {key_fields.salt.hex()} is not that of the series, {bucket.hex()}"
        yield _corruption(row.table, row.key, f"{message}: another number of salt buckets?")
    for kind, uid in key_fields.uids:
        if (kind, uid) not in maps.names:
            yield _corruption(row.table, row.key, f"UID {uid.hex()} of kind {kind} has no name")


def _looked_through(rows: Iterable[Row]) -> Iterator[tuple[Row, bool]]:
    """(row, whether it holds one sound column of points and nothing else).

    Reads many rows at once, as many as fit into memory; each row alone would take a fifth of a millisecond.
    """
    for batch in batched(rows, _ROWS_AT_ONCE, _size, _POINTS_AT_ONCE):
        unread = set(decode_rows.read_rows(batch).unread)
        for number, row in enumerate(batch):
            yield row, number not in unread and len(row.cells[0].qualifier) % 2 == 0


def _size(row: Row) -> int:
    """About the number of points of a row."""
    return len(row.cells) + (len(row.cells[0].value) // 8 if row.cells else 0)


def _global_findings(row: Row, options: OpenTsdbOptions) -> Iterator[Finding]:
    """What is wrong with a row of global annotations."""
    base_s = int.from_bytes(row.key[-4:], "big")
    if base_s % SPAN_S:
        yield _corruption(row.table, row.key, f"base time {base_s} is not a whole hour")
    for annotation in read_annotations(options, row):
        if annotation.note is None:
            yield _corruption(row.table, row.key, annotation.corruption)
    other_columns = sum(not is_annotation(cell.qualifier) for cell in row.cells)
    if other_columns:
        text = f"a row of global annotations with {other_columns} columns that are none"
        yield _corruption(row.table, row.key, text)


class _HistogramCounts:
    """Counts histograms, since only the codecs of the TSD's configuration can read them."""

    def __init__(self) -> None:
        self._ids: collections.Counter[int] = collections.Counter()
        self._rows = 0
        self._first: Row | None = None

    def add(self, row: Row) -> Iterator[Finding]:
        """Counts the histograms of a row; an empty one is corruption."""
        values = [cell for cell in row.cells if is_histogram(cell.qualifier)]
        self._rows += bool(values)
        for cell in values:
            self._first = self._first or row
            if cell.value:
                self._ids[cell.value[0]] += 1
            else:
                text = f"histogram {cell.qualifier.hex()}: empty, so without the id of a codec"
                yield _corruption(row.table, row.key, text)

    def findings(self) -> Iterator[Finding]:
        """One note on all histograms."""
        if self._first is not None:
            ids = ", ".join(f"{count:,} of codec {number}" for number, count in sorted(self._ids.items()))
            text = f"the first of {self._rows:,} rows with histograms: {ids or 'all empty'}"
            yield Finding(Severity.NOTE, self._first.table, self._first.key, text)


def _corruption(table: str, key: bytes, text: str) -> Finding:
    return Finding(Severity.CORRUPT, table, key, text)
