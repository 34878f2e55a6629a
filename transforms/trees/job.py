"""What a sync of trees does, and its figures."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from timebeam.schema.layouts import Trees
from timebeam.schema.trees.definitions import Tree
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.metrics import TallyCounters
from timebeam.transforms.trees.table import tree_table

NAMESPACE = "timebeam-trees"
"""Of the counters that only this job has."""


class TreeSyncTally(NamedTuple):
    """What a sync met. Leaves and branches are written or there; failures are cells of series without one."""

    series: int
    leaves_written: int
    leaves_there: int
    branches_written: int
    branches_there: int
    collisions: int
    not_matched: int
    failures_written: int
    refused: int


COUNTERS = TallyCounters(NAMESPACE, TreeSyncTally)


@dataclasses.dataclass(frozen=True, slots=True)
class TreeSyncJob:
    """Which series go into which trees.

    Attributes:
      source: the table that the series are read from: the meta table, or the data table.
      dry_run: read and count, and write nothing.
    """

    target: Target
    layout: Trees
    trees: tuple[Tree, ...]
    source: str
    dry_run: bool = False

    @property
    def table(self) -> str:
        """The table of trees."""
        return tree_table(self.layout.options.table_prefix).name
