"""Rows of declared tables in memory, as Bigtable keeps them; and a reader of them that notes its scans."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.core.selection import Scan


class MemoryTables:
    """Cells by table, row, column and timestamp; a `Reader`."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.scans: list[Scan] = []
        self.rows_read = 0
        self._tables: dict[str, dict[bytes, dict[tuple[str, bytes], dict[int, bytes]]]] = {}
        for row in rows:
            columns = self._tables.setdefault(row.table, {}).setdefault(row.key, {})
            for cell in row.cells:
                columns.setdefault((cell.family, cell.qualifier), {})[cell.timestamp_ms] = cell.value

    def scan(self, scan: Scan) -> Iterator[Row]:
        self.scans.append(scan)
        pattern = re.compile((scan.key_pattern or rb"\C*").replace(rb"\C", b"."), re.DOTALL)
        for start, end in scan.ranges:
            for key in sorted(self._tables.get(scan.table, {})):
                if start <= key and (not end or key < end) and pattern.fullmatch(key):
                    row = self._row(scan, key)
                    if row.cells:
                        self.rows_read += 1
                        yield row

    def rows(self, table: str, keys: Sequence[bytes]) -> Mapping[bytes, Row]:
        raise NotImplementedError

    def all(self, table: str) -> Iterator[Row]:
        return self.scan(Scan(table, [(b"", b"")]))

    def _row(self, scan: Scan, key: bytes) -> Row:
        cells = []
        for (family, qualifier), versions in sorted(self._tables[scan.table][key].items()):
            if scan.columns is not None:
                wanted, first, end = scan.columns
                if family != wanted or qualifier < first or (end and qualifier >= end):
                    continue
            newest = sorted(versions.items(), reverse=True)[: scan.versions]
            cells += [Cell(family, qualifier, stamp, value) for stamp, value in newest]
        return Row(scan.table, key, cells)
