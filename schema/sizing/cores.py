"""Processor cores of a load, from costs that benchmarks measured.

`python -m benchmarks.tables` writes them into costs.json, from a file of `make bench`.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from timebeam.schema.layouts.writing import Packing
from timebeam.schema.sizing.measure import Case


class Costs(msgspec.Struct, forbid_unknown_fields=True):
    """Processor seconds for a million points.

    Attributes:
      date, cpu: when and on which processor they were measured.
      files: from JSON lines, by layout and packing: `heroic points`.
      formats: from files into compacted columns of layout `opentsdb`, by format.
      messages: of so many points, into layout `opentsdb`, by packing and number of points.
    """

    date: str
    cpu: str
    files: dict[str, float]
    formats: dict[str, float]
    messages: dict[str, dict[str, float]]

    def of_case(self, layout: str, case: Case, together: int) -> float:
        """Processor seconds for a million points of a case, in JSON.

        Args:
          together: points in a message.
        """
        files = self.files[f"{layout} {case.packing.value}"]
        if not case.stream:
            return files
        packing = case.packing if case.packing is Packing.POINTS else Packing.COMPACTED
        of_points = {int(points): cost for points, cost in self.messages[packing.value].items()}
        least, most = min(of_points), max(of_points)
        # A message costs the same with any number of points.
        message = (of_points[least] - of_points[most]) / (1 / least - 1 / most)
        points = of_points[most] - message / most
        # Another layout costs more or less by what it does from files.
        return max(0.0, message / together + points + files - self.files[f"opentsdb {packing.value}"])


COSTS = msgspec.convert(json.loads(Path(__file__).with_name("costs.json").read_text(encoding="utf-8")), Costs)
