"""Reads data rows, with the cells of every retention class, and audits the stored tables.

Keys must parse, cells must decode, and the index must list each row.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Set

import numpy as np
import numpy.typing as npt

from timebeam.schema.bits.arrays import Bools, Bytes, Int64s, Kind
from timebeam.schema.core.batches import latest_points
from timebeam.schema.core.decode_point_cells import CellPoints, PointCells, RowKind, joined
from timebeam.schema.core.points import PointBatch, Series, SeriesKey
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.core.selection import DecodedRows, Finding, Severity
from timebeam.schema.stores.kairosdb import keys, select
from timebeam.schema.stores.kairosdb.encode import LONGEST_LONG
from timebeam.schema.stores.kairosdb.keys import KairosDbRowKey, parse_key
from timebeam.schema.stores.kairosdb.options import RowSpec, Tables

_FAMILIES = re.compile(r"d[0-9]*")
_LAST_MS = (1 << 63) - 1

ReadValues = tuple[Int64s, Bytes, list[bytes], Bools]
"""n cells: bits int64[n], kinds uint8[n] and payloads as in `PointBatch`, bool[n] cells with a value."""


def decode_row(spec: RowSpec, row: Row, series: Series) -> DecodedRows:
    r"""The points of a row of any type. Families that are not a retention class are skipped.

    Types that this layout does not write are read as bytes (`Kind.OPAQUE`), rows without type as KairosDB
    before 0.9.4 wrote them.

    >>> key = bytes.fromhex("637075000000012e79039000000b6b6169726f735f6c6f6e67686f73743d613a")
    >>> row = Row("data_points", key, [Cell("d", bytes.fromhex("35063800"), 9000, b"\x54")])
    >>> batch = decode_row(RowSpec.MILLISECONDS, row, keys.parse_key(key).series).batch
    >>> [(str(series), time_ms, value) for series, time_ms, value in batch.points()]
    [('cpu{host=a}', 1300000000000, 42)]
    """
    try:
        row_key = keys.parse_key(row.key)
    except ValueError as error:
        return DecodedRows(PointBatch.of([], 0), [(row, str(error))], 0)
    point_cells = [cell for cell in row.cells if _FAMILIES.fullmatch(cell.family)]
    cells = [cell for cell in point_cells if len(cell.qualifier) == 4]
    corruption = [
        f"column {cell.qualifier[:16].hex()}: not 4 bytes" for cell in point_cells if len(cell.qualifier) != 4
    ]
    columns = np.frombuffer(b"".join([cell.qualifier for cell in cells]), ">u4").astype(np.int64)
    offsets = spec.offsets_ms(columns)
    untyped = row_key.data_type is None
    is_foreign = (offsets >= spec.width_ms) | (offsets > _LAST_MS - row_key.row_ms)
    if spec is RowSpec.LEGACY and not untyped:
        is_foreign |= columns & 1 == 1
    elif spec is not RowSpec.LEGACY and untyped:
        is_foreign[:] = True
    bits, kinds, payloads, is_good = _read(row_key.data_type, cells, columns)
    corruption += _row_corruption(cells, is_foreign, is_good, spec)
    timestamps = np.fromiter((cell.timestamp_ms for cell in cells), np.int64, len(cells))
    chosen = np.flatnonzero(is_good & ~is_foreign)
    one_series = np.zeros(len(chosen), np.int64)
    chosen = chosen[latest_points(one_series, offsets[chosen], timestamps[chosen])]
    times_ms = row_key.row_ms + offsets[chosen]
    batch = PointBatch(
        (series,),
        np.zeros(len(chosen), np.int32),
        times_ms,
        times_ms % 1000 != 0,
        kinds[chosen],
        bits[chosen],
        timestamps[chosen],
        None,
        payloads,
    )
    return DecodedRows(batch, [(row, text) for text in corruption], len(row.cells) - len(point_cells))


def cell_times(row: Row, spec: RowSpec) -> Int64s:
    """int64[n]: the time of each cell in ms; -1 for a cell that cannot be one of a point."""
    qualifiers, fits = joined([cell.qualifier for cell in row.cells], 4)
    fits &= np.array([_FAMILIES.fullmatch(cell.family) is not None for cell in row.cells], np.bool_)
    columns, row_key = np.frombuffer(qualifiers, ">u4").astype(np.int64), parse_key(row.key)
    offsets = spec.offsets_ms(columns)
    if spec is RowSpec.LEGACY and row_key.data_type is not None:
        fits &= columns & 1 == 0
    return np.where(fits & (offsets < spec.width_ms), row_key.row_ms + offsets, -1)


def kind_of(row: Row) -> RowKind | None:
    """Where a row of longs or doubles begins; None for a row of other values, and for a key that is none."""
    with contextlib.suppress(ValueError):
        row_key = keys.parse_key(row.key)
        for kind in (Kind.INTEGER, Kind.FLOAT):
            if row_key.data_type == keys.TYPES[kind]:
                return RowKind(row_key.row_ms, kind)
    return None


def read_cells(cells: PointCells, spec: RowSpec) -> CellPoints:
    """Like `decode_row`, for the cells of many rows of longs and doubles."""
    qualifiers, is_good = joined(cells.qualifiers, 4)
    is_good &= cells.in_families(_FAMILIES.fullmatch)
    columns = np.frombuffer(qualifiers, ">u4").astype(np.int64)
    offsets = spec.offsets_ms(columns)
    is_good &= (offsets < spec.width_ms) & (offsets <= _LAST_MS - cells.base_ms)
    if spec is RowSpec.LEGACY:
        is_good &= columns & 1 == 0
    bits = np.zeros(len(columns), np.int64)
    for kind, read in ((Kind.INTEGER, read_longs), (Kind.FLOAT, read_doubles)):
        of_kind = cells.kinds == kind
        if of_kind.all():
            bits, fits = read(cells.values)
            is_good &= fits
        elif of_kind.any():
            bits[of_kind], fits = read([*itertools.compress(cells.values, of_kind.tolist())])
            is_good[of_kind] &= fits
    return CellPoints(cells.base_ms + offsets, bits, is_good)


def read_longs(values: Sequence[bytes]) -> tuple[Int64s, Bools]:
    """(integers int64[n], bool[n] whether a value is exactly one integer)."""
    sizes = np.fromiter(map(len, values), np.int64, len(values))
    starts = np.cumsum(sizes) - sizes
    raw = np.frombuffer(b"".join(values) + b"\0", np.uint8)
    zigzag = np.zeros(len(values), np.uint64)
    is_good = (sizes > 0) & (sizes <= LONGEST_LONG)
    pending = np.flatnonzero(is_good)
    for k in range(LONGEST_LONG):
        pending = pending[sizes[pending] > k]
        if len(pending) == 0:
            break
        byte = raw[starts[pending] + k]
        is_good[pending] &= (byte >= 0x80) == (sizes[pending] > k + 1)
        zigzag[pending] |= (byte & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * k)
    longest = np.flatnonzero(sizes == LONGEST_LONG)
    is_good[longest] &= raw[starts[longest] + LONGEST_LONG - 1] <= 1  # the 64th bit
    return (zigzag >> np.uint64(1)).view(np.int64) ^ -(zigzag & np.uint64(1)).view(np.int64), is_good
    #       (1)                                      (2)
    # (1) The bits of the number.
    # (2) The last bit is the sign: 0 turns no bit, and -1 all of them.


def read_doubles(values: Sequence[bytes]) -> tuple[Int64s, Bools]:
    """(bits of the doubles int64[n], bool[n] whether a value is a double)."""
    content, is_good = joined(values, 8)
    return np.frombuffer(content, ">i8").astype(np.int64), is_good


def read_string(value: bytes) -> bytes:
    """The string of a cell value, in UTF-8.

    Raises:
      ValueError: it is not a string, or holds half a surrogate pair, which UTF-8 cannot encode.
    """
    if len(value) < 2 or int.from_bytes(value[:2], "big") != len(value) - 2:
        raise ValueError(f"a string of {len(value)} bytes whose stored length differs")
    modified = value[2:]
    if not modified or (max(modified) < 0x80 and 0 not in modified):
        return modified
    if 0 in modified or max(modified) >= 0xF0:
        raise ValueError("a string that is not Java's modified UTF-8")
    try:
        text = modified.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
        return text.encode("utf-16-be", "surrogatepass").decode("utf-16-be").encode()
    except UnicodeDecodeError:
        raise ValueError("a string that is not Java's modified UTF-8") from None


def untyped_number(value: bytes, *, flagged: bool) -> int | float:
    """The value of a cell in a row without type, written by KairosDB before 0.9.4.

    >>> untyped_number(bytes.fromhex("ff"), flagged=False)
    255
    >>> untyped_number(bytes.fromhex("013fc00000"), flagged=True)
    1.5

    Args:
      flagged: whether the last bit of the column is set.

    Raises:
      ValueError: it is not such a value.
    """
    if not flagged and len(value) <= 8:  # without its leading zero bytes
        return int.from_bytes(value.rjust(8, b"\0"), "big", signed=True)
    if flagged and len(value) in (5, 9) and (value[0] == 1) == (len(value) == 5):
        form: npt.DTypeLike = ">f4" if len(value) == 5 else ">f8"
        return float(np.frombuffer(value, form, offset=1)[0])
    raise ValueError(f"{len(value)} bytes that are not a value of a row without type")


def _read(data_type: bytes | None, cells: Sequence[Cell], columns: Int64s) -> ReadValues:
    """The values of a row's cells of a data type; None for a row without type."""
    n = len(cells)
    if data_type == keys.TYPES[Kind.INTEGER]:
        bits, is_good = read_longs([cell.value for cell in cells])
        return bits, np.full(n, Kind.INTEGER, np.uint8), [], is_good
    if data_type == keys.TYPES[Kind.FLOAT]:
        bits, is_good = read_doubles([cell.value for cell in cells])
        return bits, np.full(n, Kind.FLOAT, np.uint8), [], is_good
    if data_type == keys.TYPES[Kind.TEXT]:
        strings = [_text(cell.value) for cell in cells]
        is_good = np.fromiter((string is not None for string in strings), np.bool_, n)
        return np.arange(n), np.full(n, Kind.TEXT, np.uint8), [string or b"" for string in strings], is_good
    if data_type is not None:
        payloads = [cell.value for cell in cells]
        return np.arange(n), np.full(n, Kind.OPAQUE, np.uint8), payloads, np.ones(n, np.bool_)
    return _untyped(cells, columns & 1 == 1)


def _text(value: bytes) -> bytes | None:
    """The string of a cell in UTF-8; None if it holds no string."""
    with contextlib.suppress(ValueError):
        return read_string(value)
    return None


def _untyped(cells: Sequence[Cell], flagged: Bools) -> ReadValues:
    """The values of the cells of a row without type: rare, so one by one."""
    bits = np.zeros(len(cells), np.int64)
    kinds = np.where(flagged, np.uint8(Kind.FLOAT), np.uint8(Kind.INTEGER))
    is_good = np.ones(len(cells), np.bool_)
    for i, (cell, is_float) in enumerate(zip(cells, flagged.tolist(), strict=True)):
        try:
            number = untyped_number(cell.value, flagged=is_float)
        except ValueError:
            is_good[i] = False
            continue
        if is_float:
            bits.view(np.float64)[i] = number
        else:
            bits[i] = number
    return bits, kinds, [], is_good


def _row_corruption(cells: Sequence[Cell], foreign: Bools, good: Bools, spec: RowSpec) -> list[str]:
    """What could not be read, in words."""
    corruption = []
    foreign_cells = np.flatnonzero(foreign).tolist()
    if foreign_cells:
        first = cells[foreign_cells[0]].qualifier.hex()
        message = f"column {first} (and {len(foreign_cells) - 1} more) does not fit row spec {spec.value}"
        corruption.append(message + ": is row_spec that of the store?")
    for i in np.flatnonzero(~good & ~foreign).tolist():
        cell = cells[i]
        corruption.append(
            f"column {cell.qualifier.hex()}: {cell.value[:16].hex()} is not a value of the row's type"
        )
    return corruption


def findings(
    tables: Tables, spec: RowSpec, read: Callable[[str], Iterable[Row]], archived: Set[SeriesKey]
) -> Iterator[Finding]:
    """See `Store.audit`. Names are kept in memory; data rows and index rows are read side by side.

    Args:
      archived: series with rows in the archive, whose data rows may be deleted.
    """
    names = _IndexedNames(read(tables.strings))
    for row, entry in _side_by_side(read(tables.data), read(tables.row_keys)):
        if row is None:
            assert entry is not None
            yield from _of_lone_entry(entry, archived)
            continue
        try:
            key = parse_key(row.key)
        except ValueError as error:
            yield _corruption(row, str(error))
            continue
        if entry is None:
            yield _corruption(row, f"not in {tables.row_keys}: queries do not find it")
        if key.row_ms < 0:
            yield Finding(Severity.NOTE, row.table, row.key, "times before 1970: queries do not find them")
        elif key.row_ms % spec.width_ms:
            yield _corruption(row, f"row time {key.row_ms} does not fit row spec {spec.value}")
        yield from names.missing(key, row, tables.strings)
        for _, message in decode_row(spec, row, key.series).corruption:
            yield _corruption(row, message)


class _IndexedNames:
    """The names in `string_index`, and those reported as missing so far."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._indexed: dict[bytes, set[bytes]] = {}
        for row in rows:
            self._indexed.setdefault(row.key, set()).update(
                cell.qualifier for cell in row.cells if cell.family == select.NAMES_FAMILY
            )

    def missing(self, key: KairosDbRowKey, row: Row, strings: str) -> Iterator[Finding]:
        """Missing names of a data row; tags are only a note, since KairosDB has stopped indexing them."""
        names = [(select.METRICS, key.series.metric)]
        for name, value in key.series.tags:
            names += ((select.TAG_NAMES, name), (select.TAG_VALUES, value))
        for kind, text in names:
            indexed = self._indexed.setdefault(kind, set())
            if text.encode() in indexed:
                continue
            indexed.add(text.encode())
            severity = Severity.CORRUPT if kind == select.METRICS else Severity.NOTE
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


def _of_lone_entry(entry: Row, archived: Set[SeriesKey]) -> Iterator[Finding]:
    """The finding for an entry of `row_keys` without a data row."""
    try:
        parse_key(entry.key)
    except ValueError as error:
        yield _corruption(entry, str(error))
        return
    if keys.series_key_of(entry.key) in archived:
        return
    yield Finding(
        Severity.NOTE,
        entry.table,
        entry.key,
        "no data row has this key (its points have expired, or an ingest was interrupted)",
    )


def _corruption(row: Row, text: str) -> Finding:
    return Finding(Severity.CORRUPT, row.table, row.key, text)
