"""Tables whose declaration does not tell readings apart are read, and not written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import timebeam
from tests.support.inputs.example_tables import Tables
from timebeam import open as open_database

DECLARED = """
[layout.m]
table = "M"
key = [{ field = "HOST" }, { time = "TS", unit = "ms", bucket = "1h", width = 13 }]
allow_overwrite = true
columns = { family = "f", fields = ["V"] }
points = { metric = "load", value = "V" }
"""
KEY = "row b'host#1426532400000'"
"""The key that the complaint names."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ambiguous")


def test_they_are_read_with_a_warning_and_not_written(
    bigtable: tuple[str, str], prefix: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "m.toml"
    path.write_text(DECLARED)
    tables = Tables(bigtable, prefix, path)
    records = folder / "a.jsonl"
    records.write_text(json.dumps({"HOST": "a", "TS": 1_700_006_400_000, "V": "1"}) + "\n")
    tables.ingest(folder, records)
    before = tables.cells()
    path.write_text(DECLARED.replace("allow_overwrite = true\n", ""))
    reads: list[list[str | Path]] = [
        ["query", "M", "--where=HOST=a"],
        ["query", "load", "--tag=HOST=a", "--start=2023-11-14", "--end=2023-11-16"],
        ["series", "load"],
        ["check"],
        ["export", "--output", folder / "out", "--start=2023-11-14", "--end=2023-11-16"],
        [
            "delete",
            "load",
            "--tag=HOST=a",
            "--start=2023-11-14",
            "--end=2023-11-16",
            f"--log={folder / 'log'}",
        ],
        ["tables", "retention"],
    ]
    to = ["--to=opentsdb", f"--to-table-prefix={prefix}o-", "--auto-create-metrics", "--start=2023-11-14"]
    sink = [*tables.flags[:2], "--layout=opentsdb", f"--table-prefix={prefix}o-"]
    assert timebeam("tables", "create", *sink).code == 0
    layout, *names = tables.flags[2:]
    copy = ["copy", "--from=table", *names, *to, "--dead-letters", folder / "dead"]
    for command, flags in [*((each, [layout, *names]) for each in reads), (copy, [])]:
        ran = timebeam(*command, *tables.flags[:2], *flags)
        assert ran.code == 0, (command, ran.err)
        assert "warning: " in ran.err, command
        assert KEY in ran.err, command
        assert "rows are read as they are" in ran.err, command
    place = {"project": bigtable[0], "instance": bigtable[1], "table_prefix": prefix}
    days = {"start": "2023-11-14", "end": "2023-11-16"}
    table = open_database(store="table", tables=path, **place).query("load", tags={"HOST": "a"}, **days)
    assert (table.to_arrow().num_rows, KEY in capsys.readouterr().err) == (1, True)
    writes: list[list[str | Path]] = [
        ["tables", "create"],
        ["tables", "adopt"],
        ["ingest", "--format=records", "--input", records],
        ["ingest", "--format=opentsdb-json", "--input", records],
        ["replay", records, "--format=records"],
        ["rollup"],
    ]
    for command in writes:
        ran = timebeam(*command, *tables.flags)
        assert ran.code == 2, (command, ran.err)
        assert KEY in ran.err, command
        assert "allow_overwrite" in ran.err, command
    ran = timebeam("layout", "check", path)
    assert (ran.code, KEY in ran.err) == (1, True)
    assert tables.cells() == before
