"""The series of the data table: its key ranges read side by side, keys alone or with all points counted."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import apache_beam as beam

from schema.layouts import Scan
from schema.layouts.opentsdb.rows import read_row
from schema.meta import tsuid as tsuids
from transforms.bigtable.reader import scan_rows
from transforms.bigtable.row_keys import scan_keys
from transforms.bigtable.splits import Range, ranges_between, split_keys
from transforms.meta.job import COUNTERS, SyncJob

_HELD = 100_000
"""Series that are remembered while a range is read."""

_LOGGED = 10  # of each kind of trouble in one bundle


class Trouble:
    """Counts what could not be dealt with, and names the first of it in the log."""

    def __init__(self) -> None:
        self._told = 0

    def tell(self, counter: str, text: str) -> None:
        """Counts one."""
        COUNTERS[counter].inc()
        self._told += 1
        if self._told <= _LOGGED:
            logging.getLogger(__name__).warning("skipped: %s", text)


class Found(NamedTuple):
    """What the data table says of one series.

    Attributes:
      first_s, last_s: base times of its first and last row, in seconds.
      latest_ms: the newest timestamp of its cells; -1 if they were not read.
      points: how many, if they were counted.
    """

    first_s: int
    last_s: int
    latest_ms: int = -1
    points: int = 0


def merged(parts: Iterable[Found]) -> Found:
    """What some ranges say of one series."""
    found = list(parts)
    return Found(
        min(part.first_s for part in found),
        max(part.last_s for part in found),
        max(part.latest_ms for part in found),
        sum(part.points for part in found),
    )


class RangesFn(beam.DoFn):
    """Anything in; the key ranges of the data table out."""

    def __init__(self, job: SyncJob) -> None:
        self._job = job

    def process(self, _: object) -> Iterator[Range]:
        yield from ranges_between(split_keys(self._job.target, self._job.layout.data_table))


class ReadSeriesFn(beam.DoFn):
    """A key range in; (TSUID, what its rows there say) out; a series may come more than once."""

    def __init__(self, job: SyncJob) -> None:
        self._job = job

    def process(self, keys: Range) -> Iterator[tuple[bytes, Found]]:
        held: dict[bytes, Found] = {}
        trouble = Trouble()
        options = self._job.layout.options
        for key, latest_ms, points in self._rows(keys):
            COUNTERS["rows_read"].inc()
            if not tsuids.is_of_series(options, key):
                continue
            try:
                tsuid, base_s = tsuids.of_key(options, key)
            except ValueError as error:
                trouble.tell("keys_skipped", str(error))
                continue
            new = Found(base_s, base_s, latest_ms, points)
            held[tsuid] = merged((held[tsuid], new)) if tsuid in held else new
            if len(held) == _HELD:
                yield from held.items()
                held = {}
        yield from held.items()

    def _rows(self, keys: Range) -> Iterator[tuple[bytes, int, int]]:
        """(key, newest cell timestamp, points) of each row; the points only if they are asked for."""
        target, table = self._job.target, self._job.layout.data_table
        if not self._job.count:
            for key in scan_keys(target, table, *keys):
                yield key, -1, 0
            return
        for row in scan_rows(target, Scan(table, (keys,))):
            latest_ms = max(cell.timestamp_ms for cell in row.cells)
            yield row.key, latest_ms, len(read_row(row.cells).elements)
