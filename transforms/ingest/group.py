"""Groups the fragments of each row: by Beam, within one bundle, or in files of one machine."""

from __future__ import annotations

import os
import pickle
import struct
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import DirectOptions
from apache_beam.pvalue import PCollection
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from timebeam.schema.core.writing import Encoded
from timebeam.transforms.flow.buffered import windowed

RowKey = tuple[str, bytes]

_SPOOL_BYTES = 32 << 20
"""Bytes of fragments that are grouped in memory before they are written."""

_PARTITIONS = 256
"""Number of parts of the rows of a run; a worker has one at a time in memory."""

_PLACE = struct.Struct(">QI")


def grouping(root: beam.Pipeline, *, one_bundle: bool) -> beam.PTransform[Any, Any]:
    """Groups fragments by row, in the cheapest way that the runner allows.

    The input is ((table, row key), fragment) for a GroupByKey, and `Encoded` for the others.

    Args:
      one_bundle: whether all fragments are in one bundle, in this process.
    """
    if one_bundle:
        return GroupInBundle()
    direct = root.options.view_as(DirectOptions)
    is_one_machine = direct.direct_running_mode == "multi_processing" and isinstance(root.runner, FnApiRunner)
    return GroupOnDisk() if is_one_machine else beam.GroupByKey()


class GroupInBundle(beam.PTransform):  # type: ignore[type-arg]
    """As a GroupByKey of the fragments of `Encoded`, for a run that has one bundle: nothing is shuffled.

    To hand over each fragment would take as long as to make it.
    """

    def expand(self, encoded: PCollection[Encoded]) -> PCollection[tuple[RowKey, list[bytes]]]:
        return encoded | beam.ParDo(_GroupFn()).with_output_types(tuple[RowKey, list[bytes]])


class _GroupFn(beam.DoFn):
    def __init__(self) -> None:
        self._groups: dict[RowKey, list[bytes]] = {}

    def start_bundle(self) -> None:
        self._groups = {}

    def process(self, encoded: Encoded) -> None:
        for table, key, packed in encoded.fragments:
            self._groups.setdefault((table, key), []).append(packed)

    def finish_bundle(self) -> Iterator[Any]:
        groups, self._groups = self._groups, {}
        return windowed(groups.items())


class GroupOnDisk(beam.PTransform):  # type: ignore[type-arg]
    """As a GroupByKey of the fragments of `Encoded`, for several processes of one machine.

    All that a GroupByKey groups passes through the process of the runner, which copies each byte about
    fifteen times, and groups while the workers wait. So each worker writes fragments to a file in the
    temporary folder of the pipeline, divided into partitions by row key, and only the places of partitions
    are grouped. The worker that gets a partition groups its rows.
    """

    def expand(self, encoded: PCollection[Encoded]) -> PCollection[tuple[RowKey, list[bytes]]]:
        folder = encoded.pipeline.local_tempdir
        return (
            encoded
            | "Spool" >> beam.ParDo(_SpoolFn(folder)).with_output_types(tuple[int, bytes])
            | beam.GroupByKey()
            | "Unspool" >> beam.ParDo(_UnspoolFn()).with_output_types(tuple[RowKey, list[bytes]])
        )


class _SpoolFn(beam.DoFn):
    """`Encoded` in; (partition, place of some of its fragments) out."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._groups: dict[RowKey, list[bytes]] = {}
        self._bytes = 0

    def setup(self) -> None:
        descriptor, self._path = tempfile.mkstemp(dir=self._folder)
        self._file = os.fdopen(descriptor, "wb")

    def start_bundle(self) -> None:
        self._groups, self._bytes = {}, 0

    def process(self, encoded: Encoded) -> Iterable[tuple[int, bytes]]:
        for table, key, packed in encoded.fragments:
            self._groups.setdefault((table, key), []).append(packed)
            self._bytes += len(packed)
        return self._spooled() if self._bytes >= _SPOOL_BYTES else ()

    def finish_bundle(self) -> Iterator[Any]:
        return windowed(self._spooled())

    def teardown(self) -> None:
        self._file.close()

    def _spooled(self) -> list[tuple[int, bytes]]:
        """Writes the fragments; their places by partition."""
        partitions: dict[int, dict[RowKey, list[bytes]]] = {}
        for row_key, fragments in self._groups.items():
            partitions.setdefault(zlib.crc32(row_key[1]) % _PARTITIONS, {})[row_key] = fragments
        self._groups, self._bytes = {}, 0
        places, offset = [], self._file.tell()
        for partition, rows in partitions.items():
            size = self._file.write(pickle.dumps(rows, pickle.HIGHEST_PROTOCOL))
            places.append((partition, _PLACE.pack(offset, size) + os.fsencode(self._path)))
            offset += size
        self._file.flush()
        return places


class _UnspoolFn(beam.DoFn):
    """(partition, places) in; ((table, row key), fragments) out, for each row of the partition."""

    def __init__(self) -> None:
        self._files: dict[bytes, int] = {}

    def process(self, group: tuple[int, Iterable[bytes]]) -> Iterable[tuple[RowKey, list[bytes]]]:
        rows: dict[RowKey, list[bytes]] = {}
        for place in group[1]:
            path = place[_PLACE.size :]
            if path not in self._files:
                self._files[path] = os.open(path, os.O_RDONLY)
            offset, size = _PLACE.unpack_from(place)
            for row_key, fragments in pickle.loads(os.pread(self._files[path], size, offset)).items():
                rows.setdefault(row_key, []).extend(fragments)
        return rows.items()

    def teardown(self) -> None:
        for file in self._files.values():
            os.close(file)
        self._files.clear()
