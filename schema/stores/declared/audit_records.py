"""Rows of declared tables checked: is each what the declaration writes for the records that it holds?

A row is decoded, its records are encoded again, and both are compared: the key with its salts, hashes and
padding, the qualifiers and the values. Timestamps of cells are compared with the times of the records.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from timebeam.schema.bits import json_text
from timebeam.schema.bits.arrays import Bools
from timebeam.schema.core.rows import Row
from timebeam.schema.core.selection import Finding, Severity
from timebeam.schema.stores.declared import keys
from timebeam.schema.stores.declared.columns import Encoding, MapColumns
from timebeam.schema.stores.declared.declaration import CellTime, TableLayout
from timebeam.schema.stores.declared.parts.key_part import Const, KeyPart
from timebeam.schema.stores.declared.parts.time_part import to_ms
from timebeam.schema.stores.declared.read_records import Record, decode
from timebeam.schema.stores.declared.records import RecordBatch
from timebeam.schema.stores.declared.write_records import layout_rows


def audit_rows(layout: TableLayout, rows: Sequence[Row]) -> Iterator[Finding]:
    """What is wrong with rows of a table, at most one finding of corruption for each."""
    records: list[Record] = []
    owners: list[int] = []
    corruption: dict[int, str] = {}
    for number, row in enumerate(rows):
        try:
            row_records = _records(layout, row)
        except ValueError as error:
            corruption[number] = str(error)
            continue
        records += row_records
        owners += [number] * len(row_records)
    for number, text in itertools.chain(
        _unlike(layout, rows, records, owners), _wrong_timestamps(layout, rows, corruption)
    ):
        corruption.setdefault(number, text)
    for number, row in enumerate(rows):
        if number in corruption:
            yield Finding(Severity.CORRUPT, row.table, row.key, corruption[number])
        families = sorted({cell.family for cell in row.cells} - {layout.family})
        if families:
            text = f"it has cells of families that are not declared: {', '.join(families)}"
            yield Finding(Severity.NOTE, row.table, row.key, text)


def _records(layout: TableLayout, row: Row) -> list[Record]:
    """The records of a row, each with an event time if the layout has one: the key's if no cell has it.

    Raises:
      ValueError: the key or a cell is none of this layout.
    """
    if all(cell.family != layout.family for cell in row.cells):
        raise ValueError(f"it has no cell of family {layout.family}")
    records = decode(layout, row)
    if layout.event is not None:
        name = layout.event[0]
        key_time = keys.fields(layout, row.key)[1] or 0
        records = [{name: key_time, **record} for record in records]
    return records


def _unlike(
    layout: TableLayout, rows: Sequence[Row], records: Sequence[Record], owners: Sequence[int]
) -> Iterator[tuple[int, str]]:
    """(number of a row, how it differs from what is written for its records).

    Args:
      owners: the number of the row of each record.
    """
    checked = dataclasses.replace(
        layout,
        key=_verifiable(layout) or (Const(b""),),
        cell_time=CellTime.ZERO,
        revision=None,
        allow_overwrite=True,
    )
    try:
        batch = _batch(layout, records)
    except ValueError as error:
        if len(records) > 1:  # the rows one by one, to name the bad one
            for record, owner in zip(records, owners, strict=True):
                yield from _unlike(layout, rows, [record], [owner])
        elif records:
            yield owners[0], str(error)
        return
    written, rejections = layout_rows(checked, batch)
    for record_number, (_, why) in rejections.by_record.items():
        yield owners[record_number], why
    good_owners = [owner for i, owner in enumerate(owners) if i not in rejections.by_record]
    values_by_row: dict[int, dict[bytes, bytes]] = {}
    of_one_reading = _of_one_reading(layout)
    for owner, written_row in zip(good_owners, written, strict=True):
        values_by_row.setdefault(owner, {}).update((cell.qualifier, cell.value) for cell in written_row.cells)
        difference = _key_difference(layout, checked, rows[owner].key, written_row.key)
        if difference:
            yield owner, difference
    for owner, written_values in values_by_row.items():
        stored = {cell.qualifier: cell.value for cell in rows[owner].cells if cell.family == layout.family}
        for qualifier in sorted((stored.keys() | written_values.keys()) - of_one_reading):
            if stored.get(qualifier) != written_values.get(qualifier):
                yield owner, f"the column {qualifier!r} is not as its record is written"


def _of_one_reading(layout: TableLayout) -> frozenset[bytes]:
    """Columns of fields that each reading of a row has for itself: they hold those of the last record."""
    if layout.series is None:
        return frozenset()
    own: str | None = layout.series.qualifier if isinstance(layout.series.qualifier, str) else None
    if own is None and layout.event is not None:
        own = layout.event[0]
    return frozenset(column.qualifier for column in layout.columns if column.field == own)


def _key_difference(layout: TableLayout, checked: TableLayout, key: bytes, written: bytes) -> str:
    """Where the key of a row differs from that of its record; empty if it does not."""
    pairs = [
        (key_part, piece)
        for key_part, piece in zip(layout.key, keys.split(layout, key), strict=True)
        if key_part in checked.key
    ]
    if layout.separator.join(piece for _, piece in pairs) == written or not pairs:
        return ""
    for (key_part, piece), right in zip(pairs, keys.split(checked, written), strict=True):
        if piece != right:
            return f"the {key_part.kind} in the key is {piece!r}; by its record it is {right!r}"
    return f"the key is not {written!r}"


def _verifiable(layout: TableLayout) -> tuple[KeyPart, ...]:
    """The parts of the key that follow from what a row holds."""
    event = layout.event[0] if layout.event else None
    texts = {
        column.field
        for column in layout.columns
        if column.encoding is Encoding.TEXT and column.field != event
    }
    texts |= {
        key_part.stored_field
        for key_part in layout.key
        if key_part.stored_field is not None and key_part.is_exact
    }
    if event is not None and layout.time_source in ("key", "cell", "column"):
        texts.add(event)

    is_moving = layout.salt is not None and layout.salt.since and event not in texts
    return tuple(
        key_part
        for key_part in layout.key
        if key_part.is_known(layout.key, texts) and not (is_moving and key_part is layout.salt)
    )


def _batch(layout: TableLayout, records: Sequence[Record]) -> RecordBatch:
    """Records that were read back, as they are written.

    Raises:
      ValueError: a value that should be JSON is not.
    """
    encodings = {column.field: column.encoding for column in layout.columns}
    if layout.series is not None:
        encodings[layout.series.field] = layout.series.encoding
    fields: dict[str, pa.Array] = {}
    quoted: dict[str, Bools] = {}
    for name in {name for record in records for name in record}:
        values_of_field = [record.get(name) for record in records]
        if layout.map is not None and name == layout.map.field:
            texts = [
                None if entries is None else _map_text(layout.map, entries) for entries in values_of_field
            ]
            flags = [False] * len(records)
        elif encodings.get(name) is Encoding.JSON:
            scalars = [
                (None, True) if value is None else json_text.scalar(_json(str(value)))
                for value in values_of_field
            ]
            texts, flags = [text for text, _ in scalars], [flag for _, flag in scalars]
        else:
            texts = [None if value is None else str(value) for value in values_of_field]
            flags = [True] * len(records)
        fields[name] = pa.array(texts, pa.string())
        quoted[name] = np.array(flags, np.bool_)
    return RecordBatch(fields, np.zeros(len(records), np.int64), None, quoted)


def _map_text(columns: MapColumns, entries: Any) -> str:
    """The JSON object of the entries of a map field, by their qualifiers."""
    document: dict[str, Any] = {}
    for qualifier, value in entries.items():
        *outer, name = columns.entry_names(qualifier.encode())
        members = document
        for level in outer:
            members = members.setdefault(level, {})
        members[name] = _json(value) if columns.encoding is Encoding.JSON else value
    return msgspec.json.encode(document).decode()


def _json(text: str) -> msgspec.Raw:
    """A JSON text, checked; raises ValueError if it is not one."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"a value is not JSON: {error}") from None
    return msgspec.Raw(text.encode())


def _wrong_timestamps(
    layout: TableLayout, rows: Sequence[Row], corruption: Mapping[int, str]
) -> Iterator[tuple[int, str]]:
    """(number of a row, a timestamp that `cell_time` does not give its cells); corrupt rows are left out."""
    stamps: list[int] = []
    owners: list[int] = []
    key_times: list[int] = []
    for number, row in enumerate(rows):
        if number in corruption:
            continue
        key_time = keys.fields(layout, row.key)[1]
        cells = [cell for cell in row.cells if cell.family == layout.family]
        stamps += [cell.timestamp_ms for cell in cells]
        owners += [number] * len(cells)
        key_times += [key_time or 0] * len(cells)
    stamps_ms = np.array(stamps, np.int64)
    wrong = np.zeros(len(stamps), np.bool_)
    if layout.cell_time is CellTime.ZERO or layout.event is None:
        wrong = (stamps_ms != 0) & (layout.cell_time is not CellTime.ARRIVAL)
    elif layout.time is not None and len(stamps):
        keys_ms = to_ms(np.array(key_times, np.int64), layout.time.unit)
        if layout.cell_time is CellTime.EVENT:
            wrong = layout.time.cut(stamps_ms) != keys_ms
        elif layout.cell_time is CellTime.REVISION:
            wrong = stamps_ms < keys_ms
    for i in np.flatnonzero(wrong).tolist():
        yield (
            owners[i],
            f"a cell has the timestamp {stamps[i]}, which cell_time = {layout.cell_time.value} does not give",
        )
