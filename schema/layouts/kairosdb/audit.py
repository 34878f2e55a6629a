"""Is what stands in the tables sound: keys that parse, cells that decode, an index that tells of each row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from timebeam.schema.layouts.kairosdb import index
from timebeam.schema.layouts.kairosdb.keys import KeyParts, parse_key
from timebeam.schema.layouts.kairosdb.options import RowSpec
from timebeam.schema.layouts.kairosdb.rows import decode
from timebeam.schema.layouts.kairosdb.select import Tables
from timebeam.schema.layouts.reading import Finding, Severity
from timebeam.schema.layouts.tables import Row


def findings(tables: Tables, spec: RowSpec, read: Callable[[str], Iterable[Row]]) -> Iterator[Finding]:
    """See `Layout.audit`. Names are held in memory, the two tables of rows are read side by side."""
    names = _Names(read(tables.strings))
    for row, entry in _side_by_side(read(tables.data), read(tables.row_keys)):
        if row is None:
            assert entry is not None
            yield from _of_lone_entry(entry)
            continue
        try:
            parts = parse_key(row.key)
        except ValueError as error:
            yield _damage(row, str(error))
            continue
        if entry is None:
            yield _damage(row, f"not in {tables.row_keys}: queries do not find it")
        if parts.row_ms < 0:
            yield Finding(Severity.NOTE, row.table, row.key, "times before 1970: queries do not find them")
        elif parts.row_ms % spec.width_ms:
            yield _damage(row, f"row time {parts.row_ms} is none of row spec {spec.value}")
        yield from names.missing(parts, row, tables.strings)
        for text in decode(spec, row, parts.series).damage:
            yield _damage(row, text)


class _Names:
    """The names of `string_index`, and those that were missed in it so far."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._known: dict[bytes, set[bytes]] = {}
        for row in rows:
            self._known.setdefault(row.key, set()).update(
                cell.qualifier for cell in row.cells if cell.family == index.NAMES_FAMILY
            )

    def missing(self, parts: KeyParts, row: Row, strings: str) -> Iterator[Finding]:
        """Names of a data row that are not in the table, each once; KairosDB writes none of tags any more."""
        names = [(index.METRICS, parts.series.metric)]
        for name, value in parts.series.tags:
            names += ((index.TAG_NAMES, name), (index.TAG_VALUES, value))
        for kind, text in names:
            known = self._known.setdefault(kind, set())
            if text.encode() in known:
                continue
            known.add(text.encode())
            severity = Severity.DAMAGE if kind == index.METRICS else Severity.NOTE
            yield Finding(severity, row.table, row.key, f"{text!r} is not in {strings} under {kind.decode()}")


def _side_by_side(data: Iterable[Row], entries: Iterable[Row]) -> Iterator[tuple[Row | None, Row | None]]:
    """(data row, its entry) by key; None for the one that is not there. Both ascend by key."""
    left, right = iter(data), iter(entries)
    row, entry = next(left, None), next(right, None)
    while row is not None or entry is not None:
        if entry is None or (row is not None and row.key < entry.key):
            yield row, None
            row = next(left, None)
        elif row is None or entry.key < row.key:
            yield None, entry
            entry = next(right, None)
        else:
            yield row, entry
            row, entry = next(left, None), next(right, None)


def _of_lone_entry(entry: Row) -> Iterator[Finding]:
    """What is to be said of an entry of `row_keys` without data row."""
    try:
        parse_key(entry.key)
    except ValueError as error:
        yield _damage(entry, str(error))
        return
    yield Finding(
        Severity.NOTE,
        entry.table,
        entry.key,
        "the data row is not there (its points have expired, or an ingest was interrupted)",
    )


def _damage(row: Row, text: str) -> Finding:
    return Finding(Severity.DAMAGE, row.table, row.key, text)
