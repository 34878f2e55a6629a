"""Tables with trees for a test: definitions, names, custom fields and series put there by hand."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from google.cloud.bigtable.data import RowMutationEntry, SetCell

from tests.support.commands import Ran, timebeam
from tests.support.data_client import open_table
from tests.support.stored import Store
from timebeam.schema.stores.opentsdb.meta_documents import meta_table
from timebeam.transforms.bigtable.create_tables import create_tables
from timebeam.transforms.opentsdb.trees.tree_table import tree_table
from timebeam.transforms.read.table_reader import scan_table

TreeCell = tuple[bytes, bytes, int, bytes]
"""(row key, qualifier, timestamp in ms, value)."""


@dataclasses.dataclass(frozen=True)
class Forest:
    """The tables of a store, with those of metadata and trees; files go to a folder."""

    store: Store
    folder: Path

    @classmethod
    def create(cls, bigtable: tuple[str, str], prefix: str, folder: Path, **options: Any) -> Forest:
        """New tables."""
        store = Store.create(bigtable, prefix, **options)
        for _ in create_tables(store.target, [meta_table(prefix), tree_table(prefix)], dry_run=False):
            pass
        return cls(store, folder)

    @property
    def prefix(self) -> str:
        """What the names of the tables begin with."""
        return self.store.layout.options.table_prefix

    def put(self, table: str, cells: set[tuple[bytes, str, bytes, bytes]]) -> None:
        """Writes cells, as (row, family, qualifier, value), into a table, named without prefix."""
        entries = [RowMutationEntry(key, SetCell(*cell, 5_000_000)) for key, *cell in sorted(cells)]
        open_table(self.store.target, self.prefix + table).bulk_mutate_rows(entries)

    def add(self, many: list[dict[str, Any]]) -> None:
        """Adds series, in the form of `plain_trees`, with names and custom fields; TSUIDs tell the UIDs."""
        names: set[tuple[bytes, str, bytes, bytes]] = set()
        for series in many:
            raw = bytes.fromhex(series["tsuid"])
            texts = [("metrics", series["metric"])]
            for key, value in series["tags"]:
                texts += (("tagk", key), ("tagv", value))
            for at, (kind, text) in enumerate(texts):
                uid = raw[3 * at : 3 * at + 3]
                stored = text.encode("iso-8859-1")
                names |= {(uid, "name", kind.encode(), stored), (stored, "id", kind.encode(), uid)}
                if (kind, text) in series["custom"]:
                    meta = json.dumps({"custom": series["custom"][kind, text]}).encode()
                    names.add((uid, "name", kind.removesuffix("s").encode() + b"_meta", meta))
        self.put("tsdb-uid", names)
        self.put("tsdb-meta", {(bytes.fromhex(one["tsuid"]), "name", b"ts_meta", b"{}") for one in many})

    def run(self, action: str, *arguments: str | Path) -> Ran:
        """`timebeam trees` with these tables."""
        return timebeam("trees", action, *arguments, *self.store.flags)

    def create_tree(self, tree: dict[str, Any], *flags: str) -> Ran:
        """Stores a tree by a file; it must succeed."""
        path = self.folder / "tree.json"
        path.write_text(json.dumps(tree), "utf-8")
        ran = self.run("create", path, *flags)
        assert ran.code == 0, ran.err
        return ran

    def sync(self, *flags: str) -> dict[str, Any]:
        """The summary of a sync that must succeed."""
        ran = self.run("sync", "--summary=json", f"--dead-letters={self.folder / 'dead'}", *flags)
        assert ran.code == 0, ran.err
        found: dict[str, Any] = json.loads(ran.out)
        return found

    def letters(self) -> list[dict[str, Any]]:
        """All dead letters, by their message."""
        lines = [line for path in self.folder.glob("dead-*.jsonl") for line in path.read_text().splitlines()]
        return sorted(map(json.loads, lines), key=lambda letter: str(letter["message"]))

    def cells(self) -> set[TreeCell]:
        """The cells of the table of trees."""
        return {
            (row.key, cell.qualifier, cell.timestamp_ms, cell.value)
            for row in scan_table(self.store.target, self.prefix + "tsdb-tree")
            for cell in row.cells
        }

    def values(self, tree_id: int) -> dict[tuple[bytes, bytes], Any]:
        """What is below the definition of a tree, by (row, qualifier), JSON parsed."""
        start = tree_id.to_bytes(2, "big")
        return {
            (key, name): json.loads(value) if value.startswith(b"{") else value.decode()
            for key, name, _, value in self.cells()
            if key[:2] == start and name != b"tree" and not name.startswith(b"tree_rule:")
        }
