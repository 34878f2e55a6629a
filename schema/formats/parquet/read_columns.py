"""Reads rows of Parquet: their columns as series, times and values.

The rows are those of `timebeam.schema.formats.parquet.parquet_columns`, or of other programs: types are
checked.

Arrow IPC streams come from senders that are not trusted: what they need in memory is known before it is read.
A stream may be compressed, and columns of nulls have rows without bytes: a few kilobytes can hold billions of
rows. The metadata of each message is a flatbuffer, of which these fields are read (format/Message.fbs):

| table | field | |
|---|---|---|
| Message | 2 | header: RecordBatch or DictionaryBatch |
| DictionaryBatch | 1 | data: RecordBatch |
| RecordBatch | 0, 3 | rows, int64; compression |
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from timebeam.schema.bits.arrays import Bools, Int64s, Kind
from timebeam.schema.bits.memory_limit import charge_series
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.points import FIRST_MILLISECOND, LAST_MILLISECOND, Series, add_tag
from timebeam.schema.formats.options import RecordFields
from timebeam.schema.formats.parquet.parquet_columns import KINDS

_HEADER, _DATA, _ROWS, _COMPRESSION = 2, 1, 0, 3


def read_stream(text: bytes, most_rows: int) -> pa.Table:
    """The rows of a stream.

    Raises:
      pyarrow.ArrowException, OSError: it is corrupt, compressed, or has more rows.
    """
    rows = 0
    messages = pa.ipc.MessageReader.open_stream(text)
    for message in _messages(messages):
        if message.type not in ("record batch", "dictionary"):
            continue
        try:
            batch_rows, is_compressed = _batch(memoryview(message.metadata), message.type == "dictionary")
        except (struct.error, IndexError) as error:
            raise OSError("corrupt metadata of a message") from error
        if is_compressed:
            raise OSError("compressed buffers, which are not read: compress the whole message")
        rows += batch_rows if message.type == "record batch" else 0
        if not 0 <= rows <= most_rows:
            raise OSError(f"it has {rows:,} rows; at most {most_rows:,} are read")
    table = pa.ipc.open_stream(text).read_all()
    table.validate(full=True)
    return table


def _messages(reader: pa.ipc.MessageReader) -> list[pa.Message]:
    """The messages of a stream, whose bodies are views of it."""
    messages = []
    while True:
        try:
            messages.append(reader.read_next_message())
        except StopIteration:
            return messages


def _batch(metadata: memoryview, is_dictionary: bool) -> tuple[int, bool]:
    """(rows of the batch of a message, whether its buffers are compressed)."""
    (message,) = struct.unpack_from("<I", metadata)
    batch = _table(metadata, _field(metadata, message, _HEADER))
    if is_dictionary:
        batch = _table(metadata, _field(metadata, batch, _DATA))
    rows = _field(metadata, batch, _ROWS)
    count = struct.unpack_from("<q", metadata, rows)[0] if rows else 0
    return count, _field(metadata, batch, _COMPRESSION) > 0


def _table(metadata: memoryview, position: int) -> int:
    """Where the table is to which an offset points."""
    return position + int(struct.unpack_from("<I", metadata, position)[0])


def _field(metadata: memoryview, table: int, number: int) -> int:
    """Where a field of a table is; 0 if it is missing."""
    vtable = table - struct.unpack_from("<i", metadata, table)[0]
    (size,) = struct.unpack_from("<H", metadata, vtable)
    if 4 + 2 * number >= size:
        return 0
    (offset,) = struct.unpack_from("<H", metadata, vtable + 4 + 2 * number)
    return table + offset if offset else 0


_MOST_TAGS = 256  # in a map of tags
_MOST_MAP_CELLS = 1 << 25  # rows of a message, times the most tags of one: 8 bytes each


def column_of(table: pa.Table, name: str) -> pa.Array:
    """A column in one piece.

    Raises:
      RejectedError: there is none.
    """
    if table.column_names.count(name) != 1:
        why = f"the rows have no column {name[:80]!r}: name the columns in --parquet-fields"
        raise RejectedError(Reason.BAD_SYNTAX, why)
    column = table[name].combine_chunks()
    return column.chunk(0) if isinstance(column, pa.ChunkedArray) else column


def _codes(texts: pa.Array) -> tuple[Int64s, list[str | None]]:
    """(int64[n] numbers of strings, the strings); null is a string of its own.

    Raises:
      RejectedError: it is no column of strings, integers or booleans.
    """
    import pyarrow.compute as pc

    kind = texts.type.value_type if pa.types.is_dictionary(texts.type) else texts.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        if not (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
            raise RejectedError(Reason.BAD_TAG, f"a metric or tag is a string, not {kind}"[:120])
        texts = texts.cast(pa.string())
    if not pa.types.is_dictionary(texts.type):
        texts = texts.dictionary_encode()
    strings: list[str | None] = texts.dictionary.to_pylist()
    codes = pc.fill_null(texts.indices, len(strings)).to_numpy(zero_copy_only=False)
    return codes.astype(np.int64), [*strings, None]


def series_of_rows(
    table: pa.Table, fields: RecordFields, resources: str
) -> tuple[Int64s, list[Series | RejectedError]]:
    """(int64[n] number of the series of each row, the series, or why it is rejected).

    Args:
      resources: the column of Heroic's resources; empty if there is none.

    Raises:
      RejectedError: a column is missing, or of a type that holds no such values; or a row has too many tags.
    """
    named = [("", fields.metric), *fields.tag]
    texts = [
        (np.zeros(len(table), np.int64), [source.text])
        if source.constant
        else _codes(column_of(table, source.text))
        for _, source in named
    ]
    maps = [_map_codes(column_of(table, name)) for name in (fields.tags, resources) if name]
    columns = [*(codes for codes, _ in texts), *(column for columns, _ in maps for column in columns)]
    rows, numbers = _distinct(columns, len(table))
    outcomes: list[Series | RejectedError] = []
    for row in rows.tolist():
        metric, *values = (strings[codes[row]] for codes, strings in texts)
        tags = [(key, value) for (key, _), value in zip(fields.tag, values, strict=True) if value is not None]
        in_maps = [[pairs[column[row]] for column in columns if column[row] >= 0] for columns, pairs in maps]
        of_resources = in_maps.pop() if resources else []
        pairs = [*tags, *of_resources, *itertools.chain(*in_maps)]
        texts_of_row = sum(len(key or "") + len(value or "") for key, value in pairs)
        charge_series(len(metric or "") + texts_of_row, len(pairs))
        outcomes.append(_one_series(metric, [*tags, *itertools.chain(*in_maps)], of_resources))
    return numbers, outcomes


_Pairs = Sequence[tuple[str | None, str | None]]


def _one_series(metric: str | None, tags: _Pairs, resources: _Pairs) -> Series | RejectedError:
    """The series of a row, or why it is rejected."""
    if not metric:
        return RejectedError(Reason.BAD_METRIC, "the row has no metric")
    by_key: tuple[dict[str, str], dict[str, str]] = ({}, {})
    try:
        for pairs, texts in zip((tags, resources), by_key, strict=True):
            for key, value in pairs:
                if not key or value is None:
                    return RejectedError(Reason.BAD_TAG, "a tag of the row has no key or no value")
                add_tag(texts, key, value)
    except RejectedError as error:
        return error
    return Series.of(metric, *by_key)


def _map_codes(tags: pa.Array) -> tuple[list[Int64s], list[tuple[str | None, str | None]]]:
    """(the number of the first, second, … entry of each row, -1 behind the last; the entries by number).

    Raises:
      RejectedError: it is no column of maps of strings, or a row has too many entries.
    """
    if not pa.types.is_map(tags.type):
        raise RejectedError(Reason.BAD_TAG, f"tags are a map of strings, not {tags.type}"[:120])
    offsets = tags.offsets.to_numpy().astype(np.int64)
    sizes = np.where(tags.is_null().to_numpy(zero_copy_only=False), 0, np.diff(offsets))
    most = int(sizes.max(initial=0))
    if most > _MOST_TAGS:
        raise RejectedError(Reason.TOO_MANY_TAGS, f"a row has {most} tags; at most {_MOST_TAGS} are read")
    if most * len(tags) > _MOST_MAP_CELLS:
        why = f"{len(tags):,} rows with up to {most} tags in a message: send fewer rows together"
        raise RejectedError(Reason.TOO_MANY_TAGS, why)
    (keys, key_names), (values, value_names) = _codes(tags.keys), _codes(tags.items)
    codes, entries = np.unique(keys * len(value_names) + values, return_inverse=True)
    pairs = [
        (key_names[code // len(value_names)], value_names[code % len(value_names)]) for code in codes.tolist()
    ]
    columns = []
    for place in range(most):
        column = np.full(len(tags), -1, np.int64)
        has = sizes > place
        column[has] = entries[offsets[:-1][has] + place]
        columns.append(column)
    return columns, pairs


def _distinct(columns: Sequence[Int64s], n: int) -> tuple[Int64s, Int64s]:
    """(a row of each distinct combination, int64[n] number of the combination of each row)."""
    is_new = np.zeros(n, np.bool_)
    is_new[:1] = True
    for column in columns:
        is_new[1:] |= column[1:] != column[:-1]
    starts = np.flatnonzero(is_new)
    numbers = np.zeros(len(starts), np.int64)
    for column in columns:
        of_runs = column[starts] + 1
        joined = numbers * (int(of_runs.max(initial=0)) + 1) + of_runs
        numbers = np.unique(joined, return_inverse=True)[1]
    _, firsts = np.unique(numbers, return_index=True)
    return starts[firsts], numbers[np.cumsum(is_new) - 1]


def times_of(times: pa.Array) -> tuple[Int64s, Bools, Bools]:
    """(times in ms, whether each is in ms, whether it can be stored); whole seconds of timestamps are in s.

    Raises:
      RejectedError: it is no column of timestamps or integers.
    """
    has_time = times.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_timestamp(times.type):
        times_ms = _integers(times.cast(pa.timestamp("ms", times.type.tz), safe=False).cast(pa.int64()))
        in_ms = times_ms % 1000 != 0
    elif pa.types.is_integer(times.type):
        numbers = _integers(times.cast(pa.int64()))
        in_ms = numbers >= FIRST_MILLISECOND
        times_ms = np.where(in_ms, numbers, np.clip(numbers, 0, FIRST_MILLISECOND) * 1000)
    else:
        raise RejectedError(
            Reason.BAD_TIMESTAMP, f"a time is a timestamp or an integer, not {times.type}"[:120]
        )
    return times_ms, in_ms, has_time & (times_ms > 0) & (times_ms <= LAST_MILLISECOND)


def _integers(numbers: pa.Array) -> Int64s:
    """int64[n], null as 0."""
    whole: Int64s = numbers.fill_null(0).to_numpy(zero_copy_only=False)
    return whole


def values_of(values: pa.Array) -> tuple[Any, Int64s, Bools]:
    """(kinds, bits, whether there is a value) of a column of numbers.

    Raises:
      RejectedError: it is no column of numbers.
    """
    kind = values.type
    has_value = values.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_integer(kind):
        return np.full(len(values), Kind.INTEGER, np.uint8), _integers(values.cast(pa.int64())), has_value
    if not (pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise RejectedError(Reason.BAD_NUMBER, f"a value is a number, not {kind}"[:120])
    doubles = values.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
    return np.full(len(values), Kind.FLOAT, np.uint8), doubles.view(np.int64), has_value


def exported_values(table: pa.Table) -> tuple[Any, Int64s, Sequence[bytes], Bools]:
    """(kinds, bits, payloads, whether there is a value) of the columns of `timebeam export`.

    Raises:
      RejectedError: a column is missing, or of a type that holds no such values.
    """
    codes, names = _codes(column_of(table, "kind"))
    kind_of = np.array([KINDS.index(name) if name in KINDS else len(KINDS) for name in names])
    kinds = kind_of[codes].astype(np.uint8)
    _, integers, is_integer = values_of(column_of(table, "int_value").cast(pa.int64()))
    _, doubles, is_double = values_of(column_of(table, "double_value"))
    bits = np.where(kinds == Kind.FLOAT, doubles, integers)
    has_value = np.where(kinds == Kind.FLOAT, is_double, is_integer)
    payloads: list[bytes] = []
    is_payload = kinds >= Kind.TEXT
    if is_payload.any():
        texts = column_of(table, "bytes_value")
        has_value = np.where(
            is_payload, texts.is_valid().to_numpy(zero_copy_only=False) & (kinds < len(KINDS)), has_value
        )
        chosen = texts.filter(pa.array(is_payload))
        if pa.types.is_dictionary(chosen.type):
            values = [*chosen.dictionary.to_pylist(), b""]
            payloads = [values[code] for code in chosen.indices.fill_null(len(values) - 1).to_pylist()]
        else:
            payloads = chosen.fill_null(b"").to_pylist()
        bits = bits.copy()
        bits[is_payload] = np.arange(len(payloads))
    return kinds, bits, payloads, has_value
