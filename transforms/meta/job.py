"""A synchronisation of metadata: its job and its tally."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from timebeam.schema.layouts import SeriesMeta
from timebeam.schema.meta.ts_meta import meta_table
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.metrics import META_NAMESPACE, TallyCounters


@dataclasses.dataclass(frozen=True, slots=True)
class MetaSyncJob:
    """The tables, and the work.

    Attributes:
      count: count points, which reads all of them.
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
    """The figures of a synchronisation.

    Attributes:
      rows_read: rows of the data table.
      series: series with data rows.
      points: points of those series, if counted.
      series_created: new cells `ts_meta` and `ts_ctr`.
      uids_created: new cells of metadata of UIDs.
      counters_set: corrected cells `ts_ctr`.
      counters_lost: wrong cells `ts_ctr` that another writer changed meanwhile.
      keys_skipped: rows whose key is not the key of a series.
      series_skipped: series with a UID without a name.
      damaged: cells with unreadable metadata, left unchanged.
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
    def failures(self) -> int:
        """The number of rows, series and cells that could not be synchronised."""
        return self.keys_skipped + self.series_skipped + self.damaged


COUNTERS = TallyCounters(META_NAMESPACE, MetaSyncTally)
