"""Creates missing metadata: of the series that an ingest stores, and of all, as `tsdb uid metasync` does.

An ingest: rows ─► new series, once per worker process ─► ts_meta, ts_ctr, UID meta. All series:

key ranges of the data ─► series, when they began ─► per series ─► ts_meta, ts_ctr ─► per UID ─► UID meta

As in tools/MetaSync, a series was created at the base time of its first row. Unlike there, existing cells do
not change: creation times are not corrected, and corrupt cells are counted.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import apache_beam as beam
from apache_beam.utils import shared

from timebeam.schema.bits.lru_cache import LruCache
from timebeam.schema.core.rows import Cell, EncodedRow, KeyRange, Row
from timebeam.schema.core.selection import Scan
from timebeam.schema.stores.opentsdb import meta_documents
from timebeam.schema.stores.opentsdb.columns.decode_row import read_row
from timebeam.schema.stores.opentsdb.keys import UidPair, is_of_series, tsuid_of_key, tsuid_pairs
from timebeam.schema.stores.opentsdb.meta_documents import MetaMode, meta_table, series_row, uid_rows
from timebeam.schema.stores.opentsdb.uids.uid_table import UidDirectory, why_nameless
from timebeam.transforms.bigtable.compare_and_set import Replacement, create_cells, replace_cells
from timebeam.transforms.bigtable.mutation_bytes import plain_row
from timebeam.transforms.bigtable.read_ranges import scan_keys
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.flow import metrics
from timebeam.transforms.flow.metrics import META_NAMESPACE, SkipLog, TallyCounters, work_done
from timebeam.transforms.flow.steps import BufferedDoFn
from timebeam.transforms.read.chunks import spread_chunks, table_ranges
from timebeam.transforms.read.table_reader import TableReader, read_rows, scan_rows

if TYPE_CHECKING:
    from timebeam.schema.stores.opentsdb.layout import OpenTsdb


@dataclasses.dataclass(frozen=True, slots=True)
class MetaSyncJob:
    """The tables, and the work.

    Attributes:
      count: count points, which reads all of them.
      dry_run: count what would be written, and write nothing.
    """

    target: Target
    layout: OpenTsdb
    count: bool = False
    dry_run: bool = False

    @property
    def table(self) -> str:
        """Name of the meta table."""
        return meta_table(self.layout.options.table_prefix).name


class MetaSyncTally(NamedTuple):
    """The figures of a synchronisation.

    Attributes:
      rows_read: rows of the data table.
      series: series with data rows.
      points: points of those series, if counted.
      series_created: new cells `ts_meta` and `ts_ctr`.
      uids_created: new cells of metadata of UIDs.
      counters_set: corrected cells `ts_ctr`.
      counters_lost: wrong cells `ts_ctr` that another writer changed meanwhile.
      keys_skipped: rows whose key is not the key of a series.
      series_skipped: series with a UID without a name.
      corrupt: cells with unreadable metadata, left unchanged.
    """

    rows_read: int
    series: int
    points: int
    series_created: int
    uids_created: int
    counters_set: int
    counters_lost: int
    keys_skipped: int
    series_skipped: int
    corrupt: int

    @property
    def failures(self) -> int:
        """The number of rows, series and cells that could not be synchronised."""
        return self.keys_skipped + self.series_skipped + self.corrupt


COUNTERS = TallyCounters(META_NAMESPACE, MetaSyncTally)


_MOST_SERIES = 100_000
"""The largest number of series in memory while a range is read."""


class SeriesExtent(NamedTuple):
    """The period of one series in the data table.

    Attributes:
      first_s, last_s: base times of its first and last row, in seconds.
      latest_ms: the newest timestamp of its cells; -1 if they were not read.
      points: the number of points, if counted.
    """

    first_s: int
    last_s: int
    latest_ms: int = -1
    points: int = 0


def merged_extent(range_extents: Iterable[SeriesExtent]) -> SeriesExtent:
    """The extent of one series over several key ranges."""
    extents = list(range_extents)
    return SeriesExtent(
        min(extent.first_s for extent in extents),
        max(extent.last_s for extent in extents),
        max(extent.latest_ms for extent in extents),
        sum(extent.points for extent in extents),
    )


class ReadSeriesFn(beam.DoFn):
    """A key range in; (TSUID, its `SeriesExtent` in the range) out; a series may come more than once."""

    def __init__(self, job: MetaSyncJob) -> None:
        self._job = job

    def process(self, keys: KeyRange) -> Iterator[tuple[bytes, SeriesExtent]]:
        extents: dict[bytes, SeriesExtent] = {}
        skips = SkipLog(COUNTERS)
        options = self._job.layout.options
        for key, latest_ms, points in self._rows(keys):
            COUNTERS.count("rows_read")
            if not is_of_series(options, key):
                continue
            try:
                tsuid, base_s = tsuid_of_key(options, key)
            except ValueError as error:
                skips.skip("keys_skipped", str(error))
                continue
            new = SeriesExtent(base_s, base_s, latest_ms, points)
            extents[tsuid] = merged_extent((extents[tsuid], new)) if tsuid in extents else new
            if len(extents) == _MOST_SERIES:
                yield from extents.items()
                extents = {}
        yield from extents.items()
        work_done()

    def _rows(self, keys: KeyRange) -> Iterator[tuple[bytes, int, int]]:
        """(key, newest cell timestamp in ms, number of points) of each row; (key, -1, 0) without `count`."""
        target, table = self._job.target, self._job.layout.data_table
        if not self._job.count:
            for key in scan_keys(target, table, *keys):
                yield key, -1, 0
            return
        for row in scan_rows(target, Scan(table, (keys,))):
            latest_ms = max(cell.timestamp_ms for cell in row.cells)
            yield row.key, latest_ms, len(read_row(row.cells).elements)


_ROWS_AT_ONCE = 2_000


class SyncMeta(beam.PTransform):  # type: ignore[type-arg]
    """Creates the missing metadata of all series: a pipeline in, nothing out; see `MetaSyncTally`."""

    def __init__(self, job: MetaSyncJob) -> None:
        super().__init__()
        self._job = job

    def expand(self, root: beam.Pipeline) -> beam.PCollection[None]:
        job = self._job
        plan = functools.partial(table_ranges, job.target, job.layout.data_table)
        return (
            spread_chunks(root, "Ranges", plan, KeyRange)
            | "ReadSeries" >> beam.ParDo(ReadSeriesFn(job)).with_output_types(tuple[bytes, SeriesExtent])
            | "PerSeries" >> beam.CombinePerKey(merged_extent)
            | "StoreSeries" >> beam.ParDo(_StoreSeriesFn(job)).with_output_types(tuple[UidPair, int])
            | "PerUid" >> beam.CombinePerKey(min)
            | "StoreUids" >> beam.ParDo(_StoreUidsFn(job)).with_output_types(None)
        )


class _StoreSeriesFn(BufferedDoFn[tuple[bytes, SeriesExtent]]):
    """(TSUID, `SeriesExtent`) in; (UID, first seen, in s) out, for series whose UIDs have names."""

    most = _ROWS_AT_ONCE

    def __init__(self, job: MetaSyncJob) -> None:
        self._job = job

    def setup(self) -> None:
        layout = self._job.layout
        self._names = UidDirectory(layout.options, TableReader(self._job.target))

    def handle(self, elements: list[tuple[bytes, SeriesExtent]]) -> Iterator[tuple[UidPair, int]]:
        job, extents, skips = self._job, dict(elements), SkipLog(COUNTERS)
        for tsuid, nameless in self._names.nameless(extents).items():
            skips.skip("series_skipped", f"series {tsuid.hex().upper()}: {why_nameless(nameless)}")
            extents.pop(tsuid)
        COUNTERS.count("series", len(extents))
        COUNTERS.count("points", sum(extent.points for extent in extents.values()))
        self._write(extents, skips)
        for tsuid, extent in extents.items():
            for pair in tsuid_pairs(job.layout.options, tsuid):
                yield pair, extent.first_s

    def _write(self, extents: Mapping[bytes, SeriesExtent], skips: SkipLog) -> None:
        """Creates the rows of these series, and corrects their counters."""
        job = self._job
        existing = read_rows(job.target, job.table, list(extents))
        rows = [_row(job, tsuid, extent) for tsuid, extent in extents.items()]
        replacements = []
        for tsuid, row in existing.items():
            for cell in row.cells:
                try:
                    new = _renewed(job, tsuid, cell, extents[tsuid])
                except ValueError as error:
                    skips.skip("corrupt", f"row {tsuid.hex()} of {job.table}, {cell.qualifier!r}: {error}")
                    continue
                if new is not None:
                    replacements.append(Replacement(tsuid, cell, new))
        _create("series_created", job, job.table, rows, existing)
        replaced = (
            len(replacements) if job.dry_run else sum(replace_cells(job.target, job.table, replacements))
        )
        COUNTERS.count("counters_set", replaced)
        COUNTERS.count("counters_lost", len(replacements) - replaced)


def _row(job: MetaSyncJob, tsuid: bytes, extent: SeriesExtent) -> Row:
    """All cells of a series; without `count`, the last hour is the arrival."""
    if not job.count:
        return series_row(job.table, tsuid, extent.first_s, extent.last_s * 1000)
    return series_row(job.table, tsuid, extent.first_s, extent.latest_ms, points=extent.points)


def _renewed(job: MetaSyncJob, tsuid: bytes, cell: Cell, extent: SeriesExtent) -> Cell | None:
    """The corrected cell of the meta table; None if it is correct.

    Raises:
      ValueError: the cell is corrupt.
    """
    if cell.qualifier == meta_documents.DOCUMENT:
        meta_documents.TsMeta.from_bytes(tsuid, cell.value)
    if cell.qualifier != meta_documents.COUNTER:
        return None
    if meta_documents.counter_value(cell.value) == extent.points or not job.count:
        return None
    latest_ms = max(cell.timestamp_ms, extent.latest_ms)
    return cell._replace(timestamp_ms=latest_ms, value=meta_documents.counter_bytes(extent.points))


class _StoreUidsFn(BufferedDoFn[tuple[UidPair, int]]):
    """(UID, when it was first seen, in s) in, nothing out."""

    most = _ROWS_AT_ONCE

    def __init__(self, job: MetaSyncJob) -> None:
        self._job = job

    def handle(self, elements: list[tuple[UidPair, int]]) -> Iterable[None]:
        job, first_seen, skips = self._job, dict(elements), SkipLog(COUNTERS)
        rows = uid_rows(job.layout.options.uid_table, first_seen)
        existing = read_rows(job.target, job.layout.options.uid_table, [row.key for row in rows])
        for uid, row in existing.items():
            for cell in row.cells:
                kind = meta_documents.KINDS.get(cell.qualifier)
                if cell.family == meta_documents.FAMILY and kind is not None and (kind, uid) in first_seen:
                    try:
                        meta_documents.UidMeta.from_bytes(kind, cell.value)
                    except ValueError as error:
                        skips.skip("corrupt", f"UID {uid.hex()} of kind {kind}: {error}")
        _create("uids_created", job, job.layout.options.uid_table, rows, existing)
        return ()


def _create(
    counter: str, job: MetaSyncJob, table: str, rows: Sequence[Row], existing: Mapping[bytes, Row]
) -> None:
    """Creates cells, or counts them."""
    if job.dry_run:
        missing = (_columns(row) - _columns(existing.get(row.key)) for row in rows)
        COUNTERS.count(counter, sum(map(len, missing)))
    else:
        COUNTERS.count(counter, len(create_cells(job.target, table, rows, existing).created))


def _columns(row: Row | None) -> set[tuple[str, bytes]]:
    return {(cell.family, cell.qualifier) for cell in row.cells} if row else set()


class _SeenRow(NamedTuple):
    """A row of an uncached series: its TSUID, and the earliest and latest arrival of its points, in ms."""

    tsuid: bytes
    first_ms: int
    last_ms: int


class _SeenSeries:
    """A bounded cache of the series and UIDs whose metadata is stored."""

    def __init__(self, size: int) -> None:
        self.lock = threading.Lock()
        self.series: LruCache[bytes, bool] = LruCache(size)
        self.uids: LruCache[UidPair, bool] = LruCache(size)


class TrackFn(BufferedDoFn[_SeenRow]):
    """`EncodedRow` in, nothing out: stores missing metadata of the rows' series before the bundle ends.

    A series is cached only when its metadata is stored, so that a repeated bundle leaves nothing out.
    """

    most = 2_000

    def __init__(self, target: Target, layout: OpenTsdb, mode: str, cache_size: int) -> None:
        """Writes what `MetaMode` says of a mode other than `off`."""
        self._target, self._layout, self._size = target, layout, cache_size
        self._is_full = MetaMode(mode) is MetaMode.FULL
        self.table = meta_table(layout.options.table_prefix)
        self._shared = shared.Shared()
        self._seen: _SeenSeries | None = None

    def hold(self) -> _SeenSeries:
        """The cache of this process, which lives as long as it is referenced, between runs too."""
        size = self._size
        seen: _SeenSeries = self._shared.acquire(lambda: _SeenSeries(size))
        return seen

    def setup(self) -> None:
        """Opens the cache of the process."""
        self._seen = self.hold()

    def process(self, row: EncodedRow) -> Iterable[None]:
        assert self._seen is not None
        options = self._layout.options
        if row.table != self._layout.data_table or not is_of_series(options, row.key):
            return ()
        try:
            tsuid, _ = tsuid_of_key(options, row.key)
        except ValueError:
            return ()  # a replayed row with a changed key
        with self._seen.lock:
            if self._seen.series.get(tsuid):
                return ()
        times_ms = [cell.timestamp_ms for cell in plain_row(row).cells]
        return self.add(_SeenRow(tsuid, min(times_ms), max(times_ms))) if times_ms else ()

    def handle(self, rows: list[_SeenRow]) -> Iterable[None]:
        """Stores the metadata of the new series."""
        assert self._seen is not None
        new: dict[bytes, _SeenRow] = {}
        for row in rows:
            _, first_ms, last_ms = new.get(row.tsuid, row)
            new[row.tsuid] = _SeenRow(row.tsuid, min(first_ms, row.first_ms), max(last_ms, row.last_ms))
        table = self.table.name
        names = self._names(new.values()) if self._is_full else {}
        self._create(self._layout.options.uid_table, uid_rows(self._layout.options.uid_table, names))
        self._create(
            table,
            [
                series_row(table, tsuid, first_ms // 1000, last_ms, document=self._is_full)
                for tsuid, first_ms, last_ms in new.values()
            ],
        )
        with self._seen.lock:
            for tsuid in new:
                self._seen.series[tsuid] = True
            for pair in names:
                self._seen.uids[pair] = True
        return ()

    def _names(self, new: Iterable[_SeenRow]) -> dict[UidPair, int]:
        """The uncached UIDs of the new series, and when each was first seen, in s."""
        assert self._seen is not None
        first_seen_s: dict[UidPair, int] = {}
        with self._seen.lock:
            for tsuid, first_ms, _ in new:
                for pair in tsuid_pairs(self._layout.options, tsuid):
                    if not self._seen.uids.get(pair):
                        first_seen_s[pair] = min(first_seen_s.get(pair, first_ms // 1000), first_ms // 1000)
        return first_seen_s

    def _create(self, table: str, rows: Sequence[Row]) -> None:
        """Creates missing cells."""
        existing = read_rows(self._target, table, [row.key for row in rows])
        metrics.count_meta(len(create_cells(self._target, table, rows, existing).created))
