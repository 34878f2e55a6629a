"""Seals the metrics of a layout, each in one worker (`timebeam.transforms.care.archive_hours`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import apache_beam as beam
from apache_beam.pvalue import PCollection

from timebeam.schema.core.rows import WHOLE_TABLE
from timebeam.schema.stores import find_opentsdb
from timebeam.transforms.care.archive_hours import SealTally, seal_metric
from timebeam.transforms.care.closed_rows import SealJob
from timebeam.transforms.flow import metrics
from timebeam.transforms.read.chunks import Chunk
from timebeam.transforms.read.table_reader import TableReader
from timebeam.transforms.rollup.chunk_points import give_back_memory

COUNTERS = metrics.TallyCounters("timebeam-seal", SealTally)


class SealRows(beam.PTransform):  # type: ignore[type-arg]
    """Seals the rows of a job: a pipeline in, the tally of each few rows out."""

    def __init__(self, job: SealJob) -> None:
        super().__init__()
        self._job = job

    def expand(self, root: beam.Pipeline) -> PCollection[SealTally]:
        return (
            root
            | "Once" >> beam.Create([None], reshuffle=False)
            | "Metrics" >> beam.ParDo(_MetricsFn(self._job)).with_output_types(Chunk)
            | "SpreadMetrics" >> beam.Reshuffle()
            | "Seal" >> beam.ParDo(_SealFn(self._job)).with_output_types(SealTally)
        )


class _MetricsFn(beam.DoFn):
    """Anything in; a chunk for each metric out."""

    def __init__(self, job: SealJob) -> None:
        self._job = job

    def process(self, _: object) -> Iterator[Chunk]:
        job = self._job
        metric_keys = job.archive.metric_keys(TableReader(job.target))
        yield from metrics.planned(
            Chunk((name,), (uid,), job.start_s, job.end_s, WHOLE_TABLE) for name, uid in metric_keys.items()
        )


class _SealFn(beam.DoFn):
    """`Chunk` in; `SealTally` out."""

    def __init__(self, job: SealJob) -> None:
        self._job = job

    def setup(self) -> None:
        """Limits the memory that the process keeps."""
        give_back_memory()

    def process(self, chunk: Chunk) -> Iterator[SealTally]:
        job = self._job
        is_named = find_opentsdb(job.layout) is None
        metric = chunk.metrics[0].encode() if is_named else chunk.uids[0]
        leased = nullcontext() if job.dry_run else job.leases.lease([metric], job.start_s, job.end_s)
        with leased as lease:
            for tally in seal_metric(job, chunk.uids[0], None if lease is None else lease.check):
                COUNTERS.add(tally)
                yield tally
        metrics.work_done()
