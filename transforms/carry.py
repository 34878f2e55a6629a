"""What OpenTSDB's data table holds beside points, carried by a copy: annotations and histograms.

UIDs are translated, in row keys and in the JSON of annotations; all else of a cell stays as it is. Other
layouts have no place for them: what is left out is counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import apache_beam as beam
from apache_beam.pvalue import PBegin, PCollection

from schema.annotations.record import parse_stored
from schema.layouts import Cell, Finding, Layout, Reader, Row, Selection, SeriesKey
from schema.layouts.base import ColumnRange
from schema.layouts.opentsdb import annotation_cells, keys, select
from schema.layouts.opentsdb.layout import OpenTsdb
from schema.layouts.opentsdb.pieces import FAMILY
from schema.layouts.opentsdb.rows import is_histogram
from schema.points import Reason, RefusedError, Rejected, Series, Stage
from transforms import metrics
from transforms.bigtable.limits import refused_row
from transforms.bigtable.reader import TableReader
from transforms.bigtable.target import Target
from transforms.series_keys import SeriesKeys, UidOptions
from transforms.write import write_batch

COLUMNS = ColumnRange(FAMILY, b"\x01", b"\x07")
"""From the annotations to the histograms, with some points between them."""

_ROWS_AT_ONCE = 500


class Others(NamedTuple):
    """What a row holds beside points: cells whose times lie in the range, and what cannot be read.

    Attributes:
      series: None for a row of global annotations.
      times_ms: of each of the cells.
    """

    row: Row
    series: Series | None
    base_s: int
    cells: Sequence[Cell]
    times_ms: Sequence[int]
    damage: Sequence[str]


def read_others(layout: OpenTsdb, reader: Reader, start_ms: int, end_ms: int) -> Iterator[Others]:
    """The annotations and histograms of a time range, both ends inclusive; rows that have any."""
    options = layout.options
    wanted = Selection(None, {}, start_ms, end_ms)
    for one in select.select(options, layout.data_table, layout.uid_table, wanted, reader, COLUMNS):
        if isinstance(one, Finding):
            continue  # told by those who read the points
        base_s = keys.parse_key(options, one.row.key).base_s
        yield from _others(layout, one.row, one.series, base_s, wanted)
    for row in reader.scan(annotation_cells.global_scan(options, layout.data_table, start_ms, end_ms)):
        if annotation_cells.is_global(options, row.key):
            yield from _others(layout, row, None, int.from_bytes(row.key[-4:], "big"), wanted)


def _others(
    layout: OpenTsdb, row: Row, series: Series | None, base_s: int, wanted: Selection
) -> Iterator[Others]:
    """What a row holds, if it holds anything that is wanted."""
    found, times_ms = [], []
    damage = []
    notes = {one.cell: one for one in annotation_cells.read_annotations(layout.options, row)}
    for cell in row.cells:
        if cell not in notes and not is_histogram(cell.qualifier):
            continue
        time_ms = base_s * 1000 + annotation_cells.offset_ms(cell.qualifier)
        if not wanted.start_ms <= time_ms <= wanted.end_ms:
            continue
        if cell in notes and notes[cell].note is None:
            damage.append(notes[cell].damage)
            continue
        found.append(cell)
        times_ms.append(time_ms)
    if found or damage:
        yield Others(row, series, base_s, found, times_ms, damage)


@dataclasses.dataclass(frozen=True, slots=True)
class ComparedOthers:
    """What a comparison found: how many annotations and histograms are in both, or in the first one only."""

    annotations: int
    histograms: int
    missing: int


def compare_others(
    target: Target, first: OpenTsdb, second: Layout, start_ms: int, end_ms: int
) -> ComparedOthers:
    """Whether all annotations and histograms of a layout are in another one, by series, time and kind."""
    wanted = _names(target, first, start_ms, end_ms)
    found = _names(target, second, start_ms, end_ms) if isinstance(second, OpenTsdb) else set()
    both = wanted & found
    notes = sum(annotation_cells.is_annotation(qualifier) for _, _, qualifier in both)
    return ComparedOthers(notes, len(both) - notes, len(wanted) - len(both))


def _names(
    target: Target, layout: OpenTsdb, start_ms: int, end_ms: int
) -> set[tuple[Series | None, int, bytes]]:
    return {
        (one.series, one.base_s, cell.qualifier)
        for one in read_others(layout, TableReader(target), start_ms, end_ms)
        for cell in one.cells
    }


class CarryOthers(beam.PTransform):  # type: ignore[type-arg]
    """Copies the annotations and histograms of a time range; returns the PCollection of `Rejected` rows.

    Args:
      start_ms, end_ms: first and last time, in ms, both inclusive.
      dry_run: read and count, and write nothing.
    """

    def __init__(
        self,
        target: Target,
        source: OpenTsdb,
        sink: Layout,
        uids: UidOptions,
        period: tuple[int, int],
        *,
        dry_run: bool,
    ) -> None:
        super().__init__()
        self._fn = _CarryFn(target, source, sink, uids, period, dry_run=dry_run)

    def expand(self, root: PBegin) -> PCollection[Rejected]:
        """See the class."""
        once = root | "Once" >> beam.Create([None], reshuffle=False)
        return once | "Carry" >> beam.ParDo(self._fn)


class _CarryFn(beam.DoFn):
    def __init__(
        self,
        target: Target,
        source: OpenTsdb,
        sink: Layout,
        uids: UidOptions,
        period: tuple[int, int],
        *,
        dry_run: bool,
    ) -> None:
        self._target, self._source, self._sink, self._period = target, source, sink, period
        self._keys = SeriesKeys(target, sink, uids, dry_run=dry_run)
        self._dry_run = dry_run

    def setup(self) -> None:
        self._keys.open()

    def process(self, _: None) -> Iterator[Rejected]:
        held: list[Others] = []
        for one in read_others(self._source, TableReader(self._target), *self._period):
            for text in one.damage:
                yield refused_row(one.row._replace(cells=()), Reason.CORRUPT_FILE, text, Stage.READ)
            held.append(one)
            if len(held) == _ROWS_AT_ONCE:
                yield from self._carry(held)
                held = []
        if held:
            yield from self._carry(held)

    def _carry(self, held: Sequence[Others]) -> Iterator[Rejected]:
        """Writes some rows; those that are refused."""
        sink = self._sink
        if not isinstance(sink, OpenTsdb):
            metrics.count_annotations("others_left_out", sum(len(one.cells) for one in held))
            return
        named = [one.series for one in held if one.series is not None]
        found = iter(self._keys.of(named) if named else ())
        rows = []
        for one in held:
            key = next(found) if one.series is not None else None
            if isinstance(key, RefusedError):
                yield refused_row(one.row._replace(cells=one.cells), key.reason, key.message, Stage.ASSIGN)
            elif one.cells:
                rows.append(_translated(sink, one, key))
        metrics.count_annotations("others_carried", sum(len(row.cells) for row in rows))
        if rows and not self._dry_run:
            yield from write_batch(self._target, sink.data_table, rows)


def _translated(sink: OpenTsdb, one: Others, key: SeriesKey | None) -> Row:
    """A row in the UIDs of the other tables.

    Args:
      key: of the series there; None for a row of global annotations.
    """
    options = sink.options
    tsuid = b"" if key is None else key.head[options.salt_width :] + key.tail
    place = annotation_cells.place(options, tsuid, one.base_s or 1)
    cells = []
    for cell, time_ms in zip(one.cells, one.times_ms, strict=True):
        value = cell.value
        if annotation_cells.is_annotation(cell.qualifier):
            note = parse_stored(cell.value)
            value = dataclasses.replace(note, tsuid=tsuid.hex().upper()).stored()
        timestamp_ms = time_ms if options.is_event_time else cell.timestamp_ms
        cells.append(cell._replace(value=value, timestamp_ms=timestamp_ms))
    return Row(sink.data_table, place.key, cells)
