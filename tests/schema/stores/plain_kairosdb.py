"""KairosDB's bytes by the plainest means, one point at a time: what the layout is held against.

Written from docs/spec/kairosdb.md and Java's documentation of writeUTF, not from the code under test.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from timebeam.schema.core.rows import Row
from timebeam.schema.core.selection import Scan

WIDTH_MS = 21 * 24 * 60 * 60 * 1000


class Key(NamedTuple):
    """A row key in words."""

    metric: str
    row_ms: int
    data_type: str
    tags: dict[str, str]


def row_time(time_ms: int, width: int = WIDTH_MS) -> int:
    """Java's `t - (|t| % width)`."""
    return time_ms - abs(time_ms) % width


def column(time_ms: int, spec: str) -> bytes:
    """The column of a time."""
    offset = time_ms - row_time(time_ms, 1_814_400 if spec == "seconds" else WIDTH_MS)
    number = {"legacy": offset * 2, "milliseconds": offset, "seconds": offset // 1000}[spec]
    return number.to_bytes(4, "big")


def row_key(metric: str, row_ms: int, data_type: str, tags: dict[str, str]) -> bytes:
    """A key of `data_points`."""
    key = metric.encode() + b"\0" + struct.pack(">q", row_ms)
    if data_type != "kairos_legacy":
        key += bytes([0, len(data_type)]) + data_type.encode()
    for name in sorted(tags, key=lambda text: [*struct.iter_unpack(">H", text.encode("utf-16-be"))]):
        for text, escape, end in ((name, ":", "="), (tags[name], "=", ":")):
            for letter in text:
                key += (escape + letter if letter in ":=" else letter).encode()
            key += end.encode()
    return key


def read_key(key: bytes) -> Key:
    """A key of a typed row taken apart, letter by letter."""
    nul = key.index(0)
    (row_ms,) = struct.unpack(">q", key[nul + 1 : nul + 9])
    rest = key[nul + 9 :]
    data_type = "kairos_legacy"
    if rest[0] == 0:
        data_type, rest = rest[2 : 2 + rest[1]].decode(), rest[2 + rest[1] :]
    words, word, escape, letters = [], "", ":", iter(rest.decode())
    for letter in letters:
        end = "=" if escape == ":" else ":"
        if letter == escape:
            word += next(letters)
        elif letter == end:
            words.append(word)
            word, escape = "", end
        else:
            word += letter
    return Key(key[:nul].decode(), row_ms, data_type, dict(zip(words[::2], words[1::2], strict=True)))


def value_bytes(value: int | float | str) -> tuple[str, bytes]:
    """(data type, cell value) of a value."""
    if isinstance(value, float):
        return "kairos_double", struct.pack(">d", value)
    if isinstance(value, str):
        text = b"".join(_java_letter(unit) for (unit,) in struct.iter_unpack(">H", value.encode("utf-16-be")))
        return "kairos_string", struct.pack(">H", len(text)) + text
    rest = 2 * value if value >= 0 else -2 * value - 1
    found = []
    while rest > 127:
        found.append(rest % 128 + 128)
        rest //= 128
    return "kairos_long", bytes([*found, rest])


def _java_letter(unit: int) -> bytes:
    """A UTF-16 unit in modified UTF-8."""
    if 0 < unit < 0x80:
        return bytes([unit])
    if unit < 0x800:
        return bytes([0xC0 | unit >> 6, 0x80 | unit & 0x3F])
    return bytes([0xE0 | unit >> 12, 0x80 | unit >> 6 & 0x3F, 0x80 | unit & 0x3F])


class MemoryReader:
    """A `Reader` over rows in memory, that does what a scan says and notes how many there were."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.tables: dict[str, dict[bytes, Row]] = {}
        self.scans: list[Scan] = []
        for row in rows:
            self.tables.setdefault(row.table, {})[row.key] = row

    def table(self, name: str) -> Iterator[Row]:
        """The rows of a table, ascending."""
        rows = self.tables.get(name, {})
        return (rows[key] for key in sorted(rows))

    def scan(self, scan: Scan) -> Iterator[Row]:
        """See `Reader.scan`."""
        self.scans.append(scan)
        for start, end in scan.ranges:
            for row in self.table(scan.table):
                if row.key < start or (end and row.key >= end):
                    continue
                cells = list(row.cells)
                if scan.columns is not None:
                    family, first, last = scan.columns
                    cells = [
                        cell
                        for cell in cells
                        if cell.family == family
                        and cell.qualifier >= first
                        and (not last or cell.qualifier < last)
                    ]
                if scan.keys_only:
                    cells = [cell._replace(value=b"") for cell in cells]
                if cells:
                    yield row._replace(cells=cells)

    def rows(self, table: str, keys: Iterable[bytes]) -> dict[bytes, Row]:
        """See `Reader.rows`."""
        known = self.tables.get(table, {})
        return {key: known[key] for key in keys if key in known}
