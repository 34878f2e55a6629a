"""Points as columns of a Parquet file, one row a point.

| column | type | content |
|---|---|---|
| metric | string | left out where the folder says it (`metric=NAME/`) |
| tag_KEY | string | a column for each tag key of the file; or, by option, one map of strings `tags` |
| resources | map of strings | Heroic's second kind of tags; only if a series of the file has some |
| time | timestamp in ms, UTC | |
| kind | string | integer, double, text or bytes |
| int_value | int64 | of kind integer |
| double_value | double | of kind double |
| bytes_value | binary | of kinds text (UTF-8) and bytes |
"""

from __future__ import annotations

import collections
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from timebeam.schema.bits.arrays import Int32s, Int64s, Kind
from timebeam.schema.core.batches import run_starts
from timebeam.schema.core.points import PointBatch, Series

TAG = "tag_"
"""How the name of a column begins that holds the values of one tag key."""

KINDS = ("integer", "double", "text", "bytes")
"""Names of kinds, by the number of their `Kind`."""

TIME = pa.timestamp("ms", "UTC")
_STRINGS = pa.dictionary(pa.int32(), pa.string())
MAP = pa.map_(_STRINGS, _STRINGS)


def columns_of(series: Sequence[Series], *, metric: bool, tag_map: bool) -> pa.Schema:
    """The columns of a file.

    Args:
      series: all that have points in it.
      metric: whether the metric has a column.
      tag_map: whether all tags are in one map, instead of a column for each key.
    """
    keys = sorted({key for each in series for key, _ in each.tags})
    tags = [pa.field("tags", MAP)] if tag_map else [pa.field(TAG + key, _STRINGS) for key in keys]
    return pa.schema(
        [
            *([pa.field("metric", _STRINGS, nullable=False)] if metric else []),
            *tags,
            *([pa.field("resources", MAP)] if any(each.resources for each in series) else []),
            pa.field("time", TIME, nullable=False),
            pa.field("kind", _STRINGS, nullable=False),
            pa.field("int_value", pa.int64()),
            pa.field("double_value", pa.float64()),
            pa.field("bytes_value", pa.binary()),
        ]
    )


def written(columns: pa.Schema) -> dict[str, Any]:
    """How a file of these columns is written: options of `pyarrow.parquet.ParquetWriter`.

    Statistics are of the columns by which engines leave out row groups; each costs time.
    """
    leaves = [
        leaf
        for field in columns
        for leaf in (
            [f"{field.name}.key_value.key", f"{field.name}.key_value.value"]
            if field.type == MAP
            else [field.name]
        )
    ]
    numbers = ("time", "int_value", "double_value", "bytes_value")
    return {
        "compression": "zstd",
        "use_dictionary": [leaf for leaf in leaves if leaf not in numbers],
        "column_encoding": {"time": "DELTA_BINARY_PACKED"},
        "write_statistics": [name for name in columns.names if name in ("metric", "time") or TAG in name],
        "write_page_checksum": True,
        "store_schema": False,
    }


def table_of(batch: PointBatch, columns: pa.Schema) -> pa.Table:
    """The points of a batch, in its order."""
    series, index = batch.series, batch.index
    arrays: dict[str, pa.Array] = {
        "time": pa.array(batch.times_ms, pa.int64()).cast(TIME),
        "kind": _strings(KINDS, batch.kinds.astype(np.int32)),
        "int_value": pa.array(batch.bits, mask=batch.kinds != Kind.INTEGER),
        "double_value": pa.array(batch.bits.view(np.float64), mask=batch.kinds != Kind.FLOAT),
        "bytes_value": pa.array(batch.payloads, pa.binary()).take(
            pa.array(batch.bits, mask=batch.kinds < Kind.TEXT)
        ),
    }
    for name in columns.names:
        if name == "metric":
            arrays[name] = _strings([each.metric for each in series], index)
        elif name == "tags":
            arrays[name] = _maps([each.tags for each in series], index)
        elif name == "resources":
            arrays[name] = _maps([each.resources for each in series], index)
        elif name.startswith(TAG):
            arrays[name] = _strings([dict(each.tags).get(name.removeprefix(TAG)) for each in series], index)
    return pa.table([arrays[name] for name in columns.names], schema=columns)


def _strings(values: Sequence[str | None], index: Int32s | Int64s) -> pa.DictionaryArray:
    """values[index], each value once in memory."""
    distinct = pa.array(values, pa.string()).dictionary_encode()
    return pa.DictionaryArray.from_arrays(distinct.indices.take(pa.array(index)), distinct.dictionary)


def _maps(pairs: Sequence[tuple[tuple[str, str], ...]], index: Int32s) -> pa.MapArray:
    """The pairs of each point's series, k tuples of pairs by `index` int32[n]."""
    sizes = np.fromiter(map(len, pairs), np.int64, len(pairs))
    point_sizes = sizes[index]
    bounds = np.append(0, np.cumsum(point_sizes))
    firsts = (np.cumsum(sizes) - sizes)[index] - bounds[:-1]
    positions = np.repeat(firsts, point_sizes) + np.arange(bounds[-1])
    #           (1)                              (2)
    # (1) For each pair of each point, how far its series' pairs are from the point's pairs in the result;
    # (2) with its position in the result, the position of the pair of its series.
    keys, values = (_strings([pair[half] for each in pairs for pair in each], positions) for half in (0, 1))
    return pa.MapArray.from_arrays(bounds.astype(np.int32), keys, values)


def sums_of(group: pa.Table, start: int = 0) -> dict[str, Any]:
    """Counts and sums of the points of a row group, the same before it is written and after it is read.

    Args:
      group: at least one point.
      start: the number of points before it in its file.

    Returns:
      exact integers; double_sum, the sum of the finite doubles; and for each column a checksum of 64 bits of
      its values in their order.
    """
    times_ms = group["time"].cast(pa.int64()).to_numpy()
    integers, doubles = (group[name].drop_null().to_numpy() for name in ("int_value", "double_value"))
    return {
        "points": len(times_ms),
        "integers": len(integers),
        "doubles": len(doubles),
        "first_ms": int(times_ms.min()),
        "last_ms": int(times_ms.max()),
        "times_sum": _exact_sum(times_ms),
        "integer_sum": _exact_sum(integers),
        "double_sum": float(np.sum(doubles[np.isfinite(doubles)])),
        "checksums": {name: _checksum(group[name].combine_chunks(), start) for name in group.column_names},
    }


def _checksum(column: pa.Array, start: int) -> int:
    """The sum of 64 bits of each value times 2 * row + 1, in 64 bits; a missing number counts as 0.

    Equal values that follow each other, as in sorted columns, take one step: the odd numbers from row a to
    before row b add up to b * b - a * a.
    """
    if pa.types.is_map(column.type):
        sizes = pa.array(np.diff(column.offsets.to_numpy()).astype(np.int64))
        sums = (_checksum(each, start) for each in (sizes, column.keys, column.items))
        return sum(factor * each for factor, each in zip((1, 3, 5), sums, strict=True)) % 2**64
    if column.null_count == len(column):
        return 0
    if not pa.types.is_primitive(column.type):
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        table = np.array([*map(_hash, encoded.dictionary.to_pylist()), 0], np.uint64)
        numbers = encoded.indices.fill_null(len(table) - 1).to_numpy()
        firsts = run_starts(numbers)
        bounds = np.append(firsts, len(numbers)).astype(np.uint64) + np.uint64(start)
        squares = bounds * bounds
        return int(np.dot(table[numbers[firsts]], squares[1:] - squares[:-1]))
        #                 (1)                     (2)
        # (1) The hash of the value of each run of equal rows,
        # (2) times the odd numbers of its rows a to b - 1: (2a + 1) + … + (2b - 1) = b² - a².
    number = column if pa.types.is_floating(column.type) else column.cast(pa.int64())
    bits = (number.fill_null(0) if number.null_count else number).to_numpy().view(np.uint64)
    odd = np.arange(2 * start + 1, 2 * (start + len(bits)) + 1, 2, dtype=np.uint64)
    return int(np.dot(bits ^ (bits >> np.uint64(32)), odd))
    #                 (1)                             (2)
    # (1) The upper 32 bits are also in the lower ones, which are zeros in simple doubles.
    # (2) Row i counts 2i + 1 times, so the order of rows counts; all is modulo 2**64.


def _hash(value: str | bytes) -> int:
    raw = value.encode() if isinstance(value, str) else value
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little")


def join_sums(groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The counts and sums of a file, of those of its row groups in order: at least one."""
    return {name: _JOINED.get(name, sum)([group[name] for group in groups]) for name in groups[0]}


def _join_checksums(groups: Iterable[dict[str, int]]) -> dict[str, str]:
    """The checksum of each column of a file, as 16 hexadecimal digits."""
    totals: collections.Counter[str] = collections.Counter()
    for checksums in groups:
        totals.update(checksums)
    return {name: f"{total % 2**64:016x}" for name, total in totals.items()}


_JOINED: dict[str, Callable[[Iterable[Any]], Any]] = {
    "first_ms": min,
    "last_ms": max,
    "double_sum": math.fsum,
    "checksums": _join_checksums,
}


def _exact_sum(numbers: Int64s) -> int:
    """The sum of int64[n], which may need more than 64 bits."""
    return (int(np.sum(numbers >> 32)) << 32) + int(np.sum(numbers & 0xFFFFFFFF))
    #           (1)                                 (2)
    # (1) The upper halves, rounded down, also of negative numbers,
    # (2) and what they leave, from 0 to 2**32 - 1: neither sum overflows below 2**31 numbers.


def row_bytes(rows: pa.RecordBatch | pa.Table) -> Int64s:
    """int64[n]: the bytes in each of n rows, as many as they are outside of dictionaries."""

    import pyarrow.compute as pc

    sizes = np.zeros(len(rows), np.int64)
    for column in rows.columns:
        if column.type == pa.dictionary(pa.int32(), pa.binary()):
            chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
            lengths = [pc.binary_length(chunk.dictionary).take(chunk.indices) for chunk in chunks]
            sizes += pa.chunked_array(lengths, pa.int32()).fill_null(0).to_numpy().astype(np.int64)
    return sizes


def cut(rows: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Rows in pieces of about so many bytes (`row_bytes`)."""
    piece = (np.cumsum(row_bytes(rows)) - 1) // most_bytes
    starts = np.flatnonzero(np.diff(piece, prepend=-2)).tolist()
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        yield rows.slice(start, end - start)


def batch_bytes(batch: pa.RecordBatch) -> bytes:
    """Rows as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    rows: bytes = sink.getvalue().to_pybytes()
    return rows
