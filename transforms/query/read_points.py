"""The points that queries read, by series."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from timebeam.schema.bits.arrays import Bytes, Int64s, Kind, Values
from timebeam.schema.bits.arrays import numbers as numbers_of
from timebeam.schema.core.batches import join, latest_points, run_starts
from timebeam.schema.core.contract import ReadableStore
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.selection import Finding, Selection
from timebeam.schema.query.answer import QuerySeries
from timebeam.schema.query.downsample import Downsampling
from timebeam.schema.query.merge_intervals import Intervals
from timebeam.schema.stores import find_opentsdb
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.query.budget import Meter, metered
from timebeam.transforms.read.table_reader import BATCH_POINTS, ParallelReader, read_decoded

_Number = TypeVar("_Number", bound=np.generic)

_FOLDED_POINTS = 1 << 17  # of a batch that becomes intervals at once: its columns fit the cache of a core

_INTEGER, _FLOAT = int(Kind.INTEGER), int(Kind.FLOAT)

_RUN_POINTS = 64  # to join runs of fewer points on average takes longer than to sort the points


def find_series(
    target: Target,
    layout: ReadableStore,
    selection: Selection,
    passes: Callable[[Series], bool] | None = None,
    how: Downsampling | None = None,
) -> tuple[list[QuerySeries], list[str], int]:
    """(selected series with their points in the time range, a line for each problem, cells without points).

    Values that are not numbers are left out, and counted in a line.

    Args:
      passes: whether a selected series is read; None for all.
      how: downsample by it while the points are read, if `Intervals` can.

    Raises:
      UnknownNameError: a name is in no table.
      AmbiguousNameError: see `Selection`.
      StoppedError: by the meter of the target.
    """
    corruption: list[str] = []
    skipped_cells = 0
    batches: list[PointBatch] = []
    keys: dict[Series, tuple[str, bytes]] = {}
    intervals = Intervals(how) if how is not None and Intervals.takes(how) else None
    reader, meter = metered(target, ParallelReader), Meter.of(target)
    read = meter.read
    most = BATCH_POINTS if intervals is None else _FOLDED_POINTS
    for decoded in read_decoded(layout, selection, reader, most, passes, keys):
        if isinstance(decoded, Finding):
            corruption.append(f"row {decoded.key.hex()}: {decoded.text}")
            continue
        corruption += [f"row {row.key.hex()}: {text}" for row, text in decoded.corruption]
        skipped_cells += decoded.skipped
        meter.add_points(len(decoded.batch))
        if intervals is not None:
            if not intervals.add(decoded.batch):
                meter.read = read
                return find_series(target, layout, selection, passes)
        elif len(decoded.batch):
            batches.append(decoded.batch)
    by_series = _by_series(batches) if intervals is None else intervals.result()
    with_uids = find_opentsdb(layout)
    results = []
    for series, times_ms, values, skipped in by_series:
        if skipped:
            corruption.append(f"{series}: {skipped} values are not numbers")
        if len(times_ms):
            tsuid = b"" if with_uids is None else with_uids.tsuid_of(*keys[series])
            results.append(QuerySeries(series, times_ms, values, intervals is not None, tsuid))
    return results, corruption, skipped_cells


class _Runs(NamedTuple):
    """The runs of adjacent points of one series in a batch; r of each.

    Attributes:
      numbers: the number of the series in all batches.
      starts, ends: positions of the points [start, end).
      least, greatest: the smallest and the largest kind of the points.
    """

    numbers: Int64s
    starts: Int64s
    ends: Int64s
    least: Bytes
    greatest: Bytes

    @classmethod
    def of(cls, batch: PointBatch, numbers: dict[Series, int]) -> _Runs:
        """The runs of a batch with points; new series get the next numbers."""
        starts = run_starts(batch.index)
        index = batch.index[starts]
        present = np.unique(index)
        renumber = np.zeros(len(batch.series), np.int64)
        renumber[present] = [
            numbers.setdefault(batch.series[number], len(numbers)) for number in present.tolist()
        ]
        kinds = np.minimum.reduceat(batch.kinds, starts), np.maximum.reduceat(batch.kinds, starts)
        return cls(renumber[index], starts, np.append(starts[1:], len(batch)), *kinds)

    def ascend(self, batch: PointBatch) -> bool:
        """Whether the points of each run ascend strictly in time."""
        is_later = batch.times_ms[1:] > batch.times_ms[:-1]
        is_later[self.starts[1:] - 1] = True
        return bool(is_later.all())


def _by_series(batches: Sequence[PointBatch]) -> Iterator[tuple[Series, Int64s, Values, int]]:
    """(series, the times of its numbers ascending, the numbers, how many other values it has).

    The series come in the order of `batches`. If a time has several values, the latest arrival wins, as
    within a row.
    """
    if not batches:
        return
    numbers: dict[Series, int] = {}
    runs = [_Runs.of(batch, numbers) for batch in batches]
    if not _are_in_order(batches, runs):
        joined = join(batches) if len(batches) > 1 else batches[0]
        order = np.argsort(joined.index, kind="stable")
        series, times_ms = joined.index[order], joined.times_ms[order]
        if not ((times_ms[1:] > times_ms[:-1]) | (series[1:] != series[:-1])).all():
            order = latest_points(joined.index, joined.times_ms, joined.arrivals_ms)
        batches, numbers = [joined.take(order)], {}
        runs = [_Runs.of(batches[0], numbers)]
    runs_of: list[list[tuple[PointBatch, int, int, int, int]]] = [[] for _ in numbers]
    for batch, batch_runs in zip(batches, runs, strict=True):
        for number, *run in zip(*(column.tolist() for column in batch_runs), strict=True):
            runs_of[number].append((batch, *run))
    for series_name, series_runs in zip(numbers, runs_of, strict=True):
        yield series_name, *_joined_runs(series_runs)


def _are_in_order(batches: Sequence[PointBatch], runs: Sequence[_Runs]) -> bool:
    """Whether the runs of each series ascend in time, and joining them takes less time than sorting points.

    Joining takes less if runs are long, or if each series has only one.
    """
    numbers, starts_ms, ends_ms = (
        np.concatenate(columns)
        for columns in zip(
            *(
                (each.numbers, batch.times_ms[each.starts], batch.times_ms[each.ends - 1])
                for batch, each in zip(batches, runs, strict=True)
            ),
            strict=True,
        )
    )
    order = np.argsort(numbers, kind="stable")
    is_later = starts_ms[order[1:]] > ends_ms[order[:-1]]
    is_other = numbers[order[1:]] != numbers[order[:-1]]
    if len(numbers) * _RUN_POINTS > sum(map(len, batches)) and not is_other.all():
        return False
    return bool((is_later | is_other).all()) and all(map(_Runs.ascend, runs, batches))


def _joined_runs(runs: Sequence[tuple[PointBatch, int, int, int, int]]) -> tuple[Int64s, Values, int]:
    """(times of the numbers of a series, the numbers, how many other values it has).

    If there is only one run, the arrays are views of its batch.
    """
    *_, leasts, greatests = zip(*runs, strict=True)
    least, greatest = min(leasts), max(greatests)
    times_ms = _joined([batch.times_ms[start:end] for batch, start, end, _, _ in runs])
    bits = _joined([batch.bits[start:end] for batch, start, end, _, _ in runs])
    if greatest == least == _INTEGER:
        return times_ms, bits, 0
    if greatest == least == _FLOAT:
        return times_ms, bits.view(np.float64), 0
    kinds = _joined([batch.kinds[start:end] for batch, start, end, _, _ in runs])
    is_number = kinds <= _FLOAT
    values = numbers_of(bits[is_number], kinds[is_number] == _FLOAT)
    skipped = len(kinds) - int(np.count_nonzero(is_number))
    return times_ms[is_number], values, skipped


def _joined(pieces: Sequence[npt.NDArray[_Number]]) -> npt.NDArray[_Number]:
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
