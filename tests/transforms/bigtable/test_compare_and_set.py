"""Cells created where there are none, and replaced where a known value stands: races and lost answers."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from google.cloud.bigtable.data import ReadRowsQuery

from tests.support.budget import long_after
from tests.support.data_client import open_table
from tests.support.fault_proxy import AFTER, BEFORE, COMPARE_AND_SET, Fault, faulty, nth, share
from timebeam.schema.core.rows import Cell, Row, TableSpec
from timebeam.transforms.bigtable.compare_and_set import (
    CellColumn,
    Replacement,
    create_cells,
    replace_cells,
    update_rows,
)
from timebeam.transforms.bigtable.create_tables import create_tables
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.read.table_reader import read_rows


@pytest.fixture
def place(bigtable: tuple[str, str], prefix: str) -> tuple[Target, str]:
    target = Target(*bigtable)
    list(create_tables(target, [TableSpec(prefix, {"f": 1, "g": 1}, False)], dry_run=False))
    return target, prefix


def rows(table: str, writer: int) -> list[Row]:
    """90 rows of one to three of the same columns, with values that tell the writer."""
    chance = random.Random(writer)
    value = b"%d" % writer
    return [
        Row(
            table, b"%03d" % n, [Cell("f", q, 7, value) for q in chance.sample(COLUMNS, chance.randint(1, 3))]
        )
        for n in range(90)
    ]


COLUMNS = [b"plain", b"\x00\xff.*", b"a|b"]


def stored(target: Target, table: str) -> dict[tuple[bytes, bytes], list[tuple[int, bytes]]]:
    """The versions of each column of family f."""
    found: dict[tuple[bytes, bytes], list[tuple[int, bytes]]] = {}
    for row in open_table(target, table).read_rows(ReadRowsQuery()):
        for cell in row.cells:
            if cell.family == "f":
                version = (cell.timestamp_micros // 1000, cell.value)
                found.setdefault((row.row_key, cell.qualifier), []).append(version)
    return found


@pytest.mark.parametrize("known", [True, False])
def test_of_several_writers_each_cell_is_set_by_one(place: tuple[Target, str], known: bool) -> None:
    """Even if what they know is from before all of them began."""
    target, table = place
    create_cells(
        target, table, [Row(table, b"%03d" % n, [Cell("g", b"plain", 1, b"g")]) for n in range(9)], {}
    )

    def write(writer: int) -> int:
        mine = rows(table, writer)
        there = read_rows(target, table, [row.key for row in mine]) if known else {}
        return len(create_cells(target, table, mine, there).created)

    with ThreadPoolExecutor(3) as pool:
        counts = list(pool.map(write, range(3)))
    found = stored(target, table)
    wanted = {
        (row.key, cell.qualifier) for writer in range(3) for row in rows(table, writer) for cell in row.cells
    }
    assert set(found) == wanted
    assert all(len(versions) == 1 for versions in found.values())
    assert [sum(v == [(7, b"%d" % writer)] for v in found.values()) for writer in range(3)] == counts
    assert all(write(writer) == 0 for writer in range(3))
    assert stored(target, table) == found


@pytest.mark.parametrize("when", long_after(1, [AFTER, BEFORE]))
def test_failing_calls_and_lost_answers(place: tuple[Target, str], emulator: str, when: str) -> None:
    target, table = place
    fault = Fault(grpc.StatusCode.DEADLINE_EXCEEDED, when)
    with faulty(emulator, share(COMPARE_AND_SET, 0.2, 3, fault)):
        create_cells(target, table, rows(table, 1), {})
        wanted = {(row.key, cell.qualifier): [(7, b"1")] for row in rows(table, 1) for cell in row.cells}
        assert stored(target, table) == wanted
        assert not create_cells(target, table, rows(table, 1), {}).created
        changes = [
            Replacement(key, Cell("f", qualifier, 7, b"1"), Cell("f", qualifier, 8, b"2"))
            for key, qualifier in wanted
        ]
        assert replace_cells(target, table, changes) == [True] * len(wanted)
    newest = {at: max(versions) for at, versions in stored(target, table).items()}
    assert newest == dict.fromkeys(wanted, (8, b"2"))


def test_only_the_expected_value_is_replaced(place: tuple[Target, str]) -> None:
    target, table = place
    values = [b"", b"a", b"b", b"ab", b"\xff\xff", b"\x00"]
    keys = [b"%d" % n for n in range(len(values))]
    made = [Row(table, key, [Cell("f", b"q", 1, value)]) for key, value in zip(keys, values, strict=True)]
    create_cells(target, table, made, {})
    for expected in values:
        wanted = [Replacement(key, Cell("f", b"q", 1, expected), Cell("f", b"q", 2, b"new")) for key in keys]
        assert replace_cells(target, table, wanted) == [value == expected for value in values]
    absent = Replacement(b"none", Cell("f", b"q", 1, b"a"), Cell("f", b"q", 2, b"new"))
    assert replace_cells(target, table, [absent]) == [False]
    assert {max(versions) for versions in stored(target, table).values()} == {(2, b"new")}


def test_an_older_version_is_not_the_value(place: tuple[Target, str]) -> None:
    target, table = place
    create_cells(target, table, [Row(table, b"k", [Cell("f", b"q", 1, b"old")])], {})
    old, new = Cell("f", b"q", 1, b"old"), Cell("f", b"q", 2, b"new")
    assert replace_cells(target, table, [Replacement(b"k", old, new)]) == [True]
    assert replace_cells(target, table, [Replacement(b"k", old, new._replace(timestamp_ms=3))]) == [False]


@pytest.mark.parametrize("size", [3, 9_000])
def test_a_cell_is_set_where_there_was_none_then_replaced_then_deleted(
    place: tuple[Target, str], size: int
) -> None:
    """Values too long for a filter are compared by timestamp; an older cell can replace a newer one."""
    target, table = place
    first, second = Cell("f", b"", 5, b"1" * size), Cell("f", b"", 4, b"2" * size)
    steps = [(None, first), (first, second), (second, None)]
    for old, new in steps:
        assert replace_cells(target, table, [Replacement(b"k", old, new)]) == [True]
        assert replace_cells(target, table, [Replacement(b"k", old, new)]) == [False]
        versions = [] if new is None else [(new.timestamp_ms, new.value)]
        assert stored(target, table).get((b"k", b""), []) == versions


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_created_cells_are_told_apart_from_those_of_others(
    place: tuple[Target, str], emulator: str, when: str
) -> None:
    """Also of a row with more cells than go into a call, and where answers get lost."""
    target, table = place
    theirs = {CellColumn(b"k", "f", b"%d" % number): b"theirs" for number in range(0, 450, 7)}
    there = Row(table, b"k", [Cell(c.family, c.qualifier, 1, v) for c, v in theirs.items()])
    create_cells(target, table, [there], {})
    ours = {CellColumn(b"k", "f", b"%d" % number): b"%d" % number for number in range(450)}
    row = Row(table, b"k", [Cell(c.family, c.qualifier, 1, v) for c, v in ours.items()])
    with faulty(emulator, nth(COMPARE_AND_SET, (1, 4), Fault(grpc.StatusCode.UNAVAILABLE, when))):
        created, uncertain, values = create_cells(target, table, [row], {})
    assert values == ours | theirs
    assert created | uncertain == set(ours) - set(theirs)
    assert bool(uncertain) == (when == AFTER)


def _added(key: bytes, row: Row | None) -> list[Replacement]:
    """One more than the number in a row; nothing for row `done`."""
    if key == b"done":
        return []
    old = row.cells[0] if row else None
    number = int(old.value) if old else 0
    return [Replacement(key, old, Cell("f", b"count", number, b"%d" % (number + 1)))]


def test_of_several_writers_no_change_is_lost(place: tuple[Target, str]) -> None:
    target, table = place
    keys = [b"a", b"b", b"done"]
    with ThreadPoolExecutor(3) as pool:
        left = list(pool.map(lambda _: update_rows(target, table, keys, _added), range(12)))
    assert left == [[]] * 12
    found = {key: row.cells[0].value for key, row in read_rows(target, table, keys).items()}
    assert found == {b"a": b"12", b"b": b"12"}


def test_a_row_that_others_keep_changing_is_given_up(place: tuple[Target, str]) -> None:
    target, table = place
    asked = 0

    def change(key: bytes, row: Row | None) -> list[Replacement]:
        nonlocal asked
        asked += key == b"busy"
        replacements = _added(key, row)
        if key == b"busy":  # another writer, between the read and the replacement
            assert replace_cells(target, table, replacements) == [True]
        return replacements

    assert update_rows(target, table, [b"busy", b"quiet"], change) == [b"busy"]
    found = {key: row.cells[0].value for key, row in read_rows(target, table, [b"busy", b"quiet"]).items()}
    assert found == {b"busy": b"%d" % asked, b"quiet": b"1"}
