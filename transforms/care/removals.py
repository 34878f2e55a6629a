"""Deletions of points of rows: each logged, its hours marked, carried out, and counted by table."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from apache_beam.metrics import Metrics
from apache_beam.runners.runner import PipelineResult

from timebeam.schema.core.points import Series
from timebeam.schema.core.removal import RowDeletion
from timebeam.schema.core.rows import MUTATIONS, Row
from timebeam.transforms.bigtable.mutate import mutate_rows, requests
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.care.delete_archived import SealedRemovals
from timebeam.transforms.care.delete_log import write_rows
from timebeam.transforms.flow import metrics
from timebeam.transforms.ingest.write import marked
from timebeam.transforms.rollup.changed_hours import TouchedMarker

NAMESPACE = "timebeam-delete"
"""The namespace of this job's counters."""

_ROWS_AT_ONCE, _MUTATIONS_AT_ONCE, _BYTES_AT_ONCE = 5_000, 50_000, 4 << 20


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
      unreadable, refused: rows that could not be read, and those that Bigtable refused to change.
    """

    checksum: int
    changed: int
    unreadable: int
    refused: int


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
      marker: marks changed hours for the next rollup; None if rollups stay.
      rule: what they are counted under.
      sealed: deletes from the archive what is deleted from the data table; None if there is no archive.
      check: called before each request that changes rows.

    Attributes:
      refused: how many rows Bigtable refused to change.
    """

    def __init__(
        self,
        target: Target,
        log: str,
        marker: TouchedMarker | None,
        rule: str,
        sealed: SealedRemovals | None,
        check: Callable[[], None] | None = None,
    ) -> None:
        self._target, self._log, self._marker, self._rule = target, log, marker, rule
        self._sealed, self._check = sealed, check
        self._removals: list[tuple[RowDeletion, Series]] = []
        self._mutations = self._bytes = self.refused = 0

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
        with marked(self._target, self._marker, rows):
            self._mutate()
        self._removals, self._mutations, self._bytes = [], 0, 0

    def _changed_rows(self, removal: RowDeletion) -> Sequence[Row]:
        """Data rows that tell the hours of a removal."""
        if self._sealed is not None and self._sealed.is_of_archive(removal):
            return self._sealed.hour_rows(removal)
        return (removal.mutation._replace(cells=removal.old, deleted=()),)

    def _mutate(self) -> None:
        """Changes the rows, and counts them."""
        refused = set[bytes]()
        pieces = (
            piece
            for removal, _ in self._removals
            if not (self._sealed and self._sealed.is_of_archive(removal))
            for piece in _pieces(removal.mutation)
        )
        for table, of_table in itertools.groupby(pieces, lambda piece: piece.table):
            for request in requests(of_table):
                errors = mutate_rows(self._target, table, request, self._check)
                refused |= {request[number].key for number, _ in errors}
        if self._sealed is not None:  # after the data rows: see its module
            self._sealed.carry_out([removal.mutation for removal, _ in self._removals])
        for removal, _ in self._removals:
            if removal.mutation.key in refused:
                COUNTERS.count("refused")
                self.refused += 1
            else:
                count_removal(removal, self._rule)


def _pieces(mutation: Row) -> Iterator[Row]:
    """A mutation in pieces that a request takes; the new cells are in the first, with what they replace."""
    first = MUTATIONS - len(mutation.cells)
    yield mutation._replace(deleted=mutation.deleted[:first])
    for start in range(first, len(mutation.deleted), MUTATIONS):
        yield mutation._replace(cells=(), deleted=mutation.deleted[start : start + MUTATIONS])
