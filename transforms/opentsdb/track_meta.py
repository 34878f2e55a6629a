"""Creates the metadata of series that an ingest stores, once per series and worker process."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

import apache_beam as beam
from apache_beam.utils import shared

from timebeam.schema.bits.lru import LruCache
from timebeam.schema.core.rows import RowMutation
from timebeam.schema.stores import Row, SeriesMeta
from timebeam.schema.stores.opentsdb.keys import UidPair, is_of_series, tsuid_of_key, tsuid_pairs
from timebeam.schema.stores.opentsdb.meta_documents import MetaMode, meta_table, series_row, uid_rows
from timebeam.transforms.bigtable.compare_and_set import create_cells
from timebeam.transforms.bigtable.mutation_bytes import plain_row
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.flow import metrics
from timebeam.transforms.read.table_reader import read_rows

ROWS_AT_ONCE = 2_000


class _NewSeries(NamedTuple):
    """When a series was first seen, and when its newest point arrived, in ms."""

    created_ms: int
    latest_ms: int


class _SeenSeries:
    """A bounded cache of the series and UIDs whose metadata is stored."""

    def __init__(self, size: int) -> None:
        self.lock = threading.Lock()
        self.series: LruCache[bytes, bool] = LruCache(size)
        self.uids: LruCache[UidPair, bool] = LruCache(size)


class TrackFn(beam.DoFn):
    """`Row` in, nothing out: stores missing metadata of the rows' series before the bundle ends.

    A series is cached only when its metadata is stored, so that a repeated bundle leaves nothing out.
    """

    def __init__(self, target: Target, layout: SeriesMeta, mode: MetaMode, cache_size: int) -> None:
        self._target, self._layout, self._mode, self._size = target, layout, mode, cache_size
        self._shared = shared.Shared()
        self._seen: _SeenSeries | None = None
        self._new: dict[bytes, _NewSeries] = {}

    def hold(self) -> _SeenSeries:
        """The cache of this process, which lives as long as it is referenced, between runs too."""
        size = self._size
        seen: _SeenSeries = self._shared.acquire(lambda: _SeenSeries(size))
        return seen

    def setup(self) -> None:
        """Opens the cache of the process."""
        self._seen = self.hold()

    def start_bundle(self) -> None:
        """Starts with no new series."""
        self._new = {}

    def process(self, row: RowMutation) -> None:
        assert self._seen is not None
        options = self._layout.options
        if row.table != self._layout.data_table or not is_of_series(options, row.key):
            return
        try:
            tsuid, _ = tsuid_of_key(options, row.key)
        except ValueError:
            return  # a replayed row with a changed key
        with self._seen.lock:
            if self._seen.series.get(tsuid):
                return
        times_ms = [cell.timestamp_ms for cell in plain_row(row).cells]
        if not times_ms:
            return
        if tsuid in self._new:
            times_ms += self._new[tsuid]
        self._new[tsuid] = _NewSeries(min(times_ms), max(times_ms))
        if len(self._new) >= ROWS_AT_ONCE:
            self._store()

    def finish_bundle(self) -> None:
        """Stores the metadata of the new series."""
        if self._new:
            self._store()

    def _store(self) -> None:
        assert self._seen is not None
        table, new = meta_table(self._layout.options.table_prefix).name, self._new
        is_full = self._mode is MetaMode.FULL
        names = self._names() if is_full else {}
        self._create(self._layout.uid_table, uid_rows(self._layout.uid_table, names))
        self._create(
            table,
            [
                series_row(table, tsuid, seen.created_ms // 1000, seen.latest_ms, document=is_full)
                for tsuid, seen in new.items()
            ],
        )
        with self._seen.lock:
            for tsuid in new:
                self._seen.series[tsuid] = True
            for pair in names:
                self._seen.uids[pair] = True
        self._new = {}

    def _names(self) -> dict[UidPair, int]:
        """The uncached UIDs of the new series, and when each was first seen, in s."""
        assert self._seen is not None
        first_seen_s: dict[UidPair, int] = {}
        with self._seen.lock:
            for tsuid, (created_ms, _) in self._new.items():
                for pair in tsuid_pairs(self._layout.options, tsuid):
                    if not self._seen.uids.get(pair):
                        first_seen_s[pair] = min(
                            first_seen_s.get(pair, created_ms // 1000), created_ms // 1000
                        )
        return first_seen_s

    def _create(self, table: str, rows: Sequence[Row]) -> None:
        """Creates missing cells."""
        existing = read_rows(self._target, table, [row.key for row in rows])
        metrics.count_meta(len(create_cells(self._target, table, rows, existing).created))
