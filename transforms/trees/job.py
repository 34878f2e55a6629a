"""A sync of trees: its job and its tally."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from timebeam.schema.layouts import Trees
from timebeam.schema.trees.definitions import Tree
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.metrics import TallyCounters
from timebeam.transforms.trees.table import tree_table

NAMESPACE = "timebeam-trees"
"""The namespace of this job's counters."""


class TreeSyncTally(NamedTuple):
    """The figures of a sync: `_there` are existing cells, failures are cells of series without a leaf."""

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
      source: the table of the series: the meta table, or the data table.
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
