"""The library in processes in which Beam, or Google's clients too, cannot be imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.commands import timebeam
from timebeam.pipelines.commands import COMMANDS

ROOT = Path(__file__).resolve().parents[2]

_REJECT = """\
import contextlib, io, json, sys

class Rejecting:
    def find_spec(self, name, path=None, target=None):
        if any(name == each or name.startswith(each + ".") for each in rejected):
            raise ImportError(f"{name} must not be imported")

rejected = json.loads(sys.argv[1])
sys.meta_path.insert(0, Rejecting())
"""

_PARSE_AND_DECODE = """\
import timebeam as tb
from timebeam.stores import Cell, Row

for name, data, series in (
    ("opentsdb-json", b'{"metric":"load","timestamp":1356998401,"value":7,"tags":{"a":"b"}}', "load{a=b}"),
    ("influx", b"load,a=b value=7i 1356998401000000000", "load.value{a=b}"),
):
    parsed = tb.parse(name, data + b"\\n{")
    assert [(str(each), value) for each, _, value in parsed.points.points()] == [(series, 7)]
    assert len(parsed.rejected) == 1
key = bytes.fromhex("07 000001 50e22700 000001000001")
row = Row("tsdb", key, [Cell("t", bytes.fromhex("0010"), 9000, bytes([7]))])
decoded = tb.stores.OpenTsdb(salt_width=1).decode(row)
assert [(time_ms, value) for _, time_ms, value in decoded.points()] == [(1356998401000, 7)]
"""

_DATABASE = """\
project, instance, prefix = sys.argv[2:5]
db = tb.open(project, instance, table_prefix=prefix)
points = tb.parse("opentsdb-text", b"put load 1356998401 7 host=a\\nput load 1356998402 8 host=b").points
assert [each.reason.value for each in db.write(points)] == ["unknown-name"] * 2
assert db.write(points, auto_create_metrics=True) == []
result = db.query("load", start=1356998400, end=1356998500)
assert result.to_arrow().num_rows == 2
assert [*result.to_dict().values()] == [{1356998401000: 7}, {1356998402000: 8}]
assert [str(series) for series in db.series("l*{host=b}")] == ["load{host=b}"]
assert db.suggest("lo") == ["load"]
"""

_HELP = """\
from timebeam.pipelines import cli

for command in json.loads(sys.argv[2]):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            assert not cli.main([command, "--help"]), command
        except SystemExit as stop:
            assert not stop.code, command
    assert "timebeam" in out.getvalue(), command
"""


def _run(program: str, rejected: list[str], *arguments: str) -> None:
    command = [sys.executable, "-c", _REJECT + program, json.dumps(rejected), *arguments]
    ran = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_a_database_needs_no_beam(bigtable: tuple[str, str], prefix: str) -> None:
    place = [f"--project={bigtable[0]}", f"--instance={bigtable[1]}", f"--table-prefix={prefix}"]
    assert timebeam("tables", "create", *place, "--layout=opentsdb", "--set=salt_width=1").code == 0
    _run(_PARSE_AND_DECODE + _DATABASE, ["apache_beam"], *bigtable, prefix)


def test_points_are_parsed_and_rows_decoded_without_beam_and_googles_clients() -> None:
    _run(_PARSE_AND_DECODE, ["apache_beam", "google.cloud", "google.api_core", "google.auth", "grpc"])


def test_help_needs_no_beam() -> None:
    _run(_HELP, ["apache_beam"], json.dumps(sorted(COMMANDS)))
