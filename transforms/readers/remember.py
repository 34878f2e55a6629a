"""A reader that remembers rows which never change once they are written, such as those of the UID table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from timebeam.schema.layouts import Reader, Row, Scan

MOST_ROWS = 200_000
"""The largest number of rows in memory; beyond it, all are forgotten."""


class RememberingReader:
    """A `Reader` that reads each row once; missing rows are read again.

    Args:
      table: the table whose rows are remembered, if read by key; None for all tables.
    """

    def __init__(self, reader: Reader, table: str | None = None) -> None:
        self._reader, self._table = reader, table
        self._rows: dict[tuple[str, bytes], Row] = {}

    def scan(self, scan: Scan) -> Iterable[Row]:
        """See `Reader.scan`."""
        return self._reader.scan(scan)

    def rows(self, table: str, keys: Sequence[bytes]) -> Mapping[bytes, Row]:
        """See `Reader.rows`."""
        if self._table not in (None, table):
            return self._reader.rows(table, keys)
        rows = {key: row for key in keys if (row := self._rows.get((table, key))) is not None}
        missing = [key for key in keys if key not in rows]
        if missing:
            if len(self._rows) + len(missing) > MOST_ROWS:
                self._rows = {}
            new = self._reader.rows(table, missing)
            self._rows.update({(table, key): row for key, row in new.items()})
            rows.update(new)
        return rows
