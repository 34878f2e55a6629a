"""Selects the rows of a query: names to UIDs, key ranges, and the series of each row."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from timebeam.schema.archive import keys as archive_keys
from timebeam.schema.archive.archive_rows import PARTS
from timebeam.schema.archive.select_archived import ReadRow, SealedSource, archived_of, archived_rows
from timebeam.schema.core.points import Series
from timebeam.schema.core.reading import (
    ColumnRange,
    Finding,
    Reader,
    Scan,
    Selected,
    Selection,
    Severity,
    UnknownNameError,
    prefix_range,
)
from timebeam.schema.core.rows import Row
from timebeam.schema.core.writing import Name, SeriesKey
from timebeam.schema.stores.opentsdb import keys
from timebeam.schema.stores.opentsdb.key_ranges import (
    KeyRange,
    LeadingTags,
    Wanted,
    key_ranges,
    of_tsuids,
    tag_pairs,
)
from timebeam.schema.stores.opentsdb.keys import OpenTsdbOptions, UidPair
from timebeam.schema.stores.opentsdb.uids import uid_table
from timebeam.schema.stores.opentsdb.uids.escaped_names import Names
from timebeam.schema.stores.opentsdb.uids.uid_table import SeriesResolver

if TYPE_CHECKING:
    from timebeam.schema.stores.opentsdb.layout import OpenTsdb

_ROWS_AT_ONCE = 2000
_BYTES_AT_ONCE = 2 << 20
"""Rows whose names are looked up together: their number, or their bytes, roughly."""


def scan(
    options: OpenTsdbOptions, table: str, wanted: Wanted, bases_s: Sequence[int], leading: LeadingTags
) -> Scan:
    """The rows of series that begin at some times; other rows may match too.

    Args:
      wanted: of all metrics, it reads the whole table.
      bases_s: the base times, ascending, in s.
      leading: the known tags before filtered ones, by which rows with other values are left out.
    """
    if not wanted.metrics:
        # After the rows of global annotations, whose metric is zero.
        first = (1).to_bytes(options.salt_width + options.uid_width_metric, "big")
        ranges: Sequence[KeyRange] = ((first, b""),)
    else:
        ranges = key_ranges(options, wanted, [(b"", bases_s)], leading)
    return Scan(table, ranges, keys.key_pattern(wanted.tags))


def archive_scan(
    options: OpenTsdbOptions,
    table: str,
    wanted: Wanted,
    period: tuple[int, int],
    leading: LeadingTags,
    *,
    keys_only: bool,
) -> Scan:
    """Like `scan`, of the archive; of at least one metric.

    Args:
      period: first and last time, in ms, both inclusive.
    """
    bases_by_code = [(bytes((code,)), bases_s) for code, bases_s in archive_keys.bases(*period)]
    ranges = key_ranges(options, wanted, bases_by_code, leading)
    return Scan(table, ranges, keys.key_pattern(wanted.tags), PARTS, keys_only)


def row_names(options: OpenTsdbOptions, key: bytes) -> list[UidPair]:
    """The (kind, UID) pairs in the key of a data row: the metric, then tag keys and values.

    Raises:
      ValueError: the key is not one of a data row.
    """
    return keys.parse_key(options, key).uids


def series_of(options: OpenTsdbOptions, uids: str, row: Row, reader: Reader) -> Series:
    """The series of a data row, by the names of its UIDs.

    Args:
      uids: name of the UID table.

    Raises:
      ValueError: the key is not one of a data row, or a UID has no name.
    """
    tsuid = keys.tsuid_of_key(options, row.key)[0]
    names = SeriesResolver(options, uids, reader, refuse_lost=True)
    (selected,) = names.selected([(row, tsuid)])
    if isinstance(selected, Finding):
        raise ValueError(selected.text)
    return selected.series


def select(
    layout: OpenTsdb,
    table: str,
    selection: Selection,
    reader: Reader,
    columns: ColumnRange | None = None,
    bases_s: Sequence[int] | None = None,
) -> Iterator[Selected | Finding]:
    """As `Layout.select`, of one table.

    A UID without a name is shown in hex; for all metrics, it is a finding.

    Args:
      table: the data table, or another one with its row keys.
      columns: the columns to read; None for all.
      bases_s: the base times of the rows, ascending, in s; None for the hours of the selection.

    Raises:
      UnknownNameError: a name has no UID.
      AmbiguousNameError: see `Selection`.
    """
    options, period = layout.options, (selection.start_ms, selection.end_ms)
    wanted = _resolve(layout, selection, reader)
    names = _names(layout, reader, selection, refuse_lost=selection.metric is None)
    rows = scan(options, table, wanted, keys.bases(*period) if bases_s is None else bases_s, layout.leading)
    in_period = data_rows(options, dataclasses.replace(rows, columns=columns), period, reader)
    yield from _selected(layout, in_period, wanted, names)


def select_metrics(
    layout: OpenTsdb, metrics: Sequence[bytes], period: tuple[int, int], reader: Reader
) -> Iterator[Selected | Finding]:
    """Like `select`, of the data table, for metrics by their UIDs, in the order of row keys.

    Args:
      metrics: at least one.
      period: first and last time, in ms, both inclusive.
    """
    wanted = Wanted(metrics)
    rows = scan(layout.options, layout.data_table, wanted, keys.bases(*period), layout.leading)
    names = _names(layout, reader, None, refuse_lost=False)
    yield from _selected(layout, data_rows(layout.options, rows, period, reader), wanted, names)


def select_archived(
    layout: OpenTsdb,
    archive: str,
    selection: Selection | Sequence[bytes],
    period: tuple[int, int],
    reader: Reader,
) -> Iterator[Selected | Finding]:
    """Like `select` or `select_metrics`, of the data table and the archive.

    Of all metrics, those that the archive has in the period are read one by one, and the rest of the data
    table in one scan.

    Args:
      archive: name of the archive.
      selection: or the UIDs of metrics.
      period: first and last time, in ms, both inclusive.

    Raises:
      UnknownNameError: a name has no UID.
      AmbiguousNameError: see `Selection`.
    """
    if isinstance(selection, Selection):
        wanted = _resolve(layout, selection, reader)
        names = _names(layout, reader, selection, refuse_lost=not wanted.metrics)
    else:
        wanted, names = Wanted(selection), _names(layout, reader, None, refuse_lost=False)
    if wanted.metrics:
        yield from _selected_archived(layout, archive, wanted, period, reader, names)
        return
    options = layout.options
    sealed: set[bytes] = set()
    yield from _sealed_metrics(options, archive, period, reader, sealed)
    rows = scan(options, layout.data_table, wanted, keys.bases(*period), layout.leading)
    rows = dataclasses.replace(rows, ranges=_ranges_beside(options, sealed, rows.ranges[0][0]))
    yield from _selected(layout, data_rows(options, rows, period, reader), wanted, names)
    for metric in sorted(sealed):
        of_metric = dataclasses.replace(wanted, metrics=[metric])
        yield from _selected_archived(layout, archive, of_metric, period, reader, names)


def _selected_archived(
    layout: OpenTsdb,
    archive: str,
    wanted: Wanted,
    period: tuple[int, int],
    reader: Reader,
    names: SeriesResolver,
) -> Iterator[Selected | Finding]:
    """The selected rows of some metrics in the data table and the archive."""
    late_of: dict[bytes, list[Row]] = {}
    source = _OpenTsdbSource(layout, archive, wanted, reader)
    rows = ((read.row, _data_key(read)) for read in archived_rows(source, period, late_of))
    for selected in _selected(layout, rows, wanted, names):
        if isinstance(selected, Finding):
            yield selected
            if selected.table == archive:
                for late in late_of.pop(selected.key, ()):
                    yield selected._replace(table=layout.data_table, key=late.key)
        elif selected.row.table == archive:
            yield archived_of(selected, late_of.pop(selected.row.key, ()))
        else:
            yield selected


class _OpenTsdbSource(SealedSource):
    """See `SealedSource`; reads some metrics."""

    window_ms = archive_keys.BLOCK_S * 1000

    def __init__(self, layout: OpenTsdb, archive: str, wanted: Wanted, reader: Reader) -> None:
        self.heads = self._options = layout.options
        self._data, self._archive = layout.data_table, archive
        self._wanted, self._leading, self._reader = wanted, layout.leading, reader

    def data_rows(self, start_ms: int, end_ms: int) -> Iterator[Row]:
        """See `SealedSource.data_rows`."""
        period = start_ms, end_ms
        rows = scan(self._options, self._data, self._wanted, keys.bases(*period), self._leading)
        return (row for row, _ in data_rows(self._options, rows, period, self._reader))

    def archive_rows(self, start_ms: int, end_ms: int, *, keys_only: bool) -> Iterator[Row]:
        """See `SealedSource.archive_rows`."""
        period = start_ms, end_ms
        rows = archive_scan(
            self._options, self._archive, self._wanted, period, self._leading, keys_only=keys_only
        )
        return iter(self._reader.scan(rows))

    def pieces(self, row: Row, span_s: int) -> Iterator[tuple[SeriesKey, int, Row]]:
        """See `SealedSource.pieces`: one, since a row is an hour."""
        base_at = self._options.salt_width + self._options.uid_width_metric
        series = SeriesKey(row.key[:base_at], row.key[base_at + keys.BASE_BYTES :])
        yield series, keys.base_s_of(self._options, row.key), row


def _names(
    layout: OpenTsdb, reader: Reader, selection: Selection | None, *, refuse_lost: bool
) -> SeriesResolver:
    """What finds the series of rows; see `SeriesResolver`."""
    refuse_ambiguous = None if selection is None else selection.refuse_ambiguous
    return SeriesResolver(
        layout.options, layout.uid_table, reader, refuse_lost=refuse_lost, refuse_ambiguous=refuse_ambiguous
    )


def _data_key(read: ReadRow) -> bytes:
    """The key of a data row of the series of a row."""
    return read.row.key if read.key is None else keys.row_key(read.key.series, read.key.base_s)


def _sealed_metrics(
    options: OpenTsdbOptions, table: str, period: tuple[int, int], reader: Reader, metrics: set[bytes]
) -> Iterator[Finding]:
    """Reads all keys of the archive, and yields those that no reader of a metric reaches.

    Args:
      period: first and last time, in ms, both inclusive.
      metrics: takes the UIDs of the metrics that have rows in the period.
    """
    salt_width = options.salt_width
    for row in reader.scan(Scan(table, ((b"", b""),), columns=PARTS, keys_only=True)):
        try:
            key = archive_keys.parse_key(options, row.key)
        except ValueError as error:
            yield Finding(Severity.DAMAGE, table, row.key, str(error))
            continue
        salt = row.key[:salt_width]
        if salt and int.from_bytes(salt, "big") >= options.salt_buckets:
            text = f"salt {salt.hex()} is beyond {options.salt_buckets} salt buckets"
            yield Finding(Severity.DAMAGE, table, row.key, text)
        elif key.base_s * 1000 <= period[1] and key.end_s * 1000 > period[0]:
            metrics.add(key.series.head[salt_width:])


def _ranges_beside(
    options: OpenTsdbOptions, metrics: Collection[bytes], start: bytes
) -> Sequence[tuple[bytes, bytes]]:
    """The key ranges, from a key to the end of the data table, without those of some metrics."""
    ranges = []
    for bucket in range(options.salt_buckets if options.salt_width else 1):
        for metric in sorted(metrics):
            head = bucket.to_bytes(options.salt_width, "big") + metric
            if start < head:
                ranges.append((start, head))
            start = prefix_range(head)[1]
    return [*ranges, (start, b"")] if start else ranges


def data_rows(
    options: OpenTsdbOptions, rows: Scan, period: tuple[int, int], reader: Reader
) -> Iterator[tuple[Row, bytes]]:
    """The rows of a scan of the data table with points of a period, in ms, inclusive; each with its key."""
    first_s, last_s = period[0] // 1000 - keys.SPAN_S, period[1] // 1000
    base_at = options.salt_width + options.uid_width_metric
    tags_at = base_at + keys.BASE_BYTES
    for row in reader.scan(rows):
        key = row.key
        if len(key) < tags_at or first_s < int.from_bytes(key[base_at:tags_at], "big") <= last_s:
            yield row, key


def _selected(
    layout: OpenTsdb, rows: Iterable[tuple[Row, bytes]], wanted: Wanted, names: SeriesResolver
) -> Iterator[Selected | Finding]:
    """The selected rows, with their series; `leading` takes the tags in front of the first key with values.

    Args:
      rows: each with the key of a data row of its series.
    """
    options, filters = layout.options, wanted.filters
    batch: list[tuple[Row, bytes]] = []
    size = 0
    passes_of: dict[bytes, bool] = {}
    salt_end, base_at = options.salt_width, options.salt_width + options.uid_width_metric
    tags_at = base_at + keys.BASE_BYTES
    for row, key in rows:
        tsuid = key[salt_end:base_at] + key[tags_at:]
        passes = passes_of.get(tsuid)
        if passes is None:  # keys are parsed once for each series
            try:
                keys.check_length(options, key)
            except ValueError as error:
                yield Finding(Severity.DAMAGE, row.table, row.key, str(error))
                continue
            passes = passes_of[tsuid] = wanted.takes(options, tsuid)
            if passes and filters:
                layout.leading.add(key[salt_end:base_at], filters[0][0], tag_pairs(options, tsuid))
        if passes:
            batch.append((row, tsuid))
            size += len(row.cells) * len(row.cells[0].value) if row.cells else 0
        if len(batch) >= _ROWS_AT_ONCE or size >= _BYTES_AT_ONCE:
            yield from names.selected(batch)
            batch, size = [], 0
    yield from names.selected(batch)


def _resolve(layout: OpenTsdb, selection: Selection, reader: Reader) -> Wanted:
    """What a selection means in UIDs."""
    form, uids = layout.options.names, layout.uid_table
    names = [] if selection.metric is None else [Name("metrics", selection.metric)]
    names += [Name("tagk", key) for key in selection.tags]
    names += [Name("tagv", value) for values in selection.tags.values() for value in values]
    uid_of = uid_table.look_up_shown(form, uids, names, reader)
    for name in names:
        if name not in uid_of:
            raise _unknown(form, uids, name, reader)
    metrics = [] if selection.metric is None else [uid_of[Name("metrics", selection.metric)]]
    tags = {
        uid_of[Name("tagk", key)]: {uid_of[Name("tagv", value)] for value in values}
        for key, values in selection.tags.items()
    }
    if selection.tsuids is not None:
        return of_tsuids(layout.options, selection.tsuids)
    wanted = Wanted(metrics, tags, selection.explicit_tags)
    return wanted if selection.metric is None else wanted.with_tsuids()


def _unknown(form: Names, uids: str, name: Name, reader: Reader) -> UnknownNameError:
    def names_from(start: str) -> Iterator[str]:
        return (stored_name for stored_name, _ in uid_table.names_from(form, uids, name.kind, start, reader))

    return UnknownNameError(f"No such name for '{name.kind}': '{name.text}'", name.text, names_from)
