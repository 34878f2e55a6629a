"""The steps of a rollup; the last one merges the accumulators of each row and replaces existing cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.pvalue import PCollection

from timebeam.schema.core.points import Series
from timebeam.schema.core.rows import EncodedRow
from timebeam.schema.rollup.accumulators import unpacked
from timebeam.schema.rollup.config import RollupInterval
from timebeam.schema.rollup.day_plan import IntervalPlan
from timebeam.schema.stores.opentsdb import keys as row_keys
from timebeam.schema.stores.opentsdb.rollup_tables import EncodedRollups, stale_qualifiers
from timebeam.transforms.dead_letters.rejected import REJECTED, RejectedOutput, refuse, refusing
from timebeam.transforms.flow import metrics
from timebeam.transforms.flow.buffered import BufferedDoFn
from timebeam.transforms.read.table_reader import TableReader
from timebeam.transforms.rollup.accumulate_chunks import (
    PIECES,
    SHARED,
    AccumulateFn,
    ChunksFn,
    PackedGroup,
    SharedIntervals,
    typed,
)
from timebeam.transforms.rollup.chunk_points import NumberedChunk
from timebeam.transforms.rollup.rollup_cells import count_written, encode, over, row_mutations
from timebeam.transforms.rollup.rollup_job import RollupJob, RollupRowKey, outputs
from timebeam.transforms.rollup.stale_cells import OwnedIds, existing_rows, metric_ranges, written_interval

EXISTING, LATER = "standing", "later"
"""In place of an aggregator: the element holds the existing qualifiers of a row.

Those of `LATER` have cells later than the starts of their intervals, which would hide the cells that are
written.
"""

_BYTES_AT_ONCE = 4 << 20
"""Bytes of accumulators whose rows are encoded together."""


class ExistingQualifiersFn(beam.DoFn):
    """`SharedIntervals` in; ((table, row key), (EXISTING or LATER, qualifiers)) out.

    These rows are written after a shuffle, which deletes existing qualifiers that are later, or that are not
    written again.
    """

    def __init__(self, job: RollupJob) -> None:
        self._job = job

    def process(self, shared: SharedIntervals) -> Iterator[tuple[RollupRowKey, PackedGroup]]:
        job, name = self._job, shared.table
        (interval,) = [each for each in job.config.intervals if each.interval == shared.interval]
        plan = IntervalPlan(interval, shared.start_s, shared.end_s)
        owned = OwnedIds(job, plan.interval, name, shared.metric, TableReader(job.target))
        for key, columns in existing_rows(job, name, metric_ranges(job, plan, shared.uids)):
            base_s = row_keys.base_s_of(job.layout.options, key)
            ids = owned.kinds[owned.kind(key)]
            packed = {EXISTING: b"", LATER: b""}
            for qualifier, time_ms in columns:
                start_s = written_interval(qualifier, base_s, plan, ids)
                if start_s is not None:
                    which = LATER if time_ms > start_s * 1000 else EXISTING
                    packed[which] += len(qualifier).to_bytes(1, "big") + qualifier
            for which, qualifiers in packed.items():
                if qualifiers:
                    yield (name, key), (which, qualifiers)


class EncodeRowFn(BufferedDoFn[tuple[RollupRowKey, list[PackedGroup]]]):
    """((table, row key), pieces) in; `EncodedRow` mutations out, sums beyond the floats to `REJECTED`.

    Rows of one table are encoded together: one by one they take several times as long.
    """

    most_weight = _BYTES_AT_ONCE

    def __init__(self, job: RollupJob) -> None:
        self._job = job
        self._intervals: dict[str, RollupInterval] = {
            name: interval for interval in job.config.intervals for name in outputs(job.config, interval)
        }

    def process(self, group: tuple[RollupRowKey, Iterable[PackedGroup]]) -> Iterable[Any]:
        return self.add((group[0], list(group[1])))

    def weight(self, group: tuple[RollupRowKey, list[PackedGroup]]) -> int:
        return sum([len(packed) for _, packed in group[1]])

    def handle(
        self, groups: list[tuple[RollupRowKey, list[PackedGroup]]]
    ) -> Iterator[EncodedRow | RejectedOutput]:
        by_table: dict[str, list[tuple[bytes, list[PackedGroup]]]] = {}
        for (name, key), pairs in groups:
            by_table.setdefault(name, []).append((key, pairs))
        for name, of_table in by_table.items():
            yield from self._rows(name, of_table)

    def _rows(
        self, name: str, groups: list[tuple[bytes, list[PackedGroup]]]
    ) -> Iterator[EncodedRow | RejectedOutput]:
        """The mutations of rows of one table."""
        existing: list[list[bytes]] = [[] for _ in groups]
        later: list[list[bytes]] = [[] for _ in groups]
        by_aggregator: dict[str, list[tuple[int, list[bytes]]]] = {}
        for number, (_, packed_pairs) in enumerate(groups):
            packed_by_aggregator: dict[str, list[bytes]] = {}
            for aggregator, packed in packed_pairs:
                packed_by_aggregator.setdefault(aggregator, []).append(packed)
            existing[number] = _qualifiers(packed_by_aggregator.pop(EXISTING, ()))
            later[number] = _qualifiers(packed_by_aggregator.pop(LATER, ()))
            for aggregator, packed_groups in packed_by_aggregator.items():
                by_aggregator.setdefault(aggregator, []).append((number, packed_groups))
        sets: list[list[bytes]] = [[] for _ in groups]
        counts = np.zeros(len(groups), np.int64)
        qualifier_bytes = 0
        for aggregator, numbered in by_aggregator.items():
            encoded = self._encode(name, aggregator, numbered)
            qualifier_bytes = encoded.qualifier_bytes
            for rejected in encoded.rejected:
                yield refuse(rejected)
            numbers = np.array([number for number, _ in numbered], np.int64)[encoded.series]
            counts[numbers] += np.diff(encoded.firsts)
            for position, (number, content) in enumerate(
                zip(numbers.tolist(), row_mutations(encoded), strict=True)
            ):
                sets[number].append(content)
                if existing[number]:
                    written = encoded.qualifiers[encoded.firsts[position] : encoded.firsts[position + 1]]
                    existing[number] = stale_qualifiers(existing[number], map(bytes, written))
        table = self._job.table(name)
        for number, (key, _) in enumerate(groups):
            stale = existing[number] + later[number]
            if sets[number] or stale:
                yield over(key, table, b"".join(sets[number]), int(counts[number]), stale)
        sizes = np.fromiter((len(key) for key, _ in groups), np.int64, len(groups))
        count_written(int(np.count_nonzero(counts)), int(counts.sum()), int(sizes @ counts), qualifier_bytes)

    def _encode(self, name: str, aggregator: str, numbered: list[tuple[int, list[bytes]]]) -> EncodedRollups:
        """The cells of the accumulators of an aggregator; rows are numbered by position."""
        interval = self._intervals[name]
        rows = [
            (Series(str(position), ()), packed_groups) for position, (_, packed_groups) in enumerate(numbered)
        ]
        buckets = unpacked(rows, interval.seconds, ends=self._job.config.has_ends)
        metrics.count_rollup(f"buckets_{interval.interval}", len(buckets))
        return encode(self._job, interval, aggregator, buckets)


def _qualifiers(packed_lists: Iterable[bytes]) -> list[bytes]:
    qualifiers = []
    for packed in packed_lists:
        position = 0
        while position < len(packed):
            end = position + 1 + packed[position]
            qualifiers.append(packed[position + 1 : end])
            position = end
    return qualifiers


def add_steps(
    once: PCollection[Any], job: RollupJob
) -> tuple[Mapping[str, PCollection[EncodedRow]], list[PCollection[Any]]]:
    """Adds all steps but the writing; (mutations, refusals of all steps).

    The mutations are by the name of the step that writes them: in one step, some would wait for the others.

    Args:
      once: any single element.
    """
    piece = tuple[RollupRowKey, PackedGroup]
    cut = beam.ParDo(ChunksFn(job)).with_output_types(NumberedChunk)
    chunks = once | "Chunks" >> cut.with_outputs(SHARED, main="main")
    accumulate = beam.ParDo(AccumulateFn(job)).with_output_types(EncodedRow)
    accumulated = (
        chunks.main
        | "SpreadChunks" >> beam.Reshuffle()
        | "Accumulate" >> accumulate.with_outputs(PIECES, REJECTED, main="main")
    )
    existing = (
        typed(chunks, SHARED)
        | "SpreadShared" >> beam.Reshuffle()
        | "Standing" >> beam.ParDo(ExistingQualifiersFn(job)).with_output_types(piece)
    )
    encoded = (
        (typed(accumulated, PIECES), existing)
        | "Both" >> beam.Flatten()
        | "GroupPerRow" >> beam.GroupByKey()
        | "Encode" >> refusing(EncodeRowFn(job), EncodedRow)
    )
    rows = {"WriteAtOnce": accumulated.main, "Write": encoded.main}
    return rows, [accumulated[REJECTED], encoded[REJECTED]]
