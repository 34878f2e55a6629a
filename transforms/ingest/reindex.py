"""Rebuilds index tables from the keys of the data rows.

key ranges of the data tables ─► keys ─► entries, each once ─► index rows ─► write
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import apache_beam as beam

from timebeam.schema.layouts import SeriesIndex
from timebeam.schema.points import Series
from timebeam.transforms import metrics
from timebeam.transforms.bigtable.reader import scan_keys
from timebeam.transforms.bigtable.rows import KeyRange
from timebeam.transforms.bigtable.splits import ranges_between, split_keys
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.ingest.index import store_index
from timebeam.transforms.ingest.write import data_tables

NAMESPACE = "timebeam-reindex"
"""The namespace of this job's counters."""

_ENTRIES_AT_ONCE = 5_000


class ReindexTally(NamedTuple):
    """Result of a reindex.

    Attributes:
      rows_read: data rows.
      index_rows: index rows of the data rows, each counted once per `_ENTRIES_AT_ONCE` data rows.
      keys_skipped: data rows whose key is not a key of the layout.
      rows_refused: index rows that Bigtable refused.
    """

    rows_read: int
    index_rows: int
    keys_skipped: int
    rows_refused: int


COUNTERS = metrics.TallyCounters(NAMESPACE, ReindexTally)


@dataclasses.dataclass(frozen=True, slots=True)
class ReindexJob:
    """The layout whose index tables are rebuilt; `dry_run`: count, and write nothing."""

    target: Target
    layout: SeriesIndex
    dry_run: bool = False


class Reindex(beam.PTransform):  # type: ignore[type-arg]
    """Writes the index rows of all data rows: a pipeline in, nothing out; see `ReindexTally`."""

    def __init__(self, job: ReindexJob) -> None:
        super().__init__()
        self._job = job

    def expand(self, root: beam.Pipeline) -> beam.PCollection[None]:
        """See the class."""
        return (
            root
            | "Once" >> beam.Create([None], reshuffle=False)
            | "Ranges" >> beam.ParDo(_RangesFn(self._job)).with_output_types(tuple[str, KeyRange])
            | "SpreadRanges" >> beam.Reshuffle()
            | "WriteIndex" >> beam.ParDo(_WriteIndexFn(self._job)).with_output_types(None)
        )


class _RangesFn(beam.DoFn):
    """Anything in; (data table, key range) out, which together are all data tables."""

    def __init__(self, job: ReindexJob) -> None:
        self._job = job

    def process(self, _: object) -> Iterator[tuple[str, KeyRange]]:
        for table in data_tables(self._job.layout):
            for keys in ranges_between(split_keys(self._job.target, table)):
                yield table, keys


class _WriteIndexFn(beam.DoFn):
    """(data table, key range) in, their index rows are written; nothing out."""

    def __init__(self, job: ReindexJob) -> None:
        self._job = job

    def process(self, element: tuple[str, KeyRange]) -> None:
        skips = metrics.SkipLog(COUNTERS)
        entries = self._entries(*element, skips)
        while batch := list(itertools.islice(entries, _ENTRIES_AT_ONCE)):
            job = self._job
            count, refused = store_index(job.target, job.layout, batch, dry_run=job.dry_run)
            COUNTERS.count("index_rows", count)
            metrics.count("rows_written", count)
            for rejected in refused:
                skips.skip("rows_refused", rejected.message)

    def _entries(self, table: str, keys: KeyRange, skips: metrics.SkipLog) -> Iterator[tuple[Series, int]]:
        """The entry of every data row."""
        for key in scan_keys(self._job.target, table, *keys):
            COUNTERS.count("rows_read")
            try:
                yield self._job.layout.entry_of(key)
            except ValueError as error:
                skips.skip("keys_skipped", str(error))
