"""Rollups of declared tables, and an independent computation of them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.support.commands import Ran, ingest, timebeam
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.read.table_reader import scan_table

DECLARATION = """
[layout.sensor]
table = "SENSOR"
separator = "#"
key = [
  { field = "METER", type = "uint", width = 10, pad = "0", align = "right" },
  { time = "TS", unit = "ms", bucket = "1d", tz = "America/Los_Angeles", divide = 100000, width = 8 },
]
cell_time = "revision"
revision = "REV"
gc = { max_versions = 3 }
[layout.sensor.columns]
family = "METER"
series = { value = "READING", qualifier = { time = "TS", within = "1d", step = "1m", format = "HHMM" } }

[layout.sensor_day]
table = "SENSOR_{day:%Y%m%d}"
source = "sensor"
job = "copy_bucket"
expire = "30d"

[layout.event]
table = "EVENT"
when = "KIND"
key = [
  { field = "SITE" }, { field = "KIND" }, { time = "TS", unit = "ms", width = 13 }, { suffix = "payload" },
]
[layout.event.columns]
family = "E"
fields = ["WEIGHT"]

[layout.event_day]
table = "EVENT_1D"
key = [{ field = "SITE" }, { time = "TS", unit = "ms", width = 13 }]
[layout.event_day.columns]
family = "R"
fields = ["sum", "count", "min", { name = "max", encoding = "f64be" }]
[layout.event_day.rollup]
source = "event"
value = "WEIGHT"
interval = "1d"
tz = "America/Los_Angeles"
by = ["SITE"]
"""


class Place:
    def __init__(self, bigtable: tuple[str, str], prefix: str, folder: Path) -> None:
        self.target, self.prefix, self.folder = Target(*bigtable), prefix, folder
        self.file = folder / "tables.toml"
        self.file.write_text(DECLARATION)
        place = [f"--project={bigtable[0]}", f"--instance={bigtable[1]}", f"--table-prefix={prefix}"]
        self.flags = ["--layout=table", f"--tables={self.file}", *place]
        assert timebeam("tables", "create", *self.flags).code == 0

    def send(self, records: list[dict[str, Any]], age: int = 1) -> None:
        path = self.folder / f"in-{age}.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        os.utime(path, (1_700_000_000 + age,) * 2)
        ingest(self.folder, *self.flags, "--format=records", "--bigtable-writer=direct", "--input", path)

    def rollup(self, *flags: str) -> Ran:
        return timebeam("rollup", *self.flags, "--dead-letters", self.folder / "letters", *flags)

    def rows(self, table: str) -> dict[bytes, list[tuple[bytes, int, bytes]]]:
        """Newest versions."""
        found = scan_table(self.target, self.prefix + table)
        return {row.key: [cell[1:] for cell in row.cells] for row in found}
