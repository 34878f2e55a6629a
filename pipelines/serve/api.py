"""What the endpoints of the API stand on: a database, and what belongs to one request."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from timebeam.pipelines.query.database import Database
from timebeam.transforms.query.budget import Meter


@dataclasses.dataclass(frozen=True, slots=True)
class Api(Database):
    """The API over the tables of one store.

    Attributes:
      ignored_labels: labels that a Prometheus adds to what it asks for, and that no series has.
      skipped: takes a line for each row that a request could not read.
    """

    ignored_labels: Sequence[str] = ()
    skipped: list[str] = dataclasses.field(default_factory=list)

    def for_request(self, meter: Meter) -> Api:
        """The same for one request."""
        return dataclasses.replace(self.metered(meter), skipped=[])
