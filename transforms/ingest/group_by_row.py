"""Groups the fragments of each row: by Beam, within one bundle, or in files of one machine."""

from __future__ import annotations

import itertools
import os
import pickle
import struct
import tempfile
import zlib
from collections.abc import Iterable, Iterator

import apache_beam as beam
from apache_beam.options.pipeline_options import DirectOptions
from apache_beam.pvalue import PCollection
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from timebeam.schema.core.point_fragments import Encoded, RowFragment
from timebeam.transforms.flow.buffered import BufferedDoFn

RowKey = tuple[str, bytes]

_PARTITIONS = 256
"""Number of parts of the rows of a run; a worker has one at a time in memory."""

_PLACE = struct.Struct(">QI")


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
