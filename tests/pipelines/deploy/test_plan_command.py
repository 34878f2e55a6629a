"""`timebeam plan`: its figures are what an ingest then stores; its answers for people and for programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import ingest, timebeam
from timebeam.pipelines.sizing.measure import SizingLoad, Values, row_span
from timebeam.schema.core.points import PointBatch
from timebeam.schema.stores import make_store
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.read.table_reader import scan_table

ROOT = Path(__file__).resolve().parents[3]
MINUTES = {"opentsdb": 1}
"""From point to point; an hour where rows hold weeks."""
FLAGS = ["--series=3", "--retention=1d", "--metrics=1", "--tags=2", "--name-length=8"]


def _as_lines(batch: PointBatch) -> str:
    """opentsdb-json of a batch, as it is."""
    lines = []
    for at in range(len(batch)):
        one = json.loads(batch.as_json(at))
        lines.append(json.dumps(one))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("name", "packing"),
    [
        ("opentsdb", "compacted"),
        ("opentsdb", "points"),
        ("heroic", "points"),
        ("heroic-readable", "points"),
        ("kairosdb", "points"),
    ],
)
def test_an_ingest_stores_what_the_plan_says(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, name: str, packing: str
) -> None:
    """A file of one row of each series; the plan measures the same row of its own sample."""
    minutes = MINUTES.get(name, 60)
    load = SizingLoad(3, minutes * 60_000, 86_400, 1, 2, 4, 8, Values.DECIMALS, 1, 30)
    described = [*FLAGS, f"--interval={minutes}m", "--values=decimals"]
    made = timebeam("plan", "--layout", name, "--summary=json", *described)
    assert (made.code, made.err) == (0, "")
    document = json.loads(made.out)
    (planned,) = (one for one in document["sizes"] if one["case"] == {"packing": packing, "input": "files"})

    layout = make_store(name, {})
    start_ms, span_ms = row_span(layout, load)
    points = planned["measured"]["points_per_row"]
    assert points == span_ms // load.interval_ms
    path = tmp_path / "in.json"
    path.write_text(_as_lines(load.points(range(3), points, start_ms, points)))
    project, instance = bigtable
    flags = [f"--layout={name}", f"--table-prefix={prefix}", f"--project={project}", f"--instance={instance}"]
    assert timebeam("tables", "create", *flags).code == 0
    command = [*flags, "--format=opentsdb-json", f"--input={path}", f"--packing={packing}"]
    done = ingest(tmp_path, *command, "--auto-create-metrics", "--bigtable-writer=direct").summary
    assert done["points_stored"] == 3 * points
    measured = planned["measured"]

    target = Target(project, instance)
    (table,) = (spec.name for spec in layout.tables() if spec.holds_points)
    rows = list(scan_table(target, prefix + table))
    cells = [(row.key, cell) for row in rows for cell in row.cells]
    assert measured["cells_per_point"] == pytest.approx(len(cells) / (3 * points))
    # Independent of the program's own sums.
    size = sum(len(key) + len(cell.family) + len(cell.qualifier) + 8 + len(cell.value) for key, cell in cells)
    assert measured["bytes_per_point"] == pytest.approx(size / (3 * points))
    assert measured["key_bytes"] == max(len(row.key) for row in rows)


def test_the_table_has_a_line_for_each_case_and_the_warnings() -> None:
    ran = timebeam("plan", "--series=1000000", "--layout=opentsdb", "--metrics=1", "--node-price=1")
    assert ran.code == 0
    lines = [line.split()[:2] for line in ran.out.splitlines() if line]
    for case in (["compacted", "stream"], ["compacted", "files"], ["points", "stream"], ["append", "stream"]):
        assert case in lines
    assert "cost a month" in ran.out
    assert "hot spot: 100,000 row writes/s" in ran.out
    assert "UIDs: metrics 1 of 16,777,215" in ran.out


def test_the_price_of_a_month_by_what_it_is_for() -> None:
    prices = ["--core-price=2", "--shuffle-price=3", "--node-price=5", "--gb-price=7"]
    ran = timebeam("plan", "--series=1000000", "--layout=opentsdb", "--summary=json", *prices)
    for sizes in json.loads(ran.out)["sizes"]:
        assert sizes["costs_per_month"] == pytest.approx(
            {
                "workers": sizes["cores"] * 730 * 2,
                "shuffle": sizes["shuffled_bytes"] / 1e9 * 730 * 3600 * 3,
                "nodes": sizes["nodes"] * 730 * 5,
                "storage": sizes["stored_bytes"] / 1e9 * 7,
            }
        )
        assert sizes["cost_per_month"] == pytest.approx(sum(sizes["costs_per_month"].values()))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--layout=table"], "timebeam layout check"),
        (["--layout=kairosdb", "--set=row_spec=seconds"], "for reading only"),
        (["--layout=opentsdb", "--tags=31"], "Too many tags"),
        (["--layout=heroic", "--name-length=3"], "--name-length"),
        (["--layout=opentsdb", "--set=salt_width=1", "--set=salt_buckets=999"], "999 salt_buckets"),
    ],
)
def test_what_makes_no_sense_is_one_line(flags: list[str], said: str) -> None:
    ran = timebeam("plan", "--series=100000", *flags)
    assert ran.code == 2
    assert ran.out == ""
    assert said in ran.err
    assert len(ran.err.splitlines()) == 2


def test_durations_that_are_none() -> None:
    ran = timebeam("plan", "--series=1", "--layout=opentsdb", "--interval=often")
    assert ran.code == 2
    assert "--interval" in ran.err
    assert "Traceback" not in ran.err


def test_the_page_shows_what_the_command_prints() -> None:
    text = (ROOT / "docs" / "operate" / "sizing.md").read_text()
    blocks = [block.split("\n```")[0] for block in text.split("```\n$ ")[1:]]
    assert len(blocks) >= 2
    for block in blocks:
        command, _, printed = block.partition("\n")
        assert timebeam(*command.split()[1:]).out.rstrip() == printed.rstrip()


def test_a_reader_that_goes_away_is_no_failure() -> None:
    """As in `timebeam plan ... | head -1`."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "timebeam", "plan", "--series=5", "--layout=opentsdb"]
    ran = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False, timeout=60, cwd=ROOT)
    os.close(writing)
    assert (ran.returncode, ran.stderr) == (0, b"")
