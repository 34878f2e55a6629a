"""Prism, a runner with a server of its own, with two Python processes: content as from one process."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks.engines import prism
from benchmarks.table_content import named_cells
from benchmarks.worker_pool import WorkerPool
from tests.support.commands import timebeam
from tests.support.points import BASE_S, FIRST_MS
from tests.support.rolled import config_file, interval, with_tables
from tests.support.stored import Store

FILES, HOSTS, SCRAPES = 4, 4, 60
TABLES = ("tsdb", "rollup-1h")

pytestmark = pytest.mark.skipif(not prism(), reason="no prism on PATH, and PRISM_LOCATION is not set")


def test_two_processes_behind_prism_give_the_cells_of_one(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
):
    files = tmp_path / "input"
    files.mkdir()
    for number in range(FILES):
        lines = [
            f"put sys.load {BASE_S + 60 * (SCRAPES * number + scrape)} {scrape} host=h{host}\n"
            for scrape in range(SCRAPES)
            for host in range(HOSTS)
        ]
        path = files / f"{number}.txt"
        path.write_text("".join(lines) + f"put sys.load {BASE_S} nan host=a\n")
        os.utime(path, (FIRST_MS / 1000, FIRST_MS / 1000))
    config = config_file(tmp_path, [interval("1h", "1n")])
    contents, summaries = [], []
    with WorkerPool(2) as pool:
        on_prism = ["--runner=PrismRunner", f"--prism_location={prism()}", "--environment_type=EXTERNAL"]
        for name, flags in (("one", []), ("two", [*on_prism, f"--environment_config={pool.address}"])):
            store = with_tables(Store.create(bigtable, f"{prefix}{name}_"), config)
            more = ["--summary=json", f"--dead_letters={tmp_path / name}", *flags]
            ran = timebeam(
                *("ingest", *store.flags, "--format=opentsdb-text", "--auto_create_metrics"),
                *("--bigtable_writer=direct", f"--input={files}/*.txt", *more),
            )
            assert ran.code == 0, ran.err
            summaries.append(json.loads(ran.out))
            hours = [f"--start={BASE_S}", f"--end={BASE_S + 3600 * FILES}"]
            ran = timebeam("rollup", *store.flags, f"--rollup_config={config}", *hours, *more)
            assert ran.code == 0, ran.err
            tables = [store.layout.options.table_prefix + table for table in TABLES]
            contents.append(named_cells(store.target, store.layout, tables))
    one, two = contents
    assert one == two
    assert {cell.table for cell in one} == set(TABLES)
    same = ("points_read", "points_stored", "refused", "uids_assigned", "rows", "cells", "bytes_written")
    for name in same:
        assert summaries[0][name] == summaries[1][name], name
    assert summaries[1]["refused"] == {"bad-number": FILES}
    assert summaries[1]["unaccounted"] == 0
    assert len(summaries[1]["dead_letters"]) > 0
    assert sorted(pool.bundles) == [0, 1]
