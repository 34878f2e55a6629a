"""Histograms as cells of layout `opentsdb`, each in a column of its own: docs/spec/opentsdb.md §4.2.

A fragment is one histogram; fragments of numbers have other bytes where it has its mark and its zero.

| bytes | content |
|---|---|
| 4, 8 | checksum of the source's name, byte offset of the batch in it: the order among equal arrivals |
| 4 | 0: in packing `points` the number of points, which is above 0 |
| 8 | arrival in ms, the cell timestamp |
| 4 | offset from the base time, in ms |
| 1 | 4: in the other packings the forms, which are 1 to 3 |
| 1 | bytes of the qualifier, which follows; then the value |

All numbers are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from timebeam.schema.core import cell_fragments
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.rows import Cell
from timebeam.schema.core.writing import Packing, RowFragment, SeriesKey
from timebeam.schema.stores.opentsdb.columns.decode_row import HISTOGRAM
from timebeam.schema.stores.opentsdb.keys import SPAN_S, row_key

_HEADER = struct.Struct("<IQIqIBB")
_MARK = 4
_MARK_AT = {Packing.POINTS: (12, bytes(4))}
_MARK_OF_COLUMNS = (28, bytes([_MARK]))


def fragments(batch: PointBatch, keys: Sequence[SeriesKey | None], table: str) -> list[RowFragment]:
    r"""A fragment for each histogram; of one column and arrival only the last one of the batch.

    >>> from timebeam.schema.core.points import HistogramBytes, Series
    >>> value = HistogramBytes(bytes.fromhex("2a0002000000003fe000000c3fe0000040600000100201"))
    >>> batch = PointBatch.of([(Series.of("m", {"host": "a"}), 1356998407_000, False, value)], 9000)
    >>> (row,) = fragments(batch, [SeriesKey(b"\0\0\1", b"\0\0\1\0\0\1")], "tsdb")
    >>> row.key.hex(), cells([row.packed], "t")[0].qualifier.hex()  # 7 s after the base time
    ('00000150e22700000001000001', '060007')
    """
    checksum, offset = cell_fragments.origin_of(batch.origins)
    latest: dict[tuple[bytes, bytes, int], RowFragment] = {}
    for series, time_ms, in_ms, number, arrival_ms in zip(
        batch.index.tolist(),
        batch.times_ms.tolist(),
        batch.in_ms.tolist(),
        batch.bits.tolist(),
        batch.arrivals_ms.tolist(),
        strict=True,
    ):
        series_key = keys[series]
        assert series_key is not None
        base_s = time_ms // 1000 // SPAN_S * SPAN_S
        offset_ms = time_ms - base_s * 1000
        delta = offset_ms.to_bytes(4, "big") if in_ms else (offset_ms // 1000).to_bytes(2, "big")
        qualifier = bytes([HISTOGRAM]) + delta
        header = _HEADER.pack(checksum, offset, 0, arrival_ms, offset_ms, _MARK, len(qualifier))
        key = row_key(series_key, base_s)
        packed = header + qualifier + batch.payloads[number]
        latest[key, qualifier, arrival_ms] = RowFragment(table, key, packed)
    return list(latest.values())


def split(packed: Iterable[bytes], packing: Packing) -> tuple[list[bytes], list[bytes]]:
    """The fragments of numbers, and those of histograms."""
    place, mark = _MARK_AT.get(packing, _MARK_OF_COLUMNS)
    numbers: list[bytes] = []
    histograms: list[bytes] = []
    for fragment in packed:
        (histograms if fragment.startswith(mark, place) else numbers).append(fragment)
    return numbers, histograms


def cells(packed: Sequence[bytes], family: str) -> list[Cell]:
    """The cells of the histograms of a row: of each column the latest arrival."""
    latest: dict[bytes, Cell] = {}
    for fragment in sorted(packed, key=_order):
        *_, arrival_ms, _, _, size = _HEADER.unpack_from(fragment)
        value_at = _HEADER.size + size
        qualifier = fragment[_HEADER.size : value_at]
        latest[qualifier] = Cell(family, qualifier, arrival_ms, fragment[value_at:])
    return list(latest.values())


def extent(packed: Iterable[bytes]) -> tuple[set[int], list[int]]:
    """(arrivals, offsets from the base time) of histograms, in ms."""
    headers = [_HEADER.unpack_from(fragment) for fragment in packed]
    return {header[3] for header in headers}, [header[4] for header in headers]


def _order(fragment: bytes) -> tuple[int, int, int, bytes]:
    """Sort key: a later histogram of a column wins."""
    checksum, offset, _, arrival_ms, *_ = _HEADER.unpack_from(fragment)
    return arrival_ms, checksum, offset, fragment
