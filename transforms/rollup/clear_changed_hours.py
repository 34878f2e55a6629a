"""The steps of a rollup that read the marks that it covers, and clear them when its rows are written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import AsIter, PCollection

from timebeam.schema.bits.reasons import Reason
from timebeam.schema.bits.times import HOUR_S, ceil_to, floor_to
from timebeam.schema.core.contract import ReadableStore
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.rollup.day_plan import RollupPart
from timebeam.schema.stores import find_opentsdb
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.dead_letters.letter import row_of
from timebeam.transforms.flow.steps import BufferedDoFn
from timebeam.transforms.rollup.changed_hours import ChangedHour, clear_hours, read_changed_hours


def is_covered(hour: ChangedHour, part: RollupPart, lengths: Sequence[int], complete_s: int) -> bool:
    """Whether a part writes all intervals of a changed hour that are over.

    Args:
      lengths: of all intervals of the configuration that are written, in s.
      complete_s: hours and intervals that end up to this time, in s, are over.
    """
    if hour.start_s + HOUR_S > complete_s or (part.metrics is not None and hour.metric not in part.metrics):
        return False
    planned = {plan.interval.seconds: plan for plan in part.plan.intervals}
    for length in lengths:
        first_s = floor_to(hour.start_s, length)
        end_s = min(ceil_to(hour.start_s + HOUR_S, length), floor_to(complete_s, length))
        plan = planned.get(length)
        if first_s < end_s and not (plan and plan.start_s <= first_s and end_s <= plan.end_s):
            return False
    return True


class CoveredHoursFn(beam.DoFn):
    """Anything in; the `ChangedHour`s that a rollup covers out.

    Args:
      parts, lengths, complete_s: see `is_covered`.
    """

    def __init__(
        self,
        target: Target,
        layout: ReadableStore,
        parts: Sequence[RollupPart],
        lengths: Sequence[int],
        complete_s: int,
    ) -> None:
        self._target, self._layout, self._parts = target, layout, parts
        self._lengths, self._complete_s = lengths, complete_s

    def process(self, _: object) -> Iterator[ChangedHour]:
        for hour in read_changed_hours(self._target, self._layout):
            if any(is_covered(hour, part, self._lengths, self._complete_s) for part in self._parts):
                yield hour


def when_complete(once: PCollection[Any], after: PCollection[Any]) -> PCollection[Any]:
    """The same elements, after another collection is complete."""
    return once | "AfterMarks" >> beam.Map(lambda element, _: element, AsIter(after))


def unwritten_metrics(rejected: Sequence[PCollection[Rejected]], layout: ReadableStore) -> PCollection[bytes]:
    """The metrics of rows that Bigtable refused, by their UIDs; empty bytes for all metrics without UIDs."""
    return (
        rejected
        | "Refused" >> beam.Flatten()
        | "Unwritten" >> beam.ParDo(_UnwrittenFn(layout)).with_output_types(bytes)
        | "DistinctUnwritten" >> beam.Distinct()
    )


class _UnwrittenFn(beam.DoFn):
    """`Rejected` in; see `unwritten_metrics`."""

    def __init__(self, layout: ReadableStore) -> None:
        self._with_uids = find_opentsdb(layout)

    def process(self, rejected: Rejected) -> Iterator[bytes]:
        if rejected.reason is not Reason.WRITE_REFUSED:
            return
        if self._with_uids is None:
            yield b""
            return
        options, key = self._with_uids.options, row_of(rejected.payload).key
        yield key[options.salt_width : options.salt_width + options.uid_width_metric]


class ClearHoursFn(BufferedDoFn[ChangedHour]):
    """`ChangedHour` in; clears them before the bundle ends, but for those of metrics with unwritten rows."""

    most = 10_000

    def __init__(self, target: Target, layout: ReadableStore) -> None:
        self._target, self._layout = target, layout

    def process(  # type: ignore[override]
        self, hour: ChangedHour, unwritten: Sequence[bytes]
    ) -> Iterable[None]:
        return () if hour.metric in unwritten or b"" in unwritten else self.add(hour)

    def handle(self, hours: list[ChangedHour]) -> Iterable[None]:
        clear_hours(self._target, self._layout, hours)
        return ()
