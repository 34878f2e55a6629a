"""Selects the rows of a query: names to UIDs, key ranges, and the series of each row."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from timebeam.schema.layouts.archive import keys as archive_keys
from timebeam.schema.layouts.archive.rows import PARTS
from timebeam.schema.layouts.archive.select import ReadRow, SealedSource, archived_of, archived_rows
from timebeam.schema.layouts.opentsdb import keys
from timebeam.schema.layouts.opentsdb.keys import OpenTsdbOptions, UidPair
from timebeam.schema.layouts.opentsdb.leading import LeadingTags, cut_ranges, literal_filters
from timebeam.schema.layouts.opentsdb.uids import uid_table
from timebeam.schema.layouts.opentsdb.uids.names import Names
from timebeam.schema.layouts.opentsdb.uids.resolver import SeriesResolver
from timebeam.schema.layouts.reading import (
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
from timebeam.schema.layouts.tables import Row
from timebeam.schema.layouts.writing import Name, SeriesKey
from timebeam.schema.points import Series

_ROWS_AT_ONCE = 2000
_BYTES_AT_ONCE = 2 << 20
"""Rows whose names are looked up together: their number, or their bytes, roughly."""


def scan(
    options: OpenTsdbOptions,
    table: str,
    metrics: Sequence[bytes],
    tags: Mapping[bytes, Collection[bytes]],
    start_ms: int,
    end_ms: int,
    leading: LeadingTags | None = None,
) -> Scan:
    """The rows of some metrics in a time range; a few other rows may match too.

    Args:
      metrics: their UIDs; empty for every metric, which reads the whole table.
      tags: for the UID of each tag key that a series must have, the UIDs of its values; empty for any.
      start_ms, end_ms: first and last time wanted, in ms, both inclusive.
      leading: the known tags before filtered ones, by which rows with other values are left out; None if
        rows do not hold an hour, or to read one range for each metric and salt.
    """
    if not metrics:
        # After the rows of global annotations, whose metric is zero.
        first = (1).to_bytes(options.salt_width + options.uid_width_metric, "big")
        ranges: Sequence[tuple[bytes, bytes]] = ((first, b""),)
    else:
        ranges = sorted(
            key_range for metric in metrics for key_range in keys.ranges(options, metric, start_ms, end_ms)
        )
        if leading is not None:
            bases = [base.to_bytes(keys.BASE_BYTES, "big") for base in keys.bases(start_ms, end_ms)]
            ranges = cut_ranges(ranges, bases, tags, leading, options.salt_width)
    return Scan(table, ranges, keys.key_pattern(tags))


def archive_scan(
    options: OpenTsdbOptions,
    table: str,
    metrics: Sequence[bytes],
    tags: Mapping[bytes, Collection[bytes]],
    start_ms: int,
    end_ms: int,
    *,
    keys_only: bool,
) -> Scan:
    """Like `scan`, of the archive; at least one metric."""
    ranges = sorted(
        key_range
        for metric in metrics
        for head in keys.heads(options, metric)
        for key_range in archive_keys.ranges(head, start_ms, end_ms)
    )
    return Scan(table, ranges, keys.key_pattern(tags), PARTS, keys_only)


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
    options: OpenTsdbOptions,
    data: str,
    uids: str,
    selection: Selection,
    reader: Reader,
    columns: ColumnRange | None = None,
    leading: LeadingTags | None = None,
) -> Iterator[Selected | Finding]:
    """See `Layout.select`. A UID without a name is shown in hex; for all metrics, it is a finding.

    Args:
      data, uids: names of the data table and of the UID table.
      columns: the columns to read; None for all.
      leading: as in `scan`; takes what the rows show.

    Raises:
      UnknownNameError: a name has no UID.
    """
    metrics, allowed = _resolve(options.names, uids, selection, reader)
    period = selection.start_ms, selection.end_ms
    rows = dataclasses.replace(scan(options, data, metrics, allowed, *period, leading), columns=columns)
    names = SeriesResolver(options, uids, reader, refuse_lost=selection.metric is None)
    yield from _selected(options, data_rows(options, rows, period, reader), allowed, names, leading)


def select_metrics(
    options: OpenTsdbOptions,
    data: str,
    uids: str,
    metrics: Sequence[bytes],
    start_ms: int,
    end_ms: int,
    reader: Reader,
) -> Iterator[Selected | Finding]:
    """Like `select`, for metrics by their UIDs, in the order of row keys.

    Args:
      metrics: at least one.
      start_ms, end_ms: first and last time, in ms, both inclusive.
    """
    period = start_ms, end_ms
    rows = data_rows(options, scan(options, data, metrics, {}, *period), period, reader)
    names = SeriesResolver(options, uids, reader, refuse_lost=False)
    yield from _selected(options, rows, {}, names)


def select_archived(
    options: OpenTsdbOptions,
    tables: tuple[str, str, str],
    selection: Selection | Sequence[bytes],
    period: tuple[int, int],
    reader: Reader,
) -> Iterator[Selected | Finding]:
    """Like `select` or `select_metrics`, of the data table and the archive.

    Of all metrics, those that the archive has in the period are read one by one, and the rest of the data
    table in one scan.

    Args:
      tables: names of the data table, the UID table and the archive.
      selection: or the UIDs of metrics.
      period: first and last time, in ms, both inclusive.

    Raises:
      UnknownNameError: a name has no UID.
    """
    data, uids, archive = tables
    metrics, allowed = (
        _resolve(options.names, uids, selection, reader)
        if isinstance(selection, Selection)
        else (selection, {})
    )
    names = SeriesResolver(options, uids, reader, refuse_lost=not metrics)
    if metrics:
        yield from _selected_archived(options, (data, archive), metrics, allowed, period, reader, names)
        return
    sealed: set[bytes] = set()
    yield from _sealed_metrics(options, archive, period, reader, sealed)
    rows = scan(options, data, (), allowed, *period)
    rows = dataclasses.replace(rows, ranges=_ranges_beside(options, sealed, rows.ranges[0][0]))
    yield from _selected(options, data_rows(options, rows, period, reader), allowed, names)
    for metric in sorted(sealed):
        yield from _selected_archived(options, (data, archive), [metric], allowed, period, reader, names)


def _selected_archived(
    options: OpenTsdbOptions,
    tables: tuple[str, str],
    metrics: Sequence[bytes],
    allowed: Mapping[bytes, set[bytes]],
    period: tuple[int, int],
    reader: Reader,
    names: SeriesResolver,
) -> Iterator[Selected | Finding]:
    """The selected rows of some metrics in the data table and the archive."""
    data, archive = tables
    late_of: dict[bytes, list[Row]] = {}
    source = _OpenTsdbSource(options, tables, metrics, allowed, reader)
    rows = ((read.row, _data_key(read)) for read in archived_rows(source, period, late_of))
    for selected in _selected(options, rows, allowed, names):
        if isinstance(selected, Finding):
            yield selected
            if selected.table == archive:
                for late in late_of.pop(selected.key, ()):
                    yield selected._replace(table=data, key=late.key)
        elif selected.row.table == archive:
            yield archived_of(selected, late_of.pop(selected.row.key, ()))
        else:
            yield selected


class _OpenTsdbSource(SealedSource):
    """See `SealedSource`; reads some metrics."""

    window_ms = archive_keys.BLOCK_S * 1000

    def __init__(
        self,
        options: OpenTsdbOptions,
        tables: tuple[str, str],
        metrics: Sequence[bytes],
        allowed: Mapping[bytes, set[bytes]],
        reader: Reader,
    ) -> None:
        self.heads = options
        self._options, self._reader = options, reader
        self._data, self._archive = tables
        self._metrics, self._allowed = metrics, allowed

    def data_rows(self, start_ms: int, end_ms: int) -> Iterator[Row]:
        """See `SealedSource.data_rows`."""
        rows = scan(self._options, self._data, self._metrics, self._allowed, start_ms, end_ms)
        return (row for row, _ in data_rows(self._options, rows, (start_ms, end_ms), self._reader))

    def archive_rows(self, start_ms: int, end_ms: int, *, keys_only: bool) -> Iterator[Row]:
        """See `SealedSource.archive_rows`."""
        rows = archive_scan(
            self._options, self._archive, self._metrics, self._allowed, start_ms, end_ms, keys_only=keys_only
        )
        return iter(self._reader.scan(rows))

    def pieces(self, row: Row, span_s: int) -> Iterator[tuple[SeriesKey, int, Row]]:
        """See `SealedSource.pieces`: one, since a row is an hour."""
        base_at = self._options.salt_width + self._options.uid_width_metric
        series = SeriesKey(row.key[:base_at], row.key[base_at + keys.BASE_BYTES :])
        yield series, keys.base_s_of(self._options, row.key), row


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
    options: OpenTsdbOptions,
    rows: Iterable[tuple[Row, bytes]],
    allowed: Mapping[bytes, set[bytes]],
    names: SeriesResolver,
    leading: LeadingTags | None = None,
) -> Iterator[Selected | Finding]:
    """The selected rows, with their series.

    Args:
      rows: each with the key of a data row of its series.
      allowed: for the UID of a tag key, the UIDs of values that a series may have; empty for any.
      leading: takes the tags in front of the first key with values.
    """
    filters = literal_filters(allowed)
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
            tags = keys.parse_key(options, key).tags if allowed else ()
            passes = passes_of[tsuid] = _passes(tags, allowed)
            if passes and filters and leading is not None:
                leading.add(key[salt_end:base_at], filters[0][0], tags)
        if passes:
            batch.append((row, tsuid))
            size += len(row.cells) * len(row.cells[0].value) if row.cells else 0
        if len(batch) >= _ROWS_AT_ONCE or size >= _BYTES_AT_ONCE:
            yield from names.selected(batch)
            batch, size = [], 0
    yield from names.selected(batch)


def _passes(tags: Iterable[tuple[bytes, bytes]], allowed: Mapping[bytes, set[bytes]]) -> bool:
    """Whether a series has each tag key of `allowed`, with one of its values if it has any."""
    if not allowed:
        return True
    value_of = dict(tags)
    return all(
        key_uid in value_of and (not values or value_of[key_uid] in values)
        for key_uid, values in allowed.items()
    )


def _resolve(
    form: Names, uids: str, selection: Selection, reader: Reader
) -> tuple[Sequence[bytes], dict[bytes, set[bytes]]]:
    """([UID of the metric], or [] for all metrics; UIDs of allowed values by UID of the tag key)."""
    names = [] if selection.metric is None else [Name("metrics", selection.metric)]
    names += [Name("tagk", key) for key in selection.tags]
    names += [Name("tagv", value) for values in selection.tags.values() for value in values]
    uid_of = uid_table.look_up_shown(form, uids, names, reader)
    for name in names:
        if name not in uid_of:
            raise _unknown(form, uids, name, reader)
    allowed = {
        uid_of[Name("tagk", key)]: {uid_of[Name("tagv", value)] for value in values}
        for key, values in selection.tags.items()
    }
    return ([] if selection.metric is None else [uid_of[Name("metrics", selection.metric)]]), allowed


def _unknown(form: Names, uids: str, name: Name, reader: Reader) -> UnknownNameError:
    def names_from(start: str) -> Iterator[str]:
        return (stored_name for stored_name, _ in uid_table.names_from(form, uids, name.kind, start, reader))

    return UnknownNameError(f"No such name for '{name.kind}': '{name.text}'", name.text, names_from)
