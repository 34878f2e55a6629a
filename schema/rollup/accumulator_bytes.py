"""Accumulators as bytes, split by row, which travel between the workers of a rollup.

A fragment holds the accumulators of one series or group in one row, from one part of the input. All columns
are in one record array, so a fragment is a slice of its bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from timebeam.schema.bits.times import HOUR_S
from timebeam.schema.core.points import Series
from timebeam.schema.rollup.accumulators import COLUMNS, Buckets, Edges, Ends, regrouped
from timebeam.schema.rollup.config import RollupInterval
from timebeam.schema.rollup.exact_sum import Sums

_FIELDS = [
    *((name, "<i8") for name in ("starts_ms", "counts", "float_counts", "int_mins", "int_maxs")),
    *((name, "<f8") for name in ("float_mins", "float_maxs")),
    *(("tops", "<i8"), ("digits", "<i8", (4,))),
]
_END_FIELDS = [
    (f"{edge}_{name}", "u1" if name == "kinds" else "<i8") for edge in Ends._fields for name in Edges._fields
]
_RECORDS = {False: np.dtype(_FIELDS), True: np.dtype([*_FIELDS, *_END_FIELDS])}
"""By whether accumulators have `ends`."""


class RowAccumulators(NamedTuple):
    """The number of a series in its buckets, the base time of a row in seconds, and the fragment."""

    series: int
    base_s: int
    packed: bytes


def packed_rows(buckets: Buckets, interval: RollupInterval, *, hours: bool) -> Iterator[RowAccumulators]:
    """The fragments of buckets, by series and row.

    Args:
      hours: use rows of an hour, as in the data table, not the interval's row span.
    """
    if not len(buckets):
        return
    starts_s = buckets.starts_ms // 1000
    bases = starts_s - starts_s % HOUR_S if hours else interval.row_span.bases(starts_s)
    records, size = _records(buckets)
    change = (np.diff(buckets.index, prepend=-1) != 0) | (np.diff(bases, prepend=-1) != 0)
    firsts = np.flatnonzero(change)
    ends = (np.append(firsts[1:], len(buckets)) * size).tolist()
    rows = zip(buckets.index[firsts].tolist(), bases[firsts].tolist(), firsts.tolist(), ends, strict=True)
    for series, base, first, end in rows:
        yield RowAccumulators(series, base, records[first * size : end])


def packed_series(buckets: Buckets) -> Iterator[tuple[int, bytes]]:
    """(number of a series, its fragment) for each series of buckets."""
    records, size = _records(buckets)
    bounds = np.searchsorted(buckets.index, np.arange(len(buckets.series) + 1)) * size
    for number, (start, end) in enumerate(itertools.pairwise(bounds.tolist())):
        if end > start:
            yield number, records[start:end]


def unpacked(groups: Sequence[tuple[Series, Sequence[bytes]]], interval_s: int, *, ends: bool) -> Buckets:
    """Merges the accumulators in fragments of series or rows.

    Args:
      groups: distinct series, each with its fragments.
      ends: whether they were packed with `Buckets.ends`.

    Raises:
      OverflowError: more than `MOST_POINTS` points in one bucket.
    """
    record = _RECORDS[ends]
    records = np.frombuffer(b"".join([fragment for _, packed in groups for fragment in packed]), record)
    sizes = [sum(map(len, packed)) // record.itemsize for _, packed in groups]
    buckets = Buckets(
        interval_s,
        tuple(series for series, _ in groups),
        np.repeat(np.arange(len(groups), dtype=np.int32), sizes),
        sums=Sums(records["tops"], np.ascontiguousarray(records["digits"].T)),
        ends=Ends(_edges(records, "first"), _edges(records, "last")) if ends else None,
        **{name: records[name] for name in COLUMNS},
    )
    return regrouped(buckets)


def _records(buckets: Buckets) -> tuple[bytes, int]:
    """(the records of all buckets, the size of one)."""
    records = np.empty(len(buckets), _RECORDS[buckets.ends is not None])
    for name in COLUMNS:
        records[name] = getattr(buckets, name)
    records["tops"], records["digits"] = buckets.sums.tops, buckets.sums.digits.T
    if buckets.ends is not None:
        for edge, edge_values in zip(Ends._fields, buckets.ends, strict=True):
            for name, column in zip(Edges._fields, edge_values, strict=True):
                records[f"{edge}_{name}"] = column
    return records.tobytes(), records.itemsize


def _edges(records: np.ndarray[tuple[int], np.dtype[np.void]], edge: str) -> Edges:
    return Edges(*(records[f"{edge}_{name}"] for name in Edges._fields))
