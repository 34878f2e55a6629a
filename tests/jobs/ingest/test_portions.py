"""Files in many portions: the same points as in one, and again after a kill."""

from __future__ import annotations

import collections
import itertools
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.any_store import AnyStore
from tests.support.budget import long_after
from tests.support.commands import ingest, timebeam
from tests.support.fault_proxy import AFTER, BEFORE
from tests.support.inputs import avro_bytes as avro
from tests.support.inputs.small_portions import make_portions_small, small_portions
from tests.support.model import Point
from tests.support.points import (
    BASE_S,
    FIRST_MS,
    LATER_MS,
    corrections_of,
    json_line,
    random_points,
    random_value,
    write_file,
)
from tests.support.processes.killed import run_and_kill
from tests.support.stored import Store
from tests.support.workload import Workload, check_equal, run
from timebeam.pipelines.jobs import run_input as portions_of_files
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.formats import Message
from timebeam.schema.stores.opentsdb.columns.point_elements import split_qualifiers

PACKINGS = [
    ("opentsdb", "compacted"),
    ("opentsdb", "append"),
    ("heroic", "points"),
    ("kairosdb-milliseconds", "points"),
    ("opentsdb-salted", "points"),
    ("heroic-readable", "points"),
    ("kairosdb-legacy", "points"),
]
COMMAND = ("--format=opentsdb-json", "--bigtable-writer=direct")


def conflicting(seed: int) -> Sequence[Sequence[Point]]:
    """Points of three files in no order: two of one age, and a newer one.

    Each has its own values of some instants of the others, and several values of some.
    """
    chance = random.Random(seed)
    points = random_points(500, seed)
    files = []
    for number in range(3):
        lines = chance.sample(points, 300)
        lines = corrections_of(lines, seed + number)
        lines += [point._replace(value=random_value(chance)) for point in chance.sample(lines, 60)]
        chance.shuffle(lines)
        files.append([point._replace(arrival_ms=LATER_MS if number == 2 else FIRST_MS) for point in lines])
    return files


def written(folder: Path, files: Sequence[Sequence[Point]]) -> list[Path]:
    """The files, each compressed in another way."""
    names = ("a.json.gz", "b.json", "c.json.bz2")
    return [
        write_file(folder / name, map(json_line, points), points[0].arrival_ms)
        for name, points in zip(names, files, strict=True)
    ]


def data_cells(store: AnyStore) -> collections.Counter[tuple[bytes, int, bytes]]:
    """Qualifier, timestamp and value of the cells of points; keys have UIDs in the order of assignment."""
    tables = {spec.name for spec in store.layout.tables() if spec.holds_points}
    return collections.Counter(cell[3:] for cell in store.cells() if cell.table in tables)


@pytest.mark.parametrize(
    ("variant", "packing", "seed"),
    long_after(2, ((*packing, seed) for seed, packing in enumerate(PACKINGS, 1))),
)
def test_many_portions_hold_the_points_of_one(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, variant: str, packing: str, seed: int
) -> None:
    files = conflicting(seed)
    if variant.startswith("kairosdb"):  # the row key has the type: docs/reference/layouts.md, Limits
        files = [[point._replace(value=float(point.value)) for point in points] for points in files]
    paths = written(tmp_path, files)
    whole = AnyStore.create(bigtable, prefix + "a-", variant)
    cut = AnyStore.create(bigtable, prefix + "b-", variant)

    def stored(store: AnyStore) -> dict[str, object]:
        flags = (*store.flags, *store.auto_create, f"--packing={packing}")
        return ingest(tmp_path, *flags, *COMMAND, "--input", *paths).summary

    in_one = stored(whole)
    with small_portions():
        in_many = stored(cut)
    counts = ("points_read", "rejected", "uids_assigned")
    assert [in_many[name] for name in counts] == [in_one[name] for name in counts]
    assert cut.content() == whole.content()
    before = cut.cells()
    if packing == "points":  # and maybe a point that a newer file replaces in another column
        assert not data_cells(whole) - data_cells(cut)
    with small_portions():
        stored(cut)
    assert cut.content() == whole.content()
    assert cut.cells() == before or packing == "append"


@pytest.mark.parametrize("writer", ["direct", "beam"])
def test_an_instant_is_in_one_column(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, writer: str
) -> None:
    """As a TSD wants it, whose queries fail if two columns differ."""
    store = Store.create(bigtable, prefix)
    paths = written(tmp_path, conflicting(3))
    flags = ("--format=opentsdb-json", f"--bigtable-writer={writer}", "--auto-create-metrics")
    with small_portions():
        ingest(tmp_path, *store.flags, *flags, "--input", *paths)
    times: collections.Counter[tuple[bytes, int]] = collections.Counter()
    for row in store.rows():
        for cell in row.cells:
            for code in split_qualifiers(cell.qualifier).tolist():
                offset_ms = (code & 0x0FFFFFC0) >> 6 if code >= 0xF0000000 else (code >> 4) * 1000
                times[row.key, offset_ms] += 1
    assert len(times) > 300
    assert set(times.values()) == {1}


def test_in_the_order_of_time_no_row_is_read(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of two portions has a column from each."""
    store = Store.create(bigtable, prefix)
    series = [("sys.cpu", (("host", host),)) for host in "abcd"]
    points = [Point(name, BASE_S + 20 * step, step, FIRST_MS) for step in range(360) for name in series]
    path = write_file(tmp_path / "points.json", map(json_line, points))
    monkeypatch.setattr("timebeam.transforms.ingest.encode_group_pack.read_rows", None)
    with small_portions(300):
        summary = ingest(
            tmp_path, *store.flags, "--format=opentsdb-json", "--auto-create-metrics", "--input", path
        ).summary
    assert summary["points_stored"] == len(points)
    columns = [len(row.cells) for row in store.rows()]
    assert len(columns) == 8
    assert summary["cells"] == sum(columns) > 8


def test_rows_of_a_portion_are_stored_before_the_next_is_read(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.create(bigtable, prefix)
    points = [Point(("sys.cpu", (("host", "a"),)), BASE_S + i, i, FIRST_MS) for i in range(2000)]
    paths = [
        write_file(tmp_path / f"{number}.json", map(json_line, points[start : start + 400]))
        for number, start in enumerate(range(0, 2000, 400))
    ]
    stored: list[int] = []
    cut = portions_of_files.portions

    def noting(blocks: Iterator[Message | Rejected]) -> Iterator[Iterator[Message | Rejected]]:
        for portion in cut(blocks):
            stored.append(sum(len(row.cells) for row in store.rows()))
            yield portion

    monkeypatch.setattr(portions_of_files, "portions", noting)
    with small_portions(300):
        ingest(tmp_path, *store.flags, "--format=opentsdb-json", "--auto-create-metrics", "--input", *paths)
    assert len(stored) >= 5
    assert stored[0] == 0
    assert all(before < after for before, after in itertools.pairwise(stored))


def test_containers_of_avro_in_portions(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    store = Store.create(bigtable, prefix)
    records = [avro.point((BASE_S + i) * 1000, avro.integer(i)) for i in range(1000)]
    path = tmp_path / "points.avro"
    path.write_bytes(avro.container(*(records[start : start + 50] for start in range(0, 1000, 50))))
    with small_portions(200):
        summary = ingest(
            tmp_path, *store.flags, "--format=avro", "--auto-create-metrics", "--input", path
        ).summary
    assert summary["points_stored"] == 1000
    assert summary["cells"] == 5
    ((_, points),) = store.points().items()
    assert points == {(BASE_S + i) * 1000: i for i in range(1000)}


def test_rejections_of_all_portions_are_in_one_file(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    store = Store.create(bigtable, prefix)
    lines = [json_line(point) for point in random_points(600)]
    for number in range(0, 600, 20):
        lines[number] = b"bad %d\n" % number
    path = write_file(tmp_path / "points.json", lines)
    with small_portions():
        ran = ingest(
            tmp_path, *store.flags, "--format=opentsdb-json", "--auto-create-metrics", "--input", path
        )
    assert ran.summary["rejected"] == {"bad-syntax": 30}
    assert len(ran.summary["dead_letters"]) == 1
    assert sorted(letter["payload"] for letter in ran.letters) == sorted(
        f"bad {number}" for number in range(0, 600, 20)
    )


@pytest.mark.parametrize(
    ("packing", "kills"), long_after(1, [("points", 1), ("points", 5), ("compacted", 5), ("append", 5)])
)
def test_killed_in_any_portion_and_run_again(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, emulator: str, packing: str, kills: int
) -> None:
    seed = int(os.environ.get("TIMEBEAM_SEED", "20261122"))
    print(f"TIMEBEAM_SEED={seed}")
    chance = random.Random(f"{seed} {packing}")
    work = Workload.write(tmp_path, seed, series=12, hours=3, a_row=40)
    flags = (f"--packing={packing}", "--bigtable-writer=direct")
    unkilled = Store.create(bigtable, f"{prefix}unkilled-")
    with small_portions():
        assert run(work, unkilled, *flags).code == 0
    for number in range(kills):
        store = Store.create(bigtable, f"{prefix}{number}-")
        arguments = [
            *("ingest", *store.flags, f"--format={work.format_name}", "--auto-create-metrics"),
            *("--dead-letters", tmp_path / "dead", *flags, "--input", *work.files),
        ]
        nth, when = chance.randrange(2, 40), chance.choice((BEFORE, AFTER))
        left = run_and_kill(emulator, arguments, nth, when, make_portions_small)
        assert left.killed
        with small_portions():
            ran = run(work, store, *flags)
        assert ran.code == 0, ran.err
        check_equal(store, work.points, packing, corrected_in_place=True)
        if packing != "append":
            assert shape(store) == shape(unkilled)


@pytest.mark.parametrize("seed", long_after(1, range(1, 5)))
def test_files_that_are_added_to_a_run_give_the_points_of_all_files(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, seed: int
) -> None:
    """Some files, then all of them, in order or not: each file has a modification time of its own."""
    chance = random.Random(seed)
    paths = []
    for number in range(3):
        seconds = sorted(chance.sample(range(10), 4))
        values = (chance.choice((number, number + 0.5, 1000 * number + 300)) for _ in seconds)
        paths.append(tmp_path / f"{number}.txt")
        paths[-1].write_text(
            "".join(
                f"put sys.m {BASE_S + second} {value} host=a\n"
                for second, value in zip(seconds, values, strict=True)
            )
        )
        os.utime(paths[-1], (1_700_000_000 + number,) * 2)
    points = []
    for history, first in enumerate((paths, paths[:1], [paths[0], paths[2]])):
        store = Store.create(bigtable, f"{prefix}{history}-")
        for files in (first, paths):
            inputs = itertools.chain.from_iterable(("--input", path) for path in files)
            ingest(tmp_path, *store.flags, "--format=opentsdb-text", "--auto-create-metrics", *inputs)
        points.append(store.points())
    assert points[1:] == points[:1] * 2


def shape(store: Store) -> list[tuple[int, bytes, int, bytes]]:
    """The cells without the UIDs of their rows, of which a killed run wastes some."""
    return sorted(
        (int.from_bytes(row.key[3:7], "big"), *cell[1:]) for row in store.rows() for cell in row.cells
    )


def test_a_dry_run_counts_the_same(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    store = Store.create(bigtable, prefix)
    paths = written(tmp_path, conflicting(4))
    arguments = (*store.flags, "--format=opentsdb-json", "--auto-create-metrics", "--input", *paths)
    with small_portions():
        dry = ingest(tmp_path, *arguments, "--dry-run").summary
        assert store.rows() == []
        wet = ingest(tmp_path, *arguments).summary
    for name in ("points_read", "points_stored", "points_duplicate", "rejected"):
        assert dry[name] == wet[name]
    assert timebeam("check", *store.flags).code == 0
