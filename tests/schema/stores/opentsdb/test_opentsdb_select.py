"""Rows of a query: which are selected, and how many are in memory until their names are known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest

from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.core.selection import Scan, Selected, Selection
from timebeam.schema.stores.opentsdb.layout import OpenTsdb

NAMES = {b"\0\0\1": [("metrics", b"cpu"), ("tagk", b"host"), ("tagv", b"a")]}
KEY = b"\0\0\1" + bytes(4) + b"\0\0\1" * 2


class Rows:
    """A `Reader` of rows of one series, hour after hour, that counts what was read."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.read, self._cells = 0, cells

    def scan(self, scan: Scan) -> Iterator[Row]:
        for hour in range(5000):
            self.read += 1
            yield Row(scan.table, KEY[:3] + (hour * 3600).to_bytes(4, "big") + KEY[7:], self._cells)

    def rows(self, table: str, keys: Sequence[bytes]) -> Mapping[bytes, Row]:
        return {
            key: Row(table, key, [Cell("name", kind.encode(), 0, name) for kind, name in NAMES[key]])
            for key in keys
        }


@pytest.mark.parametrize(
    ("cells", "most"),
    [
        ([Cell("t", b"\x00\x00", 1, bytes(100_000))], 25),  # one large column
        ([Cell("t", bytes([0, second]), 1, bytes(8)) for second in range(200)], 1500),  # one for each point
        ([Cell("t", b"\x00\x00", 1, b"\x07")], 2000),
    ],
)
def test_rows_come_before_all_are_read(cells: list[Cell], most: int) -> None:
    reader = Rows(cells)
    found = OpenTsdb().select(Selection(None, {}, 0, 5000 * 3_600_000), reader)
    first = next(iter(found))
    assert isinstance(first, Selected)
    assert str(first.series) == "cpu{host=a}"
    assert reader.read <= most
    assert 1 + sum(1 for _ in found) == 5000


class NamedRows(Rows):
    """A `Reader` of one row for each tail of a key; names are their UIDs in hex."""

    def __init__(self, tails: Sequence[str]) -> None:
        super().__init__([Cell("t", b"\x00\x00", 1, b"\x07")])
        self._tails = tails

    def scan(self, scan: Scan) -> Iterator[Row]:
        for tail in self._tails:
            yield Row(scan.table, KEY[:7] + bytes.fromhex(tail), self._cells)

    def rows(self, table: str, keys: Sequence[bytes]) -> Mapping[bytes, Row]:
        kinds = [b"metrics", b"tagk", b"tagv"]
        cells = {
            key: [Cell("name", kind, 0, key.hex().encode()) for kind in kinds]
            if len(key) == 3
            else [Cell("id", kind, 0, bytes.fromhex(key.decode())) for kind in kinds]
            for key in keys
        }
        return {key: Row(table, key, cells[key]) for key in keys}


@pytest.mark.parametrize("values", [(), ("000004",)])
def test_a_key_with_the_bytes_of_a_tag_elsewhere_is_not_selected(values: Sequence[str]) -> None:
    tails = ["000001000002000004000009", "000002000004", "000001000001000002000004"]
    selection = Selection("000001", {"000002": frozenset(values)}, 0, 1)
    selected = OpenTsdb().select(selection, NamedRows(tails))
    assert [row.row.key[7:].hex() for row in selected if isinstance(row, Selected)] == tails[1:]
