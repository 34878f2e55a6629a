"""The content of OpenTSDB's tables as two runs can be compared: with names where the keys have UIDs.

Workers that meet new names at the same time give them UIDs in any order, so that equal content has other
keys in each run. Nothing else is left out: family, qualifier, timestamp and value of each cell count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from timebeam.schema.stores.opentsdb.keys import parse_key
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.uids import uid_table
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.read.table_reader import scan_table


class NamedCell(NamedTuple):
    """A cell of a data or rollup table; base time in seconds, timestamp in ms."""

    table: str
    metric: str
    base_s: int
    tags: tuple[tuple[str, str], ...]
    family: str
    qualifier: bytes
    timestamp_ms: int
    value: bytes


def named_cells(target: Target, layout: OpenTsdb, tables: Iterable[str]) -> Iterator[NamedCell]:
    """The cells of the data table and of others with its keys, their names without the prefix of the layout.

    Raises:
      ValueError: a key has a UID that is nobody's, or two names have one UID.
    """
    names = _names(target, layout)
    prefix = layout.options.table_prefix
    for table in tables:
        for row in scan_table(target, table):
            key_parts = parse_key(layout.options, row.key)
            try:
                metric = names["metrics", key_parts.metric]
                tags = sorted((names["tagk", key], names["tagv", value]) for key, value in key_parts.tags)
            except KeyError as error:
                raise ValueError(f"row {row.key.hex()} of {table}: no name has the UID {error}") from error
            for family, qualifier, timestamp_ms, value in row.cells:
                yield NamedCell(
                    table.removeprefix(prefix),
                    metric,
                    key_parts.base_s,
                    tuple(tags),
                    family,
                    qualifier,
                    timestamp_ms,
                    value,
                )


def _names(target: Target, layout: OpenTsdb) -> dict[tuple[str, bytes], str]:
    """The name of each (kind, UID), by the mappings from names to UIDs."""
    assert layout.uids is not None
    names: dict[tuple[str, bytes], str] = {}
    for row in scan_table(target, layout.uids.table):
        if row.key == uid_table.COUNTER_ROW:
            continue
        for cell in row.cells:
            if cell.family == uid_table.ID_FAMILY:
                name = uid_table.name_text(row.key)
                kind = cell.qualifier.decode()
                if names.setdefault((kind, cell.value), name) != name:
                    raise ValueError(f"{kind} UID {cell.value.hex()} is that of two names")
    return names
