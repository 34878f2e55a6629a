"""`timebeam ingest` end to end: files in, rows in the emulator out, the same however they arrive."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.golden.cases import cases
from tests.schema.stores.plain_opentsdb import java_bucket
from tests.support.budget import long_after
from tests.support.commands import ingest, timebeam
from tests.support.model import Content, Point, SeriesName, content, point_cells
from tests.support.points import (
    BASE_S,
    FIRST_MS,
    LATER_MS,
    SERIES,
    cells_of,
    corrections_of,
    json_line,
    put,
    put_file,
    random_points,
    stored,
    write_file,
)
from tests.support.stored import Store

TEXT = ("--format=opentsdb-text", "--auto-create-metrics")


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    return Store.create(bigtable, prefix)


@dataclasses.dataclass(frozen=True)
class Feed:
    """Points in files that arrived first, and corrections of some of them in a file that came later."""

    files: list[Path]
    later: Path

    @classmethod
    def write(cls, folder: Path, points: Sequence[Point], corrections: Sequence[Point], later: str) -> Feed:
        """The points in any order, cut anywhere, plain and compressed; `later` names the corrections."""
        chance = random.Random(later)
        folder.mkdir()
        shuffled = chance.sample(points, len(points))
        first, second = sorted(chance.sample(range(1, len(points)), 2))
        files = [
            put_file(folder / "a.txt", shuffled[:first]),
            put_file(folder / "b.txt.gz", shuffled[first:second]),
            put_file(folder / "c.txt.bz2", shuffled[second:]),
        ]
        return cls(files, put_file(folder / later, chance.sample(corrections, len(corrections)), LATER_MS))


Order = Callable[[Feed, Feed], list[list[Path]]]
"""The files of each of several ingests, from two feeds of the same points."""


def twice(one: Feed, two: Feed) -> list[list[Path]]:
    """All, and again in another order and other files."""
    return [[*one.files, one.later], [two.later, *reversed(two.files)]]


def half_then_all(one: Feed, two: Feed) -> list[list[Path]]:
    """Some files with the corrections, then everything."""
    return [[one.files[0], one.later], [*two.files, two.later]]


def corrections_first(one: Feed, two: Feed) -> list[list[Path]]:
    """What is corrected comes after its correction."""
    return [[one.later], one.files[:2], two.files]


def first_files_again(one: Feed, two: Feed) -> list[list[Path]]:
    """Everything, then once more what was corrected."""
    return [[*two.files, two.later], one.files]


def file_by_file(one: Feed, two: Feed) -> list[list[Path]]:
    """As they arrive."""
    return [[file] for file in (*one.files, one.later)]


ORDERS: list[Order] = [twice, half_then_all, corrections_first, first_files_again]


def run(
    store: Store, folder: Path, order: Order, packing: str, points: list[Point], corrections: list[Point]
) -> None:
    """Ingests the points in this order."""
    (folder / "in").mkdir()
    one = Feed.write(folder / "in" / "one", points, corrections, "later.txt")
    two = Feed.write(folder / "in" / "two", points, corrections, "0.txt")  # files are read by name
    for files in order(one, two):
        ingest(folder, *store.flags, *TEXT, f"--packing={packing}", "--input", *files)


POINTS = random_points(400)
CORRECTIONS = corrections_of(POINTS[::5])
CONTENT: Content = content([*POINTS, *CORRECTIONS])


def check_cells(store: Store, points: Sequence[Point]) -> None:
    """Asserts that the table holds the cells of the plain model, timestamps included."""
    assert store.cells() == cells_of(point_cells(points, store.uids(), store.layout.options))


@pytest.mark.parametrize("order", long_after(2, ORDERS))
def test_packing_points_stores_the_same_cells_in_every_order(
    store: Store, tmp_path: Path, order: Order
) -> None:
    run(store, tmp_path, order, "points", POINTS, CORRECTIONS)
    check_cells(store, [*POINTS, *CORRECTIONS])
    assert stored(store) == CONTENT


@pytest.mark.parametrize("order", long_after(2, ORDERS))
def test_packing_compacted_holds_the_same_points_in_every_order(
    store: Store, tmp_path: Path, order: Order
) -> None:
    run(store, tmp_path, order, "compacted", POINTS, CORRECTIONS)
    assert stored(store) == CONTENT
    assert timebeam("check", *store.flags).code == 0


@pytest.mark.parametrize("order", [twice, file_by_file])
def test_packing_append_holds_the_same_points(store: Store, tmp_path: Path, order: Order) -> None:
    """Where corrections come with or after what they correct: an append column knows no other age."""
    run(store, tmp_path, order, "append", POINTS, CORRECTIONS)
    assert {qualifier for _, qualifier, _, _ in store.cells()} == {b"\x05\0\0"}
    assert stored(store) == CONTENT
    assert timebeam("check", *store.flags).code == 0


def test_of_several_generations_the_newest_wins(store: Store, tmp_path: Path) -> None:
    """In cells of their own, whatever comes together or last."""
    first = random_points(60, seed=4)
    second = corrections_of(first, seed=5)
    third = [point._replace(arrival_ms=LATER_MS + 1000) for point in corrections_of(first[::2], seed=6)]
    files = [
        put_file(tmp_path / "first.txt", first),
        put_file(tmp_path / "second.txt", second, LATER_MS),
        put_file(tmp_path / "third.txt", third, LATER_MS + 1000),
    ]
    for some in ([files[2], files[0]], [files[1]]):
        ingest(tmp_path, *store.flags, *TEXT, "--packing=points", "--input", *some)
    check_cells(store, [*first, *second, *third])
    assert stored(store) == content([*first, *second, *third])


@pytest.mark.parametrize(("packing", "writer"), [("points", "direct"), ("compacted", "beam")])
def test_a_second_ingest_changes_no_byte(store: Store, tmp_path: Path, packing: str, writer: str) -> None:
    (tmp_path / "in").mkdir()
    feed = Feed.write(tmp_path / "in" / "one", POINTS, CORRECTIONS, "later.txt")
    arguments = [*store.flags, *TEXT, f"--packing={packing}", f"--bigtable-writer={writer}"]
    first = ingest(tmp_path, *arguments, "--input", *feed.files, feed.later)
    cells, uids = store.cells(), store.uid_cells()
    second = ingest(tmp_path, *arguments, "--input", feed.later, *reversed(feed.files))
    assert (store.cells(), store.uid_cells()) == (cells, uids)
    assert stored(store) == CONTENT
    assert (first.summary["uids_assigned"], second.summary["uids_assigned"]) == (len(store.uids()), 0)
    for key in ("points_read", "points_stored", "rows", "cells", "bytes_written"):
        assert first.summary[key] == second.summary[key]
    assert first.summary["cells"] == len(cells)
    assert first.summary["rows"] == len({key for key, *_ in cells})


def test_the_last_of_several_values_in_one_file_wins(store: Store, tmp_path: Path) -> None:
    """Also where they differ in width and kind; those of one block are counted as duplicates."""
    points = random_points(40)
    again = [point._replace(arrival_ms=FIRST_MS) for point in corrections_of(points[:15])]
    file = put_file(tmp_path / "a.txt", [*points, *again])
    found = ingest(tmp_path, *store.flags, *TEXT, "--packing=points", "--input", file)
    check_cells(store, [*points, *again])
    assert stored(store) == content([*points, *again])
    counts = [found.summary[key] for key in ("points_read", "points_duplicate", "points_stored")]
    assert counts == [55, 15, 40]


def test_points_of_a_tsd_become_its_cells(store: Store, tmp_path: Path) -> None:
    """The telnet lines of tests/golden/opentsdb/puts.json, all at once, each metric its own case."""
    wanted: set[tuple[object, ...]] = set()
    lines: list[bytes] = []
    for case in cases("puts"):
        messages = case.messages()
        if any(format_name != "opentsdb-text" for format_name, _ in messages):
            continue
        lines += [line + b"\n" for _, text in messages for line in text.split(b"\n")]
        names = {(name.kind, uid): name.text for name, uid in case.uids.items()}
        wanted |= {(*by_name(names, key), qualifier, value) for key, qualifier, value in case.cells}
    assert len(wanted) > 60
    file = write_file(tmp_path / "telnet.txt", lines)
    found = ingest(tmp_path, *store.flags, *TEXT, "--packing=points", "--input", file)
    assert found.letters == []
    names = store.names()
    assert {(*by_name(names, key), qualifier, value) for key, qualifier, _, value in store.cells()} == wanted


def by_name(names: dict[tuple[str, bytes], str], key: bytes) -> tuple[object, ...]:
    """A row key with one tag, its UIDs as names."""
    assert len(key) == 13
    return names["metrics", key[:3]], key[3:7], names["tagk", key[7:10]], names["tagv", key[10:]]


def test_many_points_of_an_hour_become_several_columns(store: Store, tmp_path: Path) -> None:
    """A qualifier holds 16 KiB: 4096 points in ms."""
    series: SeriesName = ("sys.cpu", (("host", "a"),))
    points = [Point(series, BASE_S * 1000 + at, at, FIRST_MS) for at in range(1, 9001)]
    points += [Point(series, BASE_S + at, at / 3, FIRST_MS) for at in range(1000, 1500)]
    random.Random(0).shuffle(points)
    found = ingest(tmp_path, *store.flags, *TEXT, "--input", put_file(tmp_path / "a.txt", points))
    cells = store.cells()
    assert len({key for key, *_ in cells}) == 1
    sizes = sorted(len(qualifier) for _, qualifier, _, _ in cells)
    assert sizes[-1] <= 16 * 1024
    assert sum(sizes) == 4 * 9000 + 2 * 500
    assert len(sizes) == found.summary["cells"] == 3
    assert stored(store) == content(points)
    assert timebeam("check", *store.flags).code == 0


@pytest.mark.parametrize(
    "options",
    [
        {"salt_width": 1},
        {"salt_width": 2, "salt_buckets": 300},
        {"uid_width_metric": 4, "uid_width_tagk": 4, "uid_width_tagv": 4},
        {"salt_width": 1, "uid_width_metric": 8, "uid_width_tagk": 1, "uid_width_tagv": 2},
    ],
    ids=str,
)
def test_other_keys_from_file_to_answer(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, options: dict[str, int]
) -> None:
    """Salted row keys, and UIDs of other widths than three bytes."""
    store = Store.create(bigtable, prefix, **options)
    points = random_points(200)
    ingest(tmp_path, *store.flags, *TEXT, "--input", put_file(tmp_path / "a.txt", points))
    salt, buckets = options.get("salt_width", 0), options.get("salt_buckets", 20)
    metric = options.get("uid_width_metric", 3)
    pair = options.get("uid_width_tagk", 3) + options.get("uid_width_tagv", 3)
    keys = {key for key, *_ in store.cells()}
    assert {len(key) for key in keys} == {salt + metric + 4 + pair, salt + metric + 4 + 2 * pair}
    for key in keys if salt else ():
        tsuid = key[salt : salt + metric] + key[salt + metric + 4 :]
        assert int.from_bytes(key[:salt], "big") == java_bucket(tsuid, buckets)
    assert stored(store) == content(points)
    assert timebeam("check", *store.flags).code == 0
    times = f"--start={BASE_S}", f"--end={BASE_S + 4 * 3600}"
    for name in {metric for metric, _ in SERIES}:
        ran = timebeam("query", name, *store.flags, *times, "--aggregator=none", "--output=csv")
        assert ran.code == 0, ran.err
        of_metric = [point for point in points if point.series[0] == name]
        assert len(ran.out.splitlines()) == 1 + len(of_metric)


def test_names_beyond_the_snapshot_and_the_cache_are_looked_up(store: Store, tmp_path: Path) -> None:
    points = random_points(300)
    small = ("--uid-snapshot-size=2", "--uid-cache-size=3")
    for some in (points[:150], points):
        ingest(tmp_path, *store.flags, *TEXT, *small, "--input", put_file(tmp_path / "a.txt", some))
    assert stored(store) == content(points)
    assert store.counters() == {"metrics": 2, "tagk": 2, "tagv": 6}


def test_json_and_text_store_the_same_cells(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    """With --decimals double, decimals on eight bytes: as a TSD's HTTP front end writes them."""
    points = random_points(100)
    found = []
    for form, line in (("opentsdb-json", json_line), ("opentsdb-text", put)):
        store = Store.create(bigtable, f"{prefix}{form}-")
        file = write_file(tmp_path / "a", map(line, points))
        flags = [*store.flags, "--auto-create-metrics", f"--format={form}", "--decimals=double"]
        ingest(tmp_path, *flags, "--packing=points", "--input", file)
        assert stored(store) == content(points)
        found.append(store.cells())
        assert {len(value) for _, qualifier, _, value in found[-1] if qualifier[-1] & 8} == {8}
    assert found[0] == found[1]
