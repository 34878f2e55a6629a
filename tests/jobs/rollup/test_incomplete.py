"""Days and ranges that are not over are rejected, by the clocks of the time zone, unless that is allowed."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from tests.support.plain.rolled import config_file, interval, rollup_at, send, with_tables
from tests.support.plain.rollup_declared import Place as DeclaredPlace
from tests.support.plain.rollup_series import DATA
from tests.support.plain.rollup_series import Place as SeriesPlace
from tests.support.stored import Store
from timebeam.schema.core.points import Series
from timebeam.transforms.read.table_reader import scan_table

HOUR = 3600


def utc(text: str) -> int:
    return int(datetime.datetime.fromisoformat(text + "+00:00").timestamp())


NOON = utc("2026-03-01T12:00")


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    return Store.create(bigtable, prefix)


@pytest.fixture
def config(store: Store, tmp_path: Path) -> Path:
    config = config_file(tmp_path, [interval("1h", "1n"), interval("1d", "1y")])
    with_tables(store, config)
    return config


@pytest.mark.parametrize(
    ("now", "flags", "until"),
    [
        (
            "2026-03-01T12:00",
            ["--day=2026-03-01"],
            "2026-03-01 of UTC is not complete before 2026-03-02T",
        ),
        ("2026-03-01T12:00", ["--day=2099-01-01"], "before 2099-01-02T00:00:00Z"),
        ("2026-03-01T23:59:59", ["--day=2026-03-01"], "before 2026-03-02T00:00:00Z"),
        ("2026-03-01T04:59", ["--day=2026-02-28", "--zone=America/New_York"], "before 2026-03-01T05:00:00Z"),
        ("2026-03-08T23:59", ["--day=2026-03-08", "--zone=America/New_York"], "before 2026-03-09T04:00:00Z"),
        ("2026-02-28T18:29", ["--day=2026-02-28", "--zone=Asia/Kolkata"], "before 2026-02-28T18:30:00Z"),
        ("2026-03-01T01:59", ["--day=2026-02-28", "--delay-hours=2"], "before 2026-03-01T02:00:00Z"),
        ("2026-03-01T12:00", ["--start=2026-03-01", "--end=2026-03-02"], "the range is not complete before"),
        ("2026-03-01T12:00", ["--start=1h-ago", "--end=2026-03-01T12:00:01Z"], "before 2026-03-01T12:00:01Z"),
    ],
)
def test_what_is_not_over_is_rejected(
    store: Store, config: Path, now: str, flags: list[str], until: str
) -> None:
    place = [*store.flags, "--rollup-config", config, *flags, "--dead-letters", config.parent / "letters"]
    ran = rollup_at(utc(now), *place)
    assert (ran.code, until in ran.err, ran.err.count("\n")) == (2, True, 2), (
        ran.err
    )  # the second one points to --help
    assert "--allow-incomplete" in ran.err
    assert rollup_at(utc(now), *place, "--allow-incomplete", "--dry-run").code == 0


@pytest.mark.parametrize(
    ("now", "flags"),
    [
        ("2026-03-02T00:00", ["--day=2026-03-01"]),
        ("2026-03-01T05:00", ["--day=2026-02-28", "--zone=America/New_York"]),
        ("2026-02-28T18:30", ["--day=2026-02-28", "--zone=Asia/Kolkata"]),
        ("2026-03-01T02:00", ["--day=2026-02-28", "--delay-hours=2"]),
        ("2026-03-01T12:00", ["--start=2h-ago", "--end=1h-ago"]),
        ("2026-03-01T12:00", []),
    ],
)
def test_what_is_over_is_not(store: Store, config: Path, now: str, flags: list[str]) -> None:
    place = [*store.flags, "--rollup-config", config, *flags, "--dry-run"]
    ran = rollup_at(utc(now), *place)
    assert ran.code == 0, ran.err


def test_allowed_it_makes_what_is_there_and_the_next_run_the_rest(
    store: Store, config: Path, tmp_path: Path
) -> None:
    series = Series.of("sys.m", {"host": "a"})
    place = [*store.flags, "--rollup-config", config, "--day=2026-03-01", "--dead-letters", tmp_path / "dead"]
    counts = []
    for now, time_s in ((NOON, NOON - HOUR), (NOON + 12 * HOUR, NOON + HOUR)):
        send(store, tmp_path, {(series, time_s): 1})
        ran = rollup_at(now, *place, "--allow-incomplete")
        assert ran.code == 0, ran.err
        (row,) = scan_table(store.target, store.layout.options.table_prefix + "rollup-1d")
        counts.append([int.from_bytes(cell.value, "big") for cell in row.cells if cell.qualifier[0] == 1])
    assert counts == [[1], [2]]


@pytest.mark.parametrize("name", list(DATA))
def test_rollups_as_series(bigtable: tuple[str, str], prefix: str, tmp_path: Path, name: str) -> None:
    place = SeriesPlace(bigtable, prefix, name, tmp_path)
    flags = [*place.flags, "--rollup-config", place.config, "--day=2026-03-01", "--dry-run"]
    ran = rollup_at(NOON, *flags)
    assert (ran.code, "is not complete before 2026-03-02T" in ran.err) == (2, True), ran.err
    assert rollup_at(NOON, *flags, "--allow-incomplete").code == 0
    assert rollup_at(NOON + 12 * HOUR, *flags).code == 0


@pytest.mark.parametrize(
    ("now", "flags"),
    [
        (utc("2026-03-01T07:59"), ["--day=2026-02-28"]),  # days of the tables are those of Los Angeles
        (utc("2026-03-01T07:59"), ["--start=2026-02-28T08:00:00Z", "--end=2026-02-28T09:00:00Z"]),
        (NOON, ["--day=2099-01-01"]),
    ],
)
def test_declared_tables(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, now: int, flags: list[str]
) -> None:
    place = DeclaredPlace(bigtable, prefix, tmp_path)
    flags = [*place.flags, *flags, "--dry-run"]
    ran = rollup_at(now, *flags)
    assert (ran.code, "of America/Los_Angeles is not complete before" in ran.err) == (2, True), ran.err
    assert rollup_at(now, *flags, "--allow-incomplete").code == 0
    if "2099-01-01" not in flags[-2]:
        assert rollup_at(utc("2026-03-01T08:00"), *flags).code == 0
