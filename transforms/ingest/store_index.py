"""Index tables: the rows that let a reader find series, written once per worker process and entry.

A job that rebuilds them reads the keys of the data rows:

key ranges of the data tables ─► keys ─► entries, each once ─► index rows ─► write
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Iterator
from typing import NamedTuple

import apache_beam as beam
from apache_beam.utils import shared

from timebeam.schema.bits.lru_cache import LruCache, batched
from timebeam.schema.core.contract import Store
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.rows import KeyRange
from timebeam.schema.core.selection import SeriesIndex
from timebeam.transforms.bigtable.read_ranges import scan_keys
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.flow import metrics
from timebeam.transforms.flow.steps import RejectedOutput, reject
from timebeam.transforms.ingest.row_mutations import data_tables, store_index
from timebeam.transforms.read.chunks import spread_chunks, table_ranges


class _SeenEntries:
    """A bounded cache of the entries that this process has written."""

    def __init__(self, size: int) -> None:
        self.lock = threading.Lock()
        self.entries: LruCache[tuple[Series, int], bool] = LruCache(size)


class IndexFn(beam.DoFn):
    """`PointBatch` in, the same out after its index rows are stored; rejected rows to `REJECTED`.

    It writes itself, and caches an entry only when it is stored, so that a repeated bundle leaves none out.
    """

    def __init__(self, target: Target, index: SeriesIndex, cache_size: int, *, dry_run: bool) -> None:
        self._target, self._index, self._size, self._dry_run = target, index, cache_size, dry_run
        self._shared = shared.Shared()
        self._seen: _SeenEntries | None = None

    def hold(self) -> _SeenEntries:
        """The cache of this process, which lives as long as it is referenced, between runs too."""
        size = self._size
        seen: _SeenEntries = self._shared.acquire(lambda: _SeenEntries(size))
        return seen

    def setup(self) -> None:
        """Opens the cache of the process."""
        self._seen = self.hold()

    def process(self, batch: PointBatch) -> Iterator[PointBatch | RejectedOutput]:
        assert self._seen is not None
        series = batch.series
        with self._seen.lock:
            entries = [(series[number], base) for number, base in self._index.entries(batch)]
            new = [entry for entry in entries if self._seen.entries.get(entry) is None]
            count, rejections = store_index(self._target, self._index, new, dry_run=self._dry_run)
            for entry in new:
                self._seen.entries[entry] = True
        if count:
            metrics.count("index_rows_written", count)
        yield from map(reject, rejections)
        yield batch


NAMESPACE = "timebeam-reindex"
"""The namespace of this job's counters."""

_ENTRIES_AT_ONCE = 5_000


class ReindexTally(NamedTuple):
    """Result of a reindex.

    Attributes:
      rows_read: data rows.
      index_rows: index rows of the data rows, each counted once per `_ENTRIES_AT_ONCE` data rows.
      keys_skipped: data rows whose key is not a key of the layout.
      rows_rejected: index rows that Bigtable refused.
    """

    rows_read: int
    index_rows: int
    keys_skipped: int
    rows_rejected: int


COUNTERS = metrics.TallyCounters(NAMESPACE, ReindexTally)


@dataclasses.dataclass(frozen=True, slots=True)
class ReindexJob:
    """The layout whose index tables are rebuilt; `dry_run`: count, and write nothing."""

    target: Target
    layout: Store
    dry_run: bool = False

    @property
    def index(self) -> SeriesIndex:
        """The index tables."""
        assert self.layout.index is not None
        return self.layout.index


class Reindex(beam.PTransform):  # type: ignore[type-arg]
    """Writes the index rows of all data rows: a pipeline in, nothing out; see `ReindexTally`."""

    def __init__(self, job: ReindexJob) -> None:
        super().__init__()
        self._job = job

    def expand(self, root: beam.Pipeline) -> beam.PCollection[None]:
        ranges = spread_chunks(root, "Ranges", functools.partial(_ranges, self._job), tuple[str, KeyRange])
        return ranges | "WriteIndex" >> beam.FlatMap(_write_index, self._job).with_output_types(None)


def _ranges(job: ReindexJob) -> Iterator[tuple[str, KeyRange]]:
    """(data table, key range), which together are all data tables."""
    for table in data_tables(job.layout):
        for keys in table_ranges(job.target, table):
            yield table, keys


def _write_index(element: tuple[str, KeyRange], job: ReindexJob) -> Iterator[None]:
    """Writes the index rows of a key range of a data table."""
    skips = metrics.SkipLog(COUNTERS)
    for batch in batched(_entries(job, *element, skips), _ENTRIES_AT_ONCE):
        count, rejections = store_index(job.target, job.index, batch, dry_run=job.dry_run)
        COUNTERS.count("index_rows", count)
        metrics.count("rows_written", count)
        for rejected in rejections:
            skips.skip("rows_rejected", rejected.message)
    metrics.work_done()
    yield from ()


def _entries(
    job: ReindexJob, table: str, keys: KeyRange, skips: metrics.SkipLog
) -> Iterator[tuple[Series, int]]:
    """The entry of every data row."""
    for key in scan_keys(job.target, table, *keys):
        COUNTERS.count("rows_read")
        try:
            yield job.index.entry_of(key)
        except ValueError as error:
            skips.skip("keys_skipped", str(error))
