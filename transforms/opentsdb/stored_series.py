"""Series in OpenTSDB's tables: in the meta table, in the keys of data rows, and by TSUID.

A TSUID is the key of a data row without salt and base time: the UID of the metric, then those of the tags.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from google.api_core.exceptions import NotFound

from timebeam.schema.archive import archive_rows
from timebeam.schema.archive.archive_rows import archive_table
from timebeam.schema.core.contract import ReadableStore
from timebeam.schema.core.points import Series, SeriesKey
from timebeam.schema.core.rows import Cell, Row, TableSpec
from timebeam.schema.core.selection import Reader, Scan, prefix_range
from timebeam.schema.query.answer import QuerySeries
from timebeam.schema.query.question import Question
from timebeam.schema.series import series_patterns
from timebeam.schema.series.series_patterns import SeriesQuery
from timebeam.schema.stores import as_opentsdb, find_opentsdb
from timebeam.schema.stores.opentsdb import keys, meta_documents
from timebeam.schema.stores.opentsdb.keys import tsuid_of_key, tsuid_pairs
from timebeam.schema.stores.opentsdb.meta_documents import FAMILY, meta_table
from timebeam.schema.stores.opentsdb.options import Names
from timebeam.schema.stores.opentsdb.select import key_of_tsuid
from timebeam.schema.stores.opentsdb.uids import uid_table
from timebeam.schema.stores.opentsdb.uids.uid_table import UidDirectory, names_from
from timebeam.transforms.bigtable.read_ranges import scan_keys
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.query.budget import metered, metered_keys
from timebeam.transforms.read.find_series import Found
from timebeam.transforms.read.table_reader import TableReader, scan_table

if TYPE_CHECKING:
    from timebeam.schema.stores import OpenTsdb

_LAST_MS = (1 << 32) * 1000 - 1


def meta_of(layout: OpenTsdb) -> TableSpec:
    """The meta table."""
    return meta_table(layout.options.table_prefix)


def check_storable(layout: OpenTsdb, texts: Iterable[str]) -> None:
    """Raises ValueError for a name, or a pattern, that no name of the tables can match."""
    form = layout.options.names
    for text in texts:
        try:
            uid_table.name_bytes(form.stored(text) if form is Names.ESCAPE else text)
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{text!r}: OpenTSDB's names are ISO-8859-1, which has no {error.object[error.start]!r}"
            ) from error


def shown_names(target: Target, layout: OpenTsdb, kind: str, start: str) -> Iterator[str]:
    """The names of a kind that begin with a text, ascending by their stored bytes."""
    return (name for name, _ in names_from(layout.options, kind, start, metered(target)))


def from_meta(target: Target, layout: OpenTsdb, query: SeriesQuery) -> Iterator[Found]:
    """The series in the meta table, ascending by TSUID."""
    table, reader = meta_of(layout).name, metered(target)
    ranges = [prefix_range(uid) for uid in _metrics(layout, query, reader)]
    rows = reader.scan(Scan(table, ranges)) if ranges else ()
    with_meta = (row for row in rows if any(cell.family == FAMILY for cell in row.cells))
    return meta_documents.listed(with_meta, UidDirectory(layout.options, reader), query)


def from_data(
    target: Target, layout: OpenTsdb, query: SeriesQuery, *, once: bool = True, start_ms: int = 0
) -> Iterator[Found]:
    """The series that have rows in the data table, in the order of the rows.

    Args:
      start_ms: without rows that begin before the hour of this time.
      once: each series once, which holds those of one metric in memory; else one for each of its rows.
    """
    reader = metered(target)
    rows = (
        row
        for uid in _metrics(layout, query, reader)
        for row in _series_rows(
            layout, metered_keys(target, metric_keys(target, layout, uid, start_ms)), once
        )
    )
    return meta_documents.listed(rows, UidDirectory(layout.options, reader), query)


def has_rows(target: Target, table: str) -> bool:
    """Whether a table exists and has a row."""
    try:
        return any(True for _ in scan_keys(target, table, limit=1))
    except NotFound:
        return False


def _metrics(layout: OpenTsdb, query: SeriesQuery, reader: Reader) -> list[bytes]:
    """The UIDs of the matching metrics, ascending."""
    start = series_patterns.fixed_start(query.metric)
    names = names_from(layout.options, "metrics", start, reader)
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


def meta_keys(
    layout: OpenTsdb, key_of: Mapping[Series, SeriesKey]
) -> tuple[str, Mapping[Series, Sequence[bytes]]]:
    """(the meta table, the key in it of each series)."""
    salt_width = layout.options.salt_width
    keys_of = {series: [key.head[salt_width:] + key.tail] for series, key in key_of.items()}
    return meta_of(layout).name, keys_of


def metric_names(target: Target, layout: ReadableStore, uids: Collection[bytes]) -> dict[bytes, str]:
    """The names of metrics; a UID without a name is shown in hex."""
    with_uids = as_opentsdb(layout, "UID tables")
    names = UidDirectory(with_uids.options, TableReader(target))
    named = names.resolve(("metrics", uid) for uid in uids)
    return {uid: named.get(("metrics", uid), uid.hex()) for uid in uids}


def orphans(target: Target, layout: OpenTsdb) -> Iterator[Row]:
    """The rows of the meta table whose series have no row in the data table; memory for one metric's series.

    Rows whose key is not a TSUID are left out.
    """
    options = layout.options
    rows = scan_table(target, meta_of(layout).name)
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


def tsuids_of(layout: OpenTsdb, series: Collection[Series], reader: Reader) -> dict[Series, bytes]:
    """The TSUIDs of series; without series that have a name without a UID."""
    names = {series_: layout.uids.names(series_) for series_ in series}
    uids = uid_table.look_up(
        layout.options.uid_table, {name for group in names.values() for name in group}, reader
    )
    tsuids = {}
    for member, group in names.items():
        if all(name in uids for name in group):
            tags = zip(group[1::2], group[2::2], strict=True)
            pairs = sorted(uids[key] + uids[value] for key, value in tags)
            tsuids[member] = uids[group[0]] + b"".join(pairs)
    return tsuids


def series_of_tsuids(layout: OpenTsdb, texts: Iterable[str], reader: Reader) -> dict[bytes, Series]:
    """The series of TSUIDs in hex.

    Raises:
      ValueError: one is no TSUID, or has a UID without a name.
    """
    names, tsuids = UidDirectory(layout.options, reader), list(map(_tsuid, texts))
    for kind, uid in names.nameless(tsuids).values():
        raise ValueError(f"No such unique ID for '{kind}': {uid.hex().upper()}")
    return {tsuid: series for tsuid, series in names.series(tsuids).items() if isinstance(series, Series)}


def _tsuid(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise ValueError(f"TSUID {text} is not hexadecimal") from error


def question_of_tsuids(
    question: Question, layout: ReadableStore, texts: Sequence[str], reader: Reader
) -> Question:
    """The question of the series of TSUIDs alone, in place of its metric, tags and filters.

    Raises:
      ValueError: the layout has no TSUIDs, one is wrong, or they are of several metrics.
    """
    with_uids = find_opentsdb(layout)
    if with_uids is None:
        raise ValueError(f"Layout {layout.name} has no TSUIDs; query by metric and tags")
    by_tsuid = series_of_tsuids(with_uids, texts, reader)
    series = frozenset(by_tsuid.values())
    metrics = sorted({member.metric for member in series})
    if len(metrics) > 1:
        raise ValueError(f"One or more TSUIDs did not share the same metric [{metrics[0]}] [{metrics[1]}]")
    return dataclasses.replace(
        question,
        metric=metrics[0],
        tags={},
        group_by=(),
        filters=(),
        series=series,
        tsuids=frozenset(by_tsuid),
    )


def with_tsuids(layout: ReadableStore, found: Sequence[QuerySeries], reader: Reader) -> Sequence[QuerySeries]:
    """The series with their TSUIDs and salts, which their order depends on; as found without UIDs."""
    with_uids = find_opentsdb(layout)
    if with_uids is None:
        return found
    unknown = [item.series for item in found if not item.tsuid]
    tsuids = tsuids_of(with_uids, unknown, reader) if unknown else {}
    ordered = []
    for item in found:
        tsuid = item.tsuid or tsuids.get(item.series, b"")
        salt = key_of_tsuid(with_uids.options, tsuid).head[: with_uids.options.salt_width] if tsuid else b""
        ordered.append(dataclasses.replace(item, tsuid=tsuid, salt=salt))
    return ordered
