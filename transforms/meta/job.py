"""What a synchronisation of meta data does, and its figures."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from timebeam.schema.layouts import SeriesMeta
from timebeam.schema.meta.ts_meta import meta_table
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.metrics import META_NAMESPACE, TallyCounters


@dataclasses.dataclass(frozen=True, slots=True)
class MetaSyncJob:
    """Which tables, and what is done with them.

    Attributes:
      count: whether points are counted, which reads all of them.
      dry_run: count what would be written, and write nothing.
    """

    target: Target
    layout: SeriesMeta
    count: bool = False
    dry_run: bool = False

    @property
    def table(self) -> str:
        """Name of the meta table."""
        return meta_table(self.layout.options.table_prefix).name


class MetaSyncTally(NamedTuple):
    """What a synchronisation met and did.

    Attributes:
      rows_read: of the data table.
      series: that the rows are of.
      points: of those series, if they are counted.
      series_created: cells `ts_meta` and `ts_ctr` that were not there.
      uids_created: cells of meta data of names that were not there.
      counters_set: cells `ts_ctr` that had another number of points.
      counters_lost: of these, those that somebody else has changed meanwhile, and that stayed.
      keys_skipped: rows whose key is not one of a series.
      series_skipped: series with a UID that has no name.
      damaged: cells with meta data that cannot be read, which stay as they are.
    """

    rows_read: int
    series: int
    points: int
    series_created: int
    uids_created: int
    counters_set: int
    counters_lost: int
    keys_skipped: int
    series_skipped: int
    damaged: int

    @property
    def trouble(self) -> int:
        """How much could not be dealt with."""
        return self.keys_skipped + self.series_skipped + self.damaged


COUNTERS = TallyCounters(META_NAMESPACE, MetaSyncTally)
