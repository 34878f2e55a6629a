"""A move to wider UIDs, another salt and another prefix: everything that a TSD stores comes along."""

from __future__ import annotations

import json
import random
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Ran, ingest, timebeam
from tests.support.fault_proxy import AFTER, BEFORE
from tests.support.plain.rolled import config_file, interval
from tests.support.processes.killed import run_and_kill
from tests.support.processes.streams import start, wait_for
from tests.support.processes.uid_checks import assigned
from tests.support.pubsub_server import Published, PubSubServer
from tests.support.stored import Store
from tests.support.workload import as_messages, check_equal, random_points
from timebeam.pipelines.store import copy
from timebeam.schema.core.point_fragments import Name
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions
from timebeam.schema.stores.opentsdb.trees.tree_cells import LEAF
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.opentsdb.copy_to_other_uids import ComparedRows, compare_translated
from timebeam.transforms.read.table_reader import scan_table

DAY = 1_767_225_600  # 2026-01-01
SPAN = (f"--start={DAY}", f"--end={DAY + 86_400}")
WIDER = {"uid_width_metric": 4, "uid_width_tagk": 2, "uid_width_tagv": 5, "salt_width": 1, "salt_buckets": 7}
TREE = {
    "name": "hosts",
    "enabled": True,
    "storeFailures": True,
    "rules": [
        {"type": "TAGK", "field": "host", "level": 0, "order": 0},
        {"type": "METRIC", "level": 1, "order": 0, "separator": "\\."},
    ],
}


def created(bigtable: tuple[str, str], prefix: str, config: Path, **options: Any) -> Store:
    """New tables with those of rollups, metadata and trees."""
    store = Store(Target(*bigtable), OpenTsdb(OpenTsdbOptions(table_prefix=prefix, **options)))
    ran = timebeam("tables", "create", *store.flags, "--meta", "--trees", "--rollup-config", config)
    assert ran.code == 0, ran.err
    return store


def put_lines(hosts: range, values: range, modes: tuple[str, ...] = ("a", "b")) -> str:
    """Points of two metrics, a minute apart; `mode` is no part of the tree, so leaves collide."""
    return "".join(
        f"put sys.m{host % 2} {DAY + 60 * value} {value}.5 host=web{host} mode={mode}\n"
        for host in hosts
        for value in values
        for mode in modes
    )


def fill(store: Store, folder: Path, lines: str, *flags: str) -> None:
    """Ingests lines of telnet, with metadata."""
    path = folder / f"points-{len(list(folder.iterdir()))}.txt"
    path.write_text(lines)
    ingest(
        folder,
        *store.flags,
        "--format=opentsdb-text",
        "--auto-create-metrics",
        "--meta=full",
        f"--input={path}",
        *flags,
    )


def copy_command(source: Store, sink: Store, config: Path) -> list[str | Path]:
    """`timebeam copy` with everything beside the points."""
    to = [f.replace("--", "--to-", 1) for f in sink.flags if f.startswith(("--table", "--set"))]
    own = [f for f in source.flags if not f.startswith("--layout")]
    return [
        *("copy", "--from=opentsdb", "--to=opentsdb", *own, *to, "--auto-create-metrics", *SPAN),
        *("--also", "rollups", "--also", "meta", "--also", "trees", "--rollup-config", config),
        *("--dead-letters", config.parent / "dead"),
    ]


def copied(source: Store, sink: Store, config: Path, *flags: str) -> Ran:
    """Runs the command."""
    return timebeam(*copy_command(source, sink, config), *flags)


def answers(store: Store, config: Path) -> list[str]:
    """What users see: points, answers from rollups and pre-aggregates, series, annotations, trees."""
    where = (*store.flags, *SPAN)
    rolled = ("--rollup-config", config, "--downsample=1h-sum")
    texts = [
        timebeam("query", "sys.m0", *where, "--output=json").out,
        timebeam("query", "sys.m1", *where, *rolled, "--output=json").out,
        timebeam(
            "query", "sys.m0", *where, *rolled, "--aggregator=sum", "--group-by=host", "--output=json"
        ).out,
        timebeam("query", "sys.m0", *where, "--output=annotations").out,
    ]
    series = json.loads(timebeam("series", "*", *store.flags, "--source=meta", "--output=json").out)
    texts.append(json.dumps(sorted(json.dumps(listed | {"tsuid": ""}) for listed in series)))
    texts.append(timebeam("trees", "show", *store.flags).out)
    *texts, tree = [re.sub(r"\b[0-9A-F]{20,}\b", "TSUID", text) for text in texts]
    return [*texts, "\n".join(sorted(tree.splitlines()))]  # leaves and collisions are listed by TSUID


def test_rollups_are_not_copied_where_queries_trust_marks(
    bigtable: tuple[str, str], prefix: str, config: Path
) -> None:
    """A copied rollup could overwrite what `rollup --follow` has made of later points."""
    source = created(bigtable, prefix, config)
    sink = created(bigtable, f"{prefix}new_", config, marked_since="2026-01-01")
    ran = copied(source, sink, config)
    assert (ran.code, "--also rollups" in ran.err) == (2, True), ran.err
    assert copied(source, sink, config, "--verify-only").code == 0


def rollup_cells(store: Store, config: Path) -> dict[str, set[tuple[bytes, bytes, bytes]]]:
    """(row key, qualifier, value) of the tables of rollups."""
    names = {
        name
        for entry in json.loads(config.read_text())["intervals"]
        for name in ([] if entry.get("defaultInterval") else [entry["table"]])
        + [entry["preAggregationTable"]]
    }
    prefix = store.layout.options.table_prefix
    return {
        name: {
            (row.key, cell.qualifier, cell.value)
            for row in scan_table(store.target, prefix + name)
            for cell in row.cells
        }
        for name in names
    }


@pytest.fixture
def config(tmp_path: Path) -> Path:
    groups = [{"metrics": ["sys.*"], "keepTags": ["host"], "aggregators": ["sum", "max"]}]
    return config_file(tmp_path, [interval("1h", "1d")], groups)


def test_rollups_metadata_annotations_and_trees_come_along(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, config: Path
) -> None:
    source = created(bigtable, prefix, config)
    fill(source, tmp_path, put_lines(range(6), range(0, 200, 7)))
    key = source.rows()[0].key
    note = {"tsuid": (key[:3] + key[7:]).hex().upper(), "startTime": DAY + 60, "description": "deploy"}
    (tmp_path / "note.json").write_text(json.dumps(note))
    ingest(tmp_path, *source.flags, "--format=opentsdb-annotations", "--input", tmp_path / "note.json")
    source.set_cell(source.layout.data_table, key, "t", b"\x06\x00\x10", b"\x00histogram")
    rollup = ("--rollup-config", config, *SPAN, "--dead-letters", tmp_path / "letters")
    assert timebeam("rollup", *source.flags, *rollup).code == 0
    (tmp_path / "tree.json").write_text(json.dumps(TREE))
    assert timebeam("trees", "create", tmp_path / "tree.json", *source.flags).code == 0
    synced = timebeam("trees", "sync", *source.flags, "--dead-letters", tmp_path / "letters")
    assert synced.code == 0, synced.err
    sink = created(bigtable, f"{prefix}wide-", config, **WIDER)
    ran = copied(source, sink, config)
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[-1].endswith(" rows of rollups, series, names, trees; verified")
    shown = answers(source, config)
    assert all(len(text) > 100 for text in shown[:3])
    assert answers(sink, config) == shown
    assert timebeam("check", *sink.flags).code == 0
    # What the jobs themselves would make in the new tables is what was copied.
    cells = rollup_cells(sink, config)
    assert all(cells.values())
    assert timebeam("rollup", *sink.flags, *rollup).code == 0
    assert rollup_cells(sink, config) == cells
    meta = json.loads(timebeam("meta", "sync", *sink.flags, "--dry-run", "--summary=json").out)
    assert (meta["series_created"], meta["uids_created"]) == (0, 0)
    before = list(scan_table(sink.target, f"{prefix}wide-tsdb-tree"))
    assert any(cell.qualifier.startswith(LEAF) for row in before for cell in row.cells)
    assert timebeam("trees", "sync", *sink.flags, "--dead-letters", tmp_path / "letters").code == 0
    assert list(scan_table(sink.target, f"{prefix}wide-tsdb-tree")) == before
    # The proof is by values.
    name = f"{prefix}wide-rollup-1h"
    row = next(scan_table(sink.target, name))
    sink.remove_row(name, row.key)
    sink.set_cell(name, row.key, "t", row.cells[0].qualifier, b"\x01")
    ran = copied(source, sink, config, "--verify-only")
    assert ran.code == 1
    assert f"{len(row.cells) - 1} cells are missing and 1 differ" in ran.err
    histogram = next(row for row in sink.rows() for cell in row.cells if cell.qualifier == b"\x06\x00\x10")
    sink.remove_row(sink.layout.data_table, histogram.key)
    sink.set_cell(sink.layout.data_table, histogram.key, "t", b"\x06\x00\x10", b"\x00other")
    assert "2 annotations and histograms are missing" in copied(source, sink, config, "--verify-only").err
    assert copied(source, sink, config).code == 0
    assert rollup_cells(sink, config) == cells


def test_rejected_points_do_not_hide_missing_rollups(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sys.m0 has no UID in the new tables, so all of it is rejected; then a row of sys.m1 is lost."""
    source = created(bigtable, prefix, config)
    fill(source, tmp_path, put_lines(range(2), range(0, 200, 7)))
    rollup = ("--rollup-config", config, *SPAN, "--dead-letters", tmp_path / "letters")
    assert timebeam("rollup", *source.flags, *rollup).code == 0
    sink = created(bigtable, f"{prefix}wide-", config, **WIDER)
    assigned(sink, [Name("metrics", "sys.m1")])
    command = [flag for flag in copy_command(source, sink, config) if flag != "--auto-create-metrics"]
    ran = timebeam(*command)
    assert (ran.code, ran.err) == (0, "")
    assert re.search(r"; verified, but \d+ rejected: see the dead letters$", ran.out, re.MULTILINE)
    assert re.search(r"rows of rollups, .*verified, but \d+ cells rejected: see the dead letters$", ran.out)

    def lose_a_row(*arguments: Any) -> ComparedRows:
        row = next(scan_table(sink.target, f"{prefix}wide-rollup-1h"))
        sink.remove_row(row.table, row.key)
        return compare_translated(*arguments)

    monkeypatch.setattr(copy, "compare_translated", lose_a_row)
    count = len(next(scan_table(sink.target, f"{prefix}wide-rollup-1h")).cells)
    ran = timebeam(*command)
    assert (ran.code, f"; {count} cells are missing and 0 differ" in ran.err) == (1, True), ran.err


@pytest.mark.long
def test_a_copy_that_is_killed_ten_times_is_finished_by_the_next(
    bigtable: tuple[str, str], prefix: str, emulator: str, tmp_path: Path, config: Path
) -> None:
    source = created(bigtable, prefix, config)
    fill(source, tmp_path, put_lines(range(6), range(0, 200, 7)))
    rollup = ("--rollup-config", config, *SPAN, "--dead-letters", tmp_path / "letters")
    assert timebeam("rollup", *source.flags, *rollup).code == 0
    (tmp_path / "tree.json").write_text(json.dumps(TREE))
    assert timebeam("trees", "create", tmp_path / "tree.json", *source.flags).code == 0
    assert timebeam("trees", "sync", *source.flags, "--dead-letters", tmp_path / "letters").code == 0
    sink = created(bigtable, f"{prefix}wide-", config, **WIDER)
    command = copy_command(source, sink, config)
    kills = [
        run_and_kill(emulator, command, nth, BEFORE if nth % 2 else AFTER).killed for nth in range(1, 11)
    ]
    assert any(kills)
    ran = copied(source, sink, config)
    assert (ran.code, ran.err) == (0, "")
    assert answers(sink, config) == answers(source, config)
    assert timebeam("check", *sink.flags).code == 0


@pytest.mark.long
def test_a_stream_runs_while_its_tables_move(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, config: Path
) -> None:
    """The steps of docs/use/copy.md: mirror, copy, copy the rest, verify."""
    chance = random.Random(20261122)
    points = random_points(chance, series=30, hours=6, a_row=20, corrections=0.2, most=20)
    messages = as_messages(points)
    before, during = messages[: len(messages) // 2], messages[len(messages) // 2 :]
    source = created(bigtable, prefix, config)
    sink = created(bigtable, f"{prefix}wide-", config, **WIDER)
    to = [f.replace("--", "--to-", 1) for f in sink.flags if f.startswith(("--table", "--set"))]
    copying = (
        *("copy", "--from=opentsdb", "--to=opentsdb", *source.flags[1:], *to, "--auto-create-metrics"),
        *("--start=0", f"--dead-letters={tmp_path / 'dead'}"),
    )
    with PubSubServer(before, seed=1).running() as old, PubSubServer(seed=2).running() as mirror:
        streams = [start(source, tmp_path / "old", old)]
        wait_for(old, len(before) // 2, streams[0])
        streams.append(start(sink, tmp_path / "mirror", mirror))  # behind the old one, as in reality
        publishing = threading.Thread(target=publish, args=(during, [old, mirror]))
        publishing.start()
        ran = timebeam(*copying)
        assert "copied" in ran.out + ran.err  # what the old stream stores during the copy is copied next
        publishing.join()
        for server, stream, count in ((old, streams[0], len(messages)), (mirror, streams[1], len(during))):
            wait_for(server, count - 1, stream)
        ran = timebeam(*copying)
        assert ran.code == 0, ran.err
        ran = timebeam(*copying, "--verify-only")
        assert (ran.code, ran.err) == (0, "")
        for stream in streams:
            stream.terminate()
            stream.join()
    check_equal(source, points, "points", corrected_in_place=True)
    assert sink.points() == source.points()


def publish(messages: list[Published], servers: list[PubSubServer]) -> None:
    """Publishes to the subscriptions of both streams, in the time of a copy."""
    for start_at in range(0, len(messages), 20):
        for server in servers:
            server.add(messages[start_at : start_at + 20])
        time.sleep(0.05)
