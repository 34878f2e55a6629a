"""An audit of many rows: what each holds is looked at together, what is wrong is told of each, in order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.budget import long_but_every
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.core.selection import Severity
from timebeam.schema.stores.opentsdb import check_data_rows
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.uids.uid_table import ID_FAMILY, NAME_FAMILY

UID = b"\0\0\1"
NAMES = {"metrics": b"sys.cpu", "tagk": b"host", "tagv": b"web01"}
POINT, PACKED = Cell("t", b"\0\0", 1, b"\7"), Cell("t", b"\0\0\0\x10", 1, b"\7\x08\0")
BROKEN = {
    "a value too short": Cell("t", b"\0\3", 1, b""),
    "packed values too short": Cell("t", b"\0\0\0\x13", 1, b"\7\x08\0"),
    "no such flags": Cell("t", b"\0\2", 1, b"\1\2\3"),
    "no such qualifier": Cell("t", b"\2\0\0", 1, b"\7"),
    "an empty qualifier": Cell("t", b"", 1, b"\7"),
    "an annotation that is none": Cell("t", b"\1\0\0", 1, b"{"),
    "an empty histogram": Cell("t", b"\6\0\0", 1, b""),
}


def uid_rows() -> list[Row]:
    forward = [
        Row("tsdb-uid", name, [Cell(ID_FAMILY, kind.encode(), 1, UID)]) for kind, name in NAMES.items()
    ]
    back = [Cell(NAME_FAMILY, kind.encode(), 1, name) for kind, name in NAMES.items()]
    return [*forward, Row("tsdb-uid", UID, back)]


def data_rows(broken: Cell, every: int) -> Iterator[Row]:
    """2,500 hours, every so many of them with a cell that is broken, alone or beside points."""
    for hour in range(2500):
        cells = [PACKED] if hour % 2 else [POINT]
        if hour % every == 0:
            cells = [broken] if hour % 3 else [broken, PACKED]
        yield Row("tsdb", UID + (hour * 3600).to_bytes(4, "big") + UID + UID, cells)


@pytest.mark.parametrize(("name", "at_once"), long_but_every(3, BROKEN, [1, 7, 1000]))
def test_every_broken_row_is_told_of(name: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = BROKEN[name]
    monkeypatch.setattr(check_data_rows, "_ROWS_AT_ONCE", at_once)
    rows = list(data_rows(broken, every=97))
    tables = {"tsdb": rows, "tsdb-uid": uid_rows()}
    findings = OpenTsdb().audit(tables.__getitem__)
    found = [one.key for one in findings if one.severity is Severity.CORRUPT]
    assert found == [row.key for row in rows if broken in row.cells]
