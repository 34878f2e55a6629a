"""Series are assigned keys, points encoded as fragments, fragments grouped by row and packed into cells.

Fragments are grouped by Beam, within one bundle, or in files of one machine.
"""

from __future__ import annotations

import itertools
import os
import pickle
import struct
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import numpy as np
from apache_beam.options.pipeline_options import DirectOptions
from apache_beam.pvalue import PBegin, PCollection
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.utils import shared

from timebeam.schema.bits.lru_cache import batched
from timebeam.schema.core.batches import distinct
from timebeam.schema.core.contract import Store
from timebeam.schema.core.point_fragments import Encoded, Name, Packing, RowFragment, SeriesSpan, SlotPoints
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.rows import EncodedRow, Row
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.flow import metrics
from timebeam.transforms.flow.steps import BufferedDoFn, RejectedOutput, outputs, reject
from timebeam.transforms.ingest.row_mutations import encoded_rows, mutations
from timebeam.transforms.ingest.series_keys import KeyCache, SeriesKeys, UidOptions
from timebeam.transforms.opentsdb.assign_uids import UidTable
from timebeam.transforms.read.table_reader import read_rows

if TYPE_CHECKING:
    from timebeam.schema.stores import OpenTsdb


class SharedSeriesKeys(SeriesKeys):
    """The same for steps, which share one cache per process. It can be pickled until it is opened."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """See `SeriesKeys`."""
        super().__init__(*arguments, **named)
        self._shared = shared.Shared()

    def hold(self) -> KeyCache:
        """The cache of this process, which lives as long as it is referenced, between runs too."""
        cache: KeyCache = self._shared.acquire(self.new_cache)
        return cache

    def open(self, cache: KeyCache | None = None) -> None:
        """Opens the UID table and the cache of the process."""
        super().open(self.hold() if cache is None else cache)


_CHUNK = 10_000


class ReadUidSnapshot(beam.PTransform):  # type: ignore[type-arg]
    """Reads the UID table: a pipeline in, lists of (name, UID) out, as a side input of `AssignFn`."""

    def __init__(self, target: Target, layout: Store, options: UidOptions) -> None:
        super().__init__()
        self._target, self._layout, self._options = target, layout, options

    def expand(self, root: PBegin) -> PCollection[list[tuple[Name, bytes]]]:
        once = [] if self._layout.uids is None else [None]
        return (
            root
            | "Once" >> beam.Create(once, reshuffle=False)
            | "ReadUids"
            >> beam.FlatMap(_snapshot, self._target, self._layout, self._options).with_output_types(list)
        )


def _snapshot(
    _: None, target: Target, layout: Store, options: UidOptions
) -> Iterator[list[tuple[Name, bytes]]]:
    """Lists of (name, UID), at most `snapshot_size` pairs."""
    return batched(itertools.islice(UidTable(target, layout).snapshot(), options.snapshot_size), _CHUNK)


class AssignFn(beam.DoFn):
    """`PointBatch` in, side input `ReadUidSnapshot`; out with `keys`, points without a UID to `REJECTED`."""

    def __init__(self, keys: SharedSeriesKeys) -> None:
        self._keys = keys

    def hold(self) -> object:
        return self._keys.hold()

    def setup(self) -> None:
        """Opens the UID table and the cache of the process."""
        self._keys.open()

    def process(
        self, batch: PointBatch, snapshot: Iterable[list[tuple[Name, bytes]]]
    ) -> Iterator[PointBatch | RejectedOutput]:
        keyed, rejected = self._keys.assign(batch, snapshot)
        yield from map(reject, rejected)
        if len(keyed):
            yield keyed

    def finish_bundle(self) -> None:
        """Adds the new series to the counts of their metrics, if there are limits."""
        self._keys.merge_counts()


RowKey = tuple[str, bytes]

_PARTITIONS = 256
"""Number of parts of the rows of a run; a worker has one at a time in memory."""

_PLACE = struct.Struct(">QI")


class EncodeFn(beam.DoFn):
    """`PointBatch` with keys in; `Encoded` out, a fragment for each row; unstorable points to `REJECTED`."""

    def __init__(self, layout: Store) -> None:
        self._layout = layout

    def process(self, batch: PointBatch) -> Iterator[Encoded | RejectedOutput]:
        encoded = self._layout.encode(batch, batch.keys)
        for rejected in encoded.rejected:
            yield reject(rejected)
        metrics.count("points_duplicate", encoded.duplicates)
        rejected_points = sum(rejected.points for rejected in encoded.rejected)
        metrics.count("points_packed", len(batch) - encoded.duplicates - rejected_points)
        yield encoded


class GroupPerRow(beam.PTransform):  # type: ignore[type-arg]
    """Brings the fragments of each row together: `Encoded` in and out, in the cheapest way of the runner.

    - One bundle holds all: they are grouped in memory. To hand over each would take as long as to make it.
    - Several processes of one machine: all that a GroupByKey groups passes through the process of the runner,
      which copies each byte about fifteen times, and groups while the workers wait. So each worker writes
      fragments to a file in the temporary folder of the pipeline, divided into partitions by row key, and
      only the places of partitions are grouped. The worker that gets a partition groups its rows.
    - Else a GroupByKey.

    Args:
      one_bundle: whether all fragments are in one bundle, in this process.
    """

    def __init__(self, *, one_bundle: bool) -> None:
        super().__init__()
        self._one_bundle = one_bundle

    def expand(self, encoded: PCollection[Encoded]) -> PCollection[Encoded]:
        if self._one_bundle:
            return encoded | beam.ParDo(_GroupFn()).with_output_types(Encoded)
        root = encoded.pipeline
        direct = root.options.view_as(DirectOptions)
        if direct.direct_running_mode == "multi_processing" and isinstance(root.runner, FnApiRunner):
            return (
                encoded
                | "Spool" >> beam.ParDo(_SpoolFn(root.local_tempdir)).with_output_types(tuple[int, bytes])
                | beam.GroupByKey()
                | "Unspool" >> beam.ParDo(_UnspoolFn()).with_output_types(Encoded)
            )
        return (
            encoded
            | "Fragments" >> beam.FlatMap(by_row).with_output_types(tuple[RowKey, bytes])
            | beam.GroupByKey()
            | "Rows" >> beam.MapTuple(_row).with_output_types(Encoded)
        )


def by_row(encoded: Encoded) -> Iterator[tuple[RowKey, bytes]]:
    """((table, row key), packed) of each fragment."""
    for table, key, packed in encoded.fragments:
        yield (table, key), packed


def _row(row_key: RowKey, packed: Iterable[bytes]) -> Encoded:
    """All fragments of one row."""
    return Encoded([RowFragment(*row_key, fragment) for fragment in packed], (), 0)


class _GroupFn(BufferedDoFn[Encoded]):
    """`Encoded` in; one with the fragments of all out."""

    def handle(self, elements: list[Encoded]) -> list[Encoded]:
        fragments = [fragment for encoded in elements for fragment in encoded.fragments]
        return [Encoded(fragments, (), 0)] if fragments else []


class _SpoolFn(BufferedDoFn[Encoded]):
    """`Encoded` in; (partition, place of some of its fragments) out."""

    most_weight = 32 << 20
    """Bytes of fragments that are grouped in memory before they are written."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def setup(self) -> None:
        descriptor, self._path = tempfile.mkstemp(dir=self._folder)
        self._file = os.fdopen(descriptor, "wb")

    def weight(self, element: Encoded) -> int:
        return sum([len(fragment.packed) for fragment in element.fragments])

    def teardown(self) -> None:
        self._file.close()

    def handle(self, elements: list[Encoded]) -> list[tuple[int, bytes]]:
        """Writes the fragments; their places by partition."""
        partitions: dict[int, dict[RowKey, list[bytes]]] = {}
        for encoded in elements:
            for table, key, packed in encoded.fragments:
                rows = partitions.setdefault(zlib.crc32(key) % _PARTITIONS, {})
                rows.setdefault((table, key), []).append(packed)
        places, offset = [], self._file.tell()
        for partition, rows in partitions.items():
            size = self._file.write(pickle.dumps(rows, pickle.HIGHEST_PROTOCOL))
            places.append((partition, _PLACE.pack(offset, size) + os.fsencode(self._path)))
            offset += size
        self._file.flush()
        return places


class _UnspoolFn(beam.DoFn):
    """(partition, places) in; `Encoded` out, all rows of the partition."""

    def __init__(self) -> None:
        self._files: dict[bytes, int] = {}

    def process(self, group: tuple[int, Iterable[bytes]]) -> Iterator[Encoded]:
        fragments: list[RowFragment] = []
        for place in group[1]:
            path = place[_PLACE.size :]
            if path not in self._files:
                self._files[path] = os.open(path, os.O_RDONLY)
            offset, size = _PLACE.unpack_from(place)
            for row_key, packed in pickle.loads(os.pread(self._files[path], size, offset)).items():
                fragments += itertools.starmap(RowFragment, ((*row_key, fragment) for fragment in packed))
        yield Encoded(fragments, (), 0)

    def teardown(self) -> None:
        for file in self._files.values():
            os.close(file)
        self._files.clear()


_Group = tuple[RowKey, list[bytes]]
"""A row and its fragments."""


class PackFn(BufferedDoFn[_Group]):
    """`Encoded` in, with all fragments of its rows; `EncodedRow` out, rows over a limit to `REJECTED`.

    The cells of many rows are made together: with an object for each they take ten times as long.
    """

    most_weight = 1 << 20
    """Bytes of fragments: more would not fit the cache of a core."""

    def __init__(self, layout: Store, packing: Packing) -> None:
        self._layout, self._packing = layout, packing

    def weight(self, element: _Group) -> int:
        return sum(map(len, element[1]))

    def process(self, encoded: Encoded) -> Iterator[EncodedRow | RejectedOutput]:
        for group in encoded.by_row().items():
            yield from self.add(group)

    def handle(self, elements: list[_Group]) -> Iterator[EncodedRow | RejectedOutput]:
        """The mutations of rows."""
        tables: dict[str, list[tuple[bytes, list[bytes]]]] = {}
        for (table, key), fragments in elements:
            tables.setdefault(table, []).append((key, fragments))
        for table, rows in tables.items():
            keys = [key for key, _ in rows]
            yield from self.packed(table, keys, SlotPoints.of(fragments for _, fragments in rows))

    def packed(
        self, table: str, keys: Sequence[bytes], points: SlotPoints
    ) -> Iterator[EncodedRow | RejectedOutput]:
        """The mutations of rows of one table with these keys and points."""
        return outputs(encoded_rows(table, keys, self._layout.cells(keys, points, self._packing)))


class _Spans:
    """The first and last time of the points of each series, ms; one for series whose keys share a hash."""

    _SLOTS = 1 << 18

    def __init__(self) -> None:
        self.first = np.full(self._SLOTS, np.iinfo(np.int64).max)
        self.last = np.full(self._SLOTS, -1)

    def add(self, other: _Spans) -> None:
        """Adds all times of others."""
        np.minimum(self.first, other.first, out=self.first)
        np.maximum(self.last, other.last, out=self.last)

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


class PackInPartsFn(PackFn):
    """As `PackFn`, for a portion of the input, whose points win over those of earlier portions.

    Of columns with one timestamp no reader could tell which is newer. So of a row whose series has had points
    in earlier portions, not all of them before or after the row's, the existing cells are read, and the
    mutation removes the replaced points from those that this run has written. On input in the order of time
    nothing is read. A second run leaves the same cells, whatever a killed one has left.
    """

    _ROWS_AT_ONCE = 500

    def __init__(self, target: Target, layout: OpenTsdb, packing: Packing) -> None:
        super().__init__(layout, packing)
        self._target, self._replacing = target, layout.replacing(packing)
        self._shared = shared.Shared()
        self._earlier: _Earlier | None = None

    def hold(self) -> _Earlier:
        """The memory of this process, which lives as long as it is referenced, between portions too."""
        earlier: _Earlier = self._shared.acquire(_Earlier)
        return earlier

    def setup(self) -> None:
        """Opens the memory of the process."""
        self._earlier = self.hold()

    def start_bundle(self) -> None:
        """A new portion."""
        super().start_bundle()
        assert self._earlier is not None
        self._earlier.spans.add(self._earlier.new_spans)
        self._earlier.new_spans = _Spans()

    def packed(
        self, table: str, keys: Sequence[bytes], points: SlotPoints
    ) -> Iterator[EncodedRow | RejectedOutput]:
        assert self._earlier is not None
        assert self._replacing is not None
        spans = self._replacing.spans(keys, points)
        for span in spans:
            self._earlier.new_spans.note(span)
        self._earlier.arrivals_ms.update(distinct(points.arrivals_ms).tolist())
        is_suspect = np.array([self._earlier.spans.meets(span) for span in spans], np.bool_)
        for chosen, pack in ((~is_suspect, super().packed), (is_suspect, self._replaced)):
            if chosen.all():
                yield from pack(table, keys, points)
            elif chosen.any():
                yield from pack(table, list(itertools.compress(keys, chosen)), points.of_rows(chosen))

    def _replaced(
        self, table: str, keys: Sequence[bytes], points: SlotPoints
    ) -> Iterator[EncodedRow | RejectedOutput]:
        """Mutations of the rows of which earlier portions may have points."""
        assert self._earlier is not None
        assert self._replacing is not None
        cells = self._layout.cells(keys, points, self._packing)
        for numbered in batched(enumerate(keys), self._ROWS_AT_ONCE):
            existing = read_rows(self._target, table, [key for _, key in numbered])
            for number, key in numbered:
                row = Row(table, key, cells.cells(number))
                if key in existing:
                    stored = [
                        cell for cell in existing[key].cells if cell.timestamp_ms in self._earlier.arrivals_ms
                    ]
                    row = self._replacing.row(row, stored)
                yield from outputs(mutations((row,)))
