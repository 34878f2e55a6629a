"""A reader that remembers the rows of the UID table, which are never another's once they are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from timebeam.schema.layouts import Reader, Row, Scan

MOST_ROWS = 200_000
"""That are remembered; then it begins anew."""


class RememberingReader:
    """A `Reader` that asks for each row of one table once; rows that are not there are looked for again.

    Args:
      table: whose rows, found by key, are remembered.
    """

    def __init__(self, reader: Reader, table: str) -> None:
        self._reader, self._table = reader, table
        self._known: dict[bytes, Row] = {}

    def scan(self, scan: Scan) -> Iterable[Row]:
        """See `Reader.scan`."""
        return self._reader.scan(scan)

    def rows(self, table: str, keys: Sequence[bytes]) -> Mapping[bytes, Row]:
        """See `Reader.rows`."""
        if table != self._table:
            return self._reader.rows(table, keys)
        missing = [key for key in keys if key not in self._known]
        if len(self._known) + len(missing) > MOST_ROWS:
            self._known, missing = {}, list(keys)
        if missing:
            self._known.update(self._reader.rows(table, missing))
        return {key: self._known[key] for key in keys if key in self._known}
