"""Which series and names the tables of a database have."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal

from timebeam.schema.core.rows import TableSpec
from timebeam.schema.series.series_patterns import Listed, SeriesQuery
from timebeam.schema.stores import as_opentsdb, find_opentsdb
from timebeam.transforms.bigtable.existing_tables import check_tables
from timebeam.transforms.bigtable.read_ranges import scan_keys
from timebeam.transforms.bigtable.target import BigtableError
from timebeam.transforms.opentsdb.stored_series import (
    check_storable,
    from_data,
    from_meta,
    meta_of,
    shown_names,
)
from timebeam.transforms.read.find_series import Found, from_keys, from_rows

if TYPE_CHECKING:
    from timebeam.pipelines.query.database import Database

NameKind = Literal["metrics", "tagk", "tagv"]


def find_series(
    database: Database, pattern: SeriesQuery, source: str = "auto"
) -> tuple[Iterator[Found], str]:
    """(the series that match, and rows that cannot be read; where they are found, in words).

    Args:
      source: `meta` or `data` for OpenTSDB's meta table or the keys of its data table; `auto` for the
        meta table unless it is missing or empty.

    Raises:
      ValueError: no name can match, or the store has no such source.
      BigtableError: the meta table is missing, and is the source.
    """
    with_meta = find_opentsdb(database.store)
    if with_meta is not None:
        values = itertools.chain.from_iterable(pattern.tags.values())
        check_storable(with_meta, [pattern.metric, *pattern.tags, *values])
        if _uses_meta(database, meta_of(with_meta), source):
            return from_meta(database.target, with_meta, pattern), f"the meta table {meta_of(with_meta).name}"
        where = f"the keys of the data table {with_meta.data_table}"
        return from_data(database.target, with_meta, pattern), where
    if source != "auto":
        as_opentsdb(database.store, "metadata")
    tables = ", ".join(spec.name for spec in database.store.tables() if spec.holds_points)
    if database.store.index is None:
        return from_rows(database.target, database.store, pattern), f"the rows of {tables}"
    return from_keys(database.target, database.store, pattern), f"the keys of table {tables}"


def _uses_meta(database: Database, meta: TableSpec, source: str) -> bool:
    """Whether the meta table is read; raises BigtableError if it is the source, and is not there."""
    if source == "data":
        return False
    try:
        check_tables(database.target, [meta], database.create_command + " --meta")
    except BigtableError:
        if source == "meta":
            raise
        return False
    return source == "meta" or next(scan_keys(database.target, meta.name), None) is not None


def names_of(database: Database, kind: str, start: str, skipped: list[str]) -> Iterator[str]:
    """The names of a kind that begin with `start`, ascending by their bytes.

    None for declared tables, whose names are found by reading all rows.

    Args:
      kind: a `NameKind`.
      skipped: takes a line for each row that cannot be read.

    Raises:
      UnicodeEncodeError: none can begin so.
    """
    opentsdb = find_opentsdb(database.store)
    if opentsdb is not None:
        yield from shown_names(database.target, opentsdb, kind, start)
        return
    names: set[str] = set()
    everything = SeriesQuery("*", {})
    rows = () if database.store.index is None else from_keys(database.target, database.store, everything)
    for listed in readable(rows, skipped):
        if kind == "metrics":
            names.add(listed.series.metric)
        else:
            names.update(tag[kind == "tagv"] for tag in listed.series.tags)
    yield from sorted((name for name in names if name.startswith(start)), key=str.encode)


def readable(rows: Iterable[Found], skipped: list[str]) -> Iterator[Listed]:
    """The series; `skipped` takes a line for each row that cannot be read."""
    for listed in rows:
        if isinstance(listed, Listed):
            yield listed
        else:
            skipped.append(f"row {listed[0].hex()}: {listed[1]}")
