"""Keyed batches encoded as fragments by row, and the fragments of a row packed into cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.pvalue import TaggedOutput
from apache_beam.utils import shared

from timebeam.schema.common.cell_size import stored_bytes
from timebeam.schema.layouts import Cell, Deletion, Layout, Packing, Replacing, Row, SeriesSpan
from timebeam.transforms import metrics
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.dead_letters.rejected import RejectedOutput, over_limit, refuse, split_row, windowed
from timebeam.transforms.ingest.assign import KeyedBatch
from timebeam.transforms.readers.table_reader import read_rows

RowKey = tuple[str, bytes]


class EncodeFn(beam.DoFn):
    """`KeyedBatch` in; ((table, row key), packed fragment) out, unstorable points to `REJECTED`."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def process(self, keyed: KeyedBatch) -> Iterable[tuple[RowKey, bytes] | RejectedOutput]:
        """See the class."""
        encoded = self._layout.encode(keyed.batch, keyed.keys)
        for rejected in encoded.rejected:
            yield refuse(rejected)
        metrics.count("points_duplicate", encoded.duplicates)
        metrics.count("points_packed", len(keyed.batch) - encoded.duplicates - len(encoded.rejected))
        for table, key, packed in encoded.fragments:
            yield (table, key), packed


class EncodeTogetherFn(EncodeFn):
    """`KeyedBatch` in; ((table, row key), fragments) out, for each row the fragments of this batch.

    As `EncodeFn` and a GroupByKey, but for one batch and without a shuffle.
    """

    def process(self, keyed: KeyedBatch) -> Iterable[Any]:
        """See the class."""
        rows: dict[RowKey, list[bytes]] = {}
        for output in super().process(keyed):
            if isinstance(output, TaggedOutput):
                yield output
            else:
                row_key, packed = output
                rows.setdefault(row_key, []).append(packed)
        yield from rows.items()


class PackFn(beam.DoFn):
    """((table, row key), fragments) in; `Row` mutations out, rows over a limit to `REJECTED`."""

    def __init__(self, layout: Layout, packing: Packing) -> None:
        self._layout, self._packing = layout, packing

    def hold(self) -> object:
        """Nothing: no memory between runs."""
        return None

    def process(self, group: tuple[RowKey, Iterable[bytes]]) -> Iterable[Row | RejectedOutput]:
        """See the class."""
        (table, key), packed = group
        return mutations((self._layout.pack(table, key, packed, self._packing),))


class _Spans:
    """The first and last time of the points of each series, ms; one for series whose keys share a hash."""

    _SLOTS = 1 << 18

    def __init__(self) -> None:
        self.first = np.full(self._SLOTS, np.iinfo(np.int64).max)
        self.last = np.full(self._SLOTS, -1)

    def add(self, other: _Spans) -> None:
        """Adds all times of others, which are forgotten there."""
        np.minimum(self.first, other.first, out=self.first)
        np.maximum(self.last, other.last, out=self.last)
        other.__init__()  # type: ignore[misc]

    def meets(self, span: SeriesSpan) -> bool:
        """Whether there may be points of the series between its times."""
        slot = hash(span.series) % self._SLOTS
        return bool(span.first_ms <= self.last[slot] and span.last_ms >= self.first[slot])

    def note(self, span: SeriesSpan) -> None:
        """Adds the times of a series."""
        slot = hash(span.series) % self._SLOTS
        self.first[slot] = min(self.first[slot], span.first_ms)
        self.last[slot] = max(self.last[slot], span.last_ms)


class _Earlier:
    """What a process has packed: the spans before this portion and of this portion, and all arrivals."""

    def __init__(self) -> None:
        self.spans, self.new_spans = _Spans(), _Spans()
        self.arrivals_ms: set[int] = set()


class PackPortionFn(PackFn):
    """As `PackFn`, for a portion of the input, whose points win over those of earlier portions.

    Of columns with one timestamp no reader could tell which is newer. So of a row whose series has had points
    in earlier portions, not all of them before or after the row's, the existing cells are read, and the
    mutation removes the replaced points from those that this run has written. On input in the order of time
    nothing is read. A second run leaves the same cells, whatever a killed one has left.
    """

    _ROWS_AT_ONCE = 500

    def __init__(self, target: Target, layout: Replacing, packing: Packing) -> None:
        super().__init__(layout, packing)
        self._target, self._replacing = target, layout
        self._shared = shared.Shared()
        self._earlier: _Earlier | None = None
        self._suspects: list[Row] = []

    def hold(self) -> _Earlier:
        """The memory of this process, which lives as long as it is referenced, between portions too."""
        earlier: _Earlier = self._shared.acquire(_Earlier)
        return earlier

    def setup(self) -> None:
        """Opens the memory of the process."""
        self._earlier = self.hold()

    def start_bundle(self) -> None:
        """A new portion."""
        assert self._earlier is not None
        self._earlier.spans.add(self._earlier.new_spans)
        self._suspects = []

    def process(self, group: tuple[RowKey, Iterable[bytes]]) -> Iterable[Row | RejectedOutput]:
        """See the class."""
        assert self._earlier is not None
        (table, key), fragments = group
        packed = list(fragments)
        span = self._replacing.span(key, packed)
        self._earlier.new_spans.note(span)
        self._earlier.arrivals_ms.update(span.arrivals_ms)
        if not self._earlier.spans.meets(span):
            yield from super().process(((table, key), packed))
            return
        self._suspects.append(self._layout.pack(table, key, packed, self._packing))
        if len(self._suspects) >= self._ROWS_AT_ONCE:
            yield from self._replaced()

    def finish_bundle(self) -> Iterator[Any]:
        """The rest of the portion."""
        return windowed(self._replaced() if self._suspects else ())

    def _replaced(self) -> Iterable[Row | RejectedOutput]:
        """Mutations of the rows of which earlier portions may have points."""
        assert self._earlier is not None
        suspects, self._suspects = self._suspects, []
        existing = read_rows(self._target, suspects[0].table, [row.key for row in suspects])
        for row in suspects:
            if row.key in existing:
                cells = [
                    cell for cell in existing[row.key].cells if cell.timestamp_ms in self._earlier.arrivals_ms
                ]
                row = self._replacing.replacing(row, cells)
            yield from mutations((row,))


def merged_rows(rows: Iterable[Row]) -> list[Row]:
    """One row for each table and key; of cells with one column and timestamp, the last one."""
    by_key: dict[RowKey, list[Row]] = {}
    for row in rows:
        by_key.setdefault((row.table, row.key), []).append(row)
    return [group[0] if len(group) == 1 else _merged_row(group) for group in by_key.values()]


def _merged_row(rows: Sequence[Row]) -> Row:
    """One row of several with the same key."""
    cells = {cell[:3]: cell for row in rows for cell in row.cells}
    return rows[0]._replace(cells=list[Cell](cells.values()))


def overwriting(row: Row, existing: Iterable[Cell]) -> Row:
    """Replaces the row: sets its cells, deletes all others in `existing`."""
    new = {(cell.family, cell.qualifier): cell.timestamp_ms for cell in row.cells}
    stale = {
        (cell.family, cell.qualifier)
        for cell in existing
        if new.get((cell.family, cell.qualifier)) != cell.timestamp_ms
    }
    return row._replace(deleted=[Deletion(*column) for column in sorted(stale)])


def mutations(rows: Iterable[Row]) -> Iterable[Row | RejectedOutput]:
    """Mutations of rows within Bigtable's limits, counted as written; refusals of other rows."""
    count = cells = size = 0
    for row in rows:
        rejected = over_limit(row)
        if rejected is not None:
            yield refuse(rejected)
            continue
        count += 1
        cells += len(row.cells)
        size += sum([stored_bytes(row.key, cell) for cell in row.cells])
        yield from split_row(row)
    metrics.count("rows_written", count)
    metrics.count("cells_written", cells)
    metrics.count("bytes_written", size)
