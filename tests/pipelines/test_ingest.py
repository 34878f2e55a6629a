"""`timebeam ingest` end to end: files in, rows in the emulator out, the same however they arrive."""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pipelines.local.emulator import HOST_VARIABLE
from schema.layouts import Packing
from schema.points import Series
from tests.golden.cases import cases
from tests.schema.layouts.plain_opentsdb import java_bucket
from tests.support.commands import ingest, timebeam
from tests.support.points import (
    BASE_S,
    Numbers,
    Sent,
    number,
    numbers,
    plain_cells,
    random_points,
    random_value,
    sent_numbers,
    series_list,
)
from tests.support.stored import Store

FIRST_MS, LATER_MS = 1_700_000_000_000, 1_700_000_600_000
TEXT = ("--format=opentsdb-text", "--auto_create_metrics")


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    return Store.create(bigtable, prefix)


def stored(store: Store) -> Numbers:
    """What the tables hold, decoded."""
    return numbers(
        (series, at, value) for series, found in store.points().items() for at, value in found.items()
    )


def write_file(path: Path, lines: Sequence[bytes], modified_ms: int = FIRST_MS) -> Path:
    """A file of these lines, compressed as its name says, of that age."""
    compress = {".gz": gzip.compress, ".bz2": bz2.compress}.get(path.suffix, bytes)
    path.write_bytes(compress(b"".join(lines)))
    os.utime(path, (modified_ms / 1000, modified_ms / 1000))
    return path


@dataclasses.dataclass(frozen=True)
class Feed:
    """Points in files that arrived first, and corrections of some of them in a file that came later."""

    points: list[Sent]
    corrections: list[Sent]
    files: list[Path]
    later: Path

    @classmethod
    def write(cls, folder: Path, points: list[Sent], corrections: list[Sent], seed: int) -> Feed:
        """The points in files of any order, cut anywhere, plain and compressed."""
        chance = random.Random(seed)
        folder.mkdir()
        lines = [point.put() for point in points]
        chance.shuffle(lines)
        cuts = sorted(chance.randrange(len(lines)) for _ in range(2))
        parts = [lines[: cuts[0]], lines[cuts[0] : cuts[1]], lines[cuts[1] :]]
        names = ["a.txt", "b.txt.gz", "c.txt.bz2"]
        files = [write_file(folder / name, part) for name, part in zip(names, parts, strict=True)]
        later = [point.put() for point in corrections]
        chance.shuffle(later)
        return cls(points, corrections, files, write_file(folder / "later.txt", later, LATER_MS))

    @property
    def arrived(self) -> list[tuple[int, Sent]]:
        """Every point with its arrival in ms."""
        first = [(FIRST_MS, point) for point in self.points]
        return first + [(LATER_MS, point) for point in self.corrections]


def feeds(folder: Path) -> tuple[Feed, Feed]:
    """The same points, in other orders and other files."""
    points = random_points(400)
    chance = random.Random(1)
    corrections = [point._replace(value=random_value(chance)) for point in points[::5]]
    return Feed.write(folder / "one", points, corrections, 2), Feed.write(
        folder / "two", points, corrections, 3
    )


def once(one: Feed, two: Feed) -> list[list[Path]]:
    return [[*one.files, one.later]]


def twice_in_another_order(one: Feed, two: Feed) -> list[list[Path]]:
    return [[*one.files, one.later], [two.later, *reversed(two.files)]]


def half_then_all(one: Feed, two: Feed) -> list[list[Path]]:
    return [[one.files[0], one.later], [*two.files, two.later]]


def file_by_file(one: Feed, two: Feed) -> list[list[Path]]:
    return [[file] for file in (*one.files, one.later)]


def corrections_first(one: Feed, two: Feed) -> list[list[Path]]:
    return [[one.later], one.files[:2], one.files[2:]]


def corrections_in_between(one: Feed, two: Feed) -> list[list[Path]]:
    return [one.files[:1], [one.files[1], one.later], one.files[1:]]


Order = Callable[[Feed, Feed], list[list[Path]]]
ORDERS: list[Order] = [once, twice_in_another_order, half_then_all, file_by_file]
ANY_ORDERS = [*ORDERS, corrections_first, corrections_in_between]


@pytest.mark.parametrize("order", ANY_ORDERS)
def test_packing_points_stores_the_same_cells_in_every_order(
    store: Store, tmp_path: Path, order: Order
) -> None:
    """Cell for cell those of a plain model, timestamps included."""
    (tmp_path / "in").mkdir()
    one, two = feeds(tmp_path / "in")
    for files in order(one, two):
        ingest(tmp_path, *store.flags, *TEXT, "--packing=points", "--input", *files)
    assert store.cells() == plain_cells(one.arrived, store.uids())
    assert stored(store) == sent_numbers([*one.points, *one.corrections])


@pytest.mark.parametrize("order", ANY_ORDERS)
def test_packing_compacted_holds_the_same_points_in_every_order(
    store: Store, tmp_path: Path, order: Order
) -> None:
    (tmp_path / "in").mkdir()
    one, two = feeds(tmp_path / "in")
    for files in order(one, two):
        ingest(tmp_path, *store.flags, *TEXT, "--packing=compacted", "--input", *files)
    assert stored(store) == sent_numbers([*one.points, *one.corrections])
    assert timebeam("check", *store.flags).code == 0


@pytest.mark.parametrize("order", ORDERS)
def test_packing_append_holds_the_same_points(store: Store, tmp_path: Path, order: Order) -> None:
    """In the orders in which the corrections come with or after what they correct: an append column
    knows no other age."""
    (tmp_path / "in").mkdir()
    one, two = feeds(tmp_path / "in")
    for files in order(one, two):
        ingest(tmp_path, *store.flags, *TEXT, "--packing=append", "--input", *files)
    assert {qualifier for _, qualifier, _, _ in store.cells()} == {b"\x05\0\0"}
    assert stored(store) == sent_numbers([*one.points, *one.corrections])
    assert timebeam("check", *store.flags).code == 0


@pytest.mark.parametrize("packing", ["points", "compacted"])
@pytest.mark.parametrize("writer", ["beam", "direct"])
def test_a_second_ingest_changes_no_byte(store: Store, tmp_path: Path, packing: str, writer: str) -> None:
    (tmp_path / "in").mkdir()
    one, _ = feeds(tmp_path / "in")
    arguments = [*store.flags, *TEXT, f"--packing={packing}", f"--bigtable_writer={writer}"]
    first = ingest(tmp_path, *arguments, "--input", *one.files, one.later)
    cells, uids = store.cells(), store.uid_cells()
    second = ingest(tmp_path, *arguments, "--input", one.later, *reversed(one.files))
    assert (store.cells(), store.uid_cells()) == (cells, uids)
    assert (first.summary["uids_assigned"], second.summary["uids_assigned"]) == (len(store.uids()), 0)
    for key in ("points_read", "points_stored", "rows", "cells", "bytes_written"):
        assert first.summary[key] == second.summary[key]
    assert first.summary["cells"] == len(cells)


def test_the_last_of_several_values_in_one_file_wins(store: Store, tmp_path: Path) -> None:
    """Also where they differ in width and kind; those of one block are counted as duplicates."""
    points = random_points(40)
    chance = random.Random(7)
    again = [point._replace(value=random_value(chance)) for point in points[:15]]
    file = write_file(tmp_path / "a.txt", [point.put() for point in [*points, *again]])
    found = ingest(tmp_path, *store.flags, *TEXT, "--packing=points", "--input", file)
    assert stored(store) == sent_numbers([*points, *again])
    assert found.summary["points_duplicate"] == 15
    assert found.summary["points_read"] == 55
    assert len(store.cells()) == found.summary["points_stored"] == 40


def test_points_of_a_tsd_become_its_cells(store: Store, tmp_path: Path) -> None:
    """The telnet lines of tests/golden/opentsdb/puts.json, all at once, each metric its own case."""
    wanted, lines = set(), []
    for case in cases("puts"):
        texts = [text for format_name, text in case.messages() if format_name == "opentsdb-text"]
        if len(texts) != len(case.messages()):
            continue
        lines += [line + b"\n" for text in texts for line in text.split(b"\n")]
        names = {(name.kind, uid): name.text for name, uid in case.uids.items()}
        for key, qualifier, value in case.cells:
            metric, base, tags = key[:3], key[3:7], key[7:]
            assert len(tags) == 6
            pair = names["tagk", tags[:3]], names["tagv", tags[3:]]
            wanted.add((names["metrics", metric], base, *pair, qualifier, value))
    assert len(wanted) > 60
    file = write_file(tmp_path / "telnet.txt", lines)
    found = ingest(tmp_path, *store.flags, *TEXT, "--packing=points", "--input", file)
    assert found.letters == []
    names = store.names()
    assert {
        (
            names["metrics", key[:3]],
            key[3:7],
            names["tagk", key[7:10]],
            names["tagv", key[10:]],
            qualifier,
            value,
        )
        for key, qualifier, _, value in store.cells()
    } == wanted


def test_many_points_of_an_hour_become_several_columns(store: Store, tmp_path: Path) -> None:
    """A qualifier holds 16 KiB: 4096 points in ms."""
    series = Series.of("sys.cpu", {"host": "a"})
    points = [Sent(series, BASE_S * 1000 + at, True, at) for at in range(1, 9001)]
    points += [Sent(series, (BASE_S + at) * 1000, False, at / 3) for at in range(1000, 1500)]
    random.Random(0).shuffle(points)
    file = write_file(tmp_path / "a.txt", [point.put() for point in points])
    found = ingest(tmp_path, *store.flags, *TEXT, "--input", file)
    cells = store.cells()
    assert len({key for key, *_ in cells}) == 1
    sizes = sorted(len(qualifier) for _, qualifier, _, _ in cells)
    assert sizes[-1] <= 16 * 1024
    assert sum(sizes) == 4 * 9000 + 2 * 500
    assert len(sizes) == found.summary["cells"] == 3
    assert stored(store) == sent_numbers(points)
    assert timebeam("check", *store.flags).code == 0


@pytest.mark.parametrize("options", [{"salt_width": 1}, {"salt_width": 2, "salt_buckets": 300}])
def test_salted_from_file_to_answer(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, options: dict[str, int]
) -> None:
    store = Store.create(bigtable, prefix, **options)
    points = random_points(200)
    ingest(
        tmp_path, *store.flags, *TEXT, "--input", write_file(tmp_path / "a.txt", [p.put() for p in points])
    )
    width, buckets = options["salt_width"], options.get("salt_buckets", 20)
    for key, *_ in store.cells():
        tsuid = key[width : width + 3] + key[width + 7 :]
        assert int.from_bytes(key[:width], "big") == java_bucket(tsuid, buckets)
    assert len({key[:width] for key, *_ in store.cells()}) > 2
    check_answers(store, points)


def test_wide_uids_from_file_to_answer(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    store = Store.create(bigtable, prefix, uid_width_metric=4, uid_width_tagk=4, uid_width_tagv=4)
    points = random_points(200)
    ingest(
        tmp_path, *store.flags, *TEXT, "--input", write_file(tmp_path / "a.txt", [p.put() for p in points])
    )
    assert {len(uid) for uid in store.uids().values()} == {4}
    assert {len(key) for key, *_ in store.cells()} == {4 + 4 + 8, 4 + 4 + 16}
    check_answers(store, points)


def check_answers(store: Store, points: list[Sent]) -> None:
    """Asserts that the tables are sound and that a query of each metric answers with every point."""
    assert stored(store) == sent_numbers(points)
    assert timebeam("check", *store.flags).code == 0
    for metric in {series.metric for series in series_list()}:
        start, end = f"--start={BASE_S}", f"--end={BASE_S + 4 * 3600}"
        ran = timebeam("query", metric, *store.flags, start, end, "--aggregator=none", "--output=csv")
        assert ran.code == 0, ran.err
        of_metric = [point for point in points if point.series.metric == metric]
        assert len(ran.out.splitlines()) == 1 + len(of_metric)


def test_a_dry_run_counts_and_writes_nothing(store: Store, tmp_path: Path) -> None:
    lines = [point.put() for point in random_points(100)]
    file = write_file(tmp_path / "a.txt", [*lines, b"put bad\n", lines[0]])
    arguments = [*store.flags, *TEXT, "--input", file]
    dry = ingest(tmp_path, *arguments, "--dry_run")
    assert (store.cells(), store.uid_cells()) == (set(), set())
    assert dry.summary["dry_run"] is True
    real = ingest(tmp_path, *arguments)
    counts = ["points_read", "points_duplicate", "points_stored", "refused", "uids_assigned"]
    counts += ["rows", "cells", "bytes_written"]
    assert {key: dry.summary[key] for key in counts} == {key: real.summary[key] for key in counts}
    assert real.summary["points_stored"] == 100
    assert real.summary["refused"] == {"bad-syntax": 1}
    assert [letter["payload"] for letter in dry.letters] == ["put bad"]
    ran = timebeam("ingest", *arguments, "--dry_run=true", "--dead_letters", tmp_path / "dead")
    assert ran.code == 0
    assert ran.out.startswith("nothing was written (dry run)\n")
    assert "points to store" in ran.out


def test_a_dry_run_knows_the_uids_there_are(store: Store, tmp_path: Path) -> None:
    file = write_file(tmp_path / "a.txt", [point.put() for point in random_points(50)])
    ingest(tmp_path, *store.flags, *TEXT, "--input", file)
    before = store.cells(), store.uid_cells()
    dry = ingest(tmp_path, *store.flags, *TEXT, "--input", file, "--dry_run")
    assert dry.summary["uids_assigned"] == 0
    assert (store.cells(), store.uid_cells()) == before


def test_names_beyond_the_snapshot_and_the_cache_are_looked_up(store: Store, tmp_path: Path) -> None:
    points = random_points(300)
    small = ("--uid_snapshot_size=2", "--uid_cache_size=3")
    for lines in ([p.put() for p in points[:150]], [p.put() for p in points]):
        ingest(tmp_path, *store.flags, *TEXT, *small, "--input", write_file(tmp_path / "a.txt", lines))
    assert stored(store) == sent_numbers(points)
    assert {len(uids) for uids in (set(store.uids().values()),)} == {max(store.counters().values())}


def test_json_and_text_store_the_same_cells(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    """With --decimals double, the same bytes as a TSD's HTTP front end writes."""
    points = random_points(100)
    forms = {"opentsdb-json": [p.json() for p in points], "opentsdb-text": [p.put() for p in points]}
    found = {}
    for form, lines in forms.items():
        store = Store.create(bigtable, f"{prefix}{form}-", decimals="double")
        file = write_file(tmp_path / "a", lines)
        arguments = ["--auto_create_metrics", f"--format={form}", "--packing=points", "--input", file]
        ingest(
            tmp_path,
            *[flag for flag in store.flags if "decimals" not in flag],
            "--decimals=double",
            *arguments,
        )
        found[form] = store.cells()
        assert stored(store) == sent_numbers(points)
        widths = {len(value) for _, qualifier, _, value in found[form] if qualifier[-1] & 8}
        assert widths == {8}
    assert found["opentsdb-json"] == found["opentsdb-text"]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--nonsense"], 2, "unknown option --nonsense"),
        (["--app_profile=x"], 2, "add --bigtable_writer direct"),
        (["--packing=best"], 2, "--packing"),
        (["--salt_width=9"], 2, "salt_width must be from 0 to 8"),
        (["--format=xml"], 2, "--format"),
        (["--dry_run=maybe"], 2, "neither true nor false"),
        (["--table_prefix=other-"], 1, "timebeam tables create --layout opentsdb --table_prefix other-"),
        (["--input", "nowhere/*.txt"], 1, "no file matches nowhere/*.txt"),
        (["--input", "nothing://bucket/a"], 1, "nothing://bucket/a"),
    ],
)
def test_what_cannot_be_done_is_said(
    store: Store, tmp_path: Path, arguments: list[str], code: int, text: str
) -> None:
    file = write_file(tmp_path / "a.txt", [point.put() for point in random_points(5)])
    ran = timebeam("ingest", *store.flags, *TEXT, "--input", file, *arguments)
    assert ran.code == code
    assert text in ran.err
    assert ran.out == ""
    if code == 1:
        assert len(ran.err.splitlines()) == 1
        assert ran.err.startswith("timebeam ingest: ")
    assert (store.cells(), store.uid_cells()) == (set(), set())


def test_an_app_profile_is_fine_with_the_direct_writer(store: Store, tmp_path: Path) -> None:
    points = random_points(20)
    file = write_file(tmp_path / "a.txt", [point.put() for point in points])
    ingest(tmp_path, *store.flags, *TEXT, "--input", file, "--app_profile=x", "--bigtable_writer=direct")
    assert stored(store) == sent_numbers(points)


def test_an_emulator_that_does_not_answer(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_file(tmp_path / "a.txt", [b"put m 1 1 host=a\n"])
    monkeypatch.setenv(HOST_VARIABLE, "localhost:1")
    ran = timebeam("ingest", *store.flags, *TEXT, "--input", file)
    assert (ran.code, len(ran.err.splitlines())) == (1, 1)
    assert "no Bigtable emulator answers at BIGTABLE_EMULATOR_HOST=localhost:1" in ran.err


def test_without_emulator_an_instance_must_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HOST_VARIABLE, raising=False)
    ran = timebeam("ingest", "--layout=opentsdb", *TEXT, "--input", tmp_path / "a.txt")
    assert ran.code == 2
    assert "give --project and --instance" in ran.err


def test_uids_of_another_width_stop_the_ingest(store: Store, tmp_path: Path) -> None:
    """Nothing is written, whether the names come from the snapshot or are looked up."""
    file = write_file(tmp_path / "a.txt", [point.put() for point in random_points(20)])
    ingest(tmp_path, *store.flags, *TEXT, "--input", file)
    before = store.cells(), store.uid_cells()
    for snapshot in ("--uid_snapshot_size=1000", "--uid_snapshot_size=0"):
        ran = timebeam("ingest", *store.flags, *TEXT, "--input", file, "--uid_width_tagk=2", snapshot)
        assert ran.code == 1
        assert "timebeam ingest: tagk" in ran.err
        assert "set --uid_width_tagk" in ran.err
    assert (store.cells(), store.uid_cells()) == before


def test_dead_letters_of_two_runs_stay_apart(store: Store, tmp_path: Path) -> None:
    """Also of runs within the same second."""
    for number_ in range(3):
        file = write_file(tmp_path / "a.txt", [b"put bad %d\n" % number_])
        ran = timebeam("ingest", *store.flags, *TEXT, "--input", file, "--dead_letters", tmp_path / "dead")
        assert ran.code == 0
    texts = [path.read_text() for path in tmp_path.glob("dead-*.jsonl")]
    assert len(texts) == 3
    assert all(sum(f"put bad {n}" in text for text in texts) == 1 for n in range(3))
