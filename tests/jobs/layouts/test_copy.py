"""`timebeam copy`: what comes out of one layout stands in the other, or is a dead letter."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import pytest
from google.cloud.bigtable.data import SetCell

from tests.schema.stores.plain_opentsdb import number
from tests.support.any_store import EVER_MS, AnyStore
from tests.support.budget import long_after
from tests.support.commands import Ran, ingest, timebeam
from tests.support.data_client import open_table
from tests.support.model import Point, SeriesName, content
from tests.support.points import FIRST_MS, LATER_MS, corrections_of, put_file, write_file
from tests.support.workload import random_points
from timebeam.schema.core.points import PointBatch
from timebeam.schema.formats import Message, format_class
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.transforms.copy.copied_points import read_points
from timebeam.transforms.read.table_reader import TableReader

START, END = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def copy(
    source: AnyStore, sink: AnyStore, folder: Path, *flags: str, start: str = START, end: str = END
) -> Ran:
    return timebeam(
        *("copy", "--from", source.layout.name, "--to", sink.layout.name, *source.place),
        *(*source.layout_flags(), *sink.layout_flags("to_"), *sink.auto_create),
        *(f"--start={start}", f"--end={end}", "--dead-letters", folder / "dead", *flags),
    )


def letters(folder: Path) -> list[tuple[str, str]]:
    """(reason, payload) of each dead letter."""
    lines = [line for path in folder.glob("dead*") for line in path.read_text().splitlines()]
    return sorted((letter["reason"], letter.get("payload", "")) for letter in map(json.loads, lines))


def some_points(seed: int) -> list[Point]:
    """Points of which every layout can hold the value; arrivals are those of two files."""
    points = random_points(random.Random(seed), series=12, hours=5, a_row=7, corrections=0, most=5)
    return [
        point._replace(arrival_ms=FIRST_MS, value=point.value if abs(point.value) < 2**50 else 0.5)
        for point in points
    ]


def times_of(store: AnyStore) -> set[tuple[SeriesName, int]]:
    """(series, time as it was given: in s, or in ms) of all points of OpenTSDB's layout."""
    found = read_points(store.layout, TableReader(store.target), 0, EVER_MS)
    return {
        ((series.metric, series.tags), time_ms if in_ms else time_ms // 1000)
        for batch in found
        if isinstance(batch, PointBatch)
        for (series, time_ms, _), in_ms in zip(batch.points(), batch.in_ms.tolist(), strict=True)
    }


def filled(bigtable: tuple[str, str], prefix: str, folder: Path, points: list[Point]) -> AnyStore:
    """Tables of OpenTSDB's layout with these points."""
    store = AnyStore.create(bigtable, prefix, "opentsdb")
    for arrival_ms in (FIRST_MS, LATER_MS):
        some = [point for point in points if point.arrival_ms == arrival_ms]
        if some:
            path = put_file(folder / f"{arrival_ms}.txt", some, arrival_ms)
            ingest(folder, *store.flags, *store.auto_create, "--format=opentsdb-text", "--input", path)
    return store


@pytest.mark.parametrize(
    "way",
    [
        ("heroic", "kairosdb-legacy"),
        pytest.param(("kairosdb-retention", "heroic-readable"), marks=pytest.mark.long),
    ],
)
def test_round_trip_through_all_layouts(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, way: tuple[str, ...]
) -> None:
    """Times, values and arrivals are what they were; Heroic makes doubles of integers."""
    first = some_points(5)
    points = [*first, *(point._replace(value=point.value + 0.5) for point in corrections_of(first[::9]))]
    start = filled(bigtable, prefix, tmp_path, points)
    stores = [start]
    for step, variant in enumerate((*way, "opentsdb-salted")):
        store = AnyStore.create(bigtable, f"{prefix}{step}-", variant)
        ran = copy(stores[-1], store, tmp_path)
        assert (ran.code, ran.err) == (0, "")
        assert ran.out.splitlines()[-1] == f"copied {len(first):,} points of 12 series; verified"
        stores.append(store)
    wanted = content([point._replace(value=float(point.value)) for point in points])
    assert stores[-1].content() == wanted
    times = {(point.series, point.time) for point in first}  # in s and ms, told apart by their size
    assert times_of(stores[-1]) == times_of(start) == times
    arrivals = {at: arrival for at, (arrival, _) in start.arrived().items()}
    assert set(arrivals.values()) == {FIRST_MS, LATER_MS}
    for store in stores:
        assert {at: arrival for at, (arrival, _) in store.arrived().items()} == arrivals
        assert timebeam("check", *store.flags).code == 0
    assert not letters(tmp_path)


def test_copying_again_changes_no_cell_and_newer_values_stay(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    points = some_points(6)
    source = filled(bigtable, prefix, tmp_path, points)
    sink = AnyStore.create(bigtable, f"{prefix}to-", "kairosdb-milliseconds")
    newer = [point._replace(value=point.value + 1, arrival_ms=LATER_MS) for point in points[:20]]
    path = put_file(tmp_path / "newer.txt", newer, LATER_MS)
    ingest(tmp_path, *sink.flags, "--format=opentsdb-text", "--input", path)
    assert copy(source, sink, tmp_path).code == 0
    cells = sink.cells()
    assert copy(source, sink, tmp_path).code == 0
    assert sink.cells() == cells
    assert sink.content() == content([*points, *newer])


def kairosdb_lines(folder: Path, store: AnyStore, name: str, values: list[str], arrival_ms: int) -> None:
    """Ingests a point a second, from JSON."""
    points = ",".join(f"[{1_767_225_600_000 + 1000 * i},{value}]" for i, value in enumerate(values))
    line = f'{{"name":"m","tags":{{"host":"a"}},"datapoints":[{points}]}}\n'
    path = write_file(folder / name, [line.encode()], arrival_ms)
    ingest(folder, *store.flags, "--format=kairosdb-json", "--input", path)


@pytest.mark.parametrize(
    ("values", "stored", "reasons"),
    long_after(
        2,
        [
            (["12.0", "9007199254740993"], {}, ["value-not-storable"]),
            (["13", "12.5"], {0: 12.5}, []),
            (["12.0", "13"], {0: 13.0}, []),
            (["12.0", "-9223372036854775808"], {0: -(2.0**63)}, []),
            (["13", '"text"'], {}, ["value-not-storable"]),
        ],
    ),
    ids=str,
)
def test_of_two_types_of_one_instant_only_the_newer_value_is_copied(
    bigtable: tuple[str, str],
    prefix: str,
    tmp_path: Path,
    values: list[str],
    stored: dict[int, float],
    reasons: list[str],
) -> None:
    """KairosDB stores an integer and a decimal of one instant in two rows."""
    source = AnyStore.create(bigtable, prefix, "kairosdb-legacy")
    older, newer = values
    kairosdb_lines(tmp_path, source, "older.json", [older, "0.5"], FIRST_MS)
    kairosdb_lines(tmp_path, source, "newer.json", [newer], LATER_MS)
    sink = AnyStore.create(bigtable, f"{prefix}to-", "heroic")
    ran = copy(source, sink, tmp_path)
    assert ran.code == 0
    assert [reason for reason, _ in letters(tmp_path)] == reasons
    rejected = f", but {len(reasons)} rejected: see the dead letters" if reasons else ""
    assert ran.out.splitlines()[-1] == f"copied {2 - len(reasons)} points of 1 series; verified{rejected}"
    name = ("m", (("host", "a"),))
    expected = {
        (name, 1_767_225_600_000 + 1000 * at): number(value) for at, value in {**stored, 1: 0.5}.items()
    }
    assert sink.content() == expected


def test_the_proof_compares_values(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    """Another value in the target is right if it is newer, and else not."""
    source = AnyStore.create(bigtable, prefix, "kairosdb-legacy")
    kairosdb_lines(tmp_path, source, "a.json", ["1", "2.5", "3", '"text"', "9007199254740993"], LATER_MS)
    same = AnyStore.create(bigtable, f"{prefix}same-", "kairosdb-milliseconds")
    assert copy(source, same, tmp_path).code == 0
    other = AnyStore.create(bigtable, f"{prefix}other-", "kairosdb-legacy")
    wrong = ["1.0", "2.25", "4", '"test"', "9007199254740992.0"]
    kairosdb_lines(tmp_path, other, "b.json", wrong, FIRST_MS)
    ran = copy(source, other, tmp_path, "--verify-only")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        "copied 1 points of 1 series; 0 are missing and 4 have a different value that is not newer; "
        "up to 0 of them may be dead letters\ndifferent: 4 of m{host=a}\n"
    )
    newer = AnyStore.create(bigtable, f"{prefix}newer-", "kairosdb-legacy")
    kairosdb_lines(tmp_path, newer, "c.json", wrong, LATER_MS + 1)
    ran = copy(source, newer, tmp_path, "--verify-only")
    assert (ran.code, ran.err) == (0, "")
    assert (
        ran.out
        == "copied 5 points of 1 series, 4 of them with newer values in the destination, which were kept; "
        "verified\n"
    )


def test_decimals_of_four_bytes_are_the_copy_of_eight(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    points = [point._replace(value=0.1 * i) for i, point in enumerate(some_points(11))]
    source = filled(bigtable, prefix, tmp_path, points)
    sink = AnyStore.create(bigtable, f"{prefix}to-", "opentsdb")
    short = dataclasses.replace(sink, options={**sink.options, "decimals": "float"})
    ran = copy(source, short, tmp_path)
    assert (ran.code, ran.err) == (0, "")
    assert "verified" in ran.out
    ran = copy(source, sink, tmp_path, "--verify-only")  # as if 8 bytes had been asked for
    assert ran.code == 1
    assert "have a different value" in ran.err


def test_only_the_range_is_copied(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    """Both ends inclusive, also in the middle of rows."""
    points = sorted(some_points(7), key=lambda point: point.time_ms)
    first, last = points[50].time_ms, points[-50].time_ms
    source = filled(bigtable, prefix, tmp_path, points)
    sink = AnyStore.create(bigtable, f"{prefix}to-", "kairosdb-legacy")
    assert copy(source, sink, tmp_path, start=str(first), end=str(last)).code == 0
    assert sink.content() == content(point for point in points if first <= point.time_ms <= last)
    assert timebeam("check", *sink.flags).code == 0


def test_what_the_target_cannot_hold_is_a_dead_letter(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    """Each with a line that can be ingested again, where there is a format for it."""
    name = ("m", (("host", "a"),))
    time = 1_767_225_600
    kept = Point(name, time, 0.5, FIRST_MS)
    rounded = Point(name, time + 1, 2**53 + 1, FIRST_MS)
    source = filled(bigtable, prefix, tmp_path, [kept, rounded])
    sink = AnyStore.create(bigtable, f"{prefix}to-", "heroic")
    ran = copy(source, sink, tmp_path)
    assert ran.code == 0
    assert ran.out.splitlines()[-1] == (
        "copied 1 points of 1 series; verified, but 1 rejected: see the dead letters"
    )
    ((reason, payload),) = letters(tmp_path)
    assert reason == "value-not-storable"
    assert json.loads(payload) == {
        "metric": "m",
        "timestamp": time + 1,
        "value": 2**53 + 1,
        "tags": {"host": "a"},
    }
    assert sink.content() == content([kept])


def test_texts_and_resources_do_not_get_lost(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    kairosdb = AnyStore.create(bigtable, f"{prefix}k-", "kairosdb-legacy")
    line = b'{"name":"m","tags":{"host":"a"},"datapoints":[[1767225600000,"text"],[1767225601000,1.5]]}\n'
    path = write_file(tmp_path / "k.json", [line])
    ingest(tmp_path, *kairosdb.flags, "--format=kairosdb-json", "--input", path)
    heroic = AnyStore.create(bigtable, f"{prefix}h-", "heroic")
    written = (
        b'{"series":{"key":"m","tags":{"host":"a"},"resource":{"pod":"p"}},'
        b'"data":{"type":"points","data":[[1767225602000,2.5]]}}\n'
    )
    path = write_file(tmp_path / "h.json", [written])
    ingest(tmp_path, *heroic.flags, "--format=heroic-json", "--input", path)
    sink = AnyStore.create(bigtable, f"{prefix}to-", "opentsdb")
    assert copy(kairosdb, sink, tmp_path).code == 0
    assert copy(heroic, sink, tmp_path).code == 1  # all is rejected
    assert [reason for reason, _ in letters(tmp_path)] == ["series-not-storable", "value-not-storable"]
    payloads = [json.loads(payload) for _, payload in letters(tmp_path)]
    assert payloads[0]["tags"] == {"tags": {"host": "a"}, "resources": {"pod": "p"}}
    assert payloads[1]["value"] == {"text": "text"}
    for _, payload in letters(tmp_path):  # replayed as what they are not, they stay rejected
        parsed = format_class("opentsdb-json")().parse(Message(payload.encode(), 1))
        assert (len(parsed.batch), len(parsed.rejected)) == (0, 1)
    assert sink.content() == {(("m", (("host", "a"),)), 1_767_225_601_000): number(1.5)}


def test_corruption_in_the_source_is_told(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    """A column cut short and a name that is lost: what can be read is copied, and the exit code is 1."""
    points = some_points(8)
    source = filled(bigtable, prefix, tmp_path, points)
    assert isinstance(source.layout, OpenTsdb)
    table = open_table(source.target, source.layout.data_table)
    key = min(cell.key for cell in source.cells() if cell.table == source.layout.data_table)
    table.mutate_row(key, SetCell("t", b"\x00\x70\x00\x83", b"\1\2", 1_000_000))
    table.mutate_row(key[:-3] + b"\0\0\x99", SetCell("t", b"\0\0", b"\1", 1_000_000))
    sink = AnyStore.create(bigtable, f"{prefix}to-", "kairosdb-legacy")
    ran = copy(source, sink, tmp_path)
    assert ran.code == 1
    assert "2 rows or cells could not be read: see the dead letters" in ran.err
    assert ran.out.splitlines()[-1] == f"copied {len(points):,} points of 12 series; verified"
    assert [reason for reason, _ in letters(tmp_path)] == ["corrupt-file", "corrupt-file"]
    assert sink.content() == content(points)


def test_what_is_missing_is_told(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    points = some_points(9)
    source = filled(bigtable, prefix, tmp_path, points)
    sink = AnyStore.create(bigtable, f"{prefix}to-", "heroic")
    ran = copy(source, sink, tmp_path, "--verify-only")
    assert (ran.code, ran.out) == (1, "")
    assert f"copied 0 points of 0 series; {len(points):,} are missing" in ran.err
    assert sink.cells() == set()
    assert copy(source, sink, tmp_path, "--dry-run").code == 0
    assert sink.cells() == set()
    assert copy(source, sink, tmp_path).code == 0
    ran = copy(source, sink, tmp_path, "--verify-only")
    assert (ran.code, ran.out) == (0, f"copied {len(points):,} points of 12 series; verified\n")


def test_wrong_usage(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    source = AnyStore.create(bigtable, prefix, "opentsdb")
    none = dataclasses.replace(source, options={"table_prefix": "none-", "salt_buckets": "7"})
    assert "is both read and written" in copy(source, source, tmp_path).err
    ran = copy(source, none, tmp_path)
    assert ran.code == 1
    assert "timebeam tables create --layout opentsdb --table-prefix none- --salt-buckets 7\n" in ran.err
    kairosdb = AnyStore.create(bigtable, f"{prefix}k-", "kairosdb-legacy")
    reading = dataclasses.replace(kairosdb, options={**kairosdb.options, "row_spec": "seconds"})
    ran = copy(source, reading, tmp_path)
    assert (ran.code, "for reading only" in ran.err) == (2, True)
    assert copy(source, kairosdb, tmp_path, start=END, end=START).code == 2
    assert copy(source, kairosdb, tmp_path, start="yesterday").code == 2


def test_the_comparison_as_json(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    """A line of JSON of its own, after that of the summary; the sentences are on standard error."""
    points = some_points(4)
    source = filled(bigtable, prefix, tmp_path, points)
    sink = AnyStore.create(bigtable, f"{prefix}to-", "heroic")
    ran = copy(source, sink, tmp_path, "--verify-only", "--summary=json")
    figures = json.loads(ran.out)
    assert (ran.code, figures["points"], figures["verified"]) == (1, 0, False)
    assert sum(figures["missing"].values()) == len(points)
    assert "are missing" in ran.err
    ran = copy(source, sink, tmp_path, "--summary=json")
    summary, figures = map(json.loads, ran.out.splitlines())
    assert (ran.code, summary["points_stored"]) == (0, len(points))
    assert (figures["points"], figures["series"], figures["verified"]) == (len(points), 12, True)
    assert (figures["missing"], figures["different"], figures["unreadable"]) == ({}, {}, 0)
