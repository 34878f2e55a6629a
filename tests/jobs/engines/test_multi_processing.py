"""Worker processes of Beam's local runner: tables, figures and dead letters as from one process."""

from __future__ import annotations

import collections
import json
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.table_content import NamedCell, named_cells
from tests.support.commands import timebeam
from tests.support.plain.rolled import config_file, interval, with_tables
from tests.support.points import BASE_S, FIRST_MS
from tests.support.processes.text_ingest import text_ingest
from tests.support.processes.tracked import FOLDER, Tracked
from tests.support.stored import Store
from timebeam.pipelines.beam_patches.local_runner import LOCAL_RUNNER
from timebeam.pipelines.output.progress_and_summary import PointsSummary

TWO = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
FILES, HOSTS, SCRAPES = 6, 4, 50


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of points, of which each has two lines that are rejected."""
    folder = tmp_path_factory.mktemp("input")
    for number in range(FILES):
        lines = [
            f"put sys.load {BASE_S + 60 * (SCRAPES * number + scrape)} {scrape} host=h{host} dc=d{host % 2}"
            for scrape in range(SCRAPES)
            for host in range(HOSTS)
        ]
        path = folder / f"{number}.txt"
        path.write_text("\n".join([*lines, f"put sys.load {BASE_S} nan{number} host=a", "what?"]) + "\n")
        os.utime(path, (FIRST_MS / 1000, FIRST_MS / 1000))
    return folder


def ingest(store: Store, files: Path, folder: Path, *flags: str) -> dict[str, Any]:
    """The summary of an ingest."""
    ran = timebeam(
        *("ingest", *store.flags, "--format=opentsdb-text", "--auto-create-metrics", "--summary=json"),
        *("--bigtable-writer=direct", f"--input={files}/*.txt", f"--dead-letters={folder / 'dead'}", *flags),
    )
    assert ran.code == 0, ran.err
    return dict(json.loads(ran.out))


def letters(folder: Path) -> collections.Counter[tuple[str, ...]]:
    """Reason, message, source and payload of each dead letter, with how often it is there."""
    lines = [line for path in folder.glob("dead*.jsonl") for line in path.read_text().splitlines()]
    names = ("reason", "message", "source", "payload")
    return collections.Counter(tuple(str(json.loads(line)[name]) for name in names) for line in lines)


def counted(summary: dict[str, Any]) -> dict[str, Any]:
    """The figures of a summary that do not depend on the machine."""
    leave = ("seconds", "points_per_second", "dead_letters")
    return {name: figure for name, figure in summary.items() if name not in leave}


def rolled_up(store: Store, tmp_path: Path, *flags: str) -> set[NamedCell]:
    """The data and rollup tables after a rollup of all points."""
    aggregates = [{"metrics": ["*"], "keepTags": ["dc"], "aggregators": ["sum"]}]
    config = config_file(tmp_path, [interval("1h", "1n")], aggregates)
    with_tables(store, config)
    ran = timebeam(
        *(
            "rollup",
            *store.flags,
            f"--rollup-config={config}",
            f"--start={BASE_S}",
            f"--end={BASE_S + 21600}",
        ),
        *(f"--dead-letters={tmp_path / 'rollup-dead'}", *flags),
    )
    assert ran.code == 0, ran.err
    prefix = store.layout.options.table_prefix
    tables = [prefix + name for name in ("rollup-1h", "preagg-1h", "preagg-1m")]
    return set(named_cells(store.target, store.layout, [store.layout.data_table, *tables]))


@pytest.mark.long  # the next test is the short one
def test_two_processes_give_the_cells_figures_and_dead_letters_of_one(
    bigtable: tuple[str, str], prefix: str, files: Path, tmp_path: Path
):
    found = {}
    for name, flags in (("one", []), ("two", TWO)):
        store, folder = Store.create(bigtable, f"{prefix}{name}_"), tmp_path / name
        folder.mkdir()
        summary = ingest(store, files, folder, *flags)
        assert summary["points_stored"] == FILES * SCRAPES * HOSTS
        found[name] = summary, letters(folder), rolled_up(store, folder, *flags)
    one, two = found["one"], found["two"]
    assert counted(one[0]) == counted(two[0])
    assert one[1] == two[1]
    assert sum(one[1].values()) == 2 * FILES
    assert one[2] == two[2]
    assert {cell.table for cell in one[2]} == {"tsdb", "rollup-1h", "preagg-1h", "preagg-1m"}
    for summary, rejected, _ in (one, two):
        assert sum(summary["rejected"].values()) == sum(rejected.values())
        assert summary["unaccounted"] == 0


@pytest.mark.long
def test_both_processes_encode(
    bigtable: tuple[str, str], prefix: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pids = tmp_path / "pids"
    pids.mkdir()
    monkeypatch.setenv(FOLDER, str(pids))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))  # workers import the layout
    store = Store.create(bigtable, prefix)
    flags = [*TWO, f"--runner={LOCAL_RUNNER}"]
    layout = Tracked(store.layout.options)
    result = text_ingest(layout, store.target, f"{files}/*.txt", tmp_path / "dead", flags).run()
    result.wait_until_finish()
    summary = PointsSummary.of(result, 1.0, False, str(tmp_path / "dead"))
    assert summary.points_stored == FILES * SCRAPES * HOSTS
    workers = {int(path.name) for path in pids.iterdir()}
    assert len(workers) == 2
    assert os.getpid() not in workers
