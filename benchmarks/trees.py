"""Trees of many series: the rules alone, and syncs of a fresh, of a complete and of a half-built tree.

    python -m benchmarks.trees --series 100000

Fills an emulator with names and series (8 data centres, a host for every 100 series, 100 metrics of three
parts), and syncs the tree of examples/trees/hosts.json with them, which has a leaf for each.

| figure | is |
|---|---|
| `rules` | the rules alone, in this process: microseconds a series |
| `first` | `timebeam trees sync` of an empty tree: seconds, and microseconds a series, by its own clock |
| `second` | the same again: it reads, and must write nothing |
| `tenth` | after a tenth of the branches was deleted |
| `from_data` | a sync of a complete tree with the series of the data table, of one row each |
| `leaves`, `branches` | what the first one wrote |

A count that is wrong ends the program with exit code 1.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from google.cloud.bigtable.data import DeleteAllFromRow

from benchmarks import bench
from benchmarks.bench import ROOT, TARGET, BenchmarkError, log, open_table, run_child
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.meta_documents import TsMeta, meta_table
from timebeam.schema.stores.opentsdb.trees.definitions import Tree, parse_trees
from timebeam.schema.stores.opentsdb.trees.place_series import TreeSeries, Uid, place
from timebeam.transforms.bigtable.create_tables import create_tables
from timebeam.transforms.bigtable.read_ranges import scan_keys
from timebeam.transforms.bigtable.write_rows import mutate_rows
from timebeam.transforms.opentsdb.trees.tree_table import tree_table

_TREE = ROOT / "examples" / "trees" / "hosts.json"
_ROWS = 10_000
_METRICS = 100
_START_S = 1_356_998_400


def series_of(n: int) -> Iterator[TreeSeries]:
    """n series by TSUID; the UIDs are the numbers of the names, from 1."""
    hosts = -(-n // _METRICS)
    for metric in range(_METRICS):
        for host in range(hosts):
            if metric * hosts + host < n:
                dc, suffix = host % 8, 9 + host
                tags = [("dc", 1, f"dc{dc}", 1 + dc), ("host", 2, f"web{host:05}", suffix)]
                tsuid = _uid(metric + 1) + b"".join(_uid(key) + _uid(value) for _, key, _, value in tags)
                pairs = [(Uid(key), Uid(value)) for key, _, value, _ in tags]
                yield TreeSeries(tsuid, Uid(f"sys.part{metric % 10}.value{metric // 10}"), pairs)


def _uid(number: int) -> bytes:
    return number.to_bytes(3, "big")


def fill(layout: OpenTsdb, series_list: Sequence[TreeSeries]) -> None:
    """The tables, with names, metadata and one data row of each series."""
    meta = meta_table("").name
    names: dict[bytes, dict[bytes, bytes]] = {}
    for series in series_list:
        uids = [series.tsuid[first : first + 3] for first in range(0, len(series.tsuid), 3)]
        texts = [series.metric.name, *(uid.name for pair in series.tags for uid in pair)]
        for number, (uid, text) in enumerate(zip(uids, texts, strict=True)):
            kind = (b"metrics", b"tagk", b"tagv")[number and 2 - number % 2]
            names.setdefault(uid, {})[kind] = text.encode()
    rows = [
        Row(
            layout.options.uid_table,
            uid,
            [Cell("name", kind, 0, text) for kind, text in texts_by_kind.items()],
        )
        for uid, texts_by_kind in names.items()
    ]
    rows += [
        Row(
            meta,
            tree_series.tsuid,
            [Cell("name", b"ts_meta", 0, TsMeta(tree_series.tsuid, _START_S).to_bytes())],
        )
        for tree_series in series_list
    ]
    base = _START_S.to_bytes(4, "big")
    rows += [
        Row(
            layout.data_table,
            tree_series.tsuid[:3] + base + tree_series.tsuid[3:],
            [Cell("t", b"\0\0", 0, b"\1")],
        )
        for tree_series in series_list
    ]
    specs = [*layout.tables(), meta_table(""), tree_table("")]
    for _ in create_tables(TARGET, specs, dry_run=False):
        pass
    for spec in specs:
        mine = [row for row in rows if row.table == spec.name]
        for first in range(0, len(mine), _ROWS):
            mutate_rows(TARGET, spec.name, mine[first : first + _ROWS])


def rules_alone(tree: Tree, series_list: Sequence[TreeSeries]) -> float:
    """Microseconds a series: the best of three turns."""
    turns = []
    for _ in range(3):
        start = time.perf_counter()
        for series in series_list:
            place(tree, series)
        turns.append(time.perf_counter() - start)
    return min(turns) / len(series_list) * 1e6


def sync(folder: Path, *flags: str) -> dict[str, Any]:
    """The summary of one sync in a process of its own."""
    place = [f"--project={TARGET.project}", f"--instance={TARGET.instance}"]
    command = ["-m", "timebeam", "trees", "sync", *place, "--summary=json"]
    child = run_child([*command, f"--dead-letters={folder / 'dead'}", *flags])
    figures: dict[str, Any] = json.loads(child.output)
    if figures["rejected"]:
        raise BenchmarkError(f"series were rejected: {figures}")
    return figures


def drop_a_tenth() -> int:
    """Deletes a tenth of the rows below the root; how many leaves went with them is not counted."""
    table = open_table(tree_table("").name)
    keys = [key for key in scan_keys(TARGET, tree_table("").name) if len(key) > 3][::10]
    for key in keys:
        table.mutate_row(key, DeleteAllFromRow())
    return len(keys)


def measure(folder: Path, *, series: int = 100_000) -> bench.Cases:
    """The rules alone, and the syncs.

    Raises:
      BenchmarkError: something was not written, or was written twice.
    """
    series_list = list(series_of(series))
    (tree,) = parse_trees(_TREE.read_text("utf-8"))
    log(f"{series:,} series")
    fill(OpenTsdb(), series_list)
    run_child(["-m", "timebeam", "trees", "create", str(_TREE), "--project=local", "--instance=local"])
    summaries = {"first": sync(folder), "second": sync(folder)}
    dropped = drop_a_tenth()
    summaries["tenth"] = sync(folder)
    summaries["from_data"] = sync(folder, "--series=data")
    first = summaries["first"]
    if first["leaves_written"] != series or summaries["tenth"]["branches_written"] != dropped:
        raise BenchmarkError(f"something is missing: {summaries}")
    if any(
        summaries[name][counter]
        for name in ("second", "from_data")
        for counter in ("leaves_written", "branches_written")
    ):
        raise BenchmarkError(f"something was written twice: {summaries}")
    rules = rules_alone(tree, series_list)
    cases: dict[str, bench.Figures] = {"rules": {"us a series": [rules]}}
    for name, summary in summaries.items():
        each = summary["seconds"] / series * 1e6
        cases[name] = {
            "times the rules": [each / rules],
            "us a series": [each],
            "seconds": [summary["seconds"]],
            "branches": [summary["branches_written"]],
        }
    return cases


if __name__ == "__main__":
    sys.exit(bench.main(measure))
