"""Sorts the points of a day by series and time, in memory that does not grow with their number.

Points are gathered into runs of a bounded size; each run is sorted and put into a file. Then the series are
read in their order, range by range: the points of a range are a slice of each run.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from timebeam.schema.common.batches import join, latest_points
from timebeam.schema.points import Int32s, Int64s, Kind, PointBatch, Series

DAY_MS = 86_400_000

RUN_POINTS = 1 << 20
"""Points of a run: about 100 MB of memory while it is sorted."""

RANGE_POINTS = 1 << 19
"""Points of a range, or those of one series if it has more on its day."""


_COLUMNS = ("times_ms", "kinds", "bits", "arrivals_ms")


class _SortedRun(NamedTuple):
    """Sorted points in a file.

    Attributes:
      series: those that have points, ascending.
      bounds: int64[k + 1], the first point of each series, and the number of points.
      points: `_COLUMNS`, and `payloads` if some are bytes; mapped into memory.
    """

    series: Sequence[Series]
    bounds: Int64s
    points: pa.RecordBatch


class SortedRuns:
    """The points of one UTC day.

    Args:
      folder: for the files of the runs, 25 bytes a point; the caller removes it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pending: list[PointBatch] = []
        self._runs: list[_SortedRun] = []

    def add(self, batch: PointBatch) -> None:
        """Adds points; where an instant of a series comes repeatedly, see `latest_points`."""
        self._pending.append(dataclasses.replace(batch, origins=None))
        if sum(map(len, self._pending)) >= RUN_POINTS:
            self._end_run()

    def series(self) -> list[Series]:
        """All series, ascending."""
        self._end_run()
        return sorted(frozenset[Series]().union(*(run.series for run in self._runs)))

    def ranges(self, *, by_metric: bool = False) -> Iterator[PointBatch]:
        """All points, ascending by series and time, each instant once: about `RANGE_POINTS` at a time.

        The points of a series are in one batch, and the series of a batch are sorted.

        Args:
          by_metric: whether the points of a batch are of one metric.
        """
        series: list[Series] = []
        size = 0
        all_series = self.series()
        counts: collections.Counter[Series] = collections.Counter()
        for run in self._runs:
            counts.update(dict(zip(run.series, np.diff(run.bounds).tolist(), strict=True)))
        for each in all_series:
            is_other = by_metric and bool(series) and each.metric != series[-1].metric
            if series and (is_other or size + counts[each] > RANGE_POINTS):
                yield self._range(series)
                series, size = [], 0
            series.append(each)
            size += counts[each]
        if series:
            yield self._range(series)

    def _end_run(self) -> None:
        """Sorts the pending points, and puts them into a file."""
        pending, self._pending = [batch for batch in self._pending if len(batch)], []
        if not pending:
            return
        batch = _sorted(join(pending) if len(pending) > 1 else pending[0])
        numbers = np.flatnonzero(np.bincount(batch.index, minlength=len(batch.series)))
        bounds = np.append(np.searchsorted(batch.index, numbers), len(batch))
        columns = {name: getattr(batch, name) for name in _COLUMNS}
        if batch.payloads:
            payload_numbers = pa.array(batch.bits, mask=batch.kinds < Kind.TEXT)
            columns["payloads"] = pa.array(batch.payloads, pa.binary()).take(payload_numbers)
        points = pa.record_batch(columns)
        path = str(self._folder / f"run-{len(self._runs):05}.arrow")
        with pa.ipc.new_file(path, points.schema) as file:
            file.write_batch(points)
        mapped = pa.ipc.open_file(pa.memory_map(path)).get_batch(0)
        self._runs.append(_SortedRun([batch.series[number] for number in numbers.tolist()], bounds, mapped))

    def _range(self, series: Sequence[Series]) -> PointBatch:
        """The points of adjacent series."""
        slices: list[pa.RecordBatch] = []
        indices: list[Int32s] = []
        for run in self._runs:
            low, high = bisect.bisect_left(run.series, series[0]), bisect.bisect_right(run.series, series[-1])
            if low < high:
                start, end = int(run.bounds[low]), int(run.bounds[high])
                slices.append(run.points.slice(start, end - start))
                numbers = [bisect.bisect_left(series, each) for each in run.series[low:high]]
                counts = np.diff(run.bounds[low : high + 1])
                indices.append(np.repeat(np.array(numbers, np.int32), counts))
        times_ms, kinds, bits, arrivals_ms = (
            np.concatenate([each[name].to_numpy() for each in slices]) for name in _COLUMNS
        )
        payloads: list[bytes] = []
        for each in slices:
            if "payloads" in each.schema.names:
                payloads += each["payloads"].drop_null().to_pylist()
        if payloads:
            bits[kinds >= Kind.TEXT] = np.arange(len(payloads))
        index = np.concatenate(indices)
        in_ms = np.ones(len(index), np.bool_)
        return _sorted(
            PointBatch(series, index, times_ms, in_ms, kinds, bits, arrivals_ms, payloads=payloads)
        )


def _sorted(batch: PointBatch) -> PointBatch:
    """The points of a day by series and time, each instant once; the series sorted."""
    ranked = sorted(range(len(batch.series)), key=batch.series.__getitem__)
    ranks = np.empty(len(ranked), np.int32)
    ranks[ranked] = np.arange(len(ranked))
    index = ranks[batch.index]
    batch = dataclasses.replace(batch, series=[batch.series[number] for number in ranked], index=index)
    place = index * np.int64(DAY_MS)
    place += batch.times_ms  # of one day, so of one series before the next one
    if (place[1:] > place[:-1]).all():
        return batch
    order = np.argsort(place, kind="stable")
    place = place[order]
    if (place[1:] == place[:-1]).any():
        order = latest_points(index, batch.times_ms, batch.arrivals_ms)
    return batch.take(order)
