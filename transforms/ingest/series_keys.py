"""The keys of series: from a cache per process, else from the UIDs of their names in Bigtable."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterable, Mapping, Sequence

from apache_beam.utils import shared

from timebeam.schema.common.lru import LruCache
from timebeam.schema.layouts import Layout, Name, SeriesKey
from timebeam.schema.points import RefusedError, Series
from timebeam.transforms import metrics
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.ingest.uids import DryUidTable, UidPolicy, UidTable


@dataclasses.dataclass(frozen=True, slots=True)
class UidOptions:
    """How names become UIDs.

    Attributes:
      policy: which unknown names are assigned a UID.
      cache_size: number of names, and of series, in the cache of a worker process.
      snapshot_size: largest number of names read from the table at the start.
      negative_seconds: time before a name without a UID is looked up again.
    """

    policy: UidPolicy = dataclasses.field(default_factory=UidPolicy)
    cache_size: int = 1_000_000
    snapshot_size: int = 1_000_000
    negative_seconds: float = 60.0


class _Cache:
    """UIDs of names and keys of series: one bounded cache per process.

    Attributes:
      refused: names without a UID, and the time (monotonic, s) until which they are not looked up.
      filled: whether the snapshot is in the cache.
    """

    def __init__(self, size: int) -> None:
        self.lock = threading.Lock()
        self.refused: LruCache[Name, tuple[float, RefusedError]] = LruCache(size)
        self.uids: LruCache[Name, bytes] = LruCache(size)
        self.keys: LruCache[Series, SeriesKey] = LruCache(size)
        self.filled = False


class SeriesKeys:
    """Makes the keys of series. It can be pickled until it is opened."""

    def __init__(self, target: Target, layout: Layout, options: UidOptions, *, dry_run: bool = False) -> None:
        self._target, self._layout, self._options, self._dry_run = target, layout, options, dry_run
        self._shared = shared.Shared()
        self._cache: _Cache | None = None
        self._table: UidTable | None = None

    def hold(self) -> _Cache:
        """The cache of this process, which lives as long as it is referenced, between runs too."""
        size = self._options.cache_size
        cache: _Cache = self._shared.acquire(lambda: _Cache(size))
        return cache

    def open(self) -> None:
        """Opens the UID table and the cache of the process."""
        self._cache = self.hold()
        if self._layout.uids is not None:
            table = DryUidTable if self._dry_run else UidTable
            self._table = table(self._target, self._layout, self._options.policy)

    def series_keys(
        self, series: Sequence[Series], snapshot: Iterable[list[tuple[Name, bytes]]] = ()
    ) -> list[SeriesKey | RefusedError]:
        """The key of each series, or why it has none; resolves all uncached names together.

        Args:
          snapshot: (name, UID) of existing names, put into the cache of the process once.
        """
        assert self._cache is not None
        with self._cache.lock:
            if not self._cache.filled:
                for chunk in snapshot:
                    for name, uid in chunk:
                        self._cache.uids[name] = uid
                self._cache.filled = True
            return self._cached_keys(series)

    def _cached_keys(self, batch_series: Sequence[Series]) -> list[SeriesKey | RefusedError]:
        """The key of each series, or why it has none."""
        assert self._cache is not None
        cached = self._cache.keys
        results: dict[Series, SeriesKey | RefusedError] = {}
        names_by_series: dict[Series, Sequence[Name]] = {}
        for series in batch_series:
            key = cached.get(series)
            refused = self._layout.refuse(series) if key is None else None
            if key is not None:
                results[series] = key
            elif refused is not None:
                results[series] = refused
            else:
                names_by_series[series] = self._layout.names(series)
        if names_by_series:
            uids = self._uids({name for names in names_by_series.values() for name in names})
            for series, names in names_by_series.items():
                missing = next((uids[name] for name in names if isinstance(uids[name], RefusedError)), None)
                if isinstance(missing, RefusedError):
                    results[series] = missing
                else:
                    key = self._layout.series_key(series, uids)  # type: ignore[arg-type]
                    results[series] = key
                    cached[series] = key
        return [results[series] for series in batch_series]

    def _uids(self, names: set[Name]) -> Mapping[Name, bytes | RefusedError]:
        """The UID of each name, or why it has none; from the cache, else from the UID table."""
        assert self._cache is not None
        result: dict[Name, bytes | RefusedError] = {}
        now = time.monotonic()
        for name in names:
            uid = self._cache.uids.get(name)
            if uid is not None:
                result[name] = uid
            elif (refused := self._cache.refused.get(name)) is not None and refused[0] > now:
                result[name] = refused[1]
        metrics.count("uid_hits", len(result))
        missing = names.difference(result)
        if missing:
            assert self._table is not None
            metrics.count("uid_misses", len(missing))
            resolved, assigned = self._table.resolve(missing)
            metrics.count("uids_assigned", assigned)
            for name, uid_or_error in resolved.items():
                result[name] = uid_or_error
                if isinstance(uid_or_error, bytes):
                    self._cache.uids[name] = uid_or_error
                else:
                    until = now + self._options.negative_seconds
                    self._cache.refused[name] = (until, uid_or_error)
        return result
