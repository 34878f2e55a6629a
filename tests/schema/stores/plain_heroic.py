"""Heroic's rows written down a second time, as plain loops over bytes: what the tests compare with.

From docs/spec/heroic.md §2 to §5 and §8; slow, without numpy and without the code under test. And
tables in memory, which keep the newest version of each cell.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence

from timebeam.schema.core.points import Series
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.core.selection import Scan

PERIOD = 4294967296
Value = tuple[str, bytes]
"""("double", its eight bytes) or ("distribution", its bytes)."""


def length(n: int) -> bytes:
    """The variable-length integer: each byte but the last has its high bit set, and goes on one lower."""
    return bytes([n]) if n < 128 else bytes([128 + n % 128]) + length(n // 128 - 1)


def java_order(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Sorted by UTF-16 code units."""

    def units(text: str) -> list[int]:
        raw = text.encode("utf-16-le")
        return [raw[i] + 256 * raw[i + 1] for i in range(0, len(raw), 2)]

    return sorted(pairs, key=lambda pair: units(pair[0]))


def string(text: str) -> bytes:
    raw = text.encode()
    return length(len(raw)) + length(sum(2 if ord(letter) > 0xFFFF else 1 for letter in text)) + raw


def plain(text: str) -> bytes:
    return length(len(text.encode())) + text.encode()


def wire_key(series: Series, base: int) -> bytes:
    """The row key that Heroic writes."""
    key = string(series.metric) + length(len(series.tags))
    for name, value in java_order(series.tags):
        key += string(name) + string(value)
    key += struct.pack(">q", base)
    if series.resources:
        payload = length(len(series.resources))
        for name, value in java_order(series.resources):
            payload += plain(name) + plain(value)
        key += b"\x01\x00" + length(len(payload)) + payload
    return key


def readable_key(series: Series, base: int, *, names: bool = False) -> bytes:
    """The row key of the readable layout."""

    def escaped(text: str) -> str:
        out = ""
        for letter in text:
            if letter in ",=\\":
                out += "\\" + letter
            elif ord(letter) < 32 or 127 <= ord(letter) < 160:
                out += "\\x" + f"{ord(letter):02x}"
            else:
                out += letter
        return out

    key = escaped(series.metric)
    for name, value in java_order(series.tags):
        key += f",{escaped(name)}={escaped(value)}"
    key += f",{base}"
    for name, value in java_order(series.resources):
        key += f",{escaped(name)}={escaped(value)}" if names else f",{escaped(value)}"
    return key.encode()


def row_key(layout: str, series: Series, base: int) -> bytes:
    return wire_key(series, base) if layout == "heroic" else readable_key(series, base)


def qualifier(layout: str, offset: int) -> bytes:
    return struct.pack(">I", offset) if layout == "heroic" else b"%010d" % offset


def stored(value: float | bytes) -> Value:
    """What is stored of a value."""
    if isinstance(value, bytes):
        return "distribution", value
    if value != value:
        return "double", bytes.fromhex("7ff8000000000000")
    return "double", struct.pack(">d", value)


class Tables:
    """Tables in memory: a `Reader` of what was written into them."""

    def __init__(self) -> None:
        self._cells: dict[str, dict[bytes, dict[tuple[str, bytes], Cell]]] = {}

    def write(self, rows: Iterable[Row]) -> None:
        """Writes rows; of each cell the newest version is kept, as garbage collection would."""
        for row in rows:
            cells = self._cells.setdefault(row.table, {}).setdefault(row.key, {})
            for cell in row.cells:
                old = cells.get((cell.family, cell.qualifier))
                if old is None or old.timestamp_ms <= cell.timestamp_ms:
                    cells[cell.family, cell.qualifier] = cell

    def remove(self, table: str, key: bytes) -> None:
        del self._cells[table][key]

    def read(self, table: str) -> list[Row]:
        """All rows of a table."""
        return [Row(table, key, self._row(table, key)) for key in sorted(self._cells.get(table, {}))]

    def scan(self, scan: Scan) -> Iterator[Row]:
        """See `Reader.scan`; asserts that the ranges ascend and do not overlap."""
        assert scan.ranges
        assert all(start < end for start, end in scan.ranges if end)
        assert all(a[1] <= b[0] for a, b in zip(scan.ranges, scan.ranges[1:], strict=False))
        for start, end in scan.ranges:
            for row in self.read(scan.table):
                if row.key >= start and (not end or row.key < end):
                    cells = [cell for cell in row.cells if within(scan, cell)]
                    if cells:
                        yield row._replace(
                            cells=[c._replace(value=b"") for c in cells] if scan.keys_only else cells
                        )

    def rows(self, table: str, keys: Sequence[bytes]) -> Mapping[bytes, Row]:
        """See `Reader.rows`."""
        known = self._cells.get(table, {})
        return {key: Row(table, key, self._row(table, key)) for key in keys if key in known}

    def _row(self, table: str, key: bytes) -> list[Cell]:
        return [cell for _, cell in sorted(self._cells[table][key].items())]


def within(scan: Scan, cell: Cell) -> bool:
    """Whether a scan wants a cell."""
    if scan.columns is None:
        return True
    family, start, end = scan.columns
    return cell.family == family and cell.qualifier >= start and (not end or cell.qualifier < end)
