"""Evaluates a question over the tables of a layout; TSUIDs of series, and series of TSUIDs."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence

from timebeam.schema.layouts import Name, ReadableLayout, Reader, RollupTables, UidTables, find_capability
from timebeam.schema.layouts.opentsdb import select
from timebeam.schema.layouts.opentsdb.keys import tsuid_pairs
from timebeam.schema.meta.search import CachedUidNames
from timebeam.schema.points import Series
from timebeam.schema.query.aggregate import never_stops
from timebeam.schema.query.answer import Result, answer
from timebeam.schema.query.question import Question
from timebeam.schema.rollup.config import RollupConfig
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.query.budget import Meter, metered
from timebeam.transforms.query.rollups import find_points, find_rolled_up
from timebeam.transforms.readers.table_reader import TableReader


def tsuids_of(layout: UidTables, series: Collection[Series], reader: Reader) -> dict[Series, bytes]:
    """The TSUIDs of series; without series that have a name without a UID."""
    names = {series_: layout.names(series_) for series_ in series}
    uids = select.look_up(layout.uid_table, {name for group in names.values() for name in group}, reader)
    return {
        series_: uids[group[0]] + b"".join(sorted(uids[key] + uids[value] for key, value in _pairs(group)))
        for series_, group in names.items()
        if all(name in uids for name in group)
    }


def series_of_tsuids(layout: UidTables, texts: Iterable[str], reader: Reader) -> dict[bytes, Series]:
    """The series of TSUIDs in hex.

    Raises:
      ValueError: one is no TSUID, or has a UID without a name.
    """
    raw = [bytes.fromhex(text) for text in texts]
    pairs_of = {tsuid: tsuid_pairs(layout.options, tsuid) for tsuid in raw}
    names = CachedUidNames(layout.uid_table, reader).resolve(
        pair for pairs in pairs_of.values() for pair in pairs
    )
    series: dict[bytes, Series] = {}
    for tsuid, pairs in pairs_of.items():
        for kind, uid in pairs:
            if (kind, uid) not in names:
                raise ValueError(f"No such unique ID for '{kind}': {uid.hex().upper()}")
        texts_of = [names[pair] for pair in pairs]
        series[tsuid] = Series.of(texts_of[0], dict(zip(texts_of[1::2], texts_of[2::2], strict=True)))
    return series


def _pairs(names: Sequence[Name]) -> Iterable[tuple[Name, Name]]:
    """The tag keys and values of the names of a series."""
    return zip(names[1::2], names[2::2], strict=True)


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
