"""Selects the rows of a query: names to UIDs, key ranges, and the series of each row."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from timebeam.schema.core.point_fragments import Name
from timebeam.schema.core.points import Series
from timebeam.schema.core.rows import Row
from timebeam.schema.core.selection import (
    ArchiveRead,
    ColumnRange,
    Finding,
    Reader,
    Scan,
    Selected,
    Selection,
    UnknownNameError,
    row_findings,
)
from timebeam.schema.stores.opentsdb import keys
from timebeam.schema.stores.opentsdb.key_ranges import (
    KeyRange,
    LeadingTags,
    Wanted,
    key_ranges,
    of_tsuids,
    tag_pairs,
)
from timebeam.schema.stores.opentsdb.keys import OpenTsdbOptions
from timebeam.schema.stores.opentsdb.uids import uid_table
from timebeam.schema.stores.opentsdb.uids.uid_directory import SeriesResolver
from timebeam.schema.stores.opentsdb.uids.uid_table import Names

if TYPE_CHECKING:
    from timebeam.schema.stores.opentsdb.layout import OpenTsdb

_ROWS_AT_ONCE = 2000
_BYTES_AT_ONCE = 2 << 20
"""Rows whose names are looked up together: their number, or their bytes, roughly."""


KeyedRow = tuple[Row, bytes, ArchiveRead | None]
"""A row of the data table or the archive, the key of a data row of its series, and `Selected.archived`."""


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


def series_of(options: OpenTsdbOptions, uids: str, row: Row, reader: Reader) -> Series:
    """The series of a data row, by the names of its UIDs.

    Args:
      uids: name of the UID table.

    Raises:
      ValueError: the key is not one of a data row, or a UID has no name.
    """
    tsuid = keys.tsuid_of_key(options, row.key)[0]
    names = SeriesResolver(options, uids, reader, reject_lost=True)
    (selected,) = names.selected([(row, tsuid, None)])
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
    """As `Store.select`, of one table.

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
    wanted = resolve(layout, selection, reader)
    names = resolver(layout, reader, selection, reject_lost=selection.metric is None)
    rows = scan(options, table, wanted, keys.bases(*period) if bases_s is None else bases_s, layout.leading)
    in_period = data_rows(options, dataclasses.replace(rows, columns=columns), period, reader)
    yield from with_series(layout, in_period, wanted, names)


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
    names = resolver(layout, reader, None, reject_lost=False)
    yield from with_series(layout, data_rows(layout.options, rows, period, reader), wanted, names)


def resolver(
    layout: OpenTsdb, reader: Reader, selection: Selection | None, *, reject_lost: bool
) -> SeriesResolver:
    """What finds the series of rows; see `SeriesResolver`."""
    reject_ambiguous = None if selection is None else selection.reject_ambiguous
    return SeriesResolver(
        layout.options, layout.uid_table, reader, reject_lost=reject_lost, reject_ambiguous=reject_ambiguous
    )


def data_rows(
    options: OpenTsdbOptions, rows: Scan, period: tuple[int, int], reader: Reader
) -> Iterator[KeyedRow]:
    """The rows of a scan of the data table with points of a period, in ms, both ends inclusive."""
    first_s, last_s = period[0] // 1000 - keys.SPAN_S, period[1] // 1000
    base_at = options.salt_width + options.uid_width_metric
    tags_at = base_at + keys.BASE_BYTES
    for row in reader.scan(rows):
        key = row.key
        if len(key) < tags_at or first_s < int.from_bytes(key[base_at:tags_at], "big") <= last_s:
            yield row, key, None


def with_series(
    layout: OpenTsdb, rows: Iterable[KeyedRow], wanted: Wanted, names: SeriesResolver
) -> Iterator[Selected | Finding]:
    """The selected rows, with their series.

    `leading` takes the tags in front of the first key with values.
    """
    options, filters = layout.options, wanted.filters
    batch: list[KeyedRow] = []
    size = 0
    passes_of: dict[bytes, bool] = {}
    salt_end, base_at = options.salt_width, options.salt_width + options.uid_width_metric
    tags_at = base_at + keys.BASE_BYTES
    for row, key, archived in rows:
        tsuid = key[salt_end:base_at] + key[tags_at:]
        passes = passes_of.get(tsuid)
        if passes is None:  # keys are parsed once for each series
            try:
                keys.check_length(options, key)
            except ValueError as error:
                yield from row_findings(row, archived, str(error))
                continue
            passes = passes_of[tsuid] = wanted.takes(options, tsuid)
            if passes and filters:
                layout.leading.add(key[salt_end:base_at], filters[0][0], tag_pairs(options, tsuid))
        if passes:
            batch.append((row, tsuid, archived))
            size += len(row.cells) * len(row.cells[0].value) if row.cells else 0
        if len(batch) >= _ROWS_AT_ONCE or size >= _BYTES_AT_ONCE:
            yield from names.selected(batch)
            batch, size = [], 0
    yield from names.selected(batch)


def resolve(layout: OpenTsdb, selection: Selection, reader: Reader) -> Wanted:
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
