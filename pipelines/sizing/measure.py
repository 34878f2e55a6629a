"""Encodes and packs a sample of a load of points as a pipeline does, and counts the result.

Names and values of the sample follow a fixed rule without randomness, so the figures are always the same.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from timebeam.schema.bits.arrays import Int64s, Kind
from timebeam.schema.bits.reasons import RejectedError
from timebeam.schema.core.contract import Store, pack_row
from timebeam.schema.core.point_fragments import Name, Packing
from timebeam.schema.core.points import PointBatch, Series, SeriesKey
from timebeam.schema.core.rows import Row, stored_bytes
from timebeam.schema.core.selection import SeriesIndex

START_MS = 1_767_225_600_000
"""2026-01-01T00:00:00Z: rows of the sample begin there or later."""


class Values(enum.StrEnum):
    """The kind of values of a load."""

    INTEGERS = "integers"
    """Counters below 2^31."""
    DECIMALS = "decimals"
    """Gauges with two decimal places."""
    MIXED = "mixed"
    """Alternating series of both kinds."""


@dataclasses.dataclass(frozen=True, slots=True)
class SizingLoad:
    """The load to store.

    Attributes:
      series: their number.
      interval_ms: from one point of a series to its next.
      retention_s: how long points are kept.
      metrics: number of metrics; series are spread evenly over them.
      tags: number of tags of each series.
      tag_values: number of distinct values of all tag keys together.
      name_length: characters of metrics, tag keys and tag values.
      together: points of a series in one message.
      flush_s: how long a stream gathers points before it packs them.
    """

    series: int
    interval_ms: int
    retention_s: float
    metrics: int
    tags: int
    tag_values: int
    name_length: int
    values: Values
    together: int
    flush_s: float

    def __post_init__(self) -> None:
        if self.metrics > self.series:
            raise ValueError(f"{self.metrics:,} metrics are more than {self.series:,} series")
        if self.name_length < len(str(max(self.metrics, self.tag_values))) + 1:
            raise ValueError(
                f"names of {self.name_length} characters are too short for {self.tag_values:,} values"
            )

    @property
    def points_per_second(self) -> float:
        """Points per second of all series."""
        return self.series * 1000 / self.interval_ms

    @property
    def series_per_metric(self) -> int:
        """The number of series of the largest metric."""
        return math.ceil(self.series / self.metrics)

    @property
    def names(self) -> dict[str, int]:
        """The number of distinct names by kind, as counted by OpenTSDB's UID table."""
        return {"metrics": self.metrics, "tagk": self.tags, "tagv": self.tag_values}

    def sample_series(self, number: int) -> Series:
        """The series with a number; numbers within a metric are `metrics` apart."""
        shared_tags = self.tags - 1  # which have one value each; the first tag tells the series apart
        of_first = (number // self.metrics) % max(1, self.tag_values - shared_tags)
        values = [shared_tags + of_first, *range(shared_tags)]
        tags = {self._name("k", place): self._name("v", value) for place, value in enumerate(values)}
        return Series.of(self._name("m", number % self.metrics), tags)

    def points(self, numbers: range, count: int, start_ms: int, together: int) -> PointBatch:
        """`count` points of each series from `start_ms` on; a series' points arrive `together` at a time."""
        indexes = np.arange(count, dtype=np.int64)
        times_ms = start_ms + indexes * self.interval_ms
        n = len(numbers)
        kinds = np.empty((n, count), np.uint8)
        bits = np.empty((n, count), np.int64)
        for row, number in enumerate(numbers):
            kinds[row], bits[row] = self._values(number, indexes)
        arrivals_ms = start_ms + (indexes // together) * together * self.interval_ms
        return PointBatch(
            tuple(self.sample_series(number) for number in numbers),
            np.repeat(np.arange(n, dtype=np.int32), count),
            np.tile(times_ms, n),
            np.full(n * count, bool(self.interval_ms % 1000)),
            kinds.ravel(),
            bits.ravel(),
            np.tile(arrivals_ms, n),
        )

    def _name(self, first: str, number: int) -> str:
        return first + str(number).zfill(self.name_length - 1)

    def _values(self, number: int, indexes: Int64s) -> tuple[Kind, Int64s]:
        """The kind of a series' values, and their bits int64[n]."""
        walk = (indexes * 7919 + number * 104_729) % 9973
        if self.values is Values.INTEGERS or (self.values is Values.MIXED and number % 2 == 0):
            return Kind.INTEGER, walk + indexes * 1000
        return Kind.FLOAT, (walk / 100).view(np.int64)


class Uids:
    """Assigns consecutive UIDs to the names of a sample."""

    def __init__(self, layout: Store) -> None:
        self._widths = layout.uids.widths if layout.uids else {}
        self._uids: dict[Name, bytes] = {}
        self._last = dict.fromkeys(self._widths, 0)

    def assign(self, layout: Store, series: Series) -> dict[Name, bytes]:
        """The UID of each name of a series."""
        uids = {}
        for name in layout.uids.names(series) if layout.uids else ():
            if name not in self._uids:
                self._last[name.kind] += 1
                # Names beyond the last id do not change the size of keys; the plan warns about them.
                number = self._last[name.kind] % (1 << 8 * self._widths[name.kind])
                self._uids[name] = number.to_bytes(self._widths[name.kind], "big")
            uids[name] = self._uids[name]
        return uids


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
        """Whether points are shuffled to meet in their row; see `timebeam.pipelines.ingest.ingest_jobs`."""
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


def cases(layout: Store) -> Iterator[Case]:
    """The packings of a layout, from a stream and from files; without appends from files."""
    for packing in layout.writing.packings:
        yield Case(packing, stream=True)
        if packing is not Packing.APPEND:
            yield Case(packing, stream=False)


def measure(layout: Store, load: SizingLoad, case: Case) -> Measured:
    """Encodes the sample.

    Raises:
      RejectedError: the layout cannot hold the sample's series or points.
    """
    start_ms, span_ms = row_span(layout, load)
    per_row = max(1, span_ms // load.interval_ms)
    count = min(per_row, _SAMPLE_POINTS)
    numbers = range(min(load.series, _SAMPLE_SERIES, max(1, _SAMPLE_POINTS // count)))
    # Files hold whole rows, so that their points have one arrival.
    batch = load.points(numbers, count, start_ms, load.together if case.stream else count)
    uids = Uids(layout)
    encoded = layout.encode(batch, [_key(layout, uids, series) for series in batch.series])
    if encoded.rejected:
        raise RejectedError(encoded.rejected[0].reason, encoded.rejected[0].message)
    payloads: dict[tuple[str, bytes], list[bytes]] = {}
    shuffled = 0
    for table, key, packed in encoded.fragments:
        payloads.setdefault((table, key), []).append(packed)
        shuffled += len(table) + len(key) + len(packed)
    rows = [pack_row(layout, table, key, packed, case.packing) for (table, key), packed in payloads.items()]
    cells = [(row.key, cell) for row in rows for cell in row.cells]
    index = layout.index
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


@functools.lru_cache(maxsize=1)  # of all cases of a plan
def row_span(layout: Store, load: SizingLoad) -> tuple[int, int]:
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


def _key(layout: Store, uids: Uids, series: Series) -> SeriesKey:
    rejected = layout.reject(series)
    if rejected is not None:
        raise rejected
    return layout.series_key(series, uids.assign(layout, series))


def _index_bytes(index: SeriesIndex, batch: PointBatch, span_ms: int) -> tuple[float, float]:
    """Bytes of index tables per series: (for the first row, for each further row)."""
    seen: set[tuple[str, bytes, str, bytes]] = set()
    sizes = []
    for shift_ms in (0, span_ms):
        size = 0
        moved = dataclasses.replace(batch, times_ms=batch.times_ms + shift_ms)
        for number, base_ms in index.entries(moved):
            size += _new_bytes(index.rows(moved.series[number], base_ms), seen)
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


@functools.lru_cache(maxsize=1)
def _busiest_head(layout: Store, load: SizingLoad) -> float:
    """See `Measured.busiest_head`."""
    uids = Uids(layout)
    count = min(_HEADS, load.series_per_metric)
    heads = collections.Counter(
        _key(layout, uids, load.sample_series(number * load.metrics)).head for number in range(count)
    )
    return max(heads.values()) / math.fsum(heads.values())
