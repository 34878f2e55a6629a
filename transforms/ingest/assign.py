"""Series keys for the series of a batch, by the UIDs of their names."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import apache_beam as beam
import numpy as np
from apache_beam.pvalue import PBegin, PCollection

from timebeam.schema.layouts import Layout, Name, SeriesKey
from timebeam.schema.points import PointBatch, RefusedError, Stage
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.dead_letters.rejected import RejectedOutput, refuse
from timebeam.transforms.ingest.series_keys import SeriesKeys, UidOptions
from timebeam.transforms.ingest.uids import UidTable

_CHUNK = 10_000


@dataclasses.dataclass(frozen=True, slots=True)
class KeyedBatch:
    """A batch and the key of each of its series; None for a series without points in it."""

    batch: PointBatch
    keys: Sequence[SeriesKey | None]


class ReadUidSnapshot(beam.PTransform):  # type: ignore[type-arg]
    """Reads the UID table: a pipeline in, lists of (name, UID) out, as a side input of `AssignFn`."""

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
    """Anything in; lists of (name, UID) out, at most `snapshot_size` pairs."""

    def __init__(self, target: Target, layout: Layout, options: UidOptions) -> None:
        self._target, self.layout, self._options = target, layout, options

    def process(self, _: None) -> Iterable[list[tuple[Name, bytes]]]:
        chunk: list[tuple[Name, bytes]] = []
        remaining = self._options.snapshot_size
        for pair in UidTable(self._target, self.layout).snapshot():
            if remaining == 0:
                break
            remaining -= 1
            chunk.append(pair)
            if len(chunk) == _CHUNK:
                yield chunk
                chunk = []
        if chunk:
            yield chunk


class AssignFn(beam.DoFn):
    """`PointBatch` in, side input `ReadUidSnapshot`; `KeyedBatch` out, points without a UID to `REJECTED`."""

    def __init__(self, target: Target, layout: Layout, options: UidOptions, *, dry_run: bool = False) -> None:
        self._keys = SeriesKeys(target, layout, options, dry_run=dry_run)

    def hold(self) -> object:
        """See `SeriesKeys.hold`."""
        return self._keys.hold()

    def setup(self) -> None:
        """Opens the UID table and the cache of the process."""
        self._keys.open()

    def process(
        self, batch: PointBatch, snapshot: Iterable[list[tuple[Name, bytes]]]
    ) -> Iterator[KeyedBatch | RejectedOutput]:
        """See the class."""
        keys = self._keys.series_keys(batch.series, snapshot)
        has_key = np.array([not isinstance(key, RefusedError) for key in keys], np.bool_)
        if not has_key.all():
            is_stored = has_key[batch.index]
            for point in np.flatnonzero(~is_stored).tolist():
                error = keys[batch.index[point]]
                assert isinstance(error, RefusedError)
                yield refuse(batch.refuse(point, error.reason, error.message, Stage.ASSIGN))
            batch = batch.take(np.flatnonzero(is_stored))
        if len(batch):
            yield KeyedBatch(batch, [None if isinstance(key, RefusedError) else key for key in keys])
