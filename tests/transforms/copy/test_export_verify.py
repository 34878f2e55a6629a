"""What `export --verify` sees in files whose footer has changed: engines read fewer points of them."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from timebeam.schema.formats import Message, message_format
from timebeam.schema.formats.parquet import footer as footers
from timebeam.schema.formats.parquet.thrift import ThriftReader, written
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.copy import sorted_runs
from timebeam.transforms.copy.export_days import ExportWork, _write_day, verify_day
from timebeam.transforms.copy.sorted_runs import SortedRuns

START_S = 1_356_998_400
POINTS = 300


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a day, with several row groups."""
    monkeypatch.setattr(sorted_runs, "RANGE_POINTS", 100)
    lines = "".join(
        f"put sys.cpu{number // 100} {START_S + number} {number} host=h{number % 3}"
        + (" mode=idle\n" if number < 150 else "\n")
        for number in range(POINTS)
    )
    batch = message_format("opentsdb-text").parse(Message(lines.encode(), 1)).batch
    assert len(batch) == POINTS
    (tmp_path / "runs").mkdir()
    runs = SortedRuns(tmp_path / "runs")
    runs.add(batch)
    folder = tmp_path / "day=2013-01-01"
    work = ExportWork(
        Target("p", "i"), OpenTsdb(), START_S * 1000, START_S * 1000 + 86_400_000, str(tmp_path)
    )
    assert list(_write_day(work, str(folder), runs)) == []
    return folder / "part-00000.parquet"


def problems(file: Path) -> str:
    return "\n".join(verify_day(str(file.parent)).problems)


def forget_digest(file: Path) -> None:
    """Makes a manifest as earlier versions wrote it."""
    manifest = file.with_name("_manifest.json")
    entries = json.loads(manifest.read_text())["files"]
    for entry in entries:
        del entry["sha256"]
    manifest.write_text(json.dumps({"files": entries}))


def change_statistics(file: Path, column: str, change: Callable[[dict[int, Any]], None]) -> None:
    """Changes the statistics of a column in all row groups."""
    text = file.read_bytes()
    start = len(text) - 8 - int.from_bytes(text[-8:-4], "little")
    fields = ThriftReader(text[start:-8]).struct(footers._FILE_WRITTEN)
    for group in fields[4]:
        for chunk in group[1]:
            if chunk[3][3] == [column.encode()]:
                change(chunk[3][12])
    footer = written(footers._FILE_WRITTEN, fields)
    file.write_bytes(text[:start] + footer + len(footer).to_bytes(4, "little") + b"PAR1")


def lower_maximum(statistics: dict[int, Any]) -> None:
    statistics.update({field: statistics[6] for field in (1, 5) if field in statistics})


def raise_minimum(statistics: dict[int, Any]) -> None:
    statistics.update({field: statistics[5] for field in (2, 6) if field in statistics})


def say_all_are_null(statistics: dict[int, Any]) -> None:
    statistics[3] = 100


def test_a_manifest_has_the_digest_of_each_file(file: Path) -> None:
    (entry,) = json.loads(file.with_name("_manifest.json").read_text())["files"]
    assert entry["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    verified = verify_day(str(file.parent))
    assert (verified.points, verified.problems, verified.without_digest) == (POINTS, [], 0)


def test_a_manifest_without_a_digest_is_read_and_says_so(file: Path) -> None:
    forget_digest(file)
    verified = verify_day(str(file.parent))
    assert (verified.points, verified.problems, verified.without_digest) == (POINTS, [], 1)


@pytest.mark.parametrize(
    ("column", "change", "what"),
    [
        ("time", lower_maximum, "as the maximum of time, which is 1356998499000 (row group 0)"),
        ("tag_host", raise_minimum, "b'h2' as the minimum of tag_host, which is b'h0'"),
        ("tag_mode", say_all_are_null, "100 nulls in tag_mode, which has 0"),
    ],
)
@pytest.mark.parametrize("has_digest", [True, False])
def test_changed_statistics_are_found(
    file: Path, column: str, change: Callable[[dict[int, Any]], None], what: str, *, has_digest: bool
) -> None:
    change_statistics(file, column, change)
    assert "sha256 is" in problems(file)
    if not has_digest:
        forget_digest(file)
    assert what in problems(file)


def test_points_that_engines_leave_out_are_found(file: Path) -> None:
    forget_digest(file)
    query = f"SELECT count(*) FROM read_parquet('{file}') WHERE epoch_ms(time) >= {START_S * 1000 + 50_000}"
    with duckdb.connect() as connection:
        assert connection.execute(query).fetchone() == (POINTS - 50,)
        change_statistics(file, "time", lower_maximum)
        where = f"time >= to_timestamp({START_S + 50})"
        rows = connection.execute(f"SELECT count(*) FROM read_parquet('{file}') WHERE {where}").fetchone()
    assert rows is not None
    assert rows[0] < POINTS - 50
    assert "as the maximum of time" in problems(file)


def test_each_changed_bit_of_a_file_is_found(file: Path) -> None:
    good = file.read_bytes()
    footer = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
    draw = random.Random(1)
    for start in [footer] * 100 + [0] * 50:
        bad = bytearray(good)
        bad[draw.randrange(start, len(good))] ^= 1 << draw.randrange(8)
        file.write_bytes(bad)
        assert problems(file)
    file.write_bytes(good)
    assert problems(file) == ""


def test_a_file_of_another_length_is_found(file: Path) -> None:
    good = file.read_bytes()
    file.write_bytes(good[:4] + b"\0" + good[4:])
    assert problems(file)
