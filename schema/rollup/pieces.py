"""Accumulators as bytes, cut by row: what travels between the workers of a rollup.

A piece holds the accumulators of one series, or group, that fall into one row, of one part of the
input. All columns stand in one record array, so that a piece is a slice of its bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from schema.points import Int64s, Series
from schema.rollup.buckets import Buckets, Edges
from schema.rollup.config import RollupInterval
from schema.rollup.exact_sum import Sums

_EDGE = ("times_ms", "kinds", "bits")
_RECORD = np.dtype(
    [
        *((name, "<i8") for name in ("starts_ms", "counts", "float_counts", "int_mins", "int_maxs")),
        *((name, "<f8") for name in ("float_mins", "float_maxs")),
        *(("tops", "<i8"), ("digits", "<i8", (4,))),
        *((f"first_{name}", "u1" if name == "kinds" else "<i8") for name in _EDGE),
        *((f"last_{name}", "u1" if name == "kinds" else "<i8") for name in _EDGE),
    ]
)
_PLAIN = ("starts_ms", "counts", "float_counts", "int_mins", "int_maxs", "float_mins", "float_maxs")


class RowPiece(NamedTuple):
    """The number of a series in its buckets, the base time of a row in seconds, and the packed piece."""

    series: int
    base_s: int
    packed: bytes


def packed_rows(buckets: Buckets, interval: RollupInterval, *, hours: bool) -> Iterator[RowPiece]:
    """The pieces of buckets, by series and row.

    Args:
      hours: rows of an hour, as the data table's, instead of the interval's row span.
    """
    if not len(buckets):
        return
    starts_s = buckets.starts_ms // 1000
    bases = starts_s - starts_s % 3600 if hours else interval.row_span.bases(starts_s)
    records = _records(buckets).tobytes()
    change = (np.diff(buckets.index, prepend=-1) != 0) | (np.diff(bases, prepend=-1) != 0)
    firsts = np.flatnonzero(change)
    ends = (np.append(firsts[1:], len(buckets)) * _RECORD.itemsize).tolist()
    for series, base, start, end in zip(
        buckets.index[firsts].tolist(),
        bases[firsts].tolist(),
        (firsts * _RECORD.itemsize).tolist(),
        ends,
        strict=True,
    ):
        yield RowPiece(series, base, records[start:end])


def unpacked(pieces: Iterable[bytes], series: Series, interval_s: int) -> Sequence[Buckets]:
    """The buckets in pieces of one series and row."""
    found = []
    for piece in pieces:
        records = np.frombuffer(piece, _RECORD)
        plain = {name: records[name] for name in _PLAIN}
        found.append(
            Buckets(
                interval_s,
                (series,),
                np.zeros(len(records), np.int32),
                sums=Sums(records["tops"], records["digits"]),
                first=_edges(records, "first"),
                last=_edges(records, "last"),
                **plain,
            )
        )
    return found


def _records(buckets: Buckets) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    records = np.empty(len(buckets), _RECORD)
    for name in _PLAIN:
        records[name] = getattr(buckets, name)
    records["tops"], records["digits"] = buckets.sums.tops, buckets.sums.digits
    for edge in ("first", "last"):
        for name in _EDGE:
            records[f"{edge}_{name}"] = getattr(getattr(buckets, edge), name)
    return records


def _edges(records: np.ndarray[tuple[int], np.dtype[np.void]], edge: str) -> Edges:
    times: Int64s = records[f"{edge}_times_ms"]
    return Edges(times, records[f"{edge}_kinds"], records[f"{edge}_bits"])
