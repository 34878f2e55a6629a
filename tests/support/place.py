"""Tables of one test with their stored settings, and commands on them."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.conftest import Bigtable
from tests.support.commands import Ran, timebeam
from timebeam.pipelines.options.use_settings import FAMILY, read_rows, settings_table
from timebeam.schema.core.rows import Cell, Row
from timebeam.transforms.bigtable.create_tables import create_tables
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.bigtable.write_rows import mutate_rows

OPENTSDB = {
    "version": "1",
    "salt_width": "1",
    "salt_buckets": "20",
    "uid_width_metric": "3",
    "uid_width_tagk": "3",
    "uid_width_tagv": "3",
    "cell_time": "arrival",
    "use_max_value": "true",
}

POINTS = "".join(f"put sys.load {1_795_250_000 + i} {i}.5 host=web01\n" for i in range(50))


class Place:
    """Tables of one test."""

    def __init__(self, bigtable: Bigtable, prefix: str, folder: Path) -> None:
        self.target = Target(bigtable.project, bigtable.instance)
        self.prefix = prefix
        self.table = settings_table(prefix).name
        self.folder = folder

    def run(self, *arguments: str) -> Ran:
        place = ("--project", self.target.project, "--instance", self.target.instance)
        return timebeam(*arguments, *place, "--table-prefix", self.prefix)

    def rows(self) -> dict[str, dict[str, str]]:
        return {layout: dict(texts) for layout, texts in read_rows(self.target, self.table).items()}

    def write(self, layout: str, **texts: str) -> None:
        assert list(create_tables(self.target, [settings_table(self.prefix)], dry_run=False))
        cells = [Cell(FAMILY, name.encode(), 0, text.encode()) for name, text in texts.items()]
        assert mutate_rows(self.target, self.table, [Row(self.table, layout.encode(), cells)]) == []

    def ingest(self, *options: str, hours_ago: float = 0, letters: str | None = None) -> Ran:
        path = self.folder / "points.txt"
        path.write_text(POINTS)
        written_s = time.time() - hours_ago * 3600
        os.utime(path, (written_s, written_s))
        letters = letters or str(self.folder / "letters")
        line = ("ingest", "--format", "opentsdb-text", "--input", str(path), "--dead-letters", letters)
        return self.run(*line, "--auto-create-metrics", *options)


def contradiction(ran: Ran, *texts: str) -> None:
    """Asserts that a command stopped with one line that has these texts, and did nothing."""
    assert (ran.code, ran.out) == (2, ""), ran
    lines = ran.err.splitlines()
    assert len(lines) == 2, ran.err
    for text in texts:
        assert text in lines[0]
