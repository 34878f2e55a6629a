"""What is wrong in a UID table, and how it is fixed: the cases of docs/spec/opentsdb.md §5.5."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions
from timebeam.schema.stores.opentsdb.uids.repair_uids import UidCapacity, UidMaps

DAY_MS = 86_400_000
NOW_MS = 100 * DAY_MS
OPTIONS = OpenTsdbOptions(uid_width_metric=1)


def rows_of(cells: Mapping[str, str]) -> list[Row]:
    """A UID table of metrics: `name` to UID in hex, `#UID` to name, `#` to the counter, `meta#UID`.

    A value may end with `@DAY`, the day of its cell timestamp.
    """
    rows = []
    for key, text in cells.items():
        value, _, day = text.partition("@")
        stamp = int(day or 1) * DAY_MS
        if key == "#":
            cell = Cell("id", b"metrics", stamp, int(value).to_bytes(8, "big"))
            rows.append(Row("uid", b"\0", [cell]))
        elif key.startswith("#"):
            rows.append(Row("uid", bytes.fromhex(key[1:]), [Cell("name", b"metrics", stamp, value.encode())]))
        elif key.startswith("meta#"):
            rows.append(
                Row("uid", bytes.fromhex(key[5:]), [Cell("name", b"metric_meta", stamp, value.encode())])
            )
        else:
            rows.append(Row("uid", key.encode(), [Cell("id", b"metrics", stamp, bytes.fromhex(value))]))
    return rows


def changed(
    cells: Mapping[str, str], used: str = "", *, free: bool = False
) -> tuple[dict[str, str], list[str]]:
    """(the table after all changes, the texts of the repairs), for UIDs in hex that have rows."""
    maps = UidMaps(rows_of(cells))
    pairs = {("metrics", bytes.fromhex(uid)) for uid in used.split()}
    before_ms = NOW_MS - 7 * DAY_MS
    repairs = (
        [*maps.deletions(pairs, before_ms), *maps.retirements(OPTIONS, pairs, before_ms, NOW_MS)]
        if free
        else list(maps.repairs(OPTIONS, pairs, NOW_MS))
    )
    table = {(row.key, cell.family, cell.qualifier): cell for row in rows_of(cells) for cell in row.cells}
    for repair in repairs:
        for key, old, new in repair.changes:
            cell = old or new
            assert cell is not None
            column = (key, cell.family, cell.qualifier)
            assert table.pop(column, None) == old
            if new is not None:
                table[column] = new
    after = {}
    for (key, family, qualifier), cell in table.items():
        if (key, family) == (b"\0", "id"):
            after["#"] = str(int.from_bytes(cell.value, "big"))
        elif qualifier == b"metric_meta":
            after[f"meta#{key.hex()}"] = cell.value.decode()
        elif family == "name":
            after[f"#{key.hex()}"] = cell.value.decode()
        else:
            after[key.decode()] = cell.value.hex()
    return after, [repair.text for repair in repairs]


@pytest.mark.parametrize(
    ("cells", "used", "expected"),
    [
        ({"a": "01", "#01": "a", "#": "1"}, "01", {"a": "01", "#01": "a", "#": "1"}),
        # A forward mapping without its reverse mapping.
        ({"a": "01", "#": "1"}, "", {"a": "01", "#01": "a", "#": "1"}),
        # The UID is mapped back to a name that does not have it.
        ({"a": "01", "#01": "b"}, "", {"a": "01", "#01": "a"}),
        ({"a": "01", "b": "02", "#01": "b", "#02": "b"}, "", {"a": "01", "b": "02", "#01": "a", "#02": "b"}),
        # Two names for one UID, as an interrupted rename leaves them: the reverse mapping decides.
        ({"a": "01", "b": "01", "#01": "a"}, "01", {"a": "01", "#01": "a"}),
        ({"a": "01", "b": "01", "#01": "b"}, "01", {"b": "01", "#01": "b"}),
        # Without a reverse mapping the older name keeps the UID.
        ({"a": "01@5", "b": "01@4"}, "01", {"b": "01", "#01": "b"}),
        # A UID whose name does not have it: restored only if rows have the UID.
        ({"#01": "a"}, "01", {"#01": "a", "a": "01"}),
        ({"#01": "a"}, "", {"#01": "a"}),
        ({"#01": "a", "#02": "a"}, "02", {"#01": "a", "#02": "a", "a": "02"}),
        # The counter would give 02 out again; 80 may be a random UID.
        ({"a": "01", "#01": "a", "b": "02", "#02": "b", "c": "80", "#80": "c", "#": "1"}, "", {"#": "2"}),
    ],
)
def test_repairs(cells: dict[str, str], used: str, expected: dict[str, str]) -> None:
    after, _ = changed(cells, used)
    assert after == (cells | expected if expected.keys() == {"#"} else expected)
    assert changed(after, used)[0] == after


def test_what_cannot_be_fixed_here_is_reported() -> None:
    cells = {"a": "01", "#01": "a", "#02": "a", "long": "0003", "#0003": "long"}
    after, texts = changed(cells, "01 02")
    assert after == cells
    assert texts == [
        "UID 0003 of 'long' is not 1 bytes: uid_width_*?",
        "'a' has the UID 01, but rows with 02 too: timebeam names merge metrics 02 a",
    ]


def test_unused_uids_are_freed_in_two_steps() -> None:
    """The name loses its UID, which is deleted a week later. A new name keeps its UID: points may come."""
    cells = {
        "a": "01",
        "#01": "a",
        "meta#01": "{}",
        "b": "02",
        "#02": "b",
        "new": "03@99",
        "#03": "new",
        "#": "3",
    }
    after, texts = changed(cells, "02", free=True)
    gone = {"#01": "a", "meta#01": "{}"}
    assert after == {key: value for key, value in cells.items() if key not in ("a", "new")} | {"new": "03"}
    assert texts == ["UID 01 of 'a' has no rows: the name loses it"]
    waiting = after | {"new": "03@99", "#01": "a@100"}
    assert changed(waiting, "02", free=True) == (after, [])
    waited = after | {"new": "03@99", "#01": "a@90"}
    freed, texts = changed(waited, "02", free=True)
    assert freed == {key: value for key, value in after.items() if key not in gone}
    assert texts == ["UID 01, once of 'a', has no rows: it is deleted"]
    # A writer that had it in its cache has written rows: it stays, and `fix` gives it back its name.
    assert changed(waited, "01 02", free=True)[0] == after
    assert changed(waited, "01 02")[0] == after | {"a": "01"}


def test_uids_last_as_long_as_names_come_at_this_pace() -> None:
    cells = {f"n{n}": f"{n:02x}@{95 if n > 10 else 1}" for n in range(1, 26)} | {"#": "105"}
    maps = UidMaps(rows_of(cells))
    # 15 new names in 30 days, and 150 UIDs left.
    assert maps.capacity("metrics", 1, NOW_MS) == UidCapacity("metrics", 25, 105, 255, 15, 300.0)
    assert maps.capacity("tagk", 3, NOW_MS) == UidCapacity("tagk", 0, 0, 2**24 - 1, 0, None)
