"""Keys of the series of a batch: from a cache per process, else from the UIDs of their names in Bigtable."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PBegin, PCollection
from apache_beam.utils import shared

from timebeam.schema.bits.lru_cache import batched
from timebeam.schema.core.contract import Store
from timebeam.schema.core.point_fragments import Name
from timebeam.schema.core.points import PointBatch
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.flow.steps import RejectedOutput, reject
from timebeam.transforms.ingest.series_keys import KeyCache, SeriesKeys, UidOptions
from timebeam.transforms.opentsdb.assign_uids import UidTable


class SharedSeriesKeys(SeriesKeys):
    """The same for steps, which share one cache per process. It can be pickled until it is opened."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """See `SeriesKeys`."""
        super().__init__(*arguments, **named)
        self._shared = shared.Shared()

    def hold(self) -> KeyCache:
        """The cache of this process, which lives as long as it is referenced, between runs too."""
        cache: KeyCache = self._shared.acquire(self.new_cache)
        return cache

    def open(self, cache: KeyCache | None = None) -> None:
        """Opens the UID table and the cache of the process."""
        super().open(self.hold() if cache is None else cache)


_CHUNK = 10_000


class ReadUidSnapshot(beam.PTransform):  # type: ignore[type-arg]
    """Reads the UID table: a pipeline in, lists of (name, UID) out, as a side input of `AssignFn`."""

    def __init__(self, target: Target, layout: Store, options: UidOptions) -> None:
        super().__init__()
        self._target, self._layout, self._options = target, layout, options

    def expand(self, root: PBegin) -> PCollection[list[tuple[Name, bytes]]]:
        once = [] if self._layout.uids is None else [None]
        return (
            root
            | "Once" >> beam.Create(once, reshuffle=False)
            | "ReadUids"
            >> beam.FlatMap(_snapshot, self._target, self._layout, self._options).with_output_types(list)
        )


def _snapshot(
    _: None, target: Target, layout: Store, options: UidOptions
) -> Iterator[list[tuple[Name, bytes]]]:
    """Lists of (name, UID), at most `snapshot_size` pairs."""
    return batched(itertools.islice(UidTable(target, layout).snapshot(), options.snapshot_size), _CHUNK)


class AssignFn(beam.DoFn):
    """`PointBatch` in, side input `ReadUidSnapshot`; out with `keys`, points without a UID to `REJECTED`."""

    def __init__(self, keys: SharedSeriesKeys) -> None:
        self._keys = keys

    def hold(self) -> object:
        return self._keys.hold()

    def setup(self) -> None:
        """Opens the UID table and the cache of the process."""
        self._keys.open()

    def process(
        self, batch: PointBatch, snapshot: Iterable[list[tuple[Name, bytes]]]
    ) -> Iterator[PointBatch | RejectedOutput]:
        keyed, rejected = self._keys.assign(batch, snapshot)
        yield from map(reject, rejected)
        if len(keyed):
            yield keyed

    def finish_bundle(self) -> None:
        """Adds the new series to the counts of their metrics, if there are limits."""
        self._keys.merge_counts()
