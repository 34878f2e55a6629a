"""What the endpoints answer from: the tables of one layout, and their rollups."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from timebeam.pipelines.serve.cache import Caches
from timebeam.schema.core.reading import AmbiguousNameError
from timebeam.schema.rollup.config import RollupConfig
from timebeam.schema.stores import ReadableLayout, Reader, RollupTables
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.query.budget import Meter, metered
from timebeam.transforms.query.evaluate import Evaluated
from timebeam.transforms.read.table_reader import TableReader


@dataclasses.dataclass(frozen=True, slots=True)
class Api:
    """The API over the tables of one layout.

    Attributes:
      rollups: the rollup tables that may serve queries; None for points alone.
      ignored_labels: labels that a Prometheus adds to what it asks for, and that no series has.
      meter: counts what a request reads; None for no budget.
      skipped: takes a line for each row that a request could not read.
      caches: None where nothing is kept between requests.
    """

    target: Target
    layout: ReadableLayout
    rollups: tuple[RollupTables, RollupConfig] | None = None
    ignored_labels: Sequence[str] = ()
    meter: Meter | None = None
    skipped: list[str] = dataclasses.field(default_factory=list)
    caches: Caches | None = None

    @property
    def reader(self) -> Reader:
        """Reads the tables, as far as the budget goes."""
        return metered(TableReader(self.target), self.meter)

    def add_points(self, count: int) -> None:
        """Counts points that are made, as far as the budget goes; raises as `Meter.check` does."""
        if self.meter is not None:
            self.meter.add_points(count)

    def add_shown(self, count: int) -> None:
        """Counts what an answer holds, in points; raises as `Meter.check` does."""
        if self.meter is not None:
            self.meter.add_shown(count)

    def with_names(self, evaluate: Callable[[], Evaluated]) -> Evaluated:
        """An answer; if two UIDs seem to have one name, names are read again, and it is computed once more.

        Names are cached: if a UID was renamed and a new UID has its old name, both seem to have it.

        Raises:
          AmbiguousNameError: two UIDs have one name.
        """
        read = None if self.meter is None else self.meter.read
        try:
            return evaluate()
        except AmbiguousNameError:
            if self.caches is None or self.meter is None or read is None:
                raise
            self.meter.read = read  # the same rows are about to be read again
            self.caches.forget_names()
            self.meter.uids = self.caches.uids
            return evaluate()

    def for_request(self, meter: Meter) -> Api:
        """The same for one request."""
        meter.uids = None if self.caches is None else self.caches.uids
        target = dataclasses.replace(self.target, stop=meter)
        return dataclasses.replace(self, target=target, meter=meter, skipped=[])
