"""The records of series that have no leaf: collisions, and series that did not match."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import apache_beam as beam

from schema.layouts import Cell, ColumnRange, Row, Scan
from schema.trees import cells
from transforms.bigtable.reader import scan_rows
from transforms.rejected import RejectedOutput, refuse
from transforms.trees.compare_set import Column
from transforms.trees.job import COUNTERS, SyncJob
from transforms.write import write_batch

_COLUMNS_AT_ONCE = 1_000


class StoreFailuresFn(beam.DoFn):
    """(row key, columns of series without a leaf) in; writes what stands there otherwise or not at all."""

    def __init__(self, job: SyncJob) -> None:
        self._job = job

    def process(self, group: tuple[bytes, Iterable[Column]]) -> Iterator[RejectedOutput]:
        """See the class."""
        job, (key, columns) = self._job, group
        wanted = iter(sorted(set(columns)))
        while some := list(itertools.islice(wanted, _COLUMNS_AT_ONCE)):
            within = ColumnRange(cells.FAMILY, some[0].qualifier, some[-1].qualifier + b"\0")
            scan = Scan(job.table, ((key, key + b"\0"),), columns=within)
            standing = {cell.qualifier: cell for row in scan_rows(job.target, scan) for cell in row.cells}
            changed = []
            for column in some:
                old = standing.get(column.qualifier)
                if old is None or old.value != column.value:
                    time_ms = 0 if old is None else old.timestamp_ms + 1
                    changed.append(Cell(cells.FAMILY, column.qualifier, time_ms, column.value))
            COUNTERS["failures_written"].inc(len(changed))
            if changed and not job.dry_run:
                for rejected in write_batch(job.target, job.table, [Row(job.table, key, changed)]):
                    yield refuse(rejected)
