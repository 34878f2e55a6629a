"""Series keys for the series of a batch: names to UIDs by a cache per process, else by Bigtable."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

import apache_beam as beam
import numpy as np
from apache_beam.pvalue import PBegin, PCollection
from apache_beam.utils import shared

from schema.layouts import Layout, Name, SeriesKey
from schema.lru import LruCache
from schema.points import PointBatch, RefusedError, Series, Stage
from transforms import metrics
from transforms.bigtable.target import Target
from transforms.rejected import RejectedOutput, refuse
from transforms.uids import DryUidTable, UidPolicy, UidTable

_CHUNK = 10_000


@dataclasses.dataclass(frozen=True, slots=True)
class KeyedBatch:
    """A batch and the key of each of its series; None for a series without points in it."""

    batch: PointBatch
    keys: Sequence[SeriesKey | None]


@dataclasses.dataclass(frozen=True, slots=True)
class UidOptions:
    """How names become UIDs.

    Attributes:
      policy: which unknown names are given one.
      cache_size: names, and series, that a worker process remembers.
      snapshot_size: at most so many names are read from the table at start.
      negative_seconds: how long a name that has no UID and gets none is not looked up again.
    """

    policy: UidPolicy = dataclasses.field(default_factory=UidPolicy)
    cache_size: int = 1_000_000
    snapshot_size: int = 1_000_000
    negative_seconds: float = 60.0


class UidSnapshot(beam.PTransform):  # type: ignore[type-arg]
    """The UID table as it is at start, in lists of (name, UID): the side input of `AssignUids`."""

    def __init__(self, target: Target, layout: Layout, options: UidOptions) -> None:
        super().__init__()
        self._fn = _SnapshotFn(target, layout, options)

    def expand(self, root: PBegin) -> PCollection[list[tuple[Name, bytes]]]:
        """See the class."""
        once = [] if self._fn.layout.uids is None else [None]
        return (
            root
            | "Once" >> beam.Create(once, reshuffle=False)
            | "ReadUids" >> beam.ParDo(self._fn).with_output_types(list)
        )


class _SnapshotFn(beam.DoFn):
    def __init__(self, target: Target, layout: Layout, options: UidOptions) -> None:
        self._target, self.layout, self._options = target, layout, options

    def process(self, _: None) -> Iterable[list[tuple[Name, bytes]]]:
        """Lists of (name, UID), at most `snapshot_size` in all."""
        chunk: list[tuple[Name, bytes]] = []
        left = self._options.snapshot_size
        for pair in UidTable(self._target, self.layout).snapshot():
            if left == 0:
                break
            left -= 1
            chunk.append(pair)
            if len(chunk) == _CHUNK:
                yield chunk
                chunk = []
        if chunk:
            yield chunk


class _Cache:
    """What a worker process remembers: UIDs of names, keys of series. Bounded; one per process.

    Names without a UID are remembered with the time (monotonic, s) until which they are believed to
    have none.
    """

    def __init__(self, size: int) -> None:
        self.lock = threading.Lock()
        self.refused: LruCache[Name, tuple[float, RefusedError]] = LruCache(size)
        self.uids: LruCache[Name, bytes] = LruCache(size)
        self.keys: LruCache[Series, SeriesKey] = LruCache(size)
        self.filled = False


class AssignFn(beam.DoFn):
    """`PointBatch` in; `KeyedBatch` out, points without a UID to the output `REJECTED`.

    The snapshot is a side input, put into the cache of the process once. Names that are not in the
    cache are resolved together, once per batch.
    """

    def __init__(self, target: Target, layout: Layout, options: UidOptions, *, dry_run: bool = False) -> None:
        self._target, self._layout, self._options, self._dry_run = target, layout, options, dry_run
        self._shared = shared.Shared()
        self._cache: _Cache | None = None
        self._table: UidTable | None = None

    def hold(self) -> object:
        """What keeps the cache of this process alive as long as it is held, between runs too."""
        size = self._options.cache_size
        return self._shared.acquire(lambda: _Cache(size))

    def setup(self) -> None:
        """Opens the UID table and the cache of the process."""
        size = self._options.cache_size
        self._cache = self._shared.acquire(lambda: _Cache(size))
        if self._layout.uids is not None:
            table = DryUidTable if self._dry_run else UidTable
            self._table = table(self._target, self._layout, self._options.policy)

    def process(
        self, batch: PointBatch, snapshot: Iterable[list[tuple[Name, bytes]]]
    ) -> Iterator[KeyedBatch | RejectedOutput]:
        """See the class."""
        assert self._cache is not None
        with self._cache.lock:
            if not self._cache.filled:
                for chunk in snapshot:
                    for name, uid in chunk:
                        self._cache.uids[name] = uid
                self._cache.filled = True
            keys = self._series_keys(batch.series)
        bad = np.array([isinstance(key, RefusedError) for key in keys], np.bool_)
        if bad.any():
            refused = bad[batch.index]
            for point in np.flatnonzero(refused).tolist():
                error = keys[batch.index[point]]
                assert isinstance(error, RefusedError)
                yield refuse(batch.refuse(point, error.reason, error.message, Stage.ASSIGN))
            batch = batch.take(np.flatnonzero(~refused))
        if len(batch):
            yield KeyedBatch(batch, [None if isinstance(key, RefusedError) else key for key in keys])

    def _series_keys(self, batch_series: Sequence[Series]) -> list[SeriesKey | RefusedError]:
        """The key of each series, or why it has none."""
        assert self._cache is not None
        known = self._cache.keys
        found: dict[Series, SeriesKey | RefusedError] = {}
        wanted: dict[Series, Sequence[Name]] = {}
        for series in batch_series:
            key = known.get(series)
            refused = self._layout.refuse(series) if key is None else None
            if key is not None:
                found[series] = key
            elif refused is not None:
                found[series] = refused
            else:
                wanted[series] = self._layout.names(series)
        if wanted:
            uids = self._uids({name for names in wanted.values() for name in names})
            for series, names in wanted.items():
                missing = next((uids[name] for name in names if isinstance(uids[name], RefusedError)), None)
                if isinstance(missing, RefusedError):
                    found[series] = missing
                else:
                    key = self._layout.series_key(series, uids)  # type: ignore[arg-type]
                    found[series] = key
                    known[series] = key
        return [found[series] for series in batch_series]

    def _uids(self, names: set[Name]) -> Mapping[Name, bytes | RefusedError]:
        """The UID of each name, or why it has none; from the cache where it can be."""
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
