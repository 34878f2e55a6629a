"""Accumulators of one row merged, encoded, and written over what stands there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import numpy as np

from schema.layouts.opentsdb import keys as row_keys
from schema.points import Series
from schema.rollup.config import RollupInterval
from schema.rollup.opentsdb_rollup import EncodedRollups
from schema.rollup.pieces import unpacked
from schema.rollup.qualifiers import stale_qualifiers
from transforms import metrics
from transforms.bigtable.wire import EncodedRow
from transforms.rejected import RejectedOutput, refuse, windowed
from transforms.rollup.accumulate import Piece, Shared
from transforms.rollup.job import RollupJob, RollupRowKey, encode, outputs
from transforms.rollup.mutations import count_written, over, row_mutations
from transforms.rollup.standing import is_of, metric_ranges, our_names, standing_rows

STANDING = "standing"
"""In place of an aggregator: the piece holds the qualifiers that stand in a row."""

_BYTES_AT_ONCE = 4 << 20
"""Of accumulators whose rows are encoded together."""


class StandingFn(beam.DoFn):
    """`Shared` in; ((table, row key), (STANDING, qualifiers)) out, of the rows that a shuffle puts together.

    What stands there and is not written again is deleted.
    """

    def __init__(self, job: RollupJob) -> None:
        self._job = job

    def process(self, shared: Shared) -> Iterator[tuple[RollupRowKey, Piece]]:
        """See the class."""
        job, name = self._job, shared.table
        (whole,) = [one for one in job.plan.intervals if one.interval.interval == shared.interval]
        plan = whole.within(shared.start_s, shared.end_s)
        ours = our_names(job, plan.interval, name)
        for key, names in standing_rows(job, name, metric_ranges(job, plan, shared.uids)):
            base_s = row_keys.base_s_of(job.layout.options, key)
            standing = [one for one in names if is_of(one, base_s, plan, ours)]
            if standing:
                packed = b"".join(len(one).to_bytes(1, "big") + one for one in standing)
                yield (name, key), (STANDING, packed)


class EncodeRowFn(beam.DoFn):
    """((table, row key), pieces) in; `EncodedRow` mutations out, sums beyond the floats to `REJECTED`.

    Rows of one table are encoded together: one by one they take several times as long.
    """

    def __init__(self, job: RollupJob) -> None:
        self._job = job
        self._intervals: dict[str, RollupInterval] = {
            name: interval for interval in job.config.intervals for name in outputs(job.config, interval)
        }
        self._held: dict[str, list[tuple[bytes, list[Piece]]]] = {}
        self._bytes = 0

    def start_bundle(self) -> None:
        """Forgets what a bundle that failed has left."""
        self._held, self._bytes = {}, 0

    def process(self, group: tuple[RollupRowKey, Iterable[Piece]]) -> Iterator[EncodedRow | RejectedOutput]:
        """See the class."""
        (name, key), pieces = group
        found = list(pieces)
        self._held.setdefault(name, []).append((key, found))
        self._bytes += sum([len(packed) for _, packed in found])
        if self._bytes >= _BYTES_AT_ONCE:
            yield from self._encoded()

    def finish_bundle(self) -> Iterator[Any]:
        """What is left."""
        yield from windowed(self._encoded())

    def _encoded(self) -> Iterator[EncodedRow | RejectedOutput]:
        held, self._held, self._bytes = self._held, {}, 0
        for name, groups in held.items():
            yield from self._rows(name, groups)

    def _rows(
        self, name: str, groups: list[tuple[bytes, list[Piece]]]
    ) -> Iterator[EncodedRow | RejectedOutput]:
        """The mutations of rows of one table."""
        standing: list[list[bytes]] = [[] for _ in groups]
        by_aggregator: dict[str, list[tuple[int, list[bytes]]]] = {}
        for number, (_, pieces) in enumerate(groups):
            own: dict[str, list[bytes]] = {}
            for aggregator, packed in pieces:
                own.setdefault(aggregator, []).append(packed)
            standing[number] = [one for packed in own.pop(STANDING, ()) for one in _qualifiers(packed)]
            for aggregator, parts in own.items():
                by_aggregator.setdefault(aggregator, []).append((number, parts))
        sets: list[list[bytes]] = [[] for _ in groups]
        counts = np.zeros(len(groups), np.int64)
        wide = 0
        for aggregator, some in by_aggregator.items():
            encoded = self._encode(name, aggregator, some)
            wide = encoded.wide
            for rejected in encoded.rejected:
                yield refuse(rejected)
            numbers = np.array([number for number, _ in some], np.int64)[encoded.series]
            counts[numbers] += np.diff(encoded.firsts)
            for at, (number, content) in enumerate(
                zip(numbers.tolist(), row_mutations(encoded), strict=True)
            ):
                sets[number].append(content)
                if standing[number]:
                    written = encoded.names[encoded.firsts[at] : encoded.firsts[at + 1]]
                    standing[number] = stale_qualifiers(standing[number], map(bytes, written))
        table = self._job.table(name)
        for number, (key, _) in enumerate(groups):
            if sets[number] or standing[number]:
                content = b"".join(sets[number])
                yield over(key, table, content, int(counts[number]), standing[number])
        sizes = np.fromiter((len(key) for key, _ in groups), np.int64, len(groups))
        count_written(int(np.count_nonzero(counts)), int(counts.sum()), int(sizes @ counts), wide)

    def _encode(self, name: str, aggregator: str, some: list[tuple[int, list[bytes]]]) -> EncodedRollups:
        """What the accumulators of an aggregator become; the rows are numbered as they are given."""
        interval = self._intervals[name]
        rows = [(Series(str(at), ()), parts) for at, (_, parts) in enumerate(some)]
        buckets = unpacked(rows, interval.seconds, ends=self._job.config.has_ends)
        metrics.count_rollup(f"buckets_{interval.interval}", len(buckets))
        return encode(self._job, interval, aggregator, buckets)


def _qualifiers(packed: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(packed):
        end = at + 1 + packed[at]
        yield packed[at + 1 : end]
        at = end
