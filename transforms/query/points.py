"""The points that queries and copies read, in batches or by series."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from timebeam.schema.common.batches import latest_points
from timebeam.schema.layouts import (
    DecodedRows,
    Finding,
    ReadableLayout,
    Reader,
    Selection,
    UidTables,
    find_capability,
)
from timebeam.schema.points import Int64s, Kind, PointBatch, Series
from timebeam.schema.query.answer import QuerySeries
from timebeam.schema.query.downsample import Downsampling
from timebeam.schema.query.numbers import numbers as numbers_of
from timebeam.schema.query.partials import Intervals
from timebeam.transforms.bigtable.reader import scan_keys
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.query.budget import Meter, metered
from timebeam.transforms.readers.parallel import ParallelReader
from timebeam.transforms.readers.table_reader import read_ahead

BATCH_POINTS = 500_000

_FOLDED_POINTS = 1 << 17  # of a batch that becomes intervals at once: its columns fit the cache of a core

_INTEGER, _FLOAT = int(Kind.INTEGER), int(Kind.FLOAT)

_SAMPLED_KEYS = 100  # of a table, to explain an empty result


def read_decoded(
    layout: ReadableLayout,
    selection: Selection,
    reader: Reader,
    most: int = BATCH_POINTS,
    passes: Callable[[Series], bool] | None = None,
    keys: dict[Series, tuple[str, bytes]] | None = None,
) -> Iterator[DecodedRows | Finding]:
    """The selected rows in batches of about `most` points, decoded together and cut to the time range.

    A finding about an unreadable row comes before the rows that are buffered at that time. The readable cells
    of a damaged row are decoded.

    Batches come in the order of `ReadableLayout.select`. Within a batch, rows may come in any order, except
    rows that can hold the same instant of one series (`ReadableLayout.several_rows`): these keep the order in
    which they are read. An instant may come twice: the latest arrival wins; within one arrival, the last
    point.

    Args:
      passes: whether the rows of a series are decoded; None for all.
      keys: takes the table and key of one row of each series that is decoded.

    Raises:
      UnknownNameError: see `ReadableLayout.select`.
    """
    selected = layout.select(selection, reader)
    if passes is not None:
        cached = functools.cache(passes)
        selected = (row for row in selected if isinstance(row, Finding) or cached(row.series))
    for rows in read_ahead(selected, most):
        if isinstance(rows, Finding):
            yield rows
            continue
        if keys is not None:
            keys.update([(series, (row.table, row.key)) for row, series in rows])
        yield layout.decode_rows(rows).within(selection.start_ms, selection.end_ms + 1)


def find_series(
    target: Target,
    layout: ReadableLayout,
    selection: Selection,
    passes: Callable[[Series], bool] | None = None,
    meter: Meter | None = None,
    how: Downsampling | None = None,
) -> tuple[list[QuerySeries], list[str], int]:
    """(selected series with their points in the time range, a line for each problem, cells without points).

    Values that are not numbers are left out, and counted in a line.

    Args:
      passes: whether a selected series is read; None for all.
      meter: counts what is read; it stops the scan, and what it raises goes through.
      how: downsample by it while the points are read, if `Intervals` can.

    Raises:
      UnknownNameError: a name is in no table.
    """
    damage: list[str] = []
    skipped_cells = 0
    batches: list[PointBatch] = []
    keys: dict[Series, tuple[str, bytes]] = {}
    intervals = Intervals(how) if how is not None and Intervals.takes(how) else None
    reader, read = metered(ParallelReader(target), meter), None if meter is None else meter.read
    most = BATCH_POINTS if intervals is None else _FOLDED_POINTS
    for decoded in read_decoded(layout, selection, reader, most, passes, keys):
        if isinstance(decoded, Finding):
            damage.append(f"row {decoded.key.hex()}: {decoded.text}")
            continue
        damage += [f"row {row.key.hex()}: {text}" for row, text in decoded.damage]
        skipped_cells += decoded.skipped
        if meter is not None:
            meter.add_points(len(decoded.batch))
        if intervals is not None:
            if not intervals.add(decoded.batch):
                if meter is not None and read is not None:
                    meter.read = read
                return find_series(target, layout, selection, passes, meter)
        elif len(decoded.batch):
            batches.append(decoded.batch)
    by_series = _by_series(batches) if intervals is None else _downsampled(intervals)
    with_uids = find_capability(layout, UidTables)
    results = []
    for points, skipped in by_series:
        if skipped:
            damage.append(f"{points.series}: {skipped} values are not numbers")
        if len(points.times_ms):
            if with_uids is not None:
                tsuid = with_uids.tsuid_of(*keys[points.series])
                points = dataclasses.replace(points, tsuid=tsuid)
            results.append(points)
    return results, damage, skipped_cells


def _downsampled(intervals: Intervals) -> Iterator[tuple[QuerySeries, int]]:
    """(the intervals of a series, how many values it has that are not numbers)."""
    for series, starts_ms, values, skipped in intervals.result():
        yield QuerySeries(series, starts_ms, values, downsampled=True), skipped


def _by_series(batches: Sequence[PointBatch]) -> Iterator[tuple[QuerySeries, int]]:
    """(the numbers of a series by time, how many other values it has), series in the order of `batches`.

    If an instant has several values, the latest arrival wins, as within a row.
    """
    if not batches:
        return
    numbers: dict[Series, int] = {}
    index = np.concatenate([_renumbered(batch, numbers) for batch in batches])
    times_ms = np.concatenate([batch.times_ms for batch in batches])
    order = np.argsort(index, kind="stable")
    by_series, by_time = index[order], times_ms[order]
    if not ((by_time[1:] > by_time[:-1]) | (by_series[1:] != by_series[:-1])).all():
        arrivals_ms = np.concatenate([batch.arrivals_ms for batch in batches])
        order = latest_points(index, times_ms, arrivals_ms)
    index, times_ms = index[order], times_ms[order]
    kinds = np.concatenate([batch.kinds for batch in batches])[order]
    bits = np.concatenate([batch.bits for batch in batches])[order]
    firsts = np.searchsorted(index, np.arange(len(numbers) + 1))
    largest, smallest = (choose.reduceat(kinds, firsts[:-1]) for choose in (np.maximum, np.minimum))
    floats, bounds = bits.view(np.float64), firsts.tolist()
    for series, low, high, greatest, least in zip(
        numbers, bounds[:-1], bounds[1:], largest.tolist(), smallest.tolist(), strict=True
    ):
        if greatest == least == _INTEGER:
            yield QuerySeries(series, times_ms[low:high], bits[low:high]), 0
        elif greatest == least == _FLOAT:
            yield QuerySeries(series, times_ms[low:high], floats[low:high]), 0
        else:
            is_number = kinds[low:high] <= _FLOAT
            values = numbers_of(bits[low:high][is_number], kinds[low:high][is_number] == _FLOAT)
            skipped = high - low - int(np.count_nonzero(is_number))
            yield QuerySeries(series, times_ms[low:high][is_number], values), skipped


def _renumbered(batch: PointBatch, numbers: dict[Series, int]) -> Int64s:
    """The index of a batch by the numbers of series in all batches; new series get the next ones."""
    renumber = np.zeros(len(batch.series), np.int64)
    for number in np.flatnonzero(np.bincount(batch.index, minlength=len(batch.series))).tolist():
        renumber[number] = numbers.setdefault(batch.series[number], len(numbers))
    return renumber[batch.index]


def why_nothing(target: Target, layout: ReadableLayout) -> str:
    """Why a command has no points: whether the data tables have rows, and whether they fit the options."""
    tables = [spec.name for spec in layout.tables() if spec.holds_points]
    keys = [key for name in tables for key in scan_keys(target, name, limit=_SAMPLED_KEYS)]
    names, is_many = " and ".join(tables), len(tables) > 1
    if not keys:
        return f"tables {names} are empty" if is_many else f"table {names} is empty"
    having_rows = f"tables {names} have rows" if is_many else f"table {names} has rows"
    errors = [error for key in keys if (error := layout.key_error(key))]
    if len(errors) == len(keys):
        return (
            f"{having_rows}, but none of the first {len(keys):,} fits these options ({errors[0]}): "
            f"give --layout {layout.name} and its options (salt, UID widths, row spec) as they were when the "
            "rows were written"
        )
    unfit = f", {len(errors):,} of the first {len(keys):,} do not" if errors else ""
    return f"{having_rows} that fit these options{unfit}; none matches the selection"
