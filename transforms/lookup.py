"""The series that a query asks for, out of Bigtable."""

from __future__ import annotations

import numpy as np

from schema.layouts import Finding, Layout, Selection
from schema.points import Kind, PointBatch, Series
from schema.query.answer import FoundSeries
from transforms.bigtable.reader import TableReader
from transforms.bigtable.target import Target


def find_series(target: Target, layout: Layout, wanted: Selection) -> tuple[list[FoundSeries], list[str]]:
    """(the wanted series, what could not be read of them, in words).

    The points are those of the time range; values that are no numbers are left out, and said so.

    Raises:
      UnknownNameError: a name is in no table.
    """
    damage: list[str] = []
    batches: dict[Series, list[PointBatch]] = {}
    for found in layout.select(wanted, TableReader(target)):
        if isinstance(found, Finding):
            damage.append(f"row {found.key.hex()}: {found.text}")
            continue
        decoded = layout.decode(found.row, found.series)
        damage += [f"row {found.row.key.hex()}: {text}" for text in decoded.damage]
        if len(decoded.batch):
            batches.setdefault(found.series, []).append(decoded.batch)
    results = []
    for series, parts in batches.items():
        one, odd = _joined(series, parts, wanted)
        if odd:
            damage.append(f"{series}: {odd} values that are no numbers")
        if len(one.times_ms):
            results.append(one)
    return results, damage


def _joined(series: Series, parts: list[PointBatch], wanted: Selection) -> tuple[FoundSeries, int]:
    """(the numbers of a series' rows in the time range, by time, how many other values there are).

    Of several values of one instant the one that arrived last is taken, as within a row.
    """
    times_ms = np.concatenate([part.times_ms for part in parts])
    arrivals = np.concatenate([part.arrivals_ms for part in parts])
    kinds = np.concatenate([part.kinds for part in parts])
    order = np.lexsort((arrivals, times_ms))
    last = np.append(times_ms[order][1:] != times_ms[order][:-1], True)
    order = order[last]
    order = order[slice(*np.searchsorted(times_ms[order], (wanted.start_ms, wanted.end_ms + 1)))]
    number = kinds[order] <= Kind.FLOAT
    order = order[number]
    integers = bool((kinds[order] == Kind.INTEGER).all())
    values = np.concatenate([part.bits if integers else part.floats for part in parts])
    return FoundSeries(series, times_ms[order], values[order]), int(len(number) - number.sum())
