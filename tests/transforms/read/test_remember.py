"""A reader that remembers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pytest

from timebeam.schema.core.rows import Row
from timebeam.schema.core.selection import Scan
from timebeam.transforms.read import table_reader
from timebeam.transforms.read.table_reader import RememberingReader


class Rows:
    """A `Reader` of rows that says what it was asked for."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        self.keys = set(keys)
        self.asked: list[tuple[str, list[bytes]]] = []

    def scan(self, scan: Scan) -> Iterable[Row]:
        return [Row(scan.table, key, []) for key in sorted(self.keys)]

    def rows(self, table: str, keys: Sequence[bytes]) -> Mapping[bytes, Row]:
        self.asked.append((table, list(keys)))
        return {key: Row(table, key, []) for key in keys if key in self.keys}


def test_a_row_is_asked_for_once_and_one_that_is_not_there_again() -> None:
    below = Rows([b"a", b"b"])
    reader = RememberingReader(below, "uid")
    assert reader.rows("uid", [b"a", b"x"]).keys() == {b"a"}
    below.keys.add(b"x")
    assert reader.rows("uid", [b"a", b"b", b"x"]).keys() == {b"a", b"b", b"x"}
    assert reader.rows("uid", [b"b", b"x"]).keys() == {b"b", b"x"}
    assert below.asked == [("uid", [b"a", b"x"]), ("uid", [b"b", b"x"])]
    assert reader.rows("uid", []) == {}


def test_other_tables_are_read_each_time() -> None:
    below = Rows([b"a"])
    reader = RememberingReader(below, "uid")
    for _ in range(2):
        assert reader.rows("data", [b"a"])[b"a"].table == "data"
    assert len(below.asked) == 2
    assert [row.key for row in reader.scan(Scan("data", ((b"", b""),)))] == [b"a"]


def test_without_a_table_the_rows_of_all_tables_are_remembered() -> None:
    below = Rows([b"a"])
    reader = RememberingReader(below)
    for _ in range(2):
        assert [reader.rows(table, [b"a"])[b"a"].table for table in ("data", "uid")] == ["data", "uid"]
    assert len(below.asked) == 2


def test_it_remembers_no_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_reader, "MOST_REMEMBERED_ROWS", 2)
    below = Rows([b"a", b"b", b"c"])
    reader = RememberingReader(below, "uid")
    assert reader.rows("uid", [b"a", b"b"]).keys() == {b"a", b"b"}
    assert reader.rows("uid", [b"b", b"c"]).keys() == {b"b", b"c"}
    assert below.asked[-1] == ("uid", [b"c"])
    assert reader.rows("uid", [b"a", b"b"]).keys() == {b"a", b"b"}
    assert below.asked[-1] == ("uid", [b"a", b"b"])
