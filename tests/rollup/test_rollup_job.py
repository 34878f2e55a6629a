"""`timebeam rollup` against the emulator: the numbers of an independent computation, and nothing else.

The oracle is plain Python over the points that were sent, with exact fractions; cells are read by struct.
"""

from __future__ import annotations

import collections
import fractions
import itertools
import json
import os
import random
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from google.cloud.bigtable.data import ReadRowsQuery, SetCell

from tests.support.commands import Ran, ingest, timebeam
from tests.support.fault_proxy import AFTER, BEFORE
from tests.support.killed import run_and_kill
from tests.support.stored import Store
from timebeam.pipelines.rollup.config import read_config
from timebeam.schema.layouts.opentsdb import keys, select
from timebeam.schema.points import Series
from timebeam.transforms.bigtable.tables import create_tables
from timebeam.transforms.bigtable.target import Target, open_table
from timebeam.transforms.readers import chunks
from timebeam.transforms.readers.table_reader import scan_table
from timebeam.transforms.rollup.job import rollup_tables

DAY = 1_772_236_800  # 2026-02-28, the last day of its month
HOUR, MINUTE = 3600, 60
CONFIG = {
    "aggregationIds": {"sum": 0, "count": 1, "min": 2, "max": 3},
    "intervals": [
        {
            "table": "tsdb",
            "preAggregationTable": "preagg",
            "interval": "1m",
            "rowSpan": "1h",
            "defaultInterval": True,
        },
        {"table": "rollup-5m", "preAggregationTable": "preagg-5m", "interval": "5m", "rowSpan": "1d"},
        {"table": "rollup-1h", "preAggregationTable": "preagg-1h", "interval": "1h", "rowSpan": "1n"},
        {"table": "rollup-1d", "preAggregationTable": "preagg-1d", "interval": "1d", "rowSpan": "1y"},
    ],
    "timebeam": {
        "preAggregates": [{"metrics": ["sys.*"], "keepTags": ["dc"], "aggregators": ["sum", "max"]}]
    },
}
SECONDS = {"rollup-5m": 300, "rollup-1h": HOUR, "rollup-1d": 24 * HOUR}
BASES = {"rollup-5m": DAY, "rollup-1h": 1_769_904_000, "rollup-1d": 1_767_225_600}
NAMES = {0: "sum", 1: "count", 2: "min", 3: "max"}

WRITES = 8
"""Requests that change a table, at least, of each rollup of a day."""

Points = dict[tuple[Series, int], int | float]
"""Value by series and time in ms."""
Numbers = dict[tuple[str, Series, str, int], int | float]
"""Number by table, series, aggregator and start of the bucket in s."""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "rollups.json"
    path.write_text(json.dumps(CONFIG))
    return path


@pytest.fixture(params=[0, 1], ids=["", "salted"])
def store(request: pytest.FixtureRequest, bigtable: tuple[str, str], prefix: str, config: Path) -> Store:
    made = Store.create(bigtable, prefix, salt_width=request.param, salt_buckets=3)
    for _ in create_tables(made.target, rollup_tables(read_config(str(config)), made.layout), dry_run=False):
        pass
    return made


def points_of(rng: random.Random, start_s: int, hours: int) -> Points:
    """Points with gaps, some in ms, integers beyond 2**53, negative ones, decimals, mixed."""
    found: Points = {}
    for number in range(12):
        series = Series.of(f"sys.m{number % 3}", {"host": f"h{number}", "dc": f"d{number % 2}"})
        for hour in range(hours):
            if rng.random() < 0.2:
                continue
            for second in rng.sample(range(HOUR), 25):
                ms = rng.randrange(1000) if number % 4 == 0 else 0
                kind = number % 3 if number < 9 else rng.randrange(3)
                value: int | float = (
                    rng.randrange(-(2**60), 2**60),
                    rng.uniform(-1e6, 1e6),
                    rng.randrange(-1000, 1000),
                )[kind]
                found[series, (start_s + hour * HOUR + second) * 1000 + ms] = value
    return found


def send(store: Store, folder: Path, points: Points, age: int) -> None:
    """Ingests points from a file of that age; a younger one corrects an older one."""
    lines = []
    for (series, time_ms), value in points.items():
        time_text = time_ms if time_ms % 1000 else time_ms // 1000
        tags = " ".join(f"{key}={tag}" for key, tag in series.tags)
        lines.append(f"put {series.metric} {time_text} {value!r} {tags}\n")
    path = folder / f"in-{age}.txt"
    path.write_text("".join(lines))
    os.utime(path, (1_700_000_000 + age,) * 2)
    flags = (
        "--format=opentsdb-text",
        "--auto_create_metrics",
        "--bigtable_writer=direct",
        "--decimals=double",
    )
    ingest(folder, *store.flags, *flags, "--input", path)


def rollup(store: Store, config: Path, *flags: str) -> Ran:
    letters = config.parent / "rollup-letters"
    return timebeam(
        *("rollup", *store.flags, "--rollup_config", config, "--summary=json"),
        *("--dead_letters", letters, *(flags or ("--day=2026-02-28",))),
    )


def total(values: Iterable[int | float]) -> int | float:
    """Exact for integers that fit, else rounded once."""
    values = list(values)
    if all(isinstance(value, int) for value in values):
        exact = sum(values)
        return exact if -(2**63) <= exact < 2**63 else float(exact)
    return float(sum(map(fractions.Fraction, values)))


def expected(points: Points, tables: dict[str, int] = SECONDS) -> Numbers:
    """The rollups of single series."""
    found: dict[tuple[str, Series, int], list[int | float]] = collections.defaultdict(list)
    for (series, time_ms), value in points.items():
        for table, seconds in tables.items():
            found[table, series, time_ms // 1000 // seconds * seconds].append(value)
    return numbers(found)


def expected_groups(points: Points) -> Numbers:
    """The rollups of the groups, and the plain points of the default interval."""
    found: dict[tuple[str, Series, int], list[int | float]] = collections.defaultdict(list)
    for (series, time_ms), value in points.items():
        dc = dict(series.tags)["dc"]
        for table, seconds in SECONDS.items():
            group = table.replace("rollup", "preagg"), time_ms // 1000 // seconds * seconds
            for aggregator in ("SUM", "MAX"):
                tagged = Series.of(series.metric, {"dc": dc, "_aggregate": aggregator})
                found[group[0], tagged, group[1]].append(value)
        for aggregator in ("SUM", "MAX"):
            tagged = Series.of(series.metric, {"dc": dc, "_aggregate": aggregator})
            found["preagg", tagged, time_ms // 1000 // 60 * 60].append(value)
    result = {}
    for (table, series, aggregator, at), number in numbers(found).items():
        kind = dict(series.tags)["_aggregate"]
        wanted = {"SUM": ("sum",) if table == "preagg" else ("sum", "count"), "MAX": ("max",)}[kind]
        if aggregator in wanted:
            result[table, series, aggregator, at] = number
    return result


def numbers(found: dict[tuple[str, Series, int], list[int | float]]) -> Numbers:
    result: Numbers = {}
    for (table, series, at), values in found.items():
        result[table, series, "sum", at] = total(values)
        result[table, series, "count", at] = len(values)
        result[table, series, "min", at] = min(values)
        result[table, series, "max", at] = max(values)
    return result


def cells(store: Store, table: str) -> list[Any]:
    """(key, qualifier, timestamp, value) of every version of every cell."""
    full = store.layout.options.table_prefix + table
    return [
        (row.row_key, cell.qualifier, cell.timestamp_micros, cell.value)
        for row in open_table(store.target, full).read_rows(ReadRowsQuery())
        for cell in row.cells
    ]


def stored(store: Store, tables: Iterable[str]) -> Numbers:
    """What stands in tables; asserts that nothing is there twice."""
    names = store.names()
    result: Numbers = {}
    for table in tables:
        for key, qualifier, _, raw in cells(store, table):
            metric, *tags = [names[pair] for pair in select.row_names(store.layout.options, key)]
            series = Series.of(metric, dict(zip(tags[::2], tags[1::2], strict=True)))
            base = keys.parse_key(store.layout.options, key).base_s
            code = int.from_bytes(qualifier[-2:], "big")
            if table == "preagg":
                at = base + (code >> 4)
                aggregator = dict(series.tags)["_aggregate"].lower()
            else:
                name = table.replace("preagg", "rollup")
                assert base == BASES[name] or (name == "rollup-5m" and base % (24 * HOUR) == 0)
                at = base + (code >> 4) * SECONDS[name]
                aggregator = NAMES[qualifier[0]]
            value = struct.unpack(">d" if code & 8 else ">q", raw)[0]
            assert (table, series, aggregator, at) not in result
            result[table, series, aggregator, at] = value
    return result


def check(store: Store, points: Points) -> None:
    """Asserts that the tables hold the rollups of these points, and nothing else."""
    same(stored(store, SECONDS), expected(points))
    same(stored(store, ["preagg", "preagg-5m", "preagg-1h", "preagg-1d"]), expected_groups(points))


def same(found: Numbers, wanted: Numbers) -> None:
    assert found.keys() == wanted.keys()
    for key, number in wanted.items():
        assert found[key] == number, key
        assert isinstance(found[key], int) == isinstance(number, int), key


CUTS = ("by day", "by hours", "by sampled keys", "by turns")
all_cuts = pytest.mark.parametrize(
    ("chunks_cut", "store"),
    [
        pytest.param(cut, salt, marks=() if number % 2 == salt else pytest.mark.long, id=f"{cut}-{salt}")
        for number, cut in enumerate(CUTS)
        for salt in (0, 1)
    ],
    indirect=True,
)
"""Each way to cut chunks, with and without salt; the tests that are not long have each of them once."""


@pytest.fixture
def chunks_cut(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As small tables are cut, as larger ones, as those whose hours are large, or each time otherwise."""
    if request.param == "by day":
        return
    turns = itertools.count()

    def sampled(target: Target, table: str) -> list[tuple[bytes, int]]:
        if request.param == "by turns" and next(turns) % 2 == 0:
            return []
        return [(row.key, 64) for row in scan_table(target, table)][::2]

    monkeypatch.setattr(chunks, "sampled", sampled)
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 640 if request.param == "by hours" else 100)


@all_cuts
@pytest.mark.usefixtures("chunks_cut")
def test_the_numbers_are_right(store: Store, config: Path, tmp_path: Path) -> None:
    points = points_of(random.Random(1), DAY, 24)
    send(store, tmp_path, points, 1)
    beside = points_of(random.Random(2), DAY - 2 * HOUR, 2) | points_of(random.Random(3), DAY + 24 * HOUR, 2)
    send(store, tmp_path, beside, 2)
    ran = rollup(store, config)
    assert ran.code == 0, ran.err
    summary = json.loads(ran.out)
    assert (summary["points_read"], summary["refused"]) == (len(points), {})
    wanted = expected(points) | expected_groups(points)
    for table, interval in (("rollup-5m", "5m"), ("rollup-1h", "1h"), ("rollup-1d", "1d")):
        tables = (table, table.replace("rollup", "preagg"))
        buckets = {(table, series, at) for table, series, _, at in wanted if table in tables}
        assert summary["rollup"][f"buckets_{interval}"] == len(buckets)
    check(store, points)


@all_cuts
@pytest.mark.usefixtures("chunks_cut")
def test_a_second_run_changes_nothing_and_late_data_all_that_it_must(
    store: Store, config: Path, tmp_path: Path
) -> None:
    points = points_of(random.Random(4), DAY, 8)
    send(store, tmp_path, points, 1)
    tables = [*SECONDS, "preagg", "preagg-5m", "preagg-1h", "preagg-1d"]
    assert rollup(store, config).code == 0
    first = {table: cells(store, table) for table in tables}
    assert rollup(store, config).code == 0
    assert {table: cells(store, table) for table in tables} == first
    # Late points; corrections, some of integers to decimals; a row of points that goes.
    rng = random.Random(5)
    late = points_of(rng, DAY + 4 * HOUR, 4)
    corrected = dict.fromkeys(rng.sample(sorted(points), 60), 0.5)
    send(store, tmp_path, late, 2)
    send(store, tmp_path, corrected, 3)
    points = points | late | corrected
    gone = next(series for series, _ in sorted(points))
    for row in store.rows():
        if store.series(row.key) == gone:
            store.remove_row(store.layout.data_table, row.key)
    points = {key: value for key, value in points.items() if key[0] != gone}
    # Columns of old names, some in place of numbers that are written again, some of hours without points.
    prefix = store.layout.options.table_prefix
    for key, qualifier, _, _ in cells(store, "rollup-5m")[::7]:
        other = ((int.from_bytes(qualifier[1:], "big") >> 4) + 100) % 288 << 4 | 0x7
        for name in (b"sum:" + qualifier[1:], b"MAX:" + other.to_bytes(2, "big")):
            store.set_cell(prefix + "rollup-5m", key, "t", name, bytes(8))
    assert rollup(store, config).code == 0
    check(store, points)


def test_nothing_outside_of_the_range_is_touched(store: Store, config: Path, tmp_path: Path) -> None:
    points = points_of(random.Random(6), DAY, 6)
    send(store, tmp_path, points, 1)
    assert rollup(store, config, f"--start={DAY + HOUR}", f"--end={DAY + 3 * HOUR}").code == 0
    inside = {key: value for key, value in points.items() if HOUR <= key[1] // 1000 - DAY < 3 * HOUR}
    fine = {table: SECONDS[table] for table in ("rollup-5m", "rollup-1h")}
    same(stored(store, SECONDS), expected(inside, fine))
    # What another has written there stays.
    (key, _, _, _), *_ = cells(store, "rollup-5m")
    outside = bytes([0]) + ((5 * 12) << 4 | 7).to_bytes(2, "big")
    other = bytes([9]) + ((12 * 1 + 3) << 4 | 7).to_bytes(2, "big")  # in the range, of another aggregator
    for qualifier in (outside, other):
        store.set_cell(store.layout.options.table_prefix + "rollup-5m", key, "t", qualifier, bytes(8))
    assert rollup(store, config, f"--start={DAY + HOUR}", f"--end={DAY + 3 * HOUR}").code == 0
    assert {(key, outside), (key, other)} <= {one[:2] for one in cells(store, "rollup-5m")}


@pytest.mark.parametrize("store", [0], indirect=True)
def test_rows_with_points_of_another_hour_go_to_the_dead_letters(
    store: Store, config: Path, tmp_path: Path
) -> None:
    points = points_of(random.Random(10), DAY, 2)
    send(store, tmp_path, points, 1)
    data = store.layout.data_table
    rows = {store.series(row.key): row.key for row in store.rows()}
    (_, key), (other, full), *_ = sorted(rows.items())
    shifted = key.replace(
        (base := keys.parse_key(store.layout.options, key).base_s).to_bytes(4, "big"),
        (base + 1800).to_bytes(4, "big"),
    )
    store.set_cell(data, shifted, "t", bytes.fromhex("0010"), b"\x07")  # its base time is no whole hour
    store.set_cell(
        data, full, "t", (3700 << 4).to_bytes(2, "big"), b"\x07"
    )  # and this point is of the next one
    ran = rollup(store, config)
    assert ran.code == 0, ran.err
    summary = json.loads(ran.out)
    assert summary["refused"] == {"corrupt-file": 2}
    letters = [
        json.loads(line) for path in summary["dead_letters"] for line in Path(path).read_text().splitlines()
    ]
    assert all("points of another hour" in letter["message"] for letter in letters)
    lost = keys.parse_key(store.layout.options, full).base_s
    left = {
        at: value
        for at, value in points.items()
        if not (at[0] == other and at[1] // 1000 // HOUR * HOUR == lost)
    }
    check(store, left)


@pytest.mark.parametrize("store", [0], indirect=True)
def test_series_and_groups_may_share_a_table(store: Store, config: Path, tmp_path: Path) -> None:
    points = points_of(random.Random(11), DAY, 3)
    send(store, tmp_path, points, 1)
    assert rollup(store, config).code == 0
    apart = {
        table: cells(store, table) + cells(store, table.replace("rollup", "preagg")) for table in SECONDS
    }
    intervals = [
        one | ({} if one.get("defaultInterval") else {"preAggregationTable": one["table"]})
        for one in CONFIG["intervals"]
    ]
    config.write_text(json.dumps(CONFIG | {"intervals": intervals}))
    for _ in range(2):
        assert rollup(store, config).code == 0
        assert {table: cells(store, table) for table in SECONDS} == {
            table: sorted(found) for table, found in apart.items()
        }


@pytest.mark.parametrize("store", [0], indirect=True)
def test_pre_aggregates_in_the_raw_table_are_refused(store: Store, config: Path, tmp_path: Path) -> None:
    """They would be read as points, and points beside them taken for old pre-aggregates."""
    intervals = [
        entry | {"preAggregationTable": "tsdb" if entry.get("defaultInterval") else entry["table"]}
        for entry in CONFIG["intervals"]
    ]
    config.write_text(json.dumps(CONFIG | {"intervals": intervals}))
    send(store, tmp_path, points_of(random.Random(12), DAY, 3), 1)
    before = cells(store, "tsdb")
    ran = rollup(store, config)
    assert cells(store, "tsdb") == before
    assert (ran.code, "preAggregationTable is the table of raw points" in ran.err) == (2, True), ran.err


@pytest.mark.parametrize("shared", [False, True], ids=["tables apart", "one table"])
def test_groups_of_another_tool_keep_their_cells(
    store: Store, config: Path, tmp_path: Path, shared: bool
) -> None:
    """Rows with another `_aggregate` hold cells with our aggregation ids, of intervals that are rolled up."""
    if shared:
        intervals = [
            entry | ({} if entry.get("defaultInterval") else {"preAggregationTable": entry["table"]})
            for entry in CONFIG["intervals"]
        ]
        config.write_text(json.dumps(CONFIG | {"intervals": intervals}))
    points = points_of(random.Random(12), DAY, 3)
    send(store, tmp_path, points, 1)
    assert rollup(store, config).code == 0
    tables = ["preagg", *SECONDS] if shared else ["preagg", "preagg-5m", "preagg-1h", "preagg-1d"]
    ours = {table: cells(store, table) for table in tables}
    uids = {(kind, name): uid for (kind, uid), name in store.names().items()}
    largest, foreign = uids["tagv", "MAX"], bytes([0, 3, 9])
    store.set_uid("tagv", "id", b"DEV", foreign)
    store.set_uid("tagv", "name", foreign, b"DEV")
    pair = uids["tagk", "_aggregate"]
    copies: dict[str, list[Any]] = {}
    for table in tables:
        handle = open_table(store.target, store.layout.options.table_prefix + table)
        copies[table] = [
            (key.replace(pair + largest, pair + foreign), qualifier, timestamp, value)
            for key, qualifier, timestamp, value in ours[table]
            if pair + largest in key
        ]
        for key, qualifier, timestamp, value in copies[table]:
            handle.mutate_row(key, SetCell("t", qualifier, value, timestamp))
    assert all(copies.values())
    for series_and_time in list(points)[::3]:
        del points[series_and_time]
    for row in store.rows():
        store.remove_row(store.layout.data_table, row.key)
    send(store, tmp_path, points, 2)
    assert rollup(store, config).code == 0
    for table in tables:
        stored = cells(store, table)
        assert sorted(copies[table]) == [cell for cell in stored if pair + foreign in cell[0]]
    assert len(cells(store, "preagg")) < len(ours["preagg"]) + len(copies["preagg"])


@pytest.mark.parametrize("store", [0], indirect=True)
def test_metrics_that_the_configuration_leaves_out_keep_their_rollups(
    store: Store, config: Path, tmp_path: Path
) -> None:
    points = points_of(random.Random(9), DAY, 3)
    send(store, tmp_path, points, 1)
    assert rollup(store, config).code == 0
    tables = [*SECONDS, "preagg", "preagg-5m", "preagg-1h", "preagg-1d"]
    first = {table: cells(store, table) for table in tables}
    for row in store.rows():
        store.remove_row(store.layout.data_table, row.key)
    groups = [{"metrics": ["sys.m1"], "keepTags": ["dc"], "aggregators": ["sum", "max"]}]
    config.write_text(json.dumps(CONFIG | {"timebeam": {"metrics": ["sys.m0"], "preAggregates": groups}}))
    assert rollup(store, config).code == 0
    uids = {name: uid for (kind, uid), name in store.names().items() if kind == "metrics"}
    for table in tables:
        gone = uids["sys.m1" if table.startswith("preagg") else "sys.m0"]
        assert cells(store, table) == [cell for cell in first[table] if not cell[0].startswith(gone)]


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.long)])
@pytest.mark.parametrize("store", [0], indirect=True)
def test_killed_and_run_again(store: Store, config: Path, tmp_path: Path, emulator: str, kills: int) -> None:
    """SIGKILL at any of the run's requests, which come back in the next run; the last one makes all right."""
    points = points_of(random.Random(7), DAY, 24)
    send(store, tmp_path, points, 1)
    rng = random.Random(8)
    command = ["rollup", *store.flags, f"--rollup_config={config}", "--day=2026-02-28"]
    command.append(f"--dead_letters={tmp_path / 'killed'}")
    for _ in range(kills):
        assert run_and_kill(emulator, command, rng.randint(1, WRITES), rng.choice((BEFORE, AFTER))).killed
    assert rollup(store, config).code == 0
    check(store, points)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--day=yesterday"], "isoformat"),
        (["--day=2026-02-28", "--start=1", "--end=2"], "give --start and --end, or --day"),
        (["--start=2d-ago"], "give --start and --end, or --day"),
        (["--start=2d-ago", "--end=3d-ago"], "no range of time"),
        (["--zone=Europe/Nowhere"], "Nowhere"),
    ],
)
def test_wrong_usage(
    bigtable: tuple[str, str], prefix: str, config: Path, flags: list[str], text: str
) -> None:
    place = [f"--project={bigtable[0]}", f"--instance={bigtable[1]}", f"--table_prefix={prefix}"]
    ran = timebeam("rollup", "--layout=opentsdb", *place, "--rollup_config", config, *flags)
    assert (ran.code, text in ran.err) == (2, True), ran.err


def test_tables_that_are_missing_are_said_with_the_command(
    bigtable: tuple[str, str], prefix: str, config: Path
) -> None:
    made = Store.create(bigtable, prefix)
    ran = rollup(made, config)
    assert ran.code == 1
    assert f"{prefix}rollup-5m" in ran.err
    assert f"--rollup_config {config}" in ran.err
    options = [*made.flags, "--rollup_config", str(config)]
    assert timebeam("tables", "create", *options).code == 0
    assert rollup(made, config).code == 0
