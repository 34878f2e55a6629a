"""Creates the metadata of series that an ingest stores, once per series and worker process."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from apache_beam.utils import shared

from timebeam.schema.bits.lru_cache import LruCache
from timebeam.schema.core.rows import EncodedRow, Row
from timebeam.schema.stores.opentsdb.keys import UidPair, is_of_series, tsuid_of_key, tsuid_pairs
from timebeam.schema.stores.opentsdb.meta_documents import MetaMode, meta_table, series_row, uid_rows
from timebeam.transforms.bigtable.compare_and_set import create_cells
from timebeam.transforms.bigtable.mutation_bytes import plain_row
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.flow import metrics
from timebeam.transforms.flow.steps import BufferedDoFn
from timebeam.transforms.read.table_reader import read_rows

if TYPE_CHECKING:
    from timebeam.schema.stores.opentsdb.layout import OpenTsdb


class _SeenRow(NamedTuple):
    """A row of an uncached series: its TSUID, and the earliest and latest arrival of its points, in ms."""

    tsuid: bytes
    first_ms: int
    last_ms: int


class _SeenSeries:
    """A bounded cache of the series and UIDs whose metadata is stored."""

    def __init__(self, size: int) -> None:
        self.lock = threading.Lock()
        self.series: LruCache[bytes, bool] = LruCache(size)
        self.uids: LruCache[UidPair, bool] = LruCache(size)


class TrackFn(BufferedDoFn[_SeenRow]):
    """`EncodedRow` in, nothing out: stores missing metadata of the rows' series before the bundle ends.

    A series is cached only when its metadata is stored, so that a repeated bundle leaves nothing out.
    """

    most = 2_000

    def __init__(self, target: Target, layout: OpenTsdb, mode: str, cache_size: int) -> None:
        """Writes what `MetaMode` says of a mode other than `off`."""
        self._target, self._layout, self._size = target, layout, cache_size
        self._is_full = MetaMode(mode) is MetaMode.FULL
        self.table = meta_table(layout.options.table_prefix)
        self._shared = shared.Shared()
        self._seen: _SeenSeries | None = None

    def hold(self) -> _SeenSeries:
        """The cache of this process, which lives as long as it is referenced, between runs too."""
        size = self._size
        seen: _SeenSeries = self._shared.acquire(lambda: _SeenSeries(size))
        return seen

    def setup(self) -> None:
        """Opens the cache of the process."""
        self._seen = self.hold()

    def process(self, row: EncodedRow) -> Iterable[None]:
        assert self._seen is not None
        options = self._layout.options
        if row.table != self._layout.data_table or not is_of_series(options, row.key):
            return ()
        try:
            tsuid, _ = tsuid_of_key(options, row.key)
        except ValueError:
            return ()  # a replayed row with a changed key
        with self._seen.lock:
            if self._seen.series.get(tsuid):
                return ()
        times_ms = [cell.timestamp_ms for cell in plain_row(row).cells]
        return self.add(_SeenRow(tsuid, min(times_ms), max(times_ms))) if times_ms else ()

    def handle(self, rows: list[_SeenRow]) -> Iterable[None]:
        """Stores the metadata of the new series."""
        assert self._seen is not None
        new: dict[bytes, _SeenRow] = {}
        for row in rows:
            _, first_ms, last_ms = new.get(row.tsuid, row)
            new[row.tsuid] = _SeenRow(row.tsuid, min(first_ms, row.first_ms), max(last_ms, row.last_ms))
        table = self.table.name
        names = self._names(new.values()) if self._is_full else {}
        self._create(self._layout.options.uid_table, uid_rows(self._layout.options.uid_table, names))
        self._create(
            table,
            [
                series_row(table, tsuid, first_ms // 1000, last_ms, document=self._is_full)
                for tsuid, first_ms, last_ms in new.values()
            ],
        )
        with self._seen.lock:
            for tsuid in new:
                self._seen.series[tsuid] = True
            for pair in names:
                self._seen.uids[pair] = True
        return ()

    def _names(self, new: Iterable[_SeenRow]) -> dict[UidPair, int]:
        """The uncached UIDs of the new series, and when each was first seen, in s."""
        assert self._seen is not None
        first_seen_s: dict[UidPair, int] = {}
        with self._seen.lock:
            for tsuid, first_ms, _ in new:
                for pair in tsuid_pairs(self._layout.options, tsuid):
                    if not self._seen.uids.get(pair):
                        first_seen_s[pair] = min(first_seen_s.get(pair, first_ms // 1000), first_ms // 1000)
        return first_seen_s

    def _create(self, table: str, rows: Sequence[Row]) -> None:
        """Creates missing cells."""
        existing = read_rows(self._target, table, [row.key for row in rows])
        metrics.count_meta(len(create_cells(self._target, table, rows, existing).created))
