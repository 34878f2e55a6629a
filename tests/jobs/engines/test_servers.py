"""Engines with a server, Prism and Flink, with two Python processes: content as from one process.

The engine itself is set up once for all tests; the tests with Flink run only by `make test-engines`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apache_beam.runners.runner import PipelineResult

from benchmarks.engines import prism
from benchmarks.table_content import NamedCell, named_cells
from benchmarks.worker_pool import WorkerPool
from tests.support.commands import timebeam
from tests.support.plain.rolled import config_file, interval, with_tables
from tests.support.points import BASE_S, FIRST_MS
from tests.support.processes.text_ingest import text_ingest
from tests.support.processes.tracked import FOLDER, FREE, WAITING, DeadlyOnce, HeldOnce
from tests.support.servers.flink_cluster import FlinkCluster
from tests.support.stored import Store
from timebeam.pipelines.jobs.run import run_with_progress, start
from timebeam.pipelines.local import flink
from timebeam.pipelines.output.progress_and_summary import PointsSummary
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions

FILES, HOSTS, SCRAPES = 4, 4, 60
TABLES = ("tsdb", "rollup-1h", "copy-tsdb")
SETTLED = "timebeam.pipelines.store.closed_hours.SETTLED_MS"


@pytest.fixture(scope="module")
def on_prism() -> Iterator[list[str]]:
    """Options of commands that run on Prism."""
    if not prism():
        pytest.skip("no prism on PATH, and PRISM_LOCATION is not set")
    with WorkerPool(2) as pool:
        options = ["--runner=PrismRunner", f"--prism_location={prism()}", "--environment_type=EXTERNAL"]
        yield [*options, f"--environment_config={pool.address}"]
    assert sorted(pool.bundles) == [0, 1]


@pytest.fixture(scope="module")
def on_flink(emulator: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Options of commands that run on Flink, whose workers know the emulator and import layouts of tests."""
    if why := flink.missing():
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("flink")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
        patch.setenv(FOLDER, str(folder))
        with flink.engine(folder) as options:
            yield options


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Files of points, of which each has a line that is rejected."""
    folder = tmp_path / "input"
    folder.mkdir()
    for number in range(FILES):
        lines = [
            f"put sys.load {BASE_S + 60 * (SCRAPES * number + scrape)} {scrape} host=h{host}\n"
            for scrape in range(SCRAPES)
            for host in range(HOSTS)
        ]
        path = folder / f"{number}.txt"
        path.write_text("".join(lines) + f"put sys.load {BASE_S} nan host=a\n")
        os.utime(path, (FIRST_MS / 1000, FIRST_MS / 1000))
    return folder


class Commands:
    """Ingest, compact, rollup and copy into tables of one prefix."""

    def __init__(self, store: Store, files: Path, folder: Path) -> None:
        self._store, self._files = store, files
        self._dead = [f"--dead-letters={folder / 'dead'}"]
        self._config = config_file(folder, [interval("1h", "1n")])
        self._copy = OpenTsdb(OpenTsdbOptions(table_prefix=f"{store.layout.options.table_prefix}copy-"))
        with_tables(store, self._config)
        target = store.target
        Store.create((target.project, target.instance), self._copy.options.table_prefix)

    def run(self, *flags: str) -> tuple[list[dict[str, Any]], list[set[NamedCell]]]:
        """(summaries of the commands, content of both data tables and the rollup table)."""
        hours = [f"--start={BASE_S}", f"--end={BASE_S + 3600 * FILES}"]
        ingest = ["--format=opentsdb-text", "--auto-create-metrics", "--bigtable-writer=direct"]
        copy = ["--from=opentsdb", "--to=opentsdb", "--auto-create-metrics", *hours, *self._dead]
        commands: dict[str, list[str]] = {
            "ingest": [*ingest, "--packing=points", f"--input={self._files}/*.txt", *self._dead],
            "compact": hours,
            "rollup": [f"--rollup-config={self._config}", *hours, *self._dead],
            "copy": [*copy, f"--to-table-prefix={self._copy.options.table_prefix}"],
        }
        summaries = []
        for name, options in commands.items():
            where = [flag for flag in self._store.flags if name != "copy" or "layout" not in flag]
            ran = timebeam(name, *where, *options, "--summary=json", *flags)
            assert ran.code == 0, ran.err
            summaries += map(json.loads, ran.out.splitlines())
        tables = {self._store.layout: ("tsdb", "rollup-1h"), self._copy: ("tsdb",)}
        return summaries, [
            set(
                named_cells(
                    self._store.target, layout, [layout.options.table_prefix + table for table in names]
                )
            )
            for layout, names in tables.items()
        ]


def without_times(summary: dict[str, Any]) -> dict[str, Any]:
    """What a summary says that does not depend on the machine."""
    names = ("seconds", "points_per_second", "rows_per_second", "dead_letters")
    return {name: figure for name, figure in summary.items() if name not in names}


@pytest.mark.parametrize("engine", ["on_prism", pytest.param("on_flink", marks=pytest.mark.engines)])
def test_four_commands_on_two_processes_give_cells_and_summaries_of_one(
    engine: str,
    request: pytest.FixtureRequest,
    bigtable: tuple[str, str],
    prefix: str,
    files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(SETTLED, 0)
    flags = request.getfixturevalue(engine)
    results = {}
    for name, options in (("one", []), ("two", flags)):
        folder = tmp_path / name
        folder.mkdir()
        results[name] = Commands(Store.create(bigtable, f"{prefix}{name}-"), files, folder).run(*options)
    one, two = results["one"], results["two"]
    for of_one, of_two in zip(one[0], two[0], strict=True):
        assert without_times(of_one) == without_times(of_two)
    assert two[0][0]["rejected"] == {"bad-number": FILES}
    assert two[0][0]["unaccounted"] == 0
    assert len(two[0][0]["dead_letters"]) > 0
    assert one[1] == two[1]
    assert {cell.table for cell in one[1][0]} == {"tsdb", "rollup-1h"}


@pytest.mark.engines
def test_a_rejection_over_the_limit_is_the_exit_code_on_flink(
    on_flink: list[str], bigtable: tuple[str, str], prefix: str, files: Path, tmp_path: Path
):
    store = Store.create(bigtable, prefix)
    options = ["--format=opentsdb-text", "--auto-create-metrics", f"--input={files}/*.txt"]
    limit = [f"--dead-letters={tmp_path / 'dead'}", f"--max-rejected={FILES - 1}"]
    ran = timebeam("ingest", *store.flags, *options, *limit, *on_flink)
    assert ran.code == 1
    assert f"rejected {FILES} of {FILES * (HOSTS * SCRAPES + 1)}" in ran.err


def check_stored(store: Store, result: PipelineResult, again: Store, files: Path, dead: Path) -> None:
    """Checks the counts of a run, and that its cells are those of a run of `ingest` into other tables."""
    summary = PointsSummary.of(result, 1.0, False, str(dead))
    assert summary.points_stored == FILES * SCRAPES * HOSTS
    assert summary.rejected == {"bad-number": FILES}
    ran = timebeam(
        *("ingest", *again.flags, "--format=opentsdb-text", "--auto-create-metrics"),
        *("--bigtable-writer=direct", f"--input={files}/*.txt", f"--dead-letters={dead}-again"),
    )
    assert ran.code == 0, ran.err
    stored, expected = (
        set(named_cells(each.target, each.layout, [each.layout.data_table])) for each in (store, again)
    )
    assert stored == expected


@pytest.mark.engines
def test_flink_replaces_a_worker_that_dies_within_a_bundle(
    on_flink: list[str], bigtable: tuple[str, str], prefix: str, files: Path, tmp_path: Path
):
    store, again = (Store.create(bigtable, f"{prefix}{name}") for name in ("", "again-"))
    dead = tmp_path / "dead"
    layout = DeadlyOnce(store.layout.options)
    result = run_with_progress(text_ingest(layout, store.target, f"{files}/*.txt", dead, on_flink))
    assert len(list(Path(os.environ[FOLDER]).glob("died-*"))) == 1
    check_stored(store, result, again, files, dead)


@pytest.mark.engines
def test_a_job_manager_that_is_killed_within_a_bundle_is_followed_by_another(
    emulator: object,
    bigtable: tuple[str, str],
    prefix: str,
    files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    if why := flink.missing():
        pytest.skip(why)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    monkeypatch.setenv(FOLDER, str(tmp_path))
    store, again = (Store.create(bigtable, f"{prefix}{name}") for name in ("", "again-"))
    dead = tmp_path / "dead"
    with (
        FlinkCluster(tmp_path / "cluster") as cluster,
        flink.engine(tmp_path, master=cluster.address, configuration=cluster.configuration) as flags,
    ):
        result = start(
            text_ingest(HeldOnce(store.layout.options), store.target, f"{files}/*.txt", dead, flags)
        )
        while not (tmp_path / WAITING).exists():
            assert result.state not in ("FAILED", "DONE")
            time.sleep(0.2)
        cluster.job_manager.kill()
        cluster.job_manager.wait()
        (tmp_path / FREE).touch()
        cluster.start_job_manager("second")
        result.wait_until_finish()
        assert "Recovered JobGraph" in cluster.log("second")
        check_stored(store, result, again, files, dead)
