"""What the endpoints answer from: the tables of one layout, and their rollups."""

from __future__ import annotations

import dataclasses

from timebeam.schema.layouts import ReadableLayout, RollupTables
from timebeam.schema.rollup.config import RollupConfig
from timebeam.transforms.bigtable.target import Target


@dataclasses.dataclass(frozen=True, slots=True)
class Api:
    """The API over the tables of one layout.

    Attributes:
      rollups: the rollup tables that may serve queries; None for points alone.
    """

    target: Target
    layout: ReadableLayout
    rollups: tuple[RollupTables, RollupConfig] | None = None
