"""`rollup --follow`: each round rolls up what is marked, and no stalled process leaves a wrong rollup."""

from __future__ import annotations

import json
import random
import signal
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.commands import timebeam
from tests.support.fault_proxy import MUTATE_ROWS, BadEntries, faulty
from tests.support.plain.rolled import (
    DAY,
    HOUR,
    Points,
    both,
    config_file,
    follow,
    interval,
    same,
    send,
    with_tables,
)
from tests.support.stored import Store
from timebeam.pipelines.options.place import read_config
from timebeam.pipelines.rollup.follow import Rounds
from timebeam.pipelines.rollup.roll_up_points import OpenTsdbRollup
from timebeam.schema.core.points import Series
from timebeam.schema.core.row_deletion import deletions
from timebeam.schema.core.rows import Deletion
from timebeam.schema.rollup.day_plan import RollupPart, plan
from timebeam.transforms.bigtable.write_rows import write_all
from timebeam.transforms.ingest.row_mutations import hours_written
from timebeam.transforms.ingest.series_keys import UidOptions
from timebeam.transforms.opentsdb import merge_uids as merge_module
from timebeam.transforms.opentsdb.assign_uids import UidPolicy
from timebeam.transforms.read.table_reader import TableReader, scan_table
from timebeam.transforms.rollup import changed_hours as changed_module
from timebeam.transforms.rollup import row_leases as lease_module
from timebeam.transforms.rollup.changed_hours import ChangedHoursWriter, read_days
from timebeam.transforms.rollup.rollup_job import RollupJob, rollup_tables
from timebeam.transforms.rollup.row_leases import DEAD_MS

METRIC, OTHER = b"\0\0\1", b"\0\0\2"
HOURS = (0, 1, 5, 23)
LEASE_S, QUIET_S = 60, 10
STALE_HOUR = METRIC, DAY + 5 * HOUR


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return config_file(tmp_path, [interval("15m", "1d"), interval("1h", "1n"), interval("1d", "1y")])


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str, config: Path) -> Store:
    return with_tables(Store.create(bigtable, prefix, marked_since="2024-01-01"), config)


def points(rng: random.Random, count: int) -> Points:
    series = [Series.of(metric, {"host": host}) for metric in ("m", "n") for host in ("a", "b")]
    return {(rng.choice(series), DAY + rng.randrange(48 * HOUR)): rng.randrange(1000) for _ in range(count)}


def rollup_cells(store: Store, config: Path) -> dict[str, list[object]]:
    specs = rollup_tables(read_config(str(config)), store.layout)
    return {spec.name: list(scan_table(store.target, spec.name)) for spec in specs if spec.holds_points}


def test_rounds_follow_late_points_and_corrections(store: Store, config: Path, tmp_path: Path) -> None:
    """After each round the answers are those of the points, and at the end all bytes those from scratch."""
    rng = random.Random(3)
    for most in (10_000, 3):
        send(store, tmp_path, points(rng, 60))
        hours = {
            mark.start_s for day in read_days(TableReader(store.target), store.layout) for mark in day.hours
        }
        figures = json.loads(follow(store, config, f"--most-hours={most}").out)
        assert figures["hours"] + figures["waiting"] >= len(hours)
        assert (figures["waiting"] > 0) == (most == 3)
        for text in ("15m-max", "1h-sum", "1d-avg"):
            through, raw, _ = both(store, config, "m", DAY, DAY + 48 * HOUR, f"--downsample={text}")
            same(through, raw, exact=True)
    while json.loads(follow(store, config).out)["waiting"]:
        pass
    assert list(read_days(TableReader(store.target), store.layout)) == []
    followed = rollup_cells(store, config)
    assert all(map(len, followed.values()))
    flags = [flag for flag in store.flags if "marked_since" not in flag]
    ran = timebeam(
        "rollup",
        *flags,
        "--rollup-config",
        config,
        f"--start={DAY}",
        f"--end={DAY + 48 * HOUR}",
        f"--dead-letters={tmp_path}/letters",
    )
    assert ran.code == 0, ran.err
    assert rollup_cells(store, config) == followed


def test_ctrl_c_ends_it_after_the_round(
    store: Store, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the round leased is rolled up, its marks are deleted, its lease is given back."""
    send(store, tmp_path, points(random.Random(7), 20))
    end = Rounds.end

    def interrupted(*arguments: Any, **options: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return end(*arguments, **options)

    monkeypatch.setattr(Rounds, "end", interrupted)
    before = signal.getsignal(signal.SIGINT)
    ran = follow(store, config, rounds=3)
    (figures,) = map(json.loads, ran.out.splitlines())
    assert (figures["round"], figures["waiting"], figures["lost"]) == (1, 0, 0)
    assert "stopping after this round; press Ctrl-C again to stop at once" in ran.err
    assert list(read_days(TableReader(store.target), store.layout)) == []
    assert signal.getsignal(signal.SIGINT) is before


def test_a_range_is_marked_first(store: Store, config: Path, tmp_path: Path) -> None:
    send(store, tmp_path, points(random.Random(5), 60))
    follow(store, config)
    (table,) = [name for name in rollup_cells(store, config) if name.endswith("rollup-1h")]
    before = rollup_cells(store, config)
    write_all(
        store.target,
        table,
        [
            row._replace(cells=[], deleted=[Deletion(*cell[:2]) for cell in row.cells])
            for row in before[table]
        ],
    )
    assert json.loads(follow(store, config).out)["hours"] == 0
    figures = json.loads(follow(store, config, f"--start={DAY}", f"--end={DAY + 48 * HOUR}").out)
    assert (figures["hours"], rollup_cells(store, config) == before) == (2 * 48, True)
    assert "nothing in" not in both(store, config, "m", DAY, DAY + 47 * HOUR, "--downsample=1h-sum")[2]


def test_marks_of_a_metric_stay_if_bigtable_rejects_its_rows(
    store: Store, config: Path, tmp_path: Path, emulator: str
) -> None:
    """Marks of other metrics are deleted, even if its hours fill a round."""
    send(store, tmp_path, points(random.Random(6), 60))
    days = list(read_days(TableReader(store.target), store.layout))
    changing = {day.start_s: day.changing for day in days if day.metric == METRIC}
    hours = sum(map(len, changing.values()))
    fault = BadEntries(grpc.StatusCode.INVALID_ARGUMENT, lambda key: len(key) > 7 and key.startswith(METRIC))
    with faulty(emulator, lambda call: fault if call.method == MUTATE_ROWS else None):
        ran = follow(store, config, f"--most-hours={hours}", rounds=2)
    first, second = map(json.loads, ran.out.splitlines())
    assert (first["unwritten"], second["unwritten"]) == ({"m": hours}, {})
    assert first["rejected"].keys() == {"write-refused"}
    assert (first["hours"], second["waiting"]) == (0, hours)
    assert second["lag_seconds"] > first["lag_seconds"]
    days = list(read_days(TableReader(store.target), store.layout))
    assert {day.metric for day in days} == {METRIC}
    assert {day.start_s: day.changing for day in days} == changing
    assert [day.leases.lease for day in days] == [None] * len(days)
    for metric in ("m", "n"):
        same(*both(store, config, metric, DAY, DAY + 48 * HOUR, "--downsample=1h-sum")[:2], exact=True)
    assert json.loads(follow(store, config).out)["rejected"] == {}
    assert list(read_days(TableReader(store.target), store.layout)) == []


def test_a_range_is_rejected_since_it_takes_no_lease(store: Store, config: Path) -> None:
    for flags in (["--day=2024-02-28"], ["--changed"]):
        ran = timebeam("rollup", *store.flags, "--rollup-config", config, *flags)
        assert (ran.code, "only `timebeam rollup --follow` writes" in ran.err) == (2, True), ran.err
    flags = [flag for flag in store.flags if "marked_since" not in flag]
    ran = timebeam("rollup", *flags, "--rollup-config", config, "--follow")
    assert (ran.code, "--follow needs tables with marked_since" in ran.err) == (2, True), ran.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--follow", "--changed", "--rounds=1"], "--follow and --changed: give one of them"),
        (["--rounds=1"], "--rounds is for --follow"),
        (["--follow", "--delay-hours=1", "--rounds=1"], "leave out --delay-hours"),
    ],
)
def test_options_that_make_no_sense_together(
    store: Store, config: Path, flags: list[str], message: str
) -> None:
    ran = timebeam("rollup", *store.flags, "--rollup-config", config, *flags)
    assert (ran.code, message in ran.err) == (2, True), ran.err


def test_a_merge_of_names_carries_marks_to_the_other_metric(
    store: Store, config: Path, tmp_path: Path
) -> None:
    """Else it would move rollups of deleted points to hours that nobody rolls up again."""
    m, n = (Series.of(metric, {"host": "a"}) for metric in ("m", "n"))
    send(store, tmp_path, {(m, DAY): 1, (m, DAY + HOUR): 2, (n, DAY + 2 * HOUR): 3})
    follow(store, config)
    row = next(row for row in store.rows() if row.key.startswith(METRIC + DAY.to_bytes(4, "big")))
    with hours_written(store.target, ChangedHoursWriter(store.layout), [row]):
        write_all(store.target, row.table, [row._replace(cells=[], deleted=deletions(row.cells))])
    merge = ("names", "merge", "metrics", "m", "n", *store.flags, "--rollup-config", config, "--yes")
    ran = timebeam(*merge)
    assert (ran.code, "cells stay" in ran.out) == (1, True), ran.err  # both have a rollup of the day
    for _ in range(2):
        same(*both(store, config, "n", DAY, DAY + 4 * HOUR, "--downsample=1h-sum")[:2], exact=True)
        follow(store, config)
    assert timebeam(*merge).code == 0


def test_a_merge_of_names_that_takes_hours_keeps_its_marks(
    store: Store, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round that takes its first marks for those of a dead process ends before it moves stale rollups."""
    m, n = (Series.of(metric, {"host": "a"}) for metric in ("m", "n"))
    send(store, tmp_path, {(m, DAY): 1, (m, DAY + HOUR): 2, (n, DAY + 72 * HOUR): 3})
    follow(store, config)
    row = next(row for row in store.rows() if row.key.startswith(METRIC + DAY.to_bytes(4, "big")))
    with hours_written(store.target, ChangedHoursWriter(store.layout), [row]):
        write_all(store.target, row.table, [row._replace(cells=[], deleted=deletions(row.cells))])
    ago_s, read_rows, tables = 7200, merge_module.read_rows, set[str]()
    for module in (changed_module, merge_module):
        clock = types.SimpleNamespace(time=lambda: time.time() - ago_s, monotonic=lambda: time.time() - ago_s)
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(changed_module, "_WRITER", changed_module._HourWriter())

    def slow(target: Any, table: str, keys: Any) -> Any:
        nonlocal ago_s
        rows = read_rows(target, table, keys)
        if table not in tables and table != store.layout.data_table:
            ago_s = 0
            follow(store, config)
            tables.add(table)
            monkeypatch.setattr(merge_module, "write_all", written)
        return rows

    def written(*args: Any) -> None:
        write_all(*args)
        same(*both(store, config, "n", DAY, DAY + 4 * HOUR, "--downsample=15m-sum")[:2], exact=True)

    monkeypatch.setattr(merge_module, "read_rows", slow)
    ran = timebeam("names", "merge", "metrics", "m", "n", *store.flags, "--rollup-config", config, "--yes")
    assert (ran.code, len(tables)) == (0, 1), ran.err  # the round has deleted the other stale rollups
    for _ in range(2):
        same(*both(store, config, "n", DAY, DAY + 4 * HOUR, "--downsample=15m-sum")[:2], exact=True)
        follow(store, config)
    assert list(read_days(TableReader(store.target), store.layout)) == []


@pytest.mark.parametrize(("text", "span"), [("5h", "60h"), ("2d", "576h")])
def test_an_interval_in_two_days_is_rejected(store: Store, tmp_path: Path, text: str, span: str) -> None:
    """The leases of its days could be those of two rounds, of which one writes what it read earlier."""
    config = config_file(tmp_path, [interval(text, span)])
    ran = timebeam("rollup", *store.flags, "--rollup-config", config, "--follow", "--rounds=1")
    assert (ran.code, f"intervals of {text} do not divide a day" in ran.err) == (2, True), ran.err


class Clock:
    def __init__(self) -> None:
        self.now_s = DAY + 30 * 24 * HOUR

    def time(self) -> float:
        return float(self.now_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (lease_module, changed_module):
        monkeypatch.setattr(module, "time", types.SimpleNamespace(time=clock.time))
    monkeypatch.setattr(changed_module, "_WRITER", changed_module._HourWriter())
    return clock


class Model:
    """Points and rollups in memory, marks and leases in Bigtable; each process is paused at each `yield`.

    A point is one number for a metric and hour. The rollup of an hour is its number, that of the day a copy
    of the numbers of all hours.
    """

    def __init__(self, store: Store, config: Path, clock: Clock, seed: int) -> None:
        self.store, self.clock, self.rng = store, clock, random.Random(seed)
        self.writers = [changed_module._HourWriter() for _ in range(2)]
        self.points: dict[tuple[bytes, int], int] = {}
        self.hours: dict[tuple[bytes, int], int] = {}
        self.days: dict[bytes, dict[int, int]] = {}
        parsed = read_config(str(config))
        part = RollupPart(plan(parsed, DAY * 1000, (DAY + 24 * HOUR) * 1000))
        work = RollupJob(store.target, store.layout, parsed, [part], UidOptions(UidPolicy()))
        self.rollup = OpenTsdbRollup(store.target, [], work)

    def writer(self) -> Iterator[None]:
        """Changes a point, in one of two processes."""
        changed = {(self.rng.choice((METRIC, OTHER)), DAY + self.rng.choice(HOURS) * HOUR)}
        hours_writer, column = ChangedHoursWriter(self.store.layout), self.rng.choice(self.writers)
        for step in range(3):
            if step == 1:
                self.points.update(dict.fromkeys(changed, self.rng.randrange(10**9)))
            else:
                changed_module._WRITER, before = column, changed_module._WRITER
                hours_writer.mark(self.store.target, changed, stored=step == 2)
                changed_module._WRITER = before
            yield

    def follower(self) -> Iterator[None]:
        """One round."""
        rounds = Rounds(self.rollup, QUIET_S * 1000, LEASE_S, 1000)
        column = changed_module._HourWriter()
        now_ms = int(self.clock.time() * 1000)
        due = rounds.due(now_ms)
        yield
        leased = rounds.taken(due, now_ms)
        yield
        job = rounds.job(leased, now_ms) if leased else None
        for part in job.work.parts if job else ():
            for metric in part.metrics or ():
                for each in part.plan.intervals:
                    if each.interval.interval == "15m":
                        continue
                    read = {hour: value for (of, hour), value in self.points.items() if of == metric}
                    yield
                    if each.interval.interval == "1d":
                        self.days[metric] = read
                    else:
                        inside = {
                            hour: value for hour, value in read.items() if each.start_s <= hour < each.end_s
                        }
                        self.hours.update({(metric, hour): value for hour, value in inside.items()})
                    yield
        if leased:
            changed_module._WRITER, before = column, changed_module._WRITER
            rounds.end(leased, now_ms)
            changed_module._WRITER = before
        yield

    def check(self) -> int:
        """Asserts that each rollup that a query would use is that of the points; how many there are."""
        changing = {METRIC: set[int](), OTHER: set[int]()}
        for day in read_days(TableReader(self.store.target), self.store.layout):
            changing[day.metric] |= day.changing
        used = 0
        for (metric, hour), value in self.points.items():
            if hour not in changing[metric]:
                assert self.hours[metric, hour] == value
                used += 1
            if not changing[metric]:
                assert self.days[metric][hour] == value
        return used


def run_model(store: Store, config: Path, clock: Clock, seed: int) -> int:
    """Runs processes, paused and killed at random, until all rollups are right; how many were used."""
    model, rng = Model(store, config, clock, seed), random.Random(f"steps {seed}")
    writers, followers, used = list[Iterator[None]](), list[Iterator[None]](), 0
    stalled: Iterator[None] | None = None
    for _ in range(200):
        choice = rng.random()
        if choice < 0.06 and len(writers) < 2:
            writers.append(model.writer())
        elif choice < 0.16 and len(followers) < 3:
            followers.append(model.follower())
        elif choice < 0.25:
            clock.now_s += rng.choice((1, QUIET_S, LEASE_S))
        elif choice < 0.27 and (writers or followers):
            killed = rng.choice(writers + followers)
            (writers if killed in writers else followers).remove(killed)
        elif choice < 0.3 and not (writers or followers):
            clock.now_s += 2 * HOUR  # all that were killed are dead
        elif writers or followers:
            running = [process for process in writers + followers if process is not stalled]
            if not running or rng.random() < 0.1:
                stalled = rng.choice([None, *followers])
                continue
            process = rng.choice(running)
            for _ in range(rng.choice((1, 1, 2, 4, 20))):
                if next(process, Ellipsis) is Ellipsis:
                    (writers if process in writers else followers).remove(process)
                    break
                used += model.check()
        used += model.check()
    for process in writers + followers:
        for _ in process:
            model.check()
    for _ in range(3):
        clock.now_s += 2 * HOUR
        for _ in model.follower():
            model.check()
    assert list(scan_table(store.target, changed_module.changed_hours_table(store.layout).name)) == []
    model.check()
    return used


@pytest.mark.parametrize(
    "seeds",
    [
        range(4),
        *(pytest.param(range(first, first + 25), marks=pytest.mark.long) for first in range(4, 79, 25)),
    ],
)
def test_no_order_of_steps_shows_a_stale_rollup(
    store: Store, config: Path, clock: Clock, seeds: range
) -> None:
    assert sum(run_model(store, config, clock, seed) for seed in seeds) > 100


def test_a_day_with_rejected_rows_waits_longer_each_time(store: Store, config: Path, clock: Clock) -> None:
    rounds = Rounds(Model(store, config, clock, 1).rollup, 0, LEASE_S, 1000)
    for metric in (METRIC, OTHER):
        ChangedHoursWriter(store.layout).mark(store.target, [(metric, DAY)], stored=True)

    def taken() -> list[bytes]:
        now_ms = clock.now_s * 1000
        leased = rounds.taken(rounds.due(now_ms), now_ms)
        rounds.end(leased, now_ms, [METRIC, OTHER])
        rounds.rejected(leased.values(), [METRIC], now_ms)
        return [day.day.metric for day in leased.values()]

    assert taken() == [METRIC, OTHER]
    for wait_s in (60, 120, 240, 480, 960, 1920, 3600, 3600):
        clock.now_s += wait_s - 1
        assert taken() == [OTHER]
        clock.now_s += 1
        assert taken() == [METRIC, OTHER]


@pytest.fixture
def model(store: Store, config: Path, clock: Clock) -> Model:
    return Model(store, config, clock, 1)


def stale(model: Model) -> Iterator[None]:
    """A follower that stalls before it writes 1; another one has rolled up the correction 2 meanwhile."""
    store, clock = model.store, model.clock
    hours_writer, hour = ChangedHoursWriter(store.layout), STALE_HOUR

    def put(value: int) -> None:
        hours_writer.mark(store.target, [hour], stored=False)
        model.points[hour] = value
        hours_writer.mark(store.target, [hour], stored=True)
        clock.now_s += QUIET_S + 1

    put(1)
    stalled = model.follower()
    for _ in range(3):
        next(stalled)  # it has read the points
    put(2)
    clock.now_s += LEASE_S
    for _ in model.follower():
        model.check()
    assert model.hours[hour] == 2
    days = list(read_days(TableReader(store.target), store.layout))
    assert [(len(day.hours), len(day.leases.lost)) for day in days] == [(0, 1)]
    return stalled


def test_a_follower_that_stalls_before_it_writes(model: Model) -> None:
    """Then it writes what it read before the correction, and marks it, since its lease is lost."""
    stalled, store, hour = stale(model), model.store, STALE_HOUR
    for _ in stalled:
        model.check()
    assert model.hours[hour] == 1  # stale, but marked
    (day,) = read_days(TableReader(store.target), store.layout)
    assert (hour[1] in day.changing, day.leases.lost) == (True, [])
    model.clock.now_s += QUIET_S + 1
    for _ in model.follower():
        model.check()
    assert (model.hours[hour], list(read_days(TableReader(store.target), store.layout))) == (2, [])


def test_a_follower_that_is_killed_after_a_stale_write(model: Model) -> None:
    """Its hours are read from points until it is dead; then they are rolled up again."""
    stalled = stale(model)
    while model.hours[STALE_HOUR] == 2:
        next(stalled)
        model.check()
    model.clock.now_s += DEAD_MS // 1000 - 2 * LEASE_S
    for _ in model.follower():
        model.check()
    assert model.hours[STALE_HOUR] == 1
    model.clock.now_s += 2 * LEASE_S
    for _ in model.follower():
        model.check()
    assert model.hours[STALE_HOUR] == 2
    assert list(read_days(TableReader(model.store.target), model.store.layout)) == []


def test_a_follower_that_is_killed_with_a_lease_of_hours_without_marks(model: Model) -> None:
    """Another one has rolled up what it read the marks of; its lease does not stay in the table."""
    store, clock = model.store, model.clock
    hours_writer = ChangedHoursWriter(store.layout)
    hours_writer.mark(store.target, [STALE_HOUR], stored=False)
    model.points[STALE_HOUR] = 1
    hours_writer.mark(store.target, [STALE_HOUR], stored=True)
    clock.now_s += QUIET_S + 1
    killed = model.follower()
    next(killed)  # it has read the marks
    for _ in model.follower():
        model.check()
    next(killed)  # it has the lease
    (day,) = read_days(TableReader(store.target), store.layout)
    assert (day.hours, day.leases.lease is None) == ([], False)
    clock.now_s += 2 * HOUR
    for _ in model.follower():
        model.check()
    assert list(read_days(TableReader(store.target), store.layout)) == []
