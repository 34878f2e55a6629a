"""Index tables: the rows that let a reader find series, written once per worker and entry."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import apache_beam as beam
from apache_beam.utils import shared

from schema.layouts import Layout, Row
from schema.lru import LruCache
from schema.points import Rejected, Series
from transforms import metrics
from transforms.assign import KeyedBatch
from transforms.bigtable.target import Target
from transforms.rejected import RejectedOutput, refuse
from transforms.write import write_batch

_ROWS_A_REQUEST = 5_000


class _Seen:
    """The entries that this process has written; bounded."""

    def __init__(self, size: int) -> None:
        self.lock = threading.Lock()
        self.entries: LruCache[tuple[Series, int], bool] = LruCache(size)


class IndexFn(beam.DoFn):
    """`KeyedBatch` in, the same out, after the index rows of its points are stored.

    It writes by itself: an entry may only be remembered when it is stored, or a bundle that failed
    and is repeated would leave it out.
    """

    def __init__(self, target: Target, layout: Layout, cache_size: int, *, dry_run: bool) -> None:
        self._target, self._layout, self._size, self._dry_run = target, layout, cache_size, dry_run
        self._shared = shared.Shared()
        self._seen: _Seen | None = None

    def hold(self) -> object:
        """What keeps the memory of this process alive as long as it is held, between runs too."""
        size = self._size
        return self._shared.acquire(lambda: _Seen(size))

    def setup(self) -> None:
        """Opens the memory of the process."""
        size = self._size
        self._seen = self._shared.acquire(lambda: _Seen(size))

    def process(self, keyed: KeyedBatch) -> Iterator[KeyedBatch | RejectedOutput]:
        """See the class."""
        assert self._seen is not None
        series = keyed.batch.series
        refused: list[Rejected] = []
        with self._seen.lock:
            entries = [(series[number], base) for number, base in self._layout.index_entries(keyed.batch)]
            new = [entry for entry in entries if self._seen.entries.get(entry) is None]
            by_table: dict[str, dict[bytes, Row]] = {}
            for entry in new:
                for row in self._layout.index(*entry):
                    rows = by_table.setdefault(row.table, {})
                    held = rows.get(row.key)
                    cells = row.cells if held is None else list(dict.fromkeys([*held.cells, *row.cells]))
                    rows[row.key] = row._replace(cells=cells)
            for table, merged in by_table.items():
                todo = list(merged.values())
                metrics.count("index_rows_written", len(todo))
                for at in range(0, len(todo) if not self._dry_run else 0, _ROWS_A_REQUEST):
                    refused += write_batch(self._target, table, todo[at : at + _ROWS_A_REQUEST])
            for entry in new:
                self._seen.entries[entry] = True
        for rejected in refused:
            yield refuse(rejected)
        yield keyed
