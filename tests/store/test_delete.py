"""`timebeam delete` against the emulator: the model without the points of the range, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import model
from tests.support.any_store import VARIANTS, AnyStore
from tests.support.budget import long_after
from tests.support.commands import Ran, ingest, timebeam
from tests.support.fault_proxy import AFTER
from tests.support.killed import run_and_kill
from tests.support.model import Content, Point
from tests.support.points import corrections_of, put_file, random_points
from timebeam.pipelines.store import delete


@pytest.fixture(autouse=True)
def settled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends are as old as they need to be."""
    monkeypatch.setattr(delete, "_SETTLED_MS", 0)


def dry_run(store: AnyStore, folder: Path, *flags: str) -> dict[str, Any]:
    """The summary of a dry run."""
    ran = timebeam("delete", *flags, *store.flags, f"--log={folder / 'log'}", "--summary=json")
    assert ran.code == 0, ran.err
    summary: dict[str, Any] = json.loads(ran.out)
    assert summary["dry_run"]
    return summary


def delete_points(store: AnyStore, folder: Path, *flags: str) -> dict[str, Any]:
    """The summary of a dry run and, if it found anything, the real one."""
    dry = dry_run(store, folder, *flags)
    if not dry["token"]:
        return dry
    ran = real_run(store, folder, dry["token"], *flags)
    assert ran.code == 0, ran.err
    summary: dict[str, Any] = json.loads(ran.out)
    assert summary["tables"] == dry["tables"]
    return summary


def real_run(store: AnyStore, folder: Path, token: str, *flags: str) -> Ran:
    log = f"--log={folder / 'log'}"
    return timebeam("delete", *flags, *store.flags, log, "--token", token, "--summary=json")


def stored_points(store: AnyStore, folder: Path, *flags: str) -> list[Point]:
    """Points in two files, the second with corrections, as they were ingested."""
    points = random_points(400)
    corrections = corrections_of(points[::7])
    for name, part in (("first.txt", points), ("second.txt", corrections)):
        file = put_file(folder / name, part, part[0].arrival_ms)
        settings = [*store.flags, *store.auto_create, "--format=opentsdb-text", *flags]
        ingest(folder, *settings, "--input", file)
    return [*points, *corrections]


def without(content: Content, metric: str, first_ms: int, last_ms: int) -> Content:
    return {
        (series, time_ms): value
        for (series, time_ms), value in content.items()
        if series[0] != metric or not first_ms <= time_ms <= last_ms
    }


@pytest.mark.parametrize("variant", long_after(4, VARIANTS))
def test_the_points_of_a_range_are_gone(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, variant: str
) -> None:
    store = AnyStore.create(bigtable, prefix, variant)
    points = stored_points(store, tmp_path)
    content = store.content()
    if store.layout.uids:
        assert content == model.content(points)
    metric = points[0].series[0]
    times = sorted(time_ms for series, time_ms in content if series[0] == metric)
    first_ms, last_ms = times[len(times) // 4], times[len(times) // 2]
    expected = without(content, metric, first_ms, last_ms)
    summary = delete_points(store, tmp_path, metric, f"--start={first_ms}", f"--end={last_ms}")
    assert store.content() == expected
    deleted = sum(table["points"] for table in summary["tables"].values())
    if store.layout.name == "kairosdb":  # an integer and a decimal of one instant are in two rows
        assert deleted >= len(content) - len(expected)
    else:
        assert deleted == len(content) - len(expected)
    assert timebeam("check", *store.flags).code == 0
    again = dry_run(store, tmp_path, metric, f"--start={first_ms}", f"--end={last_ms}")
    assert (again["tables"], again["token"]) == ({}, "")
    lines = [json.loads(line) for path in tmp_path.glob("log-*.jsonl") for line in path.open()]
    assert sum(line["points"] for line in lines) == deleted
    assert {line["series"].split("{")[0] for line in lines} == {metric}


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> AnyStore:
    return AnyStore.create(bigtable, prefix, "opentsdb")


RANGE = ("--start=1356998400", "--end=1357002000")


def test_tags_select_as_a_query_does(store: AnyStore, tmp_path: Path) -> None:
    stored_points(store, tmp_path)
    content = store.content()
    delete_points(store, tmp_path, "sys.cpu", *RANGE, "--tag", "host=regexp([ab])", "mode=us*")
    expected = {
        (series, time_ms): value
        for (series, time_ms), value in content.items()
        if series[0] != "sys.cpu"
        or dict(series[1])["host"] == "c"
        or dict(series[1])["mode"] == "sys"
        or time_ms > 1_357_002_000_000
    }
    assert len(expected) < len(content)
    assert store.content() == expected


def test_a_token_is_refused_after_cells_have_changed(store: AnyStore, tmp_path: Path) -> None:
    points = stored_points(store, tmp_path)
    token = dry_run(store, tmp_path, "sys.cpu", *RANGE)["token"]
    late = points[0]._replace(series=("sys.cpu", (("host", "z"),)), time=1_356_998_401)
    ingest(
        tmp_path, *store.flags, "--format=opentsdb-text", "--input", put_file(tmp_path / "late.txt", [late])
    )
    content = store.content()
    ran = real_run(store, tmp_path, token, "sys.cpu", *RANGE)
    assert (ran.code, json.loads(ran.out)["changed"]) == (1, True)
    assert store.content() == content
    ran = real_run(store, tmp_path, token, "sys.cpu", "--start=1356998400")
    assert "other options" in ran.err


def test_what_arrives_after_the_dry_run_stays(store: AnyStore, tmp_path: Path) -> None:
    """Cells behind the cut-off are not those of the dry run, and neither refuse it nor are deleted."""
    stored_points(store, tmp_path)
    content = store.content()
    token = dry_run(store, tmp_path, "sys.cpu", *RANGE)["token"]
    newest_ms = int(token.partition("-")[0], 16)
    new = Point(("sys.cpu", (("host", "new"),)), 1_356_998_500, 7, newest_ms + 2_000)
    file = put_file(tmp_path / "new.txt", [new], newest_ms + 2_000)
    ingest(tmp_path, *store.flags, "--format=opentsdb-text", "--input", file)
    ran = real_run(store, tmp_path, token, "sys.cpu", *RANGE)
    assert ran.code == 0, ran.err
    expected = without(content, "sys.cpu", 1_356_998_400_000, 1_357_002_000_000)
    assert store.content() == expected | model.content([new])


def test_an_unknown_metric_is_named(store: AnyStore, tmp_path: Path) -> None:
    stored_points(store, tmp_path)
    ran = timebeam("delete", "sys.cpv", *RANGE, *store.flags, f"--log={tmp_path / 'log'}")
    assert ran.code == 2
    assert "did you mean 'sys.cpu'?" in ran.err


@pytest.mark.parametrize("nth", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_killed_run_is_completed_by_the_same_token(
    store: AnyStore, tmp_path: Path, emulator: str, nth: int
) -> None:
    stored_points(store, tmp_path)
    expected = without(store.content(), "sys.cpu", 1_356_998_400_000, 1_357_002_000_000)
    token = dry_run(store, tmp_path, "sys.cpu", *RANGE)["token"]
    arguments = ["delete", "sys.cpu", *RANGE, *store.flags, f"--log={tmp_path / 'log'}", "--token", token]
    killed = run_and_kill(emulator, arguments, nth, AFTER, settle_at_once)
    assert killed.killed or nth > 1
    ran = real_run(store, tmp_path, token, "sys.cpu", *RANGE)
    assert ran.code == 0, ran.err
    assert store.content() == expected


def settle_at_once() -> None:
    """In a process to be killed."""
    delete._SETTLED_MS = 0
