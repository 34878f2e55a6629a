"""Accumulators of one row merged, encoded, and written over what stands there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam

from schema.layouts import Cell, Deletion, Row, Scan
from schema.layouts.opentsdb import keys as row_keys
from schema.points import Series
from schema.rollup.config import OF_GROUP, RollupInterval
from schema.rollup.opentsdb_rollup import EncodedRollups, encode_points, encode_rollups
from schema.rollup.pieces import unpacked
from schema.rollup.plan import IntervalPlan
from schema.rollup.qualifiers import FAMILY, POINT_BYTES, Form, stale_qualifiers
from transforms import metrics
from transforms.bigtable.reader import TableReader
from transforms.pack import mutations
from transforms.rejected import RejectedOutput, refuse, windowed
from transforms.rollup.accumulate import Piece
from transforms.rollup.job import SINGLE, RollupJob, RollupRowKey, outputs

STANDING = "standing"
"""In place of an aggregator: the piece holds the qualifiers that stand in a row."""

_BYTES_AT_ONCE = 1 << 20
"""Of accumulators whose rows are encoded together."""


class StandingFn(beam.DoFn):
    """UIDs of metrics in; ((table, row key), (STANDING, qualifiers)) out, of the rollup rows of the range.

    What stands there and is not written again is deleted: a number on another width, and buckets whose
    points have gone.
    """

    def __init__(self, job: RollupJob) -> None:
        self._job = job

    def process(self, metric: bytes) -> Iterator[tuple[RollupRowKey, Piece]]:
        """See the class."""
        job = self._job
        for plan in job.plan.intervals:
            for name in outputs(job.config, plan.interval):
                ours = _names(job, plan.interval, name)
                for key, cells in self._rows(metric, plan, job.table(name)):
                    base_s = row_keys.parse_key(job.layout.options, key).base_s
                    standing = [
                        qualifier
                        for family, qualifier, _, _ in cells
                        if family == FAMILY and _is_of(qualifier, base_s, plan, ours)
                    ]
                    if standing:
                        packed = b"".join(len(one).to_bytes(1, "big") + one for one in standing)
                        yield (name, key), (STANDING, packed)

    def _rows(self, metric: bytes, plan: IntervalPlan, table: str) -> Iterator[tuple[bytes, Iterable[Cell]]]:
        parts = list(plan.rows())
        if not parts:
            return
        first, last = parts[0].base_s * 1000, parts[-1].base_s * 1000
        ranges = tuple(row_keys.ranges(self._job.layout.options, metric, first, last))
        scan = Scan(table, ranges, keys_only=True)
        for row in TableReader(self._job.target).scan(scan):
            yield row.key, row.cells


def _names(job: RollupJob, interval: RollupInterval, table: str) -> frozenset[bytes]:
    """How the qualifiers of cells begin that are written to a table: aggregation ids, and their old names."""
    if table == interval.table:
        ids = set(job.stored(SINGLE))
    else:
        wanted = {name for one in job.config.pre_aggregates for name in one.aggregators}
        ids = {number for name in wanted for number in job.stored(name)}
    old = {f"{name}:".encode() for name, number in job.config.aggregation_ids.items() if number in ids}
    return frozenset({bytes([number]) for number in ids} | old)


def _is_of(qualifier: bytes, base_s: int, plan: IntervalPlan, ours: frozenset[bytes]) -> bool:
    """Whether a column is of an interval, and of an aggregator, that is written."""
    offset = int.from_bytes(qualifier[-2:], "big") >> 4
    if plan.interval.is_default:
        return len(qualifier) == POINT_BYTES and plan.start_s <= base_s + offset < plan.end_s
    start_s = base_s + offset * plan.interval.seconds
    return plan.start_s <= start_s < plan.end_s and qualifier[:-2].lower() in ours


class EncodeRowFn(beam.DoFn):
    """((table, row key), pieces) in; the `Row` mutations out, sums beyond the floats to `REJECTED`.

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

    def process(self, group: tuple[RollupRowKey, Iterable[Piece]]) -> Iterator[Row | RejectedOutput]:
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

    def _encoded(self) -> Iterator[Row | RejectedOutput]:
        held, self._held, self._bytes = self._held, {}, 0
        for name, groups in held.items():
            yield from self._rows(name, groups)

    def _rows(self, name: str, groups: list[tuple[bytes, list[Piece]]]) -> Iterator[Row | RejectedOutput]:
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
        cells: list[list[Cell]] = [[] for _ in groups]
        for aggregator, some in by_aggregator.items():
            encoded = self._encode(name, aggregator, some)
            for rejected in encoded.rejected:
                yield refuse(rejected)
            for one in encoded.rows:
                cells[some[one.series][0]] += one.cells
        table = self._job.table(name)
        for number, (key, _) in enumerate(groups):
            deleted = [Deletion(FAMILY, one) for one in stale_qualifiers(standing[number], cells[number])]
            yield from mutations([Row(table, key, cells[number], deleted)])

    def _encode(self, name: str, aggregator: str, some: list[tuple[int, list[bytes]]]) -> EncodedRollups:
        """What the accumulators of an aggregator become; the rows are numbered as they are given."""
        interval = self._intervals[name]
        rows = [(Series(str(at), ()), parts) for at, (_, parts) in enumerate(some)]
        buckets = unpacked(rows, interval.seconds)
        metrics.count_rollup(f"buckets_{interval.interval}", len(buckets))
        if not interval.is_default:
            return encode_rollups(buckets, interval, self._job.stored(aggregator), Form.FIXED)
        (number,) = [OF_GROUP[aggregator].get(aggregator, OF_GROUP[aggregator].get("sum"))]
        assert number is not None
        return encode_points(buckets, number, Form.FIXED)


def _qualifiers(packed: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(packed):
        end = at + 1 + packed[at]
        yield packed[at + 1 : end]
        at = end


def metric_uids(job: RollupJob) -> Any:
    """A ParDo that gives the UID of every metric."""
    return beam.ParDo(MetricUidsFn(job)).with_output_types(bytes)


class MetricUidsFn(beam.DoFn):
    """Anything in; the UIDs of all metrics that are rolled up out."""

    def __init__(self, job: RollupJob) -> None:
        self._job = job

    def process(self, _: object) -> Iterator[bytes]:
        """See the class."""
        yield from self._job.metric_uids(TableReader(self._job.target)).values()
