"""The series that a query asks for, out of Bigtable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from schema.layouts import Finding, Layout, Selection
from schema.points import Bools, Int64s, Kind, PointBatch, Series
from schema.query.answer import FoundSeries
from transforms.bigtable.parallel import ParallelReader
from transforms.bigtable.target import Target
from transforms.source import read_decoded


def find_series(target: Target, layout: Layout, wanted: Selection) -> tuple[list[FoundSeries], list[str]]:
    """(the wanted series, what could not be read of them, in words).

    The points are those of the time range; values that are no numbers are left out, and said so.

    Raises:
      UnknownNameError: a name is in no table.
    """
    damage: list[str] = []
    batches: list[PointBatch] = []
    for found in read_decoded(layout, wanted, ParallelReader(target)):
        if isinstance(found, Finding):
            damage.append(f"row {found.key.hex()}: {found.text}")
            continue
        damage += [f"row {row.key.hex()}: {text}" for row, text in found.damage]
        if len(found.batch):
            batches.append(found.batch)
    results = []
    for one, odd in _by_series(batches):
        if odd:
            damage.append(f"{one.series}: {odd} values that are no numbers")
        if len(one.times_ms):
            results.append(one)
    return results, damage


def _by_series(batches: Sequence[PointBatch]) -> Iterator[tuple[FoundSeries, int]]:
    """(the numbers of a series, by time, how many other values there are), series in the order of `batches`.

    Of several values of one instant the one that arrived last is taken, as within a row.
    """
    if not batches:
        return
    numbers: dict[Series, int] = {}
    index = np.concatenate([_renumbered(batch, numbers) for batch in batches])
    times_ms = np.concatenate([batch.times_ms for batch in batches])
    order = np.argsort(index, kind="stable")
    if not _ascends(index[order], times_ms[order]).all():
        arrivals_ms = np.concatenate([batch.arrivals_ms for batch in batches])
        order = np.lexsort((arrivals_ms, times_ms, index))
        order = order[np.append(_ascends(index[order], times_ms[order]), True)]
    index, times_ms = index[order], times_ms[order]
    kinds = np.concatenate([batch.kinds for batch in batches])[order]
    bits = np.concatenate([batch.bits for batch in batches])[order]
    bounds = np.searchsorted(index, np.arange(len(numbers) + 1)).tolist()
    for series, low, high in zip(numbers, bounds[:-1], bounds[1:], strict=True):
        one_times_ms, one_kinds, one_bits = times_ms[low:high], kinds[low:high], bits[low:high]
        number = one_kinds <= Kind.FLOAT
        odd = len(number) - int(np.count_nonzero(number))
        if odd:
            one_times_ms, one_kinds, one_bits = one_times_ms[number], one_kinds[number], one_bits[number]
        is_float = one_kinds == Kind.FLOAT
        if not is_float.any():
            yield FoundSeries(series, one_times_ms, one_bits), odd
            continue
        floats = one_bits.view(np.float64)
        values = floats if is_float.all() else np.where(is_float, floats, one_bits.astype(np.float64))
        yield FoundSeries(series, one_times_ms, values), odd


def _renumbered(batch: PointBatch, numbers: dict[Series, int]) -> Int64s:
    """The index of a batch by the numbers of series in all batches; new series get the next ones."""
    renumber = np.zeros(len(batch.series), np.int64)
    for number in np.flatnonzero(np.bincount(batch.index, minlength=len(batch.series))).tolist():
        renumber[number] = numbers.setdefault(batch.series[number], len(numbers))
    return renumber[batch.index]


def _ascends(index: Int64s, times_ms: Int64s) -> Bools:
    """bool[n - 1]: whether what comes next is a later instant, or one of another series."""
    return (times_ms[1:] > times_ms[:-1]) | (index[1:] != index[:-1])
