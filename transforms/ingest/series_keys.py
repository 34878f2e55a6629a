"""Keys of series: from a bounded cache, else from the UIDs of their names in Bigtable. Without Beam."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from timebeam.schema.bits.arrays import Int64s
from timebeam.schema.bits.lru_cache import LruCache
from timebeam.schema.bits.reasons import RejectedError
from timebeam.schema.core.contract import Store
from timebeam.schema.core.point_fragments import Name
from timebeam.schema.core.points import PointBatch, Series, SeriesKey
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.flow import metrics
from timebeam.transforms.opentsdb.assign_uids import DryUidTable, UidPolicy, UidTable

if TYPE_CHECKING:
    from timebeam.transforms.ingest.limit_series import SeriesLimiter


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


class KeyCache:
    """UIDs of names and keys of series: one bounded cache per process.

    Attributes:
      replaced: the first name that is stored as a name, where several may be.
      rejected: names without a UID, and the time (monotonic, s) until which they are not looked up.
      limits: what is known of metrics with limits; None without any.
      filled: whether the snapshot is in the cache.
    """

    def __init__(self, size: int, limiter: SeriesLimiter | None) -> None:
        self.lock = threading.Lock()
        self.rejected: LruCache[Name, tuple[float, RejectedError]] = LruCache(size)
        self.uids: LruCache[Name, bytes] = LruCache(size)
        self.keys: LruCache[Series, SeriesKey] = LruCache(size)
        self.replaced: LruCache[Name, str] = LruCache(size)
        self.limits = None if limiter is None else limiter.new_state(size)
        self.filled = False


class SeriesKeys:
    """Makes the keys of series. It can be pickled until it is opened."""

    def __init__(
        self,
        target: Target,
        layout: Store,
        options: UidOptions,
        *,
        dry_run: bool = False,
        limiter: SeriesLimiter | None = None,
    ) -> None:
        self._target, self._layout, self._options, self._dry_run = target, layout, options, dry_run
        self._limiter = limiter
        self._cache: KeyCache | None = None
        self._table: UidTable | None = None

    def new_cache(self) -> KeyCache:
        """An empty cache."""
        return KeyCache(self._options.cache_size, self._limiter)

    def open(self, cache: KeyCache | None = None) -> None:
        """Opens the UID table and a cache; by default a new one."""
        self._cache = self.new_cache() if cache is None else cache
        if self._layout.uids is not None:
            table = DryUidTable if self._dry_run else UidTable
            self._table = table(self._target, self._layout, self._options.policy)

    def series_keys(
        self,
        series: Sequence[Series],
        snapshot: Iterable[list[tuple[Name, bytes]]] = (),
        batch: PointBatch | None = None,
    ) -> list[SeriesKey | RejectedError]:
        """The key of each series, or why it has none; resolves all uncached names together.

        Args:
          batch: the points of the series, which limits need.
          snapshot: (name, UID) of existing names, put into the cache of the process once.
        """
        assert self._cache is not None
        with self._cache.lock:
            if not self._cache.filled:
                for chunk in snapshot:
                    for name, uid in chunk:
                        self._cache.uids[name] = uid
                self._cache.filled = True
            return self._cached_keys(series, batch)

    def assign(
        self, batch: PointBatch, snapshot: Iterable[list[tuple[Name, bytes]]] = ()
    ) -> tuple[PointBatch, list[Rejected]]:
        """(the points whose series have a key, with `keys`; the rejections of the others)."""
        keys = self.series_keys(batch.series, snapshot, batch)
        has_key = np.array([not isinstance(key, RejectedError) for key in keys], np.bool_)
        rejected: list[Rejected] = []
        if not has_key.all():
            is_stored = has_key[batch.index]
            rejected = _rejected(batch, keys, np.flatnonzero(~is_stored))
            batch = batch.take(np.flatnonzero(is_stored))
        known = [None if isinstance(key, RejectedError) else key for key in keys]
        return dataclasses.replace(batch, keys=known), rejected

    def merge_counts(self) -> None:
        """Adds the new series of this process to the counts that limits are compared with."""
        cache, limiter = self._cache, self._limiter
        if limiter is not None and cache is not None and cache.limits is not None:
            with cache.lock:
                limiter.merge(cache.limits)

    def _cached_keys(
        self, batch_series: Sequence[Series], batch: PointBatch | None
    ) -> list[SeriesKey | RejectedError]:
        """The key of each series, or why it has none."""
        assert self._cache is not None
        cached, spec = self._cache.keys, self._layout.uids
        results: dict[Series, SeriesKey | RejectedError] = {}
        names_by_series: dict[Series, Sequence[Name]] = {}
        for series in batch_series:
            key = cached.get(series)
            rejected = self._layout.reject(series) if key is None else None
            if key is not None:
                results[series] = key
            elif rejected is not None:
                results[series] = rejected
            else:
                names_by_series[series] = spec.names(series) if spec else ()
                self._count_collisions(spec.replaced(series) if spec else ())
        if names_by_series and self._limiter is not None and batch is not None:
            results |= self._rejected_by_limits(names_by_series, batch)
            names_by_series = {
                series: names for series, names in names_by_series.items() if series not in results
            }
        if names_by_series:
            uids = self._uids({name for names in names_by_series.values() for name in names})
            for series, names in names_by_series.items():
                missing = next((uids[name] for name in names if isinstance(uids[name], RejectedError)), None)
                if isinstance(missing, RejectedError):
                    results[series] = missing
                else:
                    key = self._layout.series_key(series, uids)  # type: ignore[arg-type]
                    results[series] = key
                    cached[series] = key
        return [results[series] for series in batch_series]

    def _rejected_by_limits(
        self, names_by_series: Mapping[Series, Sequence[Name]], batch: PointBatch
    ) -> Mapping[Series, RejectedError]:
        """The series that limits, or names that get no UID, reject. Of these no name is assigned a UID."""
        assert self._limiter is not None
        assert self._cache is not None
        assert self._cache.limits is not None
        uids: dict[Name, bytes | RejectedError] = {}
        if self._table is not None:
            names = {name for names in names_by_series.values() for name in names}
            uids |= {name: uid for name in names if (uid := self._cache.uids.get(name)) is not None}
            unknown = names.difference(uids)
            stored = self._table.look_up(unknown)
            for name, uid in stored.items():
                uids[name] = self._cache.uids[name] = uid
            # A name that cannot be assigned is rejected as such, and does not count.
            uids |= self._table.unassignable(unknown.difference(stored))
        rejected: dict[Series, RejectedError] = {}
        candidates: dict[Series, SeriesKey | None] = {}
        for series, series_names in names_by_series.items():
            series_uids = [uids.get(name) for name in series_names]
            error = next((uid for uid in series_uids if isinstance(uid, RejectedError)), None)
            if error is not None:
                rejected[series] = error
            else:
                is_named = None not in series_uids
                candidates[series] = self._layout.series_key(series, uids) if is_named else None  # type: ignore[arg-type]
        return rejected | self._limiter.rejections(self._cache.limits, candidates, batch)

    def _count_collisions(self, replaced: Iterable[tuple[Name, str]]) -> None:
        """Counts the names that are stored as another name is; see `UidSpec`."""
        assert self._cache is not None
        for stored, name in replaced:
            first = self._cache.replaced.get(stored)
            if first is None:
                self._cache.replaced[stored] = name
            elif first != name:
                metrics.count_skipped({metrics.NAMES_COLLIDED: 1})

    def _uids(self, names: set[Name]) -> Mapping[Name, bytes | RejectedError]:
        """The UID of each name, or why it has none; from the cache, else from the UID table."""
        assert self._cache is not None
        result: dict[Name, bytes | RejectedError] = {}
        now = time.monotonic()
        for name in names:
            uid = self._cache.uids.get(name)
            if uid is not None:
                result[name] = uid
            elif (rejected := self._cache.rejected.get(name)) is not None and rejected[0] > now:
                result[name] = rejected[1]
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
                    self._cache.rejected[name] = (until, uid_or_error)
        return result


def _rejected(batch: PointBatch, keys: Sequence[SeriesKey | RejectedError], points: Int64s) -> list[Rejected]:
    """The rejections of points whose series have no key."""

    def why(point: int) -> RejectedError:
        error = keys[batch.index[point]]
        assert isinstance(error, RejectedError)
        return error

    return batch.reject(points, why, Stage.ASSIGN)
