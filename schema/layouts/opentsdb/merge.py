"""Merges the columns of a row into one sequence of points: docs/spec/opentsdb.md §2.2.

The newest cell wins an instant. If cell timestamps are the times of points
(tsd.storage.use_otsdb_timestamp, `dtcsMergeDataPoints`), the greatest or smallest value wins instead;
values are compared as doubles.

Source: core/CompactionQueue.Compaction and core/ColumnDatapointIterator.compareTo of OpenTSDB 2.4.1.
Unlike there, a conflict never fails a query (as with tsd.storage.fix_duplicates=true). A time in seconds
and the same time in milliseconds are one instant.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import numpy as np

from timebeam.schema.layouts.opentsdb.elements import NONE, Elements, concatenate
from timebeam.schema.layouts.opentsdb.options import OpenTsdbOptions
from timebeam.schema.points import Int64s, Kind


class Winner(enum.Enum):
    """Which of several values of one instant is the point."""

    NEWEST = enum.auto()
    GREATEST = enum.auto()
    SMALLEST = enum.auto()


def winner_of(options: OpenTsdbOptions) -> Winner:
    """The rule that the options ask for."""
    if not options.is_event_time:
        return Winner.NEWEST
    return Winner.GREATEST if options.use_max_value else Winner.SMALLEST


def one_per_instant(elements: Elements, *, last: bool) -> Elements:
    """One element per instant, ascending.

    Args:
      last: keep the last element of an instant, as in an append column; else the first one, as in a
        compacted column.
    """
    offsets = elements.offsets_ms
    if len(offsets) < 2 or (offsets[1:] > offsets[:-1]).all():
        return elements
    order = np.argsort(offsets, kind="stable")
    ascending = offsets[order]
    keep = np.insert(ascending[1:] != ascending[:-1], len(order) - 1 if last else 0, True)
    return elements.take(order[keep])


def merge(columns: Sequence[Elements]) -> tuple[Elements, Int64s]:
    """All columns of a row as one, ascending, one element per instant.

    Args:
      columns: each with one element per instant, ascending; in the order of their cell timestamps,
        since the last one wins.

    Returns:
      The elements, and int64[n], the column of each of them.
    """
    columns_of = np.repeat(np.arange(len(columns)), [len(column) for column in columns])
    return merge_elements(concatenate(columns) if columns else NONE, columns_of)


def merge_elements(
    everything: Elements, columns_of: Int64s, winner: Winner = Winner.NEWEST
) -> tuple[Elements, Int64s]:
    """Like `merge`, for concatenated columns in the order of their cell timestamps.

    Args:
      columns_of: int64[n], the column of each element.
      winner: of equal values the newest wins.
    """
    offsets = everything.offsets_ms
    order = _order(everything, offsets, winner)
    ascending = offsets[order]
    keep = order[np.append(ascending[1:] != ascending[:-1], True)] if len(order) else order
    return everything.take(keep), columns_of[keep]


def _order(everything: Elements, offsets: Int64s, winner: Winner) -> Int64s:
    """int64[n]: the order by instant; within an instant the winner comes last."""
    if winner is Winner.NEWEST:
        return np.argsort(offsets, kind="stable")
    bits, kinds, good = everything.values()
    values = np.where(kinds == Kind.FLOAT, bits.view(np.float64), bits.astype(np.float64))
    if winner is Winner.SMALLEST:
        values = -values
    return np.lexsort((values, good, offsets))
