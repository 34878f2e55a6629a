"""`timebeam rollup` against the emulator: the numbers of an independent computation, and nothing else.

The oracle is plain Python over the points that were sent, with exact fractions; cells are read by struct.
"""

from __future__ import annotations

import collections
import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from google.cloud.bigtable.data import SetCell

from tests.support.commands import timebeam
from tests.support.data_client import open_table
from tests.support.fault_proxy import AFTER, BEFORE
from tests.support.plain.rolled import both
from tests.support.plain.rollup_day import (
    CONFIG,
    DAY,
    HOUR,
    SECONDS,
    WRITES,
    Numbers,
    Points,
    cells,
    expected,
    numbers,
    points_of,
    rollup,
    same,
    send,
    stored,
)
from tests.support.processes.killed import run_and_kill
from tests.support.stored import Store
from timebeam.pipelines.options.place import read_config
from timebeam.schema.core.points import Series
from timebeam.schema.stores.opentsdb import keys
from timebeam.schema.stores.opentsdb.keys import parse_key
from timebeam.schema.stores.opentsdb.options import Names
from timebeam.transforms.bigtable.create_tables import create_tables
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.read import chunks
from timebeam.transforms.read.table_reader import scan_table
from timebeam.transforms.rollup import rollups_in_tables
from timebeam.transforms.rollup.rollup_job import rollup_tables


def expected_groups(points: Points) -> Numbers:
    """The rollups of the groups, and the plain points of the default interval."""
    found: dict[tuple[str, Series, int], list[int | float]] = collections.defaultdict(list)
    tables = {table.replace("rollup", "preagg"): seconds for table, seconds in SECONDS.items()}
    groups = {
        series: [
            Series.of(series.metric, {"dc": dict(series.tags)["dc"], "_aggregate": aggregator})
            for aggregator in ("SUM", "MAX")
        ]
        for series, _ in points
    }
    for (series, time_ms), value in points.items():
        for table, seconds in (tables | {"preagg": 60}).items():
            for group in groups[series]:
                found[table, group, time_ms // 1000 // seconds * seconds].append(value)
    result = {}
    for (table, series, aggregator, at), number in numbers(found).items():
        kind = dict(series.tags)["_aggregate"]
        wanted = {"SUM": ("sum",) if table == "preagg" else ("sum", "count"), "MAX": ("max",)}[kind]
        if aggregator in wanted:
            result[table, series, aggregator, at] = number
    return result


def check(store: Store, points: Points) -> None:
    """Asserts that the tables hold the rollups of these points, and nothing else."""
    same(stored(store, SECONDS), expected(points))
    same(stored(store, ["preagg", "preagg-5m", "preagg-1h", "preagg-1d"]), expected_groups(points))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "rollups.json"
    path.write_text(json.dumps(CONFIG))
    return path


@pytest.fixture(params=[0, pytest.param(1, marks=pytest.mark.long)], ids=["", "salted"])
def store(request: pytest.FixtureRequest, bigtable: tuple[str, str], prefix: str, config: Path) -> Store:
    made = Store.create(bigtable, prefix, salt_width=request.param, salt_buckets=3)
    for _ in create_tables(made.target, rollup_tables(read_config(str(config)), made.layout), dry_run=False):
        pass
    return made


KILLS = 6

CUTS = ("by day", "by hours", "by sampled keys", "by turns")


def all_cuts(*short: tuple[str, int]) -> pytest.MarkDecorator:
    """Each way to cut chunks, every other one with salt; all but the `short` ones are long."""
    return pytest.mark.parametrize(
        ("chunks_cut", "store"),
        [
            pytest.param(
                cut, salt, marks=() if (cut, salt) in short else pytest.mark.long, id=f"{cut}-{salt}"
            )
            for cut, salt in zip(CUTS, (0, 1, 0, 1), strict=True)
        ],
        indirect=True,
    )


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

    monkeypatch.setattr(rollups_in_tables, "sampled", sampled)
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 640 if request.param == "by hours" else 100)


@all_cuts(("by day", 0), ("by turns", 1))
@pytest.mark.usefixtures("chunks_cut")
def test_the_numbers_are_right(store: Store, config: Path, tmp_path: Path) -> None:
    points = points_of(random.Random(1), DAY, 24)
    send(store, tmp_path, points, 1)
    beside = points_of(random.Random(2), DAY - 2 * HOUR, 2) | points_of(random.Random(3), DAY + 24 * HOUR, 2)
    send(store, tmp_path, beside, 2)
    ran = rollup(store, config)
    assert ran.code == 0, ran.err
    summary = json.loads(ran.out)
    assert (summary["points_read"], summary["rejected"]) == (len(points), {})
    wanted = expected(points) | expected_groups(points)
    for table, interval in (("rollup-5m", "5m"), ("rollup-1h", "1h"), ("rollup-1d", "1d")):
        tables = (table, table.replace("rollup", "preagg"))
        buckets = {(table, series, at) for table, series, _, at in wanted if table in tables}
        assert summary["rollup"][f"buckets_{interval}"] == len(buckets)
    check(store, points)


@all_cuts(("by day", 0), ("by sampled keys", 0))
@pytest.mark.usefixtures("chunks_cut")
def test_the_rows_of_two_uids_of_one_name_are_two_series(store: Store, config: Path, tmp_path: Path) -> None:
    """As in a query for the name, which reads the rows of the UID that the name has; hours overlap."""
    old, new = (Series.of("sys.m", {"host": host, "dc": "d"}) for host in ("old", "new"))
    points: Points = {
        (series, (DAY + hour * HOUR + second) * 1000): hour
        for series, hours in ((new, range(5)), (old, range(3, 8)))
        for hour in hours
        for second in range(0 if series == new else 30, HOUR, 60)
    }
    send(store, tmp_path, points, 1)
    (uid,) = [uid for (kind, uid), name in store.names().items() if (kind, name) == ("tagv", "old")]

    def name_it(name: bytes, version: int) -> None:
        renamed = SetCell("name", "tagv", name, 4_000_000_000_000_000 + version * 1000)
        open_table(store.target, store.layout.options.uid_table).mutate_row(uid, renamed)

    name_it(b"new", 1)
    for _ in range(2):
        assert rollup(store, config).code == 0
    for text in ("5m-max", "1h-sum", "1d-sum"):
        flags = ("--tag=host=new", f"--downsample={text}")
        through, raw, _ = both(store, config, "sys.m", DAY, DAY + 24 * HOUR, *flags)
        assert through == raw
    name_it(b"old", 2)
    same(stored(store, SECONDS), expected(points))


def test_two_uids_of_one_name_with_the_same_instants(store: Store, config: Path, tmp_path: Path) -> None:
    """Each has the answers of its own points; one for both is rejected."""
    old, new = (Series.of("sys.m", {"host": host, "dc": "d"}) for host in ("old", "new"))
    points: Points = {(series, (DAY + 60 * n) * 1000): n for series in (old, new) for n in range(90)}
    send(store, tmp_path, points, 1)
    (uid,) = [uid for (kind, uid), name in store.names().items() if (kind, name) == ("tagv", "old")]
    tsuids = {keys.tsuid_of_key(store.layout.options, row.key)[0].hex() for row in store.rows()}
    renamed = SetCell("name", "tagv", b"new", 4_000_000_000_000_000)
    open_table(store.target, store.layout.options.uid_table).mutate_row(uid, renamed)
    assert rollup(store, config).code == 0
    place = [*store.flags, f"--start={DAY}", f"--end={DAY + 24 * HOUR}", f"--rollup-config={config}"]
    place += ["--downsample=1h-count", "--output=json"]
    rejected = timebeam("query", "sys.m", "--tag=host=*", *place)
    assert rejected.code != 0
    for tsuid in tsuids:
        assert tsuid.upper() in rejected.err
        ran = timebeam("query", f"--tsuid={tsuid}", *place)
        assert ran.code == 0, ran.err
        (answer,) = json.loads(ran.out)
        assert answer["dps"] == {str(DAY): 60, str(DAY + HOUR): 30}
    assert len(tsuids) == 2


@all_cuts(("by turns", 1))
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
    # Values of another number, or of another length, under the same qualifier and timestamp.
    for table in tables:
        handle = open_table(store.target, store.layout.options.table_prefix + table)
        for number, (key, qualifier, time_us, _) in enumerate(first[table][::5]):
            handle.mutate_row(key, SetCell("t", qualifier, bytes(8 - number % 2), time_us))
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


@all_cuts(("by sampled keys", 0))
@pytest.mark.usefixtures("chunks_cut")
def test_later_cells_of_other_writers_do_not_hide_a_number(
    store: Store, config: Path, tmp_path: Path
) -> None:
    """Cells of the same qualifiers whose timestamps are not the starts of their intervals."""
    send(store, tmp_path, points_of(random.Random(16), DAY, 3), 1)
    tables = [*SECONDS, "preagg", "preagg-5m", "preagg-1h", "preagg-1d"]
    assert rollup(store, config).code == 0
    first = {table: cells(store, table) for table in tables}
    for table in tables:
        handle = open_table(store.target, store.layout.options.table_prefix + table)
        for number, (key, qualifier, time_us, value) in enumerate(first[table][::3]):
            foreign = value if number % 2 else bytes(8 - number % 4)
            handle.mutate_row(key, SetCell("t", qualifier, foreign, time_us + 1_000 * (1 + number)))
    assert rollup(store, config).code == 0
    assert {table: cells(store, table) for table in tables} == first


def test_groups_of_tables_with_escaped_names_are_replaced(
    bigtable: tuple[str, str], prefix: str, config: Path, tmp_path: Path
) -> None:
    store = Store.create(bigtable, prefix, names=Names.ESCAPE)
    for _ in create_tables(
        store.target, rollup_tables(read_config(str(config)), store.layout), dry_run=False
    ):
        pass
    send(store, tmp_path, points_of(random.Random(4), DAY, 8), 1)
    assert rollup(store, config).code == 0
    first = cells(store, "preagg-5m")
    for row in store.rows():
        if parse_key(store.layout.options, row.key).base_s >= DAY + 4 * HOUR:
            store.remove_row(store.layout.data_table, row.key)
    assert rollup(store, config).code == 0
    remaining = [cell for cell in first if int.from_bytes(cell[1][1:], "big") >> 4 < 4 * 12]
    assert 0 < len(remaining) < len(first)
    assert cells(store, "preagg-5m") == remaining


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
    assert summary["rejected"] == {"corrupt-file": 2}
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
def test_pre_aggregates_in_the_raw_table_are_rejected(store: Store, config: Path, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    "shared", [pytest.param(False, marks=pytest.mark.long), True], ids=["tables apart", "one table"]
)
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


@pytest.mark.long
@pytest.mark.parametrize("store", [0], indirect=True)
def test_killed_and_run_again(store: Store, config: Path, tmp_path: Path, emulator: str) -> None:
    """SIGKILL at any of the run's requests, which come back in the next run; the last one makes all right.

    Corrections in between: a run does not write the rows that an earlier one has written.
    """
    points = points_of(random.Random(7), DAY, 24)
    send(store, tmp_path, points, 1)
    rng = random.Random(8)
    command = ["rollup", *store.flags, f"--rollup-config={config}", "--day=2026-02-28"]
    command.append(f"--dead-letters={tmp_path / 'killed'}")
    killed = 0
    for number in range(KILLS):
        run = run_and_kill(emulator, command, rng.randint(1, WRITES), rng.choice((BEFORE, AFTER)))
        # After runs that were killed, those rows that did not change are not written: fewer requests.
        assert run.killed or run.ran.code == 0, run.ran.err
        killed += run.killed
        corrected = dict.fromkeys(rng.sample(sorted(points), len(points) // 2), number)
        send(store, tmp_path, corrected, 2 + number)
        points |= corrected
    assert killed > KILLS / 2
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
    place = [f"--project={bigtable[0]}", f"--instance={bigtable[1]}", f"--table-prefix={prefix}"]
    ran = timebeam("rollup", "--layout=opentsdb", *place, "--rollup-config", config, *flags)
    assert (ran.code, text in ran.err) == (2, True), ran.err


def test_tables_that_are_missing_are_said_with_the_command(
    bigtable: tuple[str, str], prefix: str, config: Path
) -> None:
    made = Store.create(bigtable, prefix)
    ran = rollup(made, config)
    assert ran.code == 1
    assert f"{prefix}rollup-5m" in ran.err
    assert f"--rollup-config {config}" in ran.err
    options = [*made.flags, "--rollup-config", str(config)]
    assert timebeam("tables", "create", *options).code == 0
    assert rollup(made, config).code == 0
