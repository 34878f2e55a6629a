"""Audits the stored tables: keys must parse, cells must decode, and the index must list each row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from timebeam.schema.layouts.kairosdb import index
from timebeam.schema.layouts.kairosdb.keys import KairosDbRowKey, parse_key
from timebeam.schema.layouts.kairosdb.options import RowSpec
from timebeam.schema.layouts.kairosdb.rows import decode
from timebeam.schema.layouts.kairosdb.select import Tables
from timebeam.schema.layouts.reading import Finding, Severity
from timebeam.schema.layouts.tables import Row


def findings(tables: Tables, spec: RowSpec, read: Callable[[str], Iterable[Row]]) -> Iterator[Finding]:
    """See `Layout.audit`. Names are kept in memory; data rows and index rows are read side by side."""
    names = _IndexedNames(read(tables.strings))
    for row, entry in _side_by_side(read(tables.data), read(tables.row_keys)):
        if row is None:
            assert entry is not None
            yield from _of_lone_entry(entry)
            continue
        try:
            key = parse_key(row.key)
        except ValueError as error:
            yield _damage(row, str(error))
            continue
        if entry is None:
            yield _damage(row, f"not in {tables.row_keys}: queries do not find it")
        if key.row_ms < 0:
            yield Finding(Severity.NOTE, row.table, row.key, "times before 1970: queries do not find them")
        elif key.row_ms % spec.width_ms:
            yield _damage(row, f"row time {key.row_ms} does not fit row spec {spec.value}")
        yield from names.missing(key, row, tables.strings)
        for message in decode(spec, row, key.series).damage:
            yield _damage(row, message)


class _IndexedNames:
    """The names in `string_index`, and those reported as missing so far."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._indexed: dict[bytes, set[bytes]] = {}
        for row in rows:
            self._indexed.setdefault(row.key, set()).update(
                cell.qualifier for cell in row.cells if cell.family == index.NAMES_FAMILY
            )

    def missing(self, key: KairosDbRowKey, row: Row, strings: str) -> Iterator[Finding]:
        """Missing names of a data row; tags are only a note, since KairosDB has stopped indexing them."""
        names = [(index.METRICS, key.series.metric)]
        for name, value in key.series.tags:
            names += ((index.TAG_NAMES, name), (index.TAG_VALUES, value))
        for kind, text in names:
            indexed = self._indexed.setdefault(kind, set())
            if text.encode() in indexed:
                continue
            indexed.add(text.encode())
            severity = Severity.DAMAGE if kind == index.METRICS else Severity.NOTE
            yield Finding(severity, row.table, row.key, f"{text!r} is not in {strings} under {kind.decode()}")


def _side_by_side(data: Iterable[Row], entries: Iterable[Row]) -> Iterator[tuple[Row | None, Row | None]]:
    """(data row, its index row) by key; None for a missing one. Both inputs ascend by key."""
    data_rows, index_rows = iter(data), iter(entries)
    row, entry = next(data_rows, None), next(index_rows, None)
    while row is not None or entry is not None:
        if entry is None or (row is not None and row.key < entry.key):
            yield row, None
            row = next(data_rows, None)
        elif row is None or entry.key < row.key:
            yield None, entry
            entry = next(index_rows, None)
        else:
            yield row, entry
            row, entry = next(data_rows, None), next(index_rows, None)


def _of_lone_entry(entry: Row) -> Iterator[Finding]:
    """The finding for an entry of `row_keys` without a data row."""
    try:
        parse_key(entry.key)
    except ValueError as error:
        yield _damage(entry, str(error))
        return
    yield Finding(
        Severity.NOTE,
        entry.table,
        entry.key,
        "no data row has this key (its points have expired, or an ingest was interrupted)",
    )


def _damage(row: Row, text: str) -> Finding:
    return Finding(Severity.DAMAGE, row.table, row.key, text)
