"""Evaluates a question over the tables of a layout: reads the series, then groups and aggregates them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from timebeam.schema.layouts import ReadableLayout, RollupTables, UidTables, find_capability
from timebeam.schema.points import Series
from timebeam.schema.query.aggregate import never_stops
from timebeam.schema.query.answer import Result, answer
from timebeam.schema.query.question import Question
from timebeam.schema.rollup.config import RollupConfig
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.query.budget import Meter, metered
from timebeam.transforms.query.rollups import find_points, find_rolled_up
from timebeam.transforms.query.tsuids import tsuids_of
from timebeam.transforms.readers.table_reader import TableReader


@dataclasses.dataclass(frozen=True, slots=True)
class Evaluated:
    """The answer to a question.

    Attributes:
      tsuids: of the series of the answer; empty in a layout without UIDs.
      damage: what could not be read, one line each.
    """

    results: Sequence[Result]
    tsuids: dict[Series, bytes]
    damage: Sequence[str]


def evaluate(
    target: Target,
    layout: ReadableLayout,
    question: Question,
    rollups: tuple[RollupTables, RollupConfig] | None,
    now_ms: int,
    meter: Meter | None = None,
) -> Evaluated:
    """The answer to a question, its series in the order of their TSUIDs.

    Args:
      rollups: the rollup tables that may serve; None for points alone.
      meter: counts what is read; what it raises goes through.

    Raises:
      UnknownNameError: a name is in no table.
      ValueError: too large a fill.
    """
    if rollups is None:
        read = find_points(target, layout, question, meter=meter)
    else:
        read = find_rolled_up(target, *rollups, question, now_ms, meter)
    reader = metered(TableReader(target), meter)
    with_uids = find_capability(layout, UidTables)
    series = [found.series for found in read.series]
    tsuids = tsuids_of(with_uids, series, reader) if with_uids is not None else {}
    ordered = [dataclasses.replace(found, tsuid=tsuids.get(found.series, b"")) for found in read.series]
    if meter is not None:
        meter.add_points(question.filled_count * len(ordered))
    results = answer(question, ordered, never_stops if meter is None else meter.check)
    return Evaluated(results, tsuids, read.damage)
