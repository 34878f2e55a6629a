"""Deletions of points of rows: each logged, its hours marked, carried out in both tables, counted by table.

A deletion deletes from the data table first, then from the archive: `ArchiveDeletions` says why. Its log has
each row before it changes, and tells whether the run has begun, or is done:

| file | |
|---|---|
| `LOG-UUID.jsonl` | a line for each row, of one request |
| `LOG-begun.json` | cells are deleted from now on; a later run completes it |
| `LOG-done.json` | the same file, renamed: all is deleted |
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from apache_beam.io.filesystems import FileSystems
from apache_beam.metrics import Metrics
from apache_beam.runners.runner import PipelineResult

from timebeam.schema.archive import archive_rows
from timebeam.schema.archive.archive_rows import BLOCK_S, LAST_S
from timebeam.schema.archive.view import ArchiveView
from timebeam.schema.bits.lru_cache import batched
from timebeam.schema.bits.times import HOUR_S, floor_to
from timebeam.schema.core.points import Series, SeriesKey
from timebeam.schema.core.row_deletion import DeleteRange, RowDeletion
from timebeam.schema.core.rows import MUTATIONS, Row
from timebeam.transforms.bigtable.compare_and_set import Replacement, update_rows
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.bigtable.write_rows import mutate_rows, requests
from timebeam.transforms.flow import metrics
from timebeam.transforms.ingest.row_mutations import hours_written
from timebeam.transforms.read.table_reader import read_rows
from timebeam.transforms.rollup.changed_hours import ChangedHoursWriter

NAMESPACE = "timebeam-delete"
"""The namespace of this job's counters."""

_ROWS_AT_ONCE, _MUTATIONS_AT_ONCE, _BYTES_AT_ONCE = 5_000, 50_000, 4 << 20
_ARCHIVE_ROWS_AT_ONCE = 200  # a row can have megabytes


class DeleteFigures(NamedTuple):
    """What is deleted from one table."""

    rows: int
    cells: int
    points: int
    bytes: int


class DeleteTally(NamedTuple):
    """Result of a deletion, but for the figures of each table.

    Attributes:
      checksum: the sum of those of all cells that a dry run saw.
      changed: 1 if nothing was deleted, since the cells are not those of the dry run.
      unreadable, rejected: rows that could not be read, and those that Bigtable refused to change.
    """

    checksum: int
    changed: int
    unreadable: int
    rejected: int


COUNTERS = metrics.TallyCounters(NAMESPACE, DeleteTally)


def figures_by_table(result: PipelineResult) -> dict[tuple[str, str], DeleteFigures]:
    """What a finished pipeline has deleted, or would delete, by rule and table, sorted."""
    counters = metrics.counted(result, NAMESPACE)
    places = sorted({name.split("/", 1)[1] for name in counters if "/" in name})
    figures = {}
    for place in places:
        table, _, rule = place.partition("/")
        figures[rule, table] = DeleteFigures._make(
            counters[f"{field}/{place}"] for field in DeleteFigures._fields
        )
    return dict(sorted(figures.items()))


def count_removal(removal: RowDeletion, rule: str) -> None:
    """Counts what a removal deletes, under its table and a rule; an empty one is none."""
    figures = DeleteFigures(1, len(removal.old), removal.points, removal.bytes)
    for field, by in zip(figures._fields, figures, strict=True):
        Metrics.counter(NAMESPACE, f"{field}/{removal.mutation.table}/{rule}").inc(by)


class PendingRemovals:
    """Removals that are logged and carried out together.

    Args:
      log: how the names of the log's files begin.
      hours_writer: marks changed hours for the next rollup; None if rollups stay.
      rule: what they are counted under.
      archived: deletes from the archive what is deleted from the data table; None if there is no archive.
      check: called before each request that changes rows.

    Attributes:
      rejected: how many rows Bigtable refused to change.
    """

    def __init__(
        self,
        target: Target,
        log: str,
        hours_writer: ChangedHoursWriter | None,
        rule: str,
        archived: ArchiveDeletions | None,
        check: Callable[[], None] | None = None,
    ) -> None:
        self._target, self._log, self._hours_writer, self._rule = target, log, hours_writer, rule
        self._archive, self._check = archived, check
        self._removals: list[tuple[RowDeletion, Series]] = []
        self._mutations = self._bytes = self.rejected = 0

    def add(self, removal: RowDeletion, series: Series) -> None:
        """Adds a removal; carries out those before it if they are many."""
        mutation = removal.mutation
        self._removals.append((removal, series))
        self._mutations += len(mutation.deleted) + len(mutation.cells)
        self._bytes += sum(len(cell.qualifier) for cell in removal.old)
        self._bytes += sum(len(cell.value) for cell in mutation.cells)
        if (
            len(self._removals) >= _ROWS_AT_ONCE
            or self._mutations >= _MUTATIONS_AT_ONCE
            or self._bytes >= _BYTES_AT_ONCE
        ):
            self.flush()

    def flush(self) -> None:
        """Logs, marks and deletes; marks again, since a rollup may have read in between.

        Raises:
          GoogleAPICallError: rows could not be changed; others may have been.
        """
        if not self._removals:
            return
        write_rows(self._log, self._removals)
        rows = [row for removal, _ in self._removals for row in self._changed_rows(removal)]
        with hours_written(self._target, self._hours_writer, rows):
            self._mutate()
        self._removals, self._mutations, self._bytes = [], 0, 0

    def _changed_rows(self, removal: RowDeletion) -> Sequence[Row]:
        """Data rows that tell the hours of a removal."""
        if self._archive is not None and self._archive.is_of_archive(removal):
            return self._archive.hour_rows(removal)
        return (removal.mutation._replace(cells=removal.old, deleted=()),)

    def _mutate(self) -> None:
        """Changes the rows, and counts them."""
        rejected = set[bytes]()
        pieces = (
            piece
            for removal, _ in self._removals
            if not (self._archive and self._archive.is_of_archive(removal))
            for piece in _cut_mutation(removal.mutation)
        )
        for table, of_table in itertools.groupby(pieces, lambda piece: piece.table):
            for request in requests(of_table):
                errors = mutate_rows(self._target, table, request, self._check)
                rejected |= {request[number].key for number, _ in errors}
        if self._archive is not None:  # after the data rows: see its module
            self._archive.carry_out([removal.mutation for removal, _ in self._removals])
        for removal, _ in self._removals:
            if removal.mutation.key in rejected:
                COUNTERS.count("rejected")
                self.rejected += 1
            else:
                count_removal(removal, self._rule)


def _cut_mutation(mutation: Row) -> Iterator[Row]:
    """A mutation in pieces that a request takes; the new cells are in the first, with what they replace."""
    first = MUTATIONS - len(mutation.cells)
    yield mutation._replace(deleted=mutation.deleted[:first])
    for start in range(first, len(mutation.deleted), MUTATIONS):
        yield mutation._replace(cells=(), deleted=mutation.deleted[start : start + MUTATIONS])


class ArchiveDeletions(NamedTuple):
    """The part of a deletion that is in the archive: each row by compare-and-set.

    `timebeam archive` may hold points in memory that it read before they were deleted. So a deletion first
    deletes from the data table. Then it replaces the archive row of each series and span that it has deleted
    from, without these points. If the row holds none of them, or does not exist, only its cell `seal`
    changes. `archive` reads that cell before the points that it writes, and writes only if the cell is
    still the same (docs/spec/archive.md §4).
    """

    target: Target
    archive: ArchiveView[Any]
    deleted: DeleteRange

    def is_of_archive(self, removal: RowDeletion) -> bool:
        """Whether a removal is of a row of the archive."""
        return removal.mutation.table == self.archive.table

    def hour_rows(self, removal: RowDeletion) -> list[Row]:
        """Data rows without cells, of the hours that the removal from a row of the archive changes."""
        key, deleted = archive_rows.parse_key(self.archive.heads, removal.mutation.key), self.deleted
        start_s = max(key.base_s, floor_to(deleted.first_ms // 1000, HOUR_S))
        end_s = min(key.end_s, deleted.last_ms // 1000 + 1)
        return [self.archive.row_at(key.series, base_s) for base_s in range(start_s, end_s, HOUR_S)]

    def carry_out(self, rows: Sequence[Row]) -> None:
        """Deletes the points from the archive rows of the series and spans of some rows.

        Args:
          rows: of the data table, that points were deleted from before; and of the archive.

        Raises:
          RuntimeError: other programs keep changing a row.
          GoogleAPICallError: rows could not be changed; others may have been.
        """
        for keys in batched(self._archive_keys(rows), _ARCHIVE_ROWS_AT_ONCE):
            for key in update_rows(self.target, self.archive.table, keys, self._replacements):
                raise RuntimeError(
                    f"table {self.archive.table}, row {key.hex()}: other programs keep changing it: run the "
                    "same command again"
                )

    def _archive_keys(self, rows: Sequence[Row]) -> list[bytes]:
        """The keys of the archive rows of some rows.

        A series without a span in a block is left out: no archive run has written rows of it, and one
        that is at work reads its points again after it has chosen the span.
        """
        table = self.archive.table
        places = [place for row in rows if row.table != table for place in self._places(row.key)]
        blocks = [archive_rows.span_row(table, series, start_s, 1).key for series, start_s, _ in places]
        codes = {
            key: cell.value[0]
            for key, row in read_rows(self.target, table, sorted(set(blocks))).items()
            for cell in row.cells
            if cell.qualifier == archive_rows.SPAN
        }
        keys = {row.key for row in rows if row.table == table}
        for block, (series, start_s, end_s) in zip(blocks, places, strict=True):
            if block in codes:
                spans = _cut_at_spans(start_s, end_s, archive_rows.SPANS_S[codes[block]])
                keys |= {archive_rows.archive_key(series, span_s, codes[block]) for span_s, _ in spans}
        return sorted(keys)

    def _places(self, key: bytes) -> Iterator[tuple[SeriesKey, int, int]]:
        """(series, start, end in s) of the deleted time of a data row, for each block that it overlaps."""
        with contextlib.suppress(ValueError):  # `archive` skips such a row too
            series, start_ms, end_ms = self.archive.data_row(key)
            first_ms, last_ms, _ = self.deleted
            if first_ms <= last_ms:
                start_ms, end_ms = max(start_ms, first_ms), min(end_ms, last_ms + 1)
            start_s, end_s = max(0, start_ms // 1000), min(-(-end_ms // 1000), LAST_S + 1)
            for block_s, block_end_s in _cut_at_spans(start_s, end_s, BLOCK_S):
                yield series, block_s, block_end_s

    def _replacements(self, key: bytes, row: Row | None) -> Sequence[Replacement]:
        """Replaces a row as it was read; a corrupt one keeps its cells."""
        removal = None
        if row is not None:
            with contextlib.suppress(ValueError):
                removal = archive_rows.remove_points(self.archive.heads, row, self.deleted)
        new = Row(self.archive.table, key, removal.mutation.cells if removal else ())
        guard, changed = archive_rows.replacing_row(row, new, int(time.time() * 1000))
        *cells, seal = changed.cells
        return (Replacement(key, guard, seal, cells, changed.deleted if removal else ()),)


def _cut_at_spans(start_s: int, end_s: int, span_s: int) -> Iterator[tuple[int, int]]:
    """Cuts a period at the starts of spans: [start, end) of each piece."""
    while start_s < end_s:
        next_s = start_s - start_s % span_s + span_s
        yield start_s, min(next_s, end_s)
        start_s = next_s


_BEGUN, _DONE, _ROWS = "-begun.json", "-done.json", "-*.jsonl"
_ENDED_S = 12 * HOUR_S
"""A run whose log has not grown for so long has ended: it writes far more often, if it deletes anything."""


def write_rows(log: str, removals: Iterable[tuple[RowDeletion, Series]]) -> None:
    """Writes what is about to be deleted from rows."""
    with FileSystems.create(f"{log}-{uuid.uuid4().hex}.jsonl") as file:
        for removal, series in removals:
            file.write(_line(removal, series))


def _line(removal: RowDeletion, series: Series) -> bytes:
    """A row of the log: what is deleted from it."""
    mutation = removal.mutation
    line = {
        "table": mutation.table,
        "row": mutation.key.hex(),
        "series": str(series),
        "cells": len(removal.old),
        "rewritten": len(mutation.cells),
        "points": removal.points,
        "bytes": removal.bytes,
    }
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"


def log_files(start: str, rest: str) -> dict[str, float]:
    """The files that begin with `start` and continue as the pattern `rest`, sorted: (path, change in s).

    Beam would read all folders below a local one, and take `[` in its name as a pattern.
    """
    files = {}
    if "://" in start:
        (matched,) = FileSystems.match([start + rest])
        files = {file.path: file.last_updated_in_seconds for file in matched.metadata_list}
    else:
        for path in glob.glob(glob.escape(start) + rest):
            with contextlib.suppress(FileNotFoundError):  # another run has just renamed it
                files[path] = os.path.getmtime(path)
    return dict(sorted(files.items()))


def logged_rows(log: str) -> Iterator[tuple[str, bytes]]:
    """(table, key) of the rows in the files of a log; a line that was not written in full is left out."""
    for path in log_files(log, _ROWS):
        with FileSystems.open(path) as lines:
            for line in lines:
                with contextlib.suppress(ValueError):
                    entry = json.loads(line)
                    yield entry["table"], bytes.fromhex(entry["row"])


def interrupted_logs(start: str, rest: str) -> Sequence[str]:
    """The logs that begin with `start`, continue as the pattern `rest`, and are begun, but not done."""
    return [path.removesuffix(_BEGUN) for path in log_files(start, rest + _BEGUN)]


def used_s(log: str) -> int | None:
    """When a run was done, in seconds since 1970; None if there is none."""
    path = log + _DONE
    return int(FileSystems.last_updated(path)) if FileSystems.exists(path) else None


def write_begun(log: str, content: Mapping[str, Any]) -> None:
    """Says that cells are deleted from now on."""
    with FileSystems.create(log + _BEGUN) as file:
        file.write(json.dumps(content).encode() + b"\n")


def write_done(log: str, completed: Iterable[str]) -> None:
    """Says that a run is done, and those runs that it has completed, unless one may still be at work.

    A later run completes that one again.
    """
    for each in {log, *filter(_has_ended, completed)}:
        if FileSystems.exists(each + _BEGUN):  # not if the cells are not those of the dry run
            FileSystems.rename([each + _BEGUN], [each + _DONE])


def _has_ended(log: str) -> bool:
    """Whether no file of a log is new."""
    changes_s = [*log_files(log, _ROWS).values(), *log_files(log, _BEGUN).values()]
    return max(changes_s, default=0) <= time.time() - _ENDED_S
