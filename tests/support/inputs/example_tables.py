"""The declared tables of the examples, in the emulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.commands import Ingested, ingest, timebeam
from timebeam.pipelines.options.parameters import DECLARED
from timebeam.schema.stores.declared.declaration import Declaration
from timebeam.schema.stores.declared.language.load_declaration import load
from timebeam.schema.stores.declared.read_records import decode
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.read.table_reader import scan_table

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "tables"


class Tables:
    """The tables of one declaration, with a prefix of the test's own."""

    def __init__(self, bigtable: tuple[str, str], prefix: str, path: Path) -> None:
        self.target, self._prefix, self._path = Target(*bigtable), prefix, path
        self.declaration: Declaration = load(path.read_text(), path.name)
        ran = timebeam("tables", "create", *self.flags)
        assert ran.code == 0, ran.err

    @property
    def flags(self) -> list[str]:
        """The options that name these tables, for any command."""
        place = [f"--project={self.target.project}", f"--instance={self.target.instance}"]
        return [*place, f"--layout={DECLARED}", f"--tables={self._path}", f"--table-prefix={self._prefix}"]

    def ingest(self, folder: Path, path: Path, *flags: str) -> Ingested:
        """Ingests one file of records."""
        return ingest(folder, *self.flags, "--format=records", "--input", path, *flags)

    def records(self, name: str) -> list[dict[str, Any]]:
        """The records of one layout, as its table has them."""
        layout = self.declaration.layout(name)
        rows = list(scan_table(self.target, self._prefix + layout.table))
        return [record for row in rows for record in decode(layout, row)]

    def cells(self) -> set[tuple[Any, ...]]:
        """The newest version of every cell."""
        return {
            (row.table, row.key, *cell)
            for layout in self.declaration.layouts
            for row in scan_table(self.target, self._prefix + layout.table)
            for cell in row.cells
        }
