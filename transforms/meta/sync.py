"""Meta data made from the data table, as `tsdb uid metasync` does: what is missing is created.

key ranges of the data ─► series, when they began ─► per series ─► ts_meta, ts_ctr ─► per UID ─► UID meta

As in tools/MetaSync, a series was created at the base time of its first row. Unlike there, nothing that
exists is changed: no time of creation is corrected, and what is damaged is counted and left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from schema.layouts import Cell, Row
from schema.lru import LruCache
from schema.meta import ts_meta, uid_meta
from schema.meta import tsuid as tsuids
from schema.meta.rows import series_row, uid_rows
from schema.meta.tsuid import Pair
from transforms.bigtable.create import Replacement, create_cells, replace_cells
from transforms.bigtable.reader import read_rows
from transforms.meta.job import COUNTERS, SyncJob
from transforms.meta.read import Found, RangesFn, ReadSeriesFn, Trouble, merged
from transforms.meta.track import ROWS_AT_ONCE

_NAMES = 1_000_000


class SyncMeta(beam.PTransform):  # type: ignore[type-arg]
    """Creates what is missing of the meta data of all series; see `Tally` for what it counts."""

    def __init__(self, job: SyncJob) -> None:
        super().__init__()
        self._job = job

    def expand(self, root: beam.Pipeline) -> beam.PCollection[None]:
        """See the class."""
        job = self._job
        return (
            root
            | "Once" >> beam.Create([None], reshuffle=False)
            | "Ranges" >> beam.ParDo(RangesFn(job)).with_output_types(tuple[bytes, bytes])
            | "SpreadRanges" >> beam.Reshuffle()
            | "ReadSeries" >> beam.ParDo(ReadSeriesFn(job)).with_output_types(tuple[bytes, Found])
            | "PerSeries" >> beam.CombinePerKey(merged)
            | "StoreSeries" >> beam.ParDo(_StoreSeriesFn(job)).with_output_types(tuple[Pair, int])
            | "PerUid" >> beam.CombinePerKey(min)
            | "StoreUids" >> beam.ParDo(_StoreUidsFn(job)).with_output_types(None)
        )


class _StoreSeriesFn(beam.DoFn):
    """(TSUID, what is known of it) in; of sound series (UID, when it was first seen, in s) out."""

    def __init__(self, job: SyncJob) -> None:
        self._job = job
        self._held: dict[bytes, Found] = {}
        self._named: LruCache[Pair, bool] = LruCache(_NAMES)

    def setup(self) -> None:
        self._named = LruCache(_NAMES)

    def start_bundle(self) -> None:
        self._held = {}

    def process(self, element: tuple[bytes, Found]) -> Iterator[tuple[Pair, int]]:
        self._held[element[0]] = element[1]
        if len(self._held) == ROWS_AT_ONCE:
            yield from self._store()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for found in self._store():
            yield GlobalWindows.windowed_value(found)

    def _store(self) -> Iterator[tuple[Pair, int]]:
        job, held, trouble = self._job, self._held, Trouble()
        self._held = {}
        pairs = {tsuid: tsuids.pairs(job.layout.options, tsuid) for tsuid in held}
        lost = self._lost({pair for of in pairs.values() for pair in of})
        for tsuid, of in pairs.items():
            for kind, uid in lost.intersection(of):
                why = f"series {tsuid.hex().upper()}: UID {uid.hex()} of kind {kind} has no name"
                trouble.tell("series_skipped", why)
                held.pop(tsuid)
                break
        COUNTERS["series"].inc(len(held))
        COUNTERS["points"].inc(sum(found.points for found in held.values()))
        self._write(held, trouble)
        for tsuid, found in held.items():
            for pair in pairs[tsuid]:
                yield pair, found.first_s

    def _lost(self, pairs: set[Pair]) -> set[Pair]:
        """Those of some UIDs that have no name."""
        new = {pair for pair in pairs if not self._named.get(pair)}
        rows = read_rows(self._job.target, self._job.layout.uid_table, sorted({uid for _, uid in new}))
        for kind, uid in new:
            cells = rows[uid].cells if uid in rows else ()
            if any((cell.family, cell.qualifier) == (uid_meta.FAMILY, kind.encode()) for cell in cells):
                self._named[kind, uid] = True
        return {pair for pair in new if not self._named.get(pair)}

    def _write(self, held: Mapping[bytes, Found], trouble: Trouble) -> None:
        """Creates the rows of these series, and sets the counters that say something else."""
        job = self._job
        there = read_rows(job.target, job.table, list(held))
        rows = [_row(job, tsuid, found) for tsuid, found in held.items()]
        wanted = []
        for tsuid, row in there.items():
            for cell in row.cells:
                try:
                    new = _renewed(job, tsuid, cell, held[tsuid])
                except ValueError as error:
                    trouble.tell("damaged", f"row {tsuid.hex()} of {job.table}, {cell.qualifier!r}: {error}")
                    continue
                if new is not None:
                    wanted.append(Replacement(tsuid, new, cell.value))
        _create("series_created", job, job.table, rows, there)
        done = len(wanted) if job.dry_run else replace_cells(job.target, job.table, wanted)
        COUNTERS["counters_set"].inc(done)
        COUNTERS["counters_lost"].inc(len(wanted) - done)


def _row(job: SyncJob, tsuid: bytes, found: Found) -> Row:
    """All cells of a series. If no cells were read, the hour of its last points stands for their arrival."""
    if not job.count:
        return series_row(job.table, tsuid, found.first_s, found.last_s * 1000)
    return series_row(job.table, tsuid, found.first_s, found.latest_ms, points=found.points)


def _renewed(job: SyncJob, tsuid: bytes, cell: Cell, found: Found) -> Cell | None:
    """What a cell of the meta table should be; None if it may stay as it is.

    Raises:
      ValueError: it is damaged.
    """
    if cell.qualifier == ts_meta.DOCUMENT:
        ts_meta.TsMeta.from_bytes(tsuid, cell.value)
    if cell.qualifier != ts_meta.COUNTER:
        return None
    if ts_meta.counter_value(cell.value) == found.points or not job.count:
        return None
    latest_ms = max(cell.timestamp_ms, found.latest_ms)
    return cell._replace(timestamp_ms=latest_ms, value=ts_meta.counter_bytes(found.points))


class _StoreUidsFn(beam.DoFn):
    """(UID, when it was first seen, in s) in, nothing out."""

    def __init__(self, job: SyncJob) -> None:
        self._job = job
        self._held: dict[Pair, int] = {}

    def start_bundle(self) -> None:
        self._held = {}

    def process(self, element: tuple[Pair, int]) -> None:
        self._held[element[0]] = element[1]
        if len(self._held) == ROWS_AT_ONCE:
            self._store()

    def finish_bundle(self) -> None:
        self._store()

    def _store(self) -> None:
        job, trouble = self._job, Trouble()
        rows = uid_rows(job.layout.uid_table, self._held)
        there = read_rows(job.target, job.layout.uid_table, [row.key for row in rows])
        for uid, row in there.items():
            for cell in row.cells:
                kind = uid_meta.KINDS.get(cell.qualifier)
                if cell.family == uid_meta.FAMILY and kind is not None and (kind, uid) in self._held:
                    try:
                        uid_meta.UidMeta.from_bytes(kind, cell.value)
                    except ValueError as error:
                        trouble.tell("damaged", f"UID {uid.hex()} of kind {kind}: {error}")
        _create("uids_created", job, job.layout.uid_table, rows, there)
        self._held = {}


def _create(counter: str, job: SyncJob, table: str, rows: Sequence[Row], there: Mapping[bytes, Row]) -> None:
    """Creates cells, or counts them."""
    if job.dry_run:
        missing = (
            len(
                {(cell.family, cell.qualifier) for cell in row.cells}.difference(_columns(there.get(row.key)))
            )
            for row in rows
        )
        COUNTERS[counter].inc(sum(missing))
    else:
        COUNTERS[counter].inc(create_cells(job.target, table, rows, there))


def _columns(row: Row | None) -> set[tuple[str, bytes]]:
    return {(cell.family, cell.qualifier) for cell in row.cells} if row else set()
