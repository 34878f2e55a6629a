"""Copies the annotations and histograms in OpenTSDB's data table.

UIDs are translated, in row keys and in the JSON of annotations; the rest of a cell does not change. Other
layouts cannot store annotations and histograms: they are counted as left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import PBegin, PCollection

from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.annotations import parse_stored
from timebeam.schema.core.contract import Store
from timebeam.schema.core.points import Series, SeriesKey
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.core.selection import ColumnRange, Finding, Reader, Selection
from timebeam.schema.stores import find_opentsdb
from timebeam.schema.stores.opentsdb import keys, select
from timebeam.schema.stores.opentsdb.columns import annotation_cells
from timebeam.schema.stores.opentsdb.columns.decode_row import is_histogram
from timebeam.schema.stores.opentsdb.encode import FAMILY
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.dead_letters.letter import rejected_row
from timebeam.transforms.flow import metrics
from timebeam.transforms.ingest.encode_group_pack import SharedSeriesKeys
from timebeam.transforms.ingest.row_mutations import write_batch
from timebeam.transforms.ingest.series_keys import UidOptions
from timebeam.transforms.read.table_reader import TableReader

if TYPE_CHECKING:
    from timebeam.schema.stores import OpenTsdb

COLUMNS = ColumnRange(FAMILY, b"\x01", b"\x07")
"""A range of columns with all annotations and histograms, and some points."""

_ROWS_AT_ONCE = 500


class AttachedCells(NamedTuple):
    """The annotations and histograms of a row in a time range, and its corruption.

    Attributes:
      series: None for a row of global annotations.
      times_ms: the time of each cell.
    """

    row: Row
    series: Series | None
    base_s: int
    cells: Sequence[Cell]
    times_ms: Sequence[int]
    corruption: Sequence[str]


def read_attached(layout: OpenTsdb, reader: Reader, start_ms: int, end_ms: int) -> Iterator[AttachedCells]:
    """The rows with annotations or histograms in a time range, both ends inclusive."""
    options = layout.options
    selection = Selection(None, {}, start_ms, end_ms)
    for selected in select.select(layout, layout.data_table, selection, reader, COLUMNS):
        if isinstance(selected, Finding):
            continue  # reported by the reader of the points
        base_s = keys.parse_key(options, selected.row.key).base_s
        yield from _attached(layout, selected.row, selected.series, base_s, selection)
    for row in reader.scan(annotation_cells.global_scan(options, layout.data_table, start_ms, end_ms)):
        if annotation_cells.is_global(options, row.key):
            yield from _attached(layout, row, None, int.from_bytes(row.key[-4:], "big"), selection)


def _attached(
    layout: OpenTsdb, row: Row, series: Series | None, base_s: int, selection: Selection
) -> Iterator[AttachedCells]:
    """The annotations and histograms of a row in the range, if it has any."""
    cells, times_ms = [], []
    corruption = []
    notes = {
        annotation.cell: annotation for annotation in annotation_cells.read_annotations(layout.options, row)
    }
    for cell in row.cells:
        if cell not in notes and not is_histogram(cell.qualifier):
            continue
        time_ms = (
            notes[cell].start_ms
            if cell in notes
            else base_s * 1000 + annotation_cells.offset_ms(cell.qualifier)
        )
        if not selection.start_ms <= time_ms <= selection.end_ms:
            continue
        if cell in notes and notes[cell].note is None:
            corruption.append(notes[cell].corruption)
            continue
        cells.append(cell)
        times_ms.append(time_ms)
    if cells or corruption:
        yield AttachedCells(row, series, base_s, cells, times_ms, corruption)


@dataclasses.dataclass(frozen=True, slots=True)
class ComparedAttached:
    """Result of a comparison: annotations and histograms in both layouts, and missing in the second one."""

    annotations: int
    histograms: int
    missing: int


def compare_attached(
    target: Target, first: OpenTsdb, second: Store, start_ms: int, end_ms: int
) -> ComparedAttached:
    """Whether all annotations and histograms of a layout are in another one, with equal or newer values."""
    annotated = find_opentsdb(second)
    source = _attached_values(target, first, start_ms, end_ms)
    sink = _attached_values(target, annotated, start_ms, end_ms) if annotated else {}
    copied = [
        qualifier
        for (series, base_s, qualifier), (arrival_ms, value) in source.items()
        if (other := sink.get((series, base_s, qualifier))) and (other[1] == value or other[0] > arrival_ms)
    ]
    notes = sum(map(annotation_cells.is_annotation, copied))
    return ComparedAttached(notes, len(copied) - notes, len(source) - len(copied))


def _attached_values(
    target: Target, layout: OpenTsdb, start_ms: int, end_ms: int
) -> dict[tuple[Series | None, int, bytes], tuple[int, bytes]]:
    """(cell timestamp in ms, value without TSUID) by series, base time in s, and qualifier."""
    return {
        (attached.series, attached.base_s, cell.qualifier): (cell.timestamp_ms, _without_tsuid(cell))
        for attached in read_attached(layout, TableReader(target), start_ms, end_ms)
        for cell in attached.cells
    }


def _without_tsuid(cell: Cell) -> bytes:
    """The value of an annotation or histogram, which is the same in all tables."""
    if not annotation_cells.is_annotation(cell.qualifier):
        return cell.value
    return dataclasses.replace(parse_stored(cell.value), tsuid="").stored()


@dataclasses.dataclass(frozen=True, slots=True)
class CarryJob:
    """What is carried where.

    Attributes:
      start_ms, end_ms: first and last time, in ms, both inclusive.
      dry_run: read and count, and write nothing.
    """

    target: Target
    source: OpenTsdb
    sink: Store
    uids: UidOptions
    start_ms: int
    end_ms: int
    dry_run: bool


class CarryAttached(beam.PTransform):  # type: ignore[type-arg]
    """Copies annotations and histograms of a time range: a pipeline in, `Rejected` rows out."""

    def __init__(self, job: CarryJob) -> None:
        super().__init__()
        self._job = job

    def expand(self, root: PBegin) -> PCollection[Rejected]:
        once = root | "Once" >> beam.Create([None], reshuffle=False)
        return once | "Carry" >> beam.ParDo(_CarryFn(self._job))


class _CarryFn(beam.DoFn):
    """Anything in; rejected rows out, after all others are copied."""

    def __init__(self, job: CarryJob) -> None:
        self._job = job
        self._keys = SharedSeriesKeys(job.target, job.sink, job.uids, dry_run=job.dry_run)

    def setup(self) -> None:
        self._keys.open()

    def process(self, _: None) -> Iterator[Rejected]:
        job, batch = self._job, list[AttachedCells]()
        for attached in read_attached(job.source, TableReader(job.target), job.start_ms, job.end_ms):
            for text in attached.corruption:
                metrics.count("points_read")
                yield rejected_row(attached.row._replace(cells=()), Reason.CORRUPT_FILE, text, Stage.READ)
            batch.append(attached)
            if len(batch) == _ROWS_AT_ONCE:
                yield from self._carry(batch)
                batch = []
        if batch:
            yield from self._carry(batch)

    def _carry(self, batch: Sequence[AttachedCells]) -> Iterator[Rejected]:
        """Writes rows to the other layout; the rejected ones."""
        sink = find_opentsdb(self._job.sink)
        if sink is None:
            metrics.count_annotations("others_left_out", sum(len(attached.cells) for attached in batch))
            return
        named = [attached.series for attached in batch if attached.series is not None]
        keys = iter(self._keys.series_keys(named) if named else ())
        rows = []
        for attached in batch:
            key = next(keys) if attached.series is not None else None
            if isinstance(key, RejectedError):
                metrics.count("points_read")
                yield rejected_row(
                    attached.row._replace(cells=attached.cells), key.reason, key.message, Stage.ASSIGN
                )
            elif attached.cells:
                rows.append(_translated(sink, attached, key))
        metrics.count_annotations("others_carried", sum(len(row.cells) for row in rows))
        if rows and not self._job.dry_run:
            yield from write_batch(self._job.target, sink.data_table, rows)


def _translated(sink: OpenTsdb, attached: AttachedCells, key: SeriesKey | None) -> Row:
    """A row with the UIDs of the other layout.

    Args:
      key: of the series in that layout; None for a row of global annotations.
    """
    options = sink.options
    tsuid = b"" if key is None else key.head[options.salt_width :] + key.tail
    place = annotation_cells.place(options, tsuid, attached.base_s or 1)
    cells = []
    for cell, time_ms in zip(attached.cells, attached.times_ms, strict=True):
        value = cell.value
        if annotation_cells.is_annotation(cell.qualifier):
            note = parse_stored(cell.value)
            value = dataclasses.replace(note, tsuid=tsuid.hex().upper()).stored()
        timestamp_ms = time_ms if options.is_event_time else cell.timestamp_ms
        cells.append(cell._replace(value=value, timestamp_ms=timestamp_ms))
    return Row(sink.data_table, place.key, cells)
