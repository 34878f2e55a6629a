"""Reads the series of key ranges of the data table: keys alone, or with the number of points."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import apache_beam as beam

from timebeam.schema.layouts import Scan
from timebeam.schema.layouts.opentsdb.rows import read_row
from timebeam.schema.meta import tsuid as tsuids
from timebeam.transforms.bigtable.reader import scan_keys
from timebeam.transforms.bigtable.rows import KeyRange
from timebeam.transforms.meta.job import COUNTERS, MetaSyncJob
from timebeam.transforms.metrics import SkipLog
from timebeam.transforms.readers.table_reader import scan_rows

_MOST_SERIES = 100_000
"""The largest number of series in memory while a range is read."""


class SeriesExtent(NamedTuple):
    """The period of one series in the data table.

    Attributes:
      first_s, last_s: base times of its first and last row, in seconds.
      latest_ms: the newest timestamp of its cells; -1 if they were not read.
      points: the number of points, if counted.
    """

    first_s: int
    last_s: int
    latest_ms: int = -1
    points: int = 0


def merged_extent(range_extents: Iterable[SeriesExtent]) -> SeriesExtent:
    """The extent of one series over several key ranges."""
    extents = list(range_extents)
    return SeriesExtent(
        min(extent.first_s for extent in extents),
        max(extent.last_s for extent in extents),
        max(extent.latest_ms for extent in extents),
        sum(extent.points for extent in extents),
    )


class ReadSeriesFn(beam.DoFn):
    """A key range in; (TSUID, its `SeriesExtent` in the range) out; a series may come more than once."""

    def __init__(self, job: MetaSyncJob) -> None:
        self._job = job

    def process(self, keys: KeyRange) -> Iterator[tuple[bytes, SeriesExtent]]:
        extents: dict[bytes, SeriesExtent] = {}
        skips = SkipLog(COUNTERS)
        options = self._job.layout.options
        for key, latest_ms, points in self._rows(keys):
            COUNTERS.count("rows_read")
            if not tsuids.is_of_series(options, key):
                continue
            try:
                tsuid, base_s = tsuids.of_key(options, key)
            except ValueError as error:
                skips.skip("keys_skipped", str(error))
                continue
            new = SeriesExtent(base_s, base_s, latest_ms, points)
            extents[tsuid] = merged_extent((extents[tsuid], new)) if tsuid in extents else new
            if len(extents) == _MOST_SERIES:
                yield from extents.items()
                extents = {}
        yield from extents.items()

    def _rows(self, keys: KeyRange) -> Iterator[tuple[bytes, int, int]]:
        """(key, newest cell timestamp in ms, number of points) of each row; (key, -1, 0) without `count`."""
        target, table = self._job.target, self._job.layout.data_table
        if not self._job.count:
            for key in scan_keys(target, table, *keys):
                yield key, -1, 0
            return
        for row in scan_rows(target, Scan(table, (keys,))):
            latest_ms = max(cell.timestamp_ms for cell in row.cells)
            yield row.key, latest_ms, len(read_row(row.cells).elements)
