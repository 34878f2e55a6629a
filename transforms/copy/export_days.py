"""Exports points to Parquet files: a folder for each UTC day, with a manifest of its files.

days ─► read ─► sort (`SortedRuns`) ─► temporary files ─► rename ─► manifest ─► delete files of an earlier run

A day is written by one worker. Names depend on the points alone, so another run replaces the files.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import hashlib
import json
import re
import tempfile
import urllib.parse
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.pvalue import PCollection

from timebeam.schema.bits.reasons import Reason
from timebeam.schema.bits.times import DAY_MS
from timebeam.schema.core.contract import ReadableStore
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.core.selection import Selection
from timebeam.schema.formats.parquet.footer import read_footer
from timebeam.schema.formats.parquet.parquet_columns import columns_of, join_sums, sums_of, table_of, written
from timebeam.schema.formats.parquet.row_groups import RowGroups, wrong_statistics
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.copy.copied_points import read_batches
from timebeam.transforms.copy.sorted_runs import SortedRuns
from timebeam.transforms.flow import metrics
from timebeam.transforms.flow.steps import REJECTED, RejectedOutput, reject, rejecting
from timebeam.transforms.opentsdb.exported_rollups import RollupReader
from timebeam.transforms.read.table_reader import ParallelReader

MANIFEST = "_manifest.json"
"""Engines ignore files whose names begin with `_`."""

DIGEST = "sha256"
"""Of all bytes of a file, in its entry of the manifest; entries of earlier versions have none."""

FILE_POINTS = 1 << 26
"""A file ends with the row group in which it reaches so many points."""

_LONGEST_NAME = 255
_READ_BYTES = 1 << 20
_MOST_BYTES = 1 << 34  # of a row group that is verified

_TEMPORARY = ".part"
"""How the name of a file ends until it is whole."""


_OWN_FILE = re.compile(r"/day=[-0-9]+/((?:metric=[^/]*/)?part-[0-9]{5,}\.parquet)$")
"""Paths of files that only an export writes, and their names in the manifest."""


class ExportTally(NamedTuple):
    """Result of an export: points in the files, files, and their bytes."""

    points_exported: int
    files_written: int
    file_bytes: int


COUNTERS = metrics.TallyCounters("timebeam-export", ExportTally)


@dataclasses.dataclass(frozen=True, slots=True)
class ExportWork:
    """What is exported, and where to.

    Attributes:
      start_ms, end_ms: [start, end), whole UTC days.
      folder: of the folders of the days, on any file system that Beam knows.
      by_metric: a folder for each metric in the folder of a day, and no column of it.
      tag_map: one column of all tags, instead of a column for each tag key of a file.
      dry_run: read and count; write nothing.
      rollups: exported instead of points; None for points.
    """

    target: Target
    layout: ReadableStore
    start_ms: int
    end_ms: int
    folder: str
    by_metric: bool = False
    tag_map: bool = False
    dry_run: bool = False
    rollups: RollupReader | None = None

    def days_ms(self) -> range:
        """The start of each day, in ms."""
        return range(self.start_ms, self.end_ms, DAY_MS)

    def folder_of(self, day_ms: int) -> str:
        """The folder of a day: `day=2026-11-22`."""
        day = datetime.datetime.fromtimestamp(day_ms / 1000, datetime.UTC).date()
        return FileSystems.join(self.folder, f"day={day}")


class ExportPoints(beam.PTransform):  # type: ignore[type-arg]
    """Exports points: a pipeline in, unreadable rows out."""

    def __init__(self, work: ExportWork) -> None:
        super().__init__()
        self._work = work

    def expand(self, root: beam.Pipeline) -> PCollection[Rejected]:
        days = (
            root
            | "Days" >> beam.Create(list(self._work.days_ms()), reshuffle=False)
            | "Plan" >> beam.FlatMap(lambda day_ms: metrics.planned([day_ms])).with_output_types(int)
            | "SpreadDays" >> beam.Reshuffle()
        )
        rejected: PCollection[Rejected] = (days | "Export" >> rejecting(_ExportFn(self._work), int))[REJECTED]
        return rejected


class _ExportFn(beam.DoFn):
    """The start of days in ms in; unreadable rows to `REJECTED`."""

    def __init__(self, work: ExportWork) -> None:
        self._work = work

    def process(self, day_ms: int) -> Iterator[RejectedOutput]:
        work = self._work
        with tempfile.TemporaryDirectory(prefix="timebeam-export-") as folder:
            runs = SortedRuns(Path(folder))
            for batch in self._batches(day_ms):
                if isinstance(batch, Rejected):
                    metrics.count("points_read")
                    yield reject(batch)
                else:
                    metrics.count("points_read", len(batch))
                    runs.add(batch)
            if work.dry_run:
                COUNTERS.count("points_exported", sum(map(len, runs.ranges())))
            else:
                yield from map(reject, _write_day(work, work.folder_of(day_ms), runs))
        metrics.work_done()

    def _batches(self, day_ms: int) -> Iterator[PointBatch | Rejected]:
        """The points of a day, or its rollups, and rejections of unreadable rows."""
        work, reader = self._work, ParallelReader(self._work.target)
        if work.rollups is not None:
            return work.rollups.batches(day_ms, day_ms + DAY_MS, reader)
        return read_batches(work.layout, Selection(None, {}, day_ms, day_ms + DAY_MS - 1), reader)


def _write_day(work: ExportWork, folder: str, runs: SortedRuns) -> Iterator[Rejected]:
    """Writes the files of a day, gives them their names, and then deletes those of an earlier run.

    Yields:
      each metric that cannot have a folder.
    """
    all_series = runs.series()
    columns = columns_of(all_series, metric=not work.by_metric, tag_map=work.tag_map)
    folders = folders_of({series.metric for series in all_series}) if work.by_metric else {}
    too_long: collections.Counter[str] = collections.Counter()
    entries: list[dict[str, Any]] = []
    file: _File | None = None
    for batch in runs.ranges(by_metric=work.by_metric):
        metric = batch.series[0].metric if work.by_metric else None
        if metric is not None and len(folders[metric]) > _LONGEST_NAME:
            too_long[metric] += len(batch)
            continue
        if file is None or file.metric != metric or file.points >= FILE_POINTS:
            number = file.number + 1 if file is not None and file.metric == metric else 0
            entries += [file.end()] if file is not None else []
            file = _File(folder, "" if metric is None else folders[metric], metric, number, columns)
        file.add(batch)
    entries += [file.end()] if file is not None else []
    names = [entry["file"] for entry in entries]
    paths = [FileSystems.join(folder, name) for name in names]
    if paths:
        FileSystems.rename([path + _TEMPORARY for path in paths], paths)
    manifest = FileSystems.join(folder, MANIFEST)
    with _create(manifest + _TEMPORARY) as stream:
        stream.write(json.dumps({"files": entries}, indent=1).encode())
    FileSystems.rename([manifest + _TEMPORARY], [manifest])
    old = [path for path in _parquet_files(folder) if (own := _OWN_FILE.search(path)) and own[1] not in names]
    if old:
        FileSystems.delete(old)
    for metric, points in too_long.items():
        why = (
            f"the folder of metric {metric[:80]!r} needs a name of {len(folders[metric])} bytes, and "
            f"file systems take {_LONGEST_NAME}: export without --by-metric"
        )
        yield Rejected(metric.encode(), Reason.SERIES_NOT_STORABLE, why, Stage.WRITE, folder, points=points)


def folders_of(metrics_of_day: Collection[str]) -> dict[str, str]:
    """The name of the folder of each metric, in ASCII, as Hive, Spark, DuckDB and pyarrow read it.

    Capitals are encoded where two metrics differ in nothing else: many file systems take them for one.
    """
    lower = collections.Counter(metric.lower() for metric in metrics_of_day)
    folders = {}
    for metric in metrics_of_day:
        name = urllib.parse.quote(metric, safe="")
        if lower[metric.lower()] > 1:
            name = re.sub(r"%[0-9A-F]{2}|[A-Z]", lambda part: _encoded_capital(part[0]), name)
        folders[metric] = f"metric={name}"
    return folders


def _encoded_capital(part: str) -> str:
    return part if part.startswith("%") else f"%{ord(part):02X}"


class _File:
    """A file that is being written, with its temporary name.

    Args:
      folder: of the day.
      subfolder: in it, of the metric; empty for none.
      metric: the only metric of the file; None for a column of metrics.
    """

    def __init__(
        self, folder: str, subfolder: str, metric: str | None, number: int, columns: pa.Schema
    ) -> None:
        self.metric, self.number, self.points = metric, number, 0
        self._name = (f"{subfolder}/" if subfolder else "") + f"part-{number:05}.parquet"
        self._columns = columns
        self._series = 0
        self._sums: list[dict[str, Any]] = []
        path = FileSystems.join(folder, *self._name.split("/")) + _TEMPORARY
        self._stream = _DigestedStream(_create(path))
        self._writer = pq.ParquetWriter(self._stream, columns, **written(columns))

    def add(self, batch: PointBatch) -> None:
        """Adds points as a row group."""
        group = table_of(batch, self._columns)
        self._writer.write_table(group, row_group_size=len(batch))
        self._sums.append(sums_of(group, self.points))
        self._series += len(batch.series)
        self.points += len(batch)

    def end(self) -> dict[str, Any]:
        """Closes the file; returns its entry in the manifest."""
        self._writer.close()
        size = self._stream.tell()
        self._stream.close()
        COUNTERS.count("points_exported", self.points)
        COUNTERS.count("files_written")
        COUNTERS.count("file_bytes", size)
        about = {"file": self._name, "bytes": size, DIGEST: self._stream.digest.hexdigest()}
        return about | {"series": self._series} | join_sums(self._sums)


class _DigestedStream:
    """Writes a file, and makes the digest of its bytes."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self.digest = stream, hashlib.sha256()

    @property
    def closed(self) -> bool:
        return self._stream.closed

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return self._stream.write(data)

    def tell(self) -> int:
        return self._stream.tell()

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()


def _create(path: str) -> BinaryIO:
    stream: BinaryIO = FileSystems.create(path, compression_type=CompressionTypes.UNCOMPRESSED)
    return stream


def read_manifest(folder: str) -> list[dict[str, Any]] | None:
    """The entries of the manifest of a day; None if there is none.

    Raises:
      ValueError, KeyError, TypeError: it is corrupt.
    """
    path = FileSystems.join(folder, MANIFEST)
    if not FileSystems.exists(path):
        return None
    with FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED) as stream:
        try:
            entries: list[dict[str, Any]] = list(json.loads(stream.read())["files"])
            if not all(_OWN_FILE.search(f"/day=0/{entry['file']}") for entry in entries):
                raise TypeError("a file that no export writes")
        except (KeyError, TypeError) as error:
            raise ValueError(f"no list `files` of objects with `file`: {error}") from error
    return entries


class Verified(NamedTuple):
    """What was found in the files of a day.

    Attributes:
      problems: how they differ from the manifest, and their statistics from their points, in words.
      without_digest: files whose entry has no digest, since an earlier version wrote it.
    """

    points: int
    problems: list[str]
    without_digest: int = 0


def verify_day(folder: str) -> Verified:
    """Compares the files of a day with the manifest."""
    try:
        entries = read_manifest(folder)
    except ValueError as error:
        return Verified(0, [f"{folder}: the manifest is corrupt: {error}"])
    if entries is None:
        return Verified(0, [f"{folder}: no manifest {MANIFEST}: export the day"])
    points, problems = 0, []
    for entry in entries:
        path = FileSystems.join(folder, *entry["file"].split("/"))
        try:
            figures, wrong = _figures_of_file(path, entry)
        except (OSError, pa.ArrowException, LookupError, ValueError) as error:
            problems.append(f"{path}: cannot be read: {error}")
            continue
        points += figures["points"]
        expected = _figures(entry)
        problems += [
            f"{path}: {name} is {figure}, the manifest says {expected.get(name)}"
            for name, figure in _figures(figures).items()
            if figure != expected.get(name)
        ]
        problems += [f"{path}: its statistics say {text}" for text in wrong]
    listed = {FileSystems.join(folder, *entry["file"].split("/")) for entry in entries}
    problems += [f"{path}: not in the manifest" for path in _parquet_files(folder) if path not in listed]
    return Verified(points, problems, sum(DIGEST not in entry for entry in entries))


def _figures(entry: dict[str, Any]) -> dict[str, Any]:
    """The figures of a file, with one for the checksum of each column."""
    checksums = entry.get("checksums")
    by_column = checksums.items() if isinstance(checksums, dict) else ()
    return {name: figure for name, figure in entry.items() if name != "checksums"} | {
        f"checksum of {column}": checksum for column, checksum in by_column
    }


def _parquet_files(folder: str) -> list[str]:
    """The Parquet files in the folder of a day, and in those of its metrics."""
    patterns = [FileSystems.join(folder, "*.parquet"), FileSystems.join(folder, "*", "*.parquet")]
    return [file.path for matched in FileSystems.match(patterns) for file in matched.metadata_list]


def _figures_of_file(path: str, entry: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """(the figures of a file that its entry should have, what its statistics say wrongly).

    Every page is read and checked.
    """
    with FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED) as stream:
        figures: dict[str, Any] = {}
        if DIGEST in entry:
            digest = hashlib.sha256()
            while data := stream.read(_READ_BYTES):
                digest.update(data)
            figures = {"bytes": stream.tell(), DIGEST: digest.hexdigest()}
        footer = read_footer(stream)
        sums, wrong, rows = [], [], 0
        for number in range(len(footer.group_rows)):
            group = RowGroups(stream, footer, [number], _MOST_BYTES).table()
            said = dict.fromkeys(wrong_statistics(footer.group(number), group))  # old fields and new ones
            wrong += [f"{text} (row group {number})" for text in said]
            sums.append(sums_of(group, rows))
            rows += len(group)
        return figures | join_sums(sums), wrong
