"""Rollups of layouts without rollup tables, against the emulator and an independent computation."""

from __future__ import annotations

import json
import random
from pathlib import Path

import grpc
import pytest

from tests.support.budget import long_after
from tests.support.commands import ingest
from tests.support.fault_proxy import AFTER, BEFORE, MUTATE_ROWS, BadEntries, faulty
from tests.support.plain.rollup_day import WRITES, Points, points_of
from tests.support.plain.rollup_series import HOUR, Place
from tests.support.processes.killed import run_and_kill
from timebeam.schema.core.points import Series
from timebeam.transforms.rollup.changed_hours import read_changed_hours

DAY = 1_772_236_800  # 2026-02-28


kairosdb = pytest.mark.parametrize("place", long_after(1, ["kairosdb", "heroic"]), indirect=True)
"""Tests in both layouts of which `make test` takes one."""


@pytest.fixture(params=["heroic", "kairosdb"])
def place(request: pytest.FixtureRequest, bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> Place:
    return Place(bigtable, prefix, request.param, tmp_path)


def storable(points: Points, name: str) -> Points:
    """Heroic stores doubles alone: no integers that are none."""
    if name == "kairosdb":
        return points
    return {key: float(value) for key, value in points.items()}


@pytest.mark.parametrize("place", long_after(1, ["heroic", "kairosdb"]), indirect=True)
def test_the_numbers_are_right_again_and_after_corrections(place: Place) -> None:
    points = storable(points_of(random.Random(1), DAY, 6), place.name)
    place.send(points, 1)
    beside = points_of(random.Random(2), DAY - 2 * HOUR, 2) | points_of(random.Random(3), DAY + 24 * HOUR, 2)
    other = {(Series.of("other", {"a": "b"}), DAY * 1000): 1.0}
    place.send(storable(beside | other, place.name), 2)
    ran = place.rollup()
    assert ran.code == 0, ran.err
    wanted = place.expected(points)
    summary = json.loads(ran.out)
    assert (summary["points_stored"], summary["rejected"]) == (len(wanted), {})
    place.check(points)
    first = place.dump()
    assert place.rollup().code == 0
    assert place.dump() == first
    # Corrections: some of integers to decimals, which KairosDB keeps in other rows beside the old ones.
    corrected = dict.fromkeys(random.Random(5).sample(sorted(points), 60), 0.5)
    place.send(corrected, 3)
    assert place.rollup().code == 0
    place.check(points | corrected)


@kairosdb
def test_what_stands_there_and_has_no_points_goes_and_nothing_else(place: Place) -> None:
    points = storable(points_of(random.Random(6), DAY, 6), place.name)
    place.send(points, 1)
    assert place.rollup(f"--start={DAY}", f"--end={DAY + 6 * HOUR}").code == 0
    before = place.stored()
    # Rollups of the third hour that no points are for, in the tables of 1h and 5m.
    for interval in ("1h", "5m"):
        name = (
            f"put sys.m0.{interval}.sum {DAY + 2 * HOUR} 7 host=gone saved_from=sys.m0\n"
            f"put sys.m0.{interval}.sum {DAY + 4 * HOUR} 7 host=gone saved_from=sys.m0\n"
            if place.name == "kairosdb"
            else f"put sys.m0 {DAY + 2 * HOUR} 7 host=gone rollup={interval} stat=sum\n"
            f"put sys.m0 {DAY + 4 * HOUR} 7 host=gone rollup={interval} stat=sum\n"
        )
        foreign = f"put mine.{interval} {DAY + 2 * HOUR} 8 host=gone\n"
        path = place.folder / f"stray-{interval}.txt"
        path.write_text(name + foreign)
        flags = [*place.flags[:-1], f"--table-prefix={place.prefix}{interval}-", "--format=opentsdb-text"]
        ingest(place.folder, *flags, "--bigtable-writer=direct", "--input", path)
    assert place.rollup(f"--start={DAY + 2 * HOUR}", f"--end={DAY + 3 * HOUR}").code == 0
    after = place.stored()
    left = {key for key in after if key not in before}
    assert {(series.metric, dict(series.tags).get("host"), at // 1000 - DAY) for series, at in left} == {
        ("mine.1h", "gone", 2 * HOUR),
        ("mine.5m", "gone", 2 * HOUR),
        *(
            (f"sys.m0.{interval}.sum" if place.name == "kairosdb" else "sys.m0", "gone", 4 * HOUR)
            for interval in ("1h", "5m")
        ),
    }
    assert {key: after[key] for key in before} == before


@pytest.mark.long
@pytest.mark.parametrize("place", ["kairosdb"], indirect=True)
def test_killed_and_run_again(place: Place, emulator: str) -> None:
    points = points_of(random.Random(7), DAY, 24)
    place.send(points, 1)
    rng = random.Random(8)
    command = ["rollup", *place.flags, "--day=2026-02-28", "--rollup-config", place.config]
    command += ["--dead-letters", place.folder / "killed"]
    for _ in range(2):
        assert run_and_kill(emulator, command, rng.randint(1, WRITES), rng.choice((BEFORE, AFTER))).killed
    assert place.rollup().code == 0
    place.check(points)


@kairosdb
def test_a_series_that_uses_the_names_of_rollups_is_rejected(place: Place) -> None:
    tag = "saved_from" if place.name == "kairosdb" else "stat"
    points: Points = {
        (Series.of("sys.a", {"host": "a", tag: "x"}), DAY * 1000): 1.0,
        (Series.of("sys.a", {"host": "a"}), DAY * 1000): 2.0,
    }
    place.send(points, 1)
    ran = place.rollup()
    assert ran.code == 0
    assert json.loads(ran.out)["rejected"] == {"series-not-storable": 3}  # in each interval
    place.check({key: value for key, value in points.items() if len(key[0].tags) == 1})


@pytest.mark.parametrize("place", ["heroic"], indirect=True)
def test_wrong_configurations(place: Place) -> None:
    config = json.loads(place.config.read_text())
    config["timebeam"]["preAggregates"] = [{"metrics": ["*"], "keepTags": ["a"], "aggregators": ["sum"]}]
    place.config.write_text(json.dumps(config))
    ran = place.rollup()
    assert (ran.code, "timebeam.preAggregates" in ran.err) == (2, True), ran.err


@pytest.mark.parametrize("place", ["kairosdb"], indirect=True)
def test_all_marks_stay_if_bigtable_rejects_a_row(place: Place, emulator: str) -> None:
    """The key of a rollup does not tell the metric of its points."""
    places = [(Series.of(metric, {"host": "a"}), DAY * 1000) for metric in ("sys.a", "sys.b")]
    place.send(dict.fromkeys(places, 1.0), 1, "--mark-changed")
    layout = place.layout("")
    marks = list(read_changed_hours(place.target, layout))
    fault = BadEntries(grpc.StatusCode.INVALID_ARGUMENT, lambda key: b"sys.a.1h.sum\0" in key)
    with faulty(emulator, lambda call: fault if call.method == MUTATE_ROWS else None):
        ran = place.rollup("--changed")
    assert json.loads(ran.out)["rejected"].keys() == {"write-refused"}
    assert (len(marks), list(read_changed_hours(place.target, layout))) == (2, marks)
    assert place.rollup("--changed").code == 0
    assert not list(read_changed_hours(place.target, layout))


@kairosdb
def test_these_tables_have_no_leases(place: Place) -> None:
    """A run of a range beside `--follow` could write what it read before a late point."""
    ran = place.rollup("--follow", "--rounds=1")
    assert (ran.code, f"--follow is not for layout {place.name}" in ran.err) == (2, True), ran.err


@kairosdb
def test_changed_hours(place: Place) -> None:
    """After `--changed` the tables are those of a computation from scratch; only the changed were read."""
    rng = random.Random(9)
    points = storable(points_of(rng, DAY, 4) | points_of(rng, DAY - 24 * HOUR, 4), place.name)
    place.send(points, 1, "--mark-changed")
    target, layout = place.target, place.layout("")
    marked = {(mark.metric.decode(), mark.start_s) for mark in read_changed_hours(target, layout)}
    assert marked == {(series.metric, at // 1000 // HOUR * HOUR) for series, at in points}
    assert place.rollup("--changed").code == 0
    place.check(points)
    assert list(read_changed_hours(target, layout)) == []
    first = place.dump()
    late = storable(
        {key: 3 for key in sorted(points) if key[0].metric == "sys.m1" and key[1] % 7 == 0}, place.name
    )
    late = {key: value for key, value in late.items() if key[1] >= DAY * 1000}
    place.send(late, 2, "--mark-changed")
    points |= late
    ran = place.rollup("--changed", "--dry-run")
    assert (ran.code, place.dump() == first) == (0, True), ran.err
    assert "would read metrics sys.m1 of" in ran.out
    ran = place.rollup("--changed")
    assert ran.code == 0, ran.err
    of_metric = [key for key in points if key[0].metric == "sys.m1" and key[1] >= DAY * 1000]
    read = json.loads(ran.out)["points_read"]
    # KairosDB keeps an integer and a decimal of one instant in two rows: the corrections may be read twice.
    assert len(of_metric) <= read <= len(of_metric) + len(late)
    place.check(points)
    assert list(read_changed_hours(target, layout)) == []
    assert "no late points" in place.rollup("--changed").err


@kairosdb
def test_rollups_of_a_changed_metric_that_have_no_points_go(place: Place) -> None:
    points = storable(points_of(random.Random(10), DAY, 2), place.name)
    place.send(points, 1, "--mark-changed")
    at, metrics = DAY + 20 * HOUR, ("sys.m0", "sys.gone")
    for interval in ("1h", "5m"):
        path = place.folder / f"stray-{interval}.txt"
        path.write_text(
            "".join(
                f"put {metric}.{interval}.sum {at} 7 host=gone saved_from={metric}\n"
                if place.name == "kairosdb"
                else f"put {metric} {at} 7 host=gone rollup={interval} stat=sum\n"
                for metric in metrics
            )
        )
        flags = [*place.flags[:-1], f"--table-prefix={place.prefix}{interval}-", "--format=opentsdb-text"]
        ingest(place.folder, *flags, "--bigtable-writer=direct", "--input", path)
    assert place.rollup("--changed").code == 0
    left = {series.metric for series, _ in place.stored() if dict(series.tags).get("host") == "gone"}
    assert all("sys.gone" in metric for metric in left), left
    assert len(left) == (2 if place.name == "kairosdb" else 1)
