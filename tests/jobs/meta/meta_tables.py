"""The meta tables of a store in the emulator: made, read back, and made again by a slow model."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from google.cloud.bigtable.data import ReadRowsQuery
from google.cloud.bigtable.data.row_filters import CellsColumnLimitFilter

from tests.support.data_client import open_table
from tests.support.model import SeriesName
from tests.support.stored import Store
from timebeam.schema.core.point_fragments import Name
from timebeam.schema.stores.opentsdb.meta_documents import meta_table
from timebeam.transforms.bigtable.create_tables import create_tables


class MetaCell(NamedTuple):
    """One version of a cell of metadata."""

    key: bytes
    qualifier: bytes
    timestamp_ms: int
    value: bytes


def with_meta(bigtable: tuple[str, str], prefix: str, **options: Any) -> Store:
    """New tables, the meta table among them."""
    store = Store.create(bigtable, prefix, **options)
    list(create_tables(store.target, [meta_table(prefix)], dry_run=False))
    return store


def meta_name(store: Store) -> str:
    """The meta table's name."""
    return meta_table(store.layout.options.table_prefix).name


def ts_cells(store: Store) -> list[MetaCell]:
    """The newest version of every cell of the meta table."""
    return _newest(store, meta_name(store), lambda _: True)


def uid_meta_cells(store: Store) -> list[MetaCell]:
    """The newest version of every cell of metadata in the UID table."""
    return _newest(store, store.layout.options.uid_table, lambda qualifier: qualifier.endswith(b"_meta"))


def _newest(store: Store, table: str, wanted: Any) -> list[MetaCell]:
    query = ReadRowsQuery(row_filter=CellsColumnLimitFilter(1))
    return sorted(
        MetaCell(row.row_key, cell.qualifier, cell.timestamp_micros // 1000, cell.value)
        for row in open_table(store.target, table).read_rows(query)
        for cell in row.cells
        if wanted(cell.qualifier)
    )


def tsuid_of(uids: dict[Name, bytes], series: SeriesName) -> bytes:
    """The TSUID of a series: tags in the order of their UIDs."""
    metric, tags = series
    pairs = sorted(uids[Name("tagk", key)] + uids[Name("tagv", value)] for key, value in tags)
    return uids[Name("metrics", metric)] + b"".join(pairs)


def plain_ts_cells(
    store: Store, made: Iterable[tuple[SeriesName, int, int, int]], *, document: bool = True
) -> list[MetaCell]:
    """What the meta table holds for series of (name, created in s, counter, its timestamp in ms)."""
    uids, found = store.uids(), []
    for series, created_s, points, latest_ms in made:
        tsuid = tsuid_of(uids, series)
        found.append(MetaCell(tsuid, b"ts_ctr", latest_ms, points.to_bytes(8, "big")))
        if document:
            text = (
                '{"tsuid":"%s","displayName":"","description":"","notes":"","created":%d,"custom":null,'
                '"units":"","dataType":"","retention":0,"max":"NaN","min":"NaN"}'
            )
            value = (text % (tsuid.hex().upper(), created_s)).encode()
            found.append(MetaCell(tsuid, b"ts_meta", 1, value))
    return sorted(found)


def plain_uid_cells(store: Store, made: Iterable[tuple[SeriesName, int]]) -> list[MetaCell]:
    """What the UID table holds of metadata for series of (name, created in s): the earliest counts."""
    uids, first = store.uids(), {}
    for (metric, tags), created_s in made:
        names = [Name("metrics", metric)]
        for key, value in tags:
            names += [Name("tagk", key), Name("tagv", value)]
        for name in names:
            first[name] = min(first.get(name, created_s), created_s)
    types = {"metrics": "METRIC", "tagk": "TAGK", "tagv": "TAGV"}
    return sorted(
        MetaCell(
            uids[name],
            types[name.kind].lower().encode() + b"_meta",
            1,
            (
                f'{{"type":"{types[name.kind]}","displayName":"","description":"","notes":"",'
                f'"created":{created_s},"custom":null}}'
            ).encode(),
        )
        for name, created_s in first.items()
    )


def edited(value: bytes, **members: Any) -> bytes:
    """Metadata as somebody has edited it through a TSD."""
    return json.dumps(json.loads(value) | members, separators=(",", ":"), ensure_ascii=False).encode()
