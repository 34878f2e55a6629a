"""The audit of stored tables: what it reports, and that sound tables pass."""

from __future__ import annotations

import pytest

from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.core.selection import Severity
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions

UIDS = {("metrics", b"m"): b"\0\0\1", ("tagk", b"host"): b"\0\0\1", ("tagv", b"a"): b"\0\0\1"}
KEY = bytes.fromhex("00000150e22700000001000001")
NOTE = b'{"startTime":1356998400,"description":"x"}'


def uid_rows(uids: dict[tuple[str, bytes], bytes], last: int = 1) -> list[Row]:
    """Both mappings of each name, and the counters."""
    rows = [
        row
        for (kind, name), uid in uids.items()
        for row in (
            Row("tsdb-uid", name, [Cell("id", kind.encode(), 1, uid)]),
            Row("tsdb-uid", uid, [Cell("name", kind.encode(), 1, name)]),
        )
    ]
    counter = Cell("id", b"metrics", 1, last.to_bytes(8, "big"))
    return [*rows, Row("tsdb-uid", b"\0", [counter])]


def data_row(key: bytes = KEY, qualifier: bytes = b"\0\0", value: bytes = b"\1") -> Row:
    return Row("tsdb", key, [Cell("t", qualifier, 1, value)])


def findings(uids: list[Row], data: list[Row]) -> list[tuple[Severity, str, bytes, str]]:
    """What an audit of two tables finds."""
    tables = {"tsdb": data, "tsdb-uid": uids}
    return [tuple(finding) for finding in OpenTsdb().audit(tables.__getitem__)]  # type: ignore[misc]


def test_sound_tables_have_no_findings() -> None:
    meta = Row("tsdb-uid", b"\0\0\1", [Cell("name", b"metric_meta", 1, b"{}")])
    annotation = Row("tsdb", bytes.fromhex("00000050e22700"), [Cell("t", b"\1\0\0", 1, NOTE)])
    assert findings([*uid_rows(UIDS), meta], [data_row(), annotation]) == []
    assert findings([], []) == []


@pytest.mark.parametrize(
    ("row", "severity", "text"),
    [
        (
            Row("tsdb-uid", b"n", [Cell("id", b"tagk", 1, b"\2")]),
            Severity.CORRUPT,
            "tagk: UID 02 is not 3 bytes",
        ),
        (
            Row("tsdb-uid", b"n", [Cell("id", b"tagk", 1, b"\0\0\2")]),
            Severity.CORRUPT,
            "tagk: UID 000002 has no reverse mapping",
        ),
        (
            Row("tsdb-uid", b"n", [Cell("id", b"tagk", 1, b"\0\0\1")]),
            Severity.CORRUPT,
            "tagk: UID 000001 is mapped back to 'host'",
        ),
        (
            Row("tsdb-uid", b"\0\0\2", [Cell("name", b"tagk", 1, b"n")]),
            Severity.NOTE,
            "tagk: UID 000002 of 'n' lacks its forward mapping (left by an interrupted assignment)",
        ),
        (
            Row("tsdb-uid", b"\0\0\2", [Cell("name", b"tagk", 1, b"host")]),
            Severity.NOTE,
            "tagk: UID 000002 is an unused second UID of 'host' (left by a lost race)",
        ),
        (
            Row("tsdb-uid", b"\0", [Cell("id", b"tagv", 1, b"\0\1")]),
            Severity.CORRUPT,
            "tagv: counter of 2 bytes instead of 8",
        ),
    ],
)
def test_uids_that_are_no_bijection(row: Row, severity: Severity, text: str) -> None:
    assert findings([*uid_rows(UIDS), row], []) == [(severity, "tsdb-uid", row.key, text)]


@pytest.mark.parametrize(
    ("last", "severity", "text"),
    [
        (0xFFFFFF, Severity.NOTE, "metrics: all 16777215 UIDs are assigned; new names are rejected"),
        (0xF00000, Severity.NOTE, "metrics: 15728640 of 16777215 UIDs are assigned"),
    ],
)
def test_uids_run_out(last: int, severity: Severity, text: str) -> None:
    assert findings(uid_rows(UIDS, last), []) == [(severity, "tsdb-uid", b"\0", text)]


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (data_row(KEY[:-1]), "of 12 bytes is not salt, metric, base time and tag pairs"),
        (data_row(bytes.fromhex("00000150e22701000001000001")), "base time 1356998401 is not a whole hour"),
        (data_row(bytes.fromhex("00000250e22700000001000001")), "UID 000002 of kind metrics has no name"),
        (data_row(bytes.fromhex("00000150e22700000001000002")), "UID 000002 of kind tagv has no name"),
        (data_row(qualifier=b"\7"), "column 07: no column has 1 bytes"),
        (data_row(value=b"\1\2\3"), "values with flags 2"),
    ],
)
def test_rows_that_do_not_decode(row: Row, text: str) -> None:
    ((severity, table, key, found),) = findings(uid_rows(UIDS), [data_row(), row])
    assert (severity, table, key) == (Severity.CORRUPT, "tsdb", row.key)
    assert text in found


def test_salted_rows_of_global_annotations_are_sound() -> None:
    layout = OpenTsdb(OpenTsdbOptions(salt_width=1))
    row = Row("tsdb", bytes.fromhex("0000000050e22700"), [Cell("t", b"\1\0\0", 1, NOTE)])
    assert list(layout.audit({"tsdb": [row], "tsdb-uid": []}.__getitem__)) == []
