"""Encodes and packs a sample of a load as a pipeline does, and counts the result."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterator, Sequence

from timebeam.schema.common.cell_size import stored_bytes
from timebeam.schema.layouts import SeriesIndex, find_capability
from timebeam.schema.layouts.base import Layout
from timebeam.schema.layouts.tables import Row
from timebeam.schema.layouts.writing import Packing, SeriesKey
from timebeam.schema.points import PointBatch, RefusedError, Series
from timebeam.schema.sizing.load import START_MS, SizingLoad, Uids

_SAMPLE_SERIES = 20
_SAMPLE_POINTS = 50_000
_HEADS = 2000
_LONGEST_SPAN_MS = 1 << 36  # two years


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A packing, and how its points arrive.

    Attributes:
      stream: whether they come in messages; else in files that hold whole rows.
    """

    packing: Packing
    stream: bool

    @property
    def grouped(self) -> bool:
        """Whether points are shuffled to meet in their row; see `timebeam.pipelines.ingest.points`."""
        return not (self.stream and self.packing is Packing.POINTS)


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """The result of encoding the load in one case.

    Attributes:
      row_span_ms: the time that one row holds.
      points_per_row: at least 1.
      cells_per_point, bytes_per_point: in data tables; bytes before compression, with a row key in each cell.
      content_per_point: `bytes_per_point` without row keys.
      shuffled_per_point: bytes of fragments that are grouped by row.
      key_bytes, qualifier_bytes: of the longest key and qualifier.
      index_bytes: of the index tables, for the first row of each series.
      index_bytes_per_span: what each further row of a series adds.
      busiest_head: the largest share of a metric's series whose keys are equal up to the time, so that their
        writes of one moment go to one range of keys.
    """

    row_span_ms: int
    points_per_row: int
    cells_per_point: float
    bytes_per_point: float
    content_per_point: float
    shuffled_per_point: float
    key_bytes: int
    qualifier_bytes: int
    index_bytes: float
    index_bytes_per_span: float
    busiest_head: float

    @property
    def row_bytes(self) -> float:
        """Bytes of a complete row."""
        return self.key_bytes + self.content_per_point * self.points_per_row

    @property
    def row_cells(self) -> float:
        """Cells of a complete row."""
        return self.cells_per_point * self.points_per_row


def cases(layout: Layout) -> Iterator[Case]:
    """The packings of a layout, from a stream and from files; without appends from files."""
    for packing in layout.packings:
        yield Case(packing, stream=True)
        if packing is not Packing.APPEND:
            yield Case(packing, stream=False)


def measure(layout: Layout, load: SizingLoad, case: Case) -> Measured:
    """Encodes the sample.

    Raises:
      RefusedError: the layout cannot hold the sample's series or points.
    """
    start_ms, span_ms = row_span(layout, load)
    per_row = max(1, span_ms // load.interval_ms)
    count = min(per_row, _SAMPLE_POINTS)
    numbers = range(min(load.series, _SAMPLE_SERIES, max(1, _SAMPLE_POINTS // count)))
    # Files hold whole rows, so that their points have one arrival.
    batch = load.points(numbers, count, start_ms, load.together if case.stream else count)
    uids = Uids(layout)
    encoded = layout.encode(batch, [_key(layout, uids, series) for series in batch.series], case.packing)
    if encoded.rejected:
        raise RefusedError(encoded.rejected[0].reason, encoded.rejected[0].message)
    payloads: dict[tuple[str, bytes], list[bytes]] = {}
    shuffled = 0
    for table, key, packed in encoded.fragments:
        payloads.setdefault((table, key), []).append(packed)
        shuffled += len(table) + len(key) + len(packed)
    rows = [layout.pack(table, key, packed, case.packing) for (table, key), packed in payloads.items()]
    cells = [(row.key, cell) for row in rows for cell in row.cells]
    index = find_capability(layout, SeriesIndex)
    first, further = _index_bytes(index, batch, span_ms) if index else (0.0, 0.0)
    return Measured(
        span_ms,
        per_row,
        len(cells) / len(batch),
        sum(stored_bytes(key, cell) for key, cell in cells) / len(batch),
        sum(stored_bytes(b"", cell) for _, cell in cells) / len(batch),
        shuffled / len(batch) if case.grouped else 0.0,
        max(len(row.key) for row in rows),
        max(len(cell.qualifier) for _, cell in cells),
        first,
        further,
        _busiest_head(layout, load),
    )


def row_span(layout: Layout, load: SizingLoad) -> tuple[int, int]:
    """(start, length) in ms of the time that a row holds, from the times at which keys change.

    The row is the second one that begins after `START_MS`.
    """
    key = _key(layout, Uids(layout), load.sample_series(0))

    def row_at(time_ms: int) -> bytes:
        batch = load.points(range(1), 1, time_ms, 1)
        return next(iter(layout.encode(batch, [key]).fragments)).key

    def next_row(time_ms: int) -> int:
        """The first later time that is in another row."""
        row, low, step = row_at(time_ms), time_ms, 1000
        while row_at(low + step) == row:
            low, step = low + step, step * 2
            if step > _LONGEST_SPAN_MS:
                raise ValueError(f"layout {layout.name}: rows without an end")
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if row_at(middle) == row else (low, middle)
        return high

    start_ms = next_row(START_MS)
    return start_ms, next_row(start_ms) - start_ms


def _key(layout: Layout, uids: Uids, series: Series) -> SeriesKey:
    refused = layout.refuse(series)
    if refused is not None:
        raise refused
    return layout.series_key(series, uids.assign(layout, series))


def _index_bytes(layout: SeriesIndex, batch: PointBatch, span_ms: int) -> tuple[float, float]:
    """Bytes of index tables per series: (for the first row, for each further row)."""
    seen: set[tuple[str, bytes, str, bytes]] = set()
    sizes = []
    for shift_ms in (0, span_ms):
        size = 0
        moved = dataclasses.replace(batch, times_ms=batch.times_ms + shift_ms)
        for number, base_ms in layout.index_entries(moved):
            size += _new_bytes(layout.index(moved.series[number], base_ms), seen)
        sizes.append(size / len(batch.series))
    return sizes[0], sizes[1]


def _new_bytes(rows: Sequence[Row], seen: set[tuple[str, bytes, str, bytes]]) -> int:
    """Bytes of the cells that are not in `seen`, which are added to it."""
    size = 0
    for row in rows:
        for cell in row.cells:
            place = (row.table, row.key, cell.family, cell.qualifier)
            if place not in seen:
                seen.add(place)
                size += stored_bytes(row.key, cell)
    return size


def _busiest_head(layout: Layout, load: SizingLoad) -> float:
    """See `Measured.busiest_head`."""
    uids = Uids(layout)
    count = min(_HEADS, load.series_per_metric)
    heads = collections.Counter(
        _key(layout, uids, load.sample_series(number * load.metrics)).head for number in range(count)
    )
    return max(heads.values()) / math.fsum(heads.values())
