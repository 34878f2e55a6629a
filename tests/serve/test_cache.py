"""Answers of a server with caches are those of one without, whatever was written in between, by whomever."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.support.any_store import VARIANTS, AnyStore
from tests.support.commands import ingest, timebeam
from tests.support.inputs import annotations
from tests.support.plain.rolled import (
    DAY,
    HOUR,
    Points,
    config_file,
    follow,
    interval,
    roll_up,
    send,
    with_tables,
)
from tests.support.stored import Store
from timebeam.pipelines.options.place import read_config
from timebeam.pipelines.query import database
from timebeam.pipelines.query.answer_cache import KEPT_SECONDS, AnswerCache, Caches
from timebeam.pipelines.serve.api import Api
from timebeam.pipelines.serve.route_requests import request_of, respond
from timebeam.schema.bits.lru_cache import TimedCache
from timebeam.schema.core.points import Series
from timebeam.schema.core.rows import Cell, Deletion, Row
from timebeam.schema.core.selection import Scan
from timebeam.transforms.bigtable.write_rows import write_all
from timebeam.transforms.query.answer_question import Evaluated, evaluate
from timebeam.transforms.query.budget import Budget, Meter, MeteredReader, Transcript
from timebeam.transforms.read.table_reader import TableReader, scan_table
from timebeam.transforms.rollup.changed_hours import changed_hours_table, hours_note, read_days
from timebeam.transforms.rollup.row_leases import claim, release

BUDGET = Budget(100_000, 1_000_000, 100_000, 1 << 26, 60.0)
LAYOUTS = ["opentsdb", "opentsdb-salted", "heroic", "heroic-readable", "kairosdb-milliseconds"]
HOURS = 4
steps = pytest.mark.parametrize("steps", [8, pytest.param(30, marks=pytest.mark.long)])


@pytest.fixture
def computed() -> Iterator[list[Any]]:
    """The questions that are computed meanwhile."""
    questions: list[Any] = []

    def noted(*arguments: Any, **options: Any) -> Evaluated:
        questions.append(arguments[2])
        return evaluate(*arguments, **options)

    with mock.patch.object(database, "evaluate", noted):
        yield questions


def answer(api: Api, url: str) -> tuple[int, Any, dict[str, str], Meter]:
    meter = Meter(BUDGET)
    response = respond(api.for_request(meter), request_of("GET", url))
    return response.status, json.loads(json.dumps(response.body)), dict(response.headers), meter


def check(cached: Api, url: str) -> None:
    """Asks twice with caches, and once without."""
    uncached = dataclasses.replace(cached, caches=None)
    status, body, headers, meter = answer(uncached, url)
    for _ in range(2):
        again = answer(cached, url)
        assert again[:3] == (status, body, headers)
        assert (again[3].rows, again[3].points, again[3].size) == (meter.rows, meter.points, meter.size)


def with_caches(api: Api) -> Api:
    return dataclasses.replace(api, caches=Caches(api.store, 1 << 20))


class History:
    """Cells of tables that come, change and go."""

    def __init__(self, api: Api, tables: Sequence[str], seed: str) -> None:
        self._target, self._chance = api.target, random.Random(seed)
        rows = [row for table in tables for row in scan_table(api.target, table)]
        self._there = [row._replace(cells=[cell]) for row in rows for cell in row.cells]
        self._gone: list[Row] = []

    def step(self) -> None:
        """Changes one cell: removes it, writes it late, or corrects it with the same timestamp."""
        kind = self._chance.choice(["remove", "correct", "correct", "write late"])
        if kind == "write late" and self._gone:
            self._there.append(self._gone.pop(self._chance.randrange(len(self._gone))))
            self._write(self._there[-1])
            return
        number = self._chance.randrange(len(self._there))
        row = self._there[number]
        (cell,) = row.cells
        if kind == "remove" and len(self._there) > 2:
            self._gone.append(self._there.pop(number))
            self._write(row._replace(cells=[], deleted=[Deletion(*cell[:2])]))
        elif cell.value:
            value = bytearray(cell.value)
            value[self._chance.randrange(len(value))] ^= 1 << self._chance.randrange(8)
            self._there[number] = row._replace(cells=[Cell(*cell[:3], bytes(value))])
            self._write(self._there[number])

    def _write(self, row: Row) -> None:
        write_all(self._target, row.table, [row])


def urls(start_s: int, hours: int) -> list[str]:
    times = f"start={start_s}&end={start_s + hours * HOUR - 1}"
    return [
        f"/api/query?{times}&m=sum:sys.load",
        f"/api/query?{times}&m=avg:1h-avg-zero:sys.load{{host=*}}",
        f"/api/query?{times}&ms&m=none:sys.load&m=max:rate:sys.load{{host=a}}",
        f"/api/query?start={start_s + HOUR}&end={start_s + 2 * HOUR}&m=count:10m-last:sys.load",
    ]


@steps
@pytest.mark.parametrize("variant", LAYOUTS)
def test_histories_of_any_layout(
    bigtable: tuple[str, str], tmp_path: Path, variant: str, steps: int, computed: list[Any]
) -> None:
    assert variant in VARIANTS
    store = AnyStore.create(bigtable, f"cache-{variant}-{steps}-", variant)
    path = tmp_path / "points.txt"
    seconds = range(DAY, DAY + HOURS * HOUR, 300)
    path.write_text(
        "".join(f"put sys.load {time_s} {time_s % 977} host={h}\n" for h in "abc" for time_s in seconds)
    )
    flags = (*store.flags, *store.auto_create, "--format=opentsdb-text")
    assert ingest(tmp_path, *flags, "--input", path).letters == []
    api = with_caches(Api(store.target, store.layout))
    tables = [spec.name for spec in store.layout.tables() if spec.holds_points]
    history = History(api, tables, variant)
    for _ in range(steps):
        history.step()
        for url in urls(DAY, HOURS):
            check(api, url)
    sub_queries = 5 * steps
    assert sub_queries <= len(computed) <= 2.7 * sub_queries, "of three that are asked, the second or both"


@steps
def test_histories_of_rollups_and_annotations(
    bigtable: tuple[str, str], tmp_path: Path, steps: int, computed: list[Any]
) -> None:
    config = config_file(tmp_path, [interval("1h", "1d")])
    store = with_tables(Store.create(bigtable, f"cache_rollups_{steps}_"), config)
    points = {
        (Series.of("sys.load", {"host": host}), DAY + second): second % 977
        for host in "ab"
        for second in range(0, 6 * HOUR, 300)
    }
    send(store, tmp_path, points)
    roll_up(store, config, DAY, DAY + 4 * HOUR)
    note = {"startTime": DAY + HOUR + 1, "tsuid": annotations.A, "description": "late"}
    annotations.send(store, tmp_path, note)
    api = with_caches(Api(store.target, store.layout, (store.layout, read_config(str(config)))))
    history = History(
        api, [store.layout.data_table, f"{store.layout.options.table_prefix}rollup-1h"], "rollups"
    )
    for _ in range(steps):
        history.step()
        for url in urls(DAY, 6):
            check(api, url)
    roll_up(store, config, DAY, DAY + 6 * HOUR)
    for url in urls(DAY, 6):
        check(api, url)
    assert len(computed) < 3 * 5 * (steps + 1)


def test_an_hour_that_is_marked_meanwhile_is_read_from_points(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, computed: list[Any]
) -> None:
    """So is an hour that is leased; its rollups are not used until a round has rewritten them."""
    config = config_file(tmp_path, [interval("1h", "1n")])
    store = with_tables(Store.create(bigtable, prefix, marked_since="2024-01-01"), config)
    api = with_caches(Api(store.target, store.layout, (store.layout, read_config(str(config)))))
    series = Series.of("sys.load", {"host": "a"})
    url = f"/api/query?start={DAY}&end={DAY + 3 * HOUR - 1}&m=sum:1h-sum:sys.load"
    for value, later in ((1, 0), (4, HOUR)):
        send(store, tmp_path, {(series, DAY + later): value})
        check(api, url)
        follow(store, config)
        check(api, url)
    assert answer(api, url)[1][0]["dps"] == {str(DAY): 1, str(DAY + HOUR): 4}
    send(store, tmp_path, {(series, DAY + 2): 8})
    (day,) = read_days(TableReader(store.target), store.layout)
    table = changed_hours_table(store.layout).name
    (lease,) = claim(store.target, table, [day.leases], 60, {day.leases.key: hours_note([DAY])})
    check(api, url)
    release(store.target, table, [lease], {}, {})
    follow(store, config)
    check(api, url)
    assert answer(api, url)[1][0]["dps"] == {str(DAY): 9, str(DAY + HOUR): 4}
    assert len(computed) < 3 * 6


def test_a_range_with_points_to_come_is_computed_each_time(
    bigtable: tuple[str, str], tmp_path: Path, computed: list[Any]
) -> None:
    store = Store.create(bigtable, "cache_open_")
    send(store, tmp_path, {(Series.of("sys.load", {"host": "a"}), DAY): 1})
    api = with_caches(Api(store.target, store.layout))
    for url in (
        f"/api/query?start={DAY}&m=sum:sys.load",
        f"/api/query?start={DAY}&end={DAY + HOUR}&show_stats&m=sum:sys.load",
    ):
        computed.clear()
        for _ in range(3):
            assert answer(api, url)[1][0]["dps"] == {str(DAY): 1}
        assert len(computed) == 3


def test_rows_of_the_uid_table_and_lists_are_kept_for_a_minute(
    bigtable: tuple[str, str], tmp_path: Path
) -> None:
    store = Store.create(bigtable, "cache_uids_")
    series = Series.of("sys.load", {"host": "a"})
    send(store, tmp_path, {(series, DAY): 1})
    api = with_caches(Api(store.target, store.layout))
    query = f"/api/query?start={DAY}&end={DAY + HOUR}&m=sum:sys.load"
    suggest, lookup = "/api/suggest?type=metrics", "/api/search/lookup?m=sys.load"

    def seen() -> tuple[Any, Any, Any]:
        return (
            answer(api, query)[1][0]["tags"],
            answer(api, suggest)[1],
            len(answer(api, lookup)[1]["results"]),
        )

    assert seen() == ({"host": "a"}, ["sys.load"], 1)
    names = {name.text: uid for name, uid in store.uids().items()}
    store.set_uid("tagv", "name", names["a"], b"renamed")
    send(
        store,
        tmp_path,
        {(Series.of("sys.memory", {"host": "b"}), DAY): 1, (Series.of("sys.load", {"host": "b"}), DAY): 1},
    )
    assert seen()[1:] == (["sys.load"], 1)
    api = with_caches(api)  # as after a minute
    assert seen() == ({}, ["sys.load", "sys.memory"], 2)


def test_a_name_that_was_freed_by_a_rename_is_not_that_of_two_uids(
    bigtable: tuple[str, str], tmp_path: Path
) -> None:
    store = Store.create(bigtable, "cache_renamed_")
    points: Points = {(Series.of("sys.load", {"host": "a"}), DAY): 1}
    send(store, tmp_path, points)
    api = with_caches(Api(store.target, store.layout))
    query = f"/api/query?start={DAY}&end={DAY + HOUR}&m=none:sys.load"
    assert [result["tags"] for result in answer(api, query)[1]] == [{"host": "a"}]
    assert timebeam("names", "rename", *store.flags, "tagv", "a", "b", "--yes").code == 0
    send(store, tmp_path, points)
    status, body, _, meter = answer(api, query)
    assert (status, [result["tags"] for result in body]) == (200, [{"host": "a"}, {"host": "b"}])
    assert meter.read == answer(dataclasses.replace(api, caches=None), query)[3].read


def test_what_is_kept_by_time_is_dropped_by_time_and_number() -> None:
    now = 5.0
    cache = TimedCache[str, int](2, KEPT_SECONDS, clock=lambda: now)
    cache["a"] = 1
    assert (cache.get("a"), cache.get("b")) == (1, None)
    now += KEPT_SECONDS - 0.1
    assert cache.get("a") == 1
    now += 0.1
    assert cache.get("a") is None
    cache["a"] = 2
    cache["b"] = 2
    cache["c"] = 3
    assert [cache.get(key) for key in "abc"] == [None, None, 3]


class NoRows:
    """A reader of empty tables."""

    def scan(self, scan: Scan) -> list[Row]:
        return []

    def rows(self, table: str, keys: Sequence[bytes]) -> dict[bytes, Row]:
        return {}


def test_memory_is_bounded_and_the_least_used_answer_goes_first() -> None:
    computed: list[str] = []

    def compute(key: str, series: int) -> Callable[[], Evaluated]:
        def evaluated() -> Evaluated:
            computed.append(key)
            return Evaluated([], [Series.of(key, {})] * series, {}, [], [], {})

        return evaluated

    cache, reader = AnswerCache(4500), MeteredReader(NoRows(), Meter(BUDGET))
    for key in ("a", "b", "c", "d", "a", "e", "a", "b"):
        cache.evaluated(key, compute(key, 1), reader)
    assert "".join(computed) == "abcdeb"
    for _ in range(2):
        cache.evaluated("large", compute("large", 2), reader)
    assert computed[6:] == ["large", "large"]
    for question in ("x" * 1000, "y" * 1000, "z" * 1000, "w" * 1000, "v" * 1000, "x" * 1000):
        cache.evaluated(question, compute("empty", 0), reader)
    assert computed[8:] == ["empty"] * 6, "a question takes memory too, even if nothing answers it"


class Rows(NoRows):
    """A reader of some rows, which may fail behind them."""

    def __init__(self, count: int, *, fails: bool = False) -> None:
        self._count, self._fails = count, fails

    def scan(self, scan: Scan) -> Iterator[Row]:
        for number in range(self._count):
            yield Row(scan.table, bytes([number]), [])
        if self._fails:
            raise OSError("lost")


def test_a_read_that_stops_early_is_repeated_as_far() -> None:
    transcript, scan = Transcript(), Scan("t", [(b"", b"")])
    rows = transcript.scan(scan, Rows(3).scan(scan))
    assert [next(rows).key, next(rows).key] == [b"\0", b"\1"]
    rows.close()
    assert transcript.is_complete
    assert [transcript.is_repeated(Rows(count)) for count in (1, 2, 9)] == [False, True, True]
    assert transcript.is_repeated(Rows(2, fails=True))


def test_a_read_that_fails_proves_nothing() -> None:
    transcript, scan = Transcript(), Scan("t", [(b"", b"")])
    with pytest.raises(OSError, match="lost"):
        list(transcript.scan(scan, Rows(3, fails=True).scan(scan)))
    assert not transcript.is_complete
