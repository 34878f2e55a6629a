"""`timebeam export`: Parquet files of days, as pyarrow, DuckDB and pandas read them."""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.cloud.bigtable.data import SetCell

from tests.schema.stores.plain_opentsdb import number
from tests.support.any_store import VARIANTS, AnyStore
from tests.support.budget import long_after
from tests.support.commands import Ran, ingest, timebeam
from tests.support.data_client import open_table
from tests.support.inputs.example_tables import EXAMPLES, Tables
from tests.support.model import Content, Point, content
from tests.support.plain.rolled import DAY, config_file, interval, send, with_tables
from tests.support.points import FIRST_MS, LATER_MS, corrections_of, put_file, random_points, write_file
from tests.support.processes.children import start_command
from tests.support.stored import Store
from timebeam.schema.core.points import Series
from timebeam.transforms.copy import export_days as export_transform
from timebeam.transforms.copy import sorted_runs

RANGE = ("--start=2013-01-01", "--end=2013-01-02T05:00:00Z")
DAYS = ("day=2013-01-01", "day=2013-01-02")
COLUMNS = ["metric", "tag_host", "tag_mode", "time", "kind", "int_value", "double_value", "bytes_value"]


@pytest.fixture(autouse=True)
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several runs, row groups and files for a few hundred points."""
    monkeypatch.setattr("timebeam.transforms.read.table_reader.BATCH_POINTS", 50)
    monkeypatch.setattr(sorted_runs, "RUN_POINTS", 150)
    monkeypatch.setattr(sorted_runs, "RANGE_POINTS", 100)


def filled(
    bigtable: tuple[str, str], prefix: str, folder: Path, variant: str = "opentsdb"
) -> tuple[AnyStore, list[Point]]:
    """Tables with points of two days, some corrected."""
    store = AnyStore.create(bigtable, prefix, variant)
    points = random_points(900, hours=29)
    corrections = corrections_of(points[::7])
    for some, arrival_ms in ((points, FIRST_MS), (corrections, LATER_MS)):
        path = put_file(folder / f"{arrival_ms}.txt", some, arrival_ms)
        ingest(folder, *store.flags, *store.auto_create, "--format=opentsdb-text", "--input", path)
    return store, points


def export(store: AnyStore, folder: Path, *flags: str | Path, code: int = 0) -> Ran:
    """Runs an export of both days to the folder `out`."""
    place = f"--output={folder / 'out'}", f"--dead-letters={folder / 'dead'}"
    ran = timebeam("export", *store.flags, *place, *(flags or RANGE))
    assert ran.code == code, ran
    return ran


def files(folder: Path) -> dict[str, bytes]:
    """Every file below `out`, by its path."""
    out = folder / "out"
    return {
        str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()
    }


def content_of(rows: list[dict[str, Any]]) -> Content:
    """The points of rows, each of which must be another instant of a series."""
    content = {}
    for row in rows:
        value = {
            "integer": row["int_value"],
            "double": row["double_value"],
            "text": (row["bytes_value"] or b"").decode(),
        }[row["kind"]]
        values = [row["int_value"], row["double_value"], row["bytes_value"]]
        assert [each is not None and each == each for each in values].count(True) == 1, row
        columns = {key[4:]: value for key, value in row.items() if key.startswith("tag_") and value}
        name = row["metric"], tuple(sorted(dict(row.get("tags", columns)).items()))
        content[name, round(row["time"].timestamp() * 1000)] = number(value)
    assert len(content) == len(rows)
    return content


def read_with_pyarrow(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / "out").to_pylist()
    return rows


def read_with_duckdb(folder: Path, what: str = "*") -> list[dict[str, Any]]:
    query = f"SELECT {what} FROM read_parquet('{folder}/out/**/*.parquet', hive_partitioning = true)"
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        cursor = connection.execute(query)
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def read_with_pandas(folder: Path) -> list[dict[str, Any]]:
    frame = pd.read_parquet(folder / "out", dtype_backend="pyarrow")
    rows: list[dict[str, Any]] = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return rows


@pytest.mark.parametrize("variant", long_after(4, VARIANTS))
def test_the_points_of_every_layout_as_engines_read_them(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, variant: str
) -> None:
    store, points = filled(bigtable, prefix, tmp_path, variant)
    summary = json.loads(export(store, tmp_path, *RANGE, "--summary=json").out)
    expected = store.content()
    # Heroic stores no integer that a double cannot hold.
    assert summary["points_exported"] == len(expected) > 0.9 * len(points)
    assert content_of(read_with_pyarrow(tmp_path)) == expected
    assert content_of(read_with_duckdb(tmp_path)) == expected
    assert content_of(read_with_pandas(tmp_path)) == expected
    names = [f"{day}/{name}" for day in DAYS for name in ("_manifest.json", "part-00000.parquet")]
    assert sorted(files(tmp_path)) == names
    verified = f"verified {len(expected):,} points of 2 days: 0 differences"
    assert verified in export(store, tmp_path, *RANGE, "--verify").out


def test_files_are_sorted_with_statistics_and_no_point_of_another_day(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    store, points = filled(bigtable, prefix, tmp_path)
    export(store, tmp_path)
    for day in DAYS:
        file = pq.ParquetFile(tmp_path / "out" / day / "part-00000.parquet")
        rows = file.read().to_pylist()
        keys = [(row["metric"], row["tag_host"], row["tag_mode"] or "", row["time"]) for row in rows]
        assert keys == sorted(keys)
        assert {f"day={row['time'].date()}" for row in rows} == {day}
        assert file.schema_arrow.names == COLUMNS
        assert file.num_row_groups > 2 or day == DAYS[1]
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        for column in (0, file.schema.names.index("time")):
            assert all(group.column(column).statistics.has_min_max for group in groups)
            assert {group.column(column).compression for group in groups} == {"ZSTD"}
    entries = [
        entry
        for day in DAYS
        for entry in json.loads((tmp_path / "out" / day / "_manifest.json").read_text())["files"]
    ]
    assert sum(entry["points"] for entry in entries) == len(points)
    assert sum(entry["times_sum"] for entry in entries) == sum(point.time_ms for point in points)
    totals = read_with_duckdb(tmp_path, "sum(int_value) AS total, count(int_value) AS integers")[0]
    assert sum(entry["integer_sum"] for entry in entries) == int(totals["total"])
    assert sum(entry["integers"] for entry in entries) == totals["integers"]


def test_the_query_of_the_documentation(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    store, _ = filled(bigtable, prefix, tmp_path)
    export(store, tmp_path)
    page = Path(__file__).parents[3] / "docs" / "use" / "copy.md"
    query = page.read_text("utf-8").split("```sql\n")[1].split("```")[0]
    query = query.replace("points/", f"{tmp_path}/out/").replace("2026-11-20", "2013-01-01")
    with duckdb.connect() as connection:
        rows = connection.execute(query).fetchall()
    in_day = [
        (dict(tags)["host"], time_ms // 600_000)
        for (metric, tags), time_ms in store.content()
        if metric == "sys.cpu" and time_ms < 1_357_084_800_000
    ]
    assert [(host, round(start.timestamp()) // 600) for host, start, _ in rows] == sorted(set(in_day))


def test_another_run_gives_the_same_files_and_another_form_replaces_them(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    store, _ = filled(bigtable, prefix, tmp_path)
    export(store, tmp_path)
    before = files(tmp_path)
    export(store, tmp_path)
    assert files(tmp_path) == before
    stranger = tmp_path / "out" / DAYS[0] / "notes.txt"
    stranger.write_text("mine")
    for name in ("part-00077.parquet", "metric=gone/part-00000.parquet"):  # no manifest has them: of a kill
        (tmp_path / "out" / DAYS[0] / name).parent.mkdir(exist_ok=True)
        (tmp_path / "out" / DAYS[0] / name).write_bytes(b"PAR1")
    (tmp_path / "out" / DAYS[1] / "_manifest.json").write_text("[]")
    export(store, tmp_path, *RANGE, "--by-metric", "--tags=map")
    folders = ("metric=sys.cpu", "metric=sys.gr%C3%B6%C3%9Fe")
    names = [f"{day}/{folder}/part-00000.parquet" for day in DAYS for folder in folders]
    assert sorted(name for name in files(tmp_path) if name.endswith(".parquet")) == names
    assert stranger.read_text() == "mine"
    stranger.unlink()
    rows = read_with_duckdb(tmp_path)
    assert {row["metric"] for row in rows} == {"sys.cpu", "sys.größe"}
    assert content_of(rows) == store.content()
    assert pq.read_table(tmp_path / "out").num_rows == len(rows)
    export(store, tmp_path, *RANGE, "--verify")
    export(store, tmp_path)
    assert files(tmp_path) == before


def test_verify_finds_what_differs(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    store, _ = filled(bigtable, prefix, tmp_path)
    assert "no manifest" in export(store, tmp_path, *RANGE, "--verify", code=1).err
    export(store, tmp_path)
    path = tmp_path / "out" / DAYS[0] / "part-00000.parquet"
    good = path.read_bytes()
    path.write_bytes(good[:200] + bytes([good[200] ^ 255]) + good[201:])
    assert "cannot be read" in export(store, tmp_path, *RANGE, "--verify", code=1).err
    table = pq.read_table(pa.BufferReader(good))
    pq.write_table(table.slice(1), path)
    assert "points is" in export(store, tmp_path, *RANGE, "--verify", code=1).err
    for other in (table.slice(0, 0), table.select(["kind"])):
        pq.write_table(other, path)
        assert "cannot be read" in export(store, tmp_path, *RANGE, "--verify", code=1).err
    path.unlink()
    assert "cannot be read" in export(store, tmp_path, *RANGE, "--verify", code=1).err
    path.write_bytes(good)
    path.with_name("other.parquet").write_bytes(good)
    assert "not in the manifest" in export(store, tmp_path, *RANGE, "--verify", code=1).err
    path.with_name("other.parquet").unlink()
    export(store, tmp_path, *RANGE, "--verify")
    for corrupt in ("{", "[]", '{"files": [1]}', '{"files": [{"file": "../../x.parquet"}]}'):
        path.with_name("_manifest.json").write_text(corrupt)
        assert "manifest is corrupt" in export(store, tmp_path, *RANGE, "--verify", code=1).err
        export(store, tmp_path, *RANGE)
        export(store, tmp_path, *RANGE, "--verify")
    manifest = path.with_name("_manifest.json")
    earlier = json.loads(manifest.read_text())
    del earlier["files"][0]["sha256"]
    manifest.write_text(json.dumps(earlier))
    ran = export(store, tmp_path, *RANGE, "--verify", "--summary=json")
    assert json.loads(ran.out)["without_digest"] == 1
    assert "manifests without digests of 1 files" in ran.err


def test_verify_compares_every_column(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    """Files with the same counts and sums, but two values swapped, or another tag or metric."""
    store, _ = filled(bigtable, prefix, tmp_path)
    export(store, tmp_path)
    path = tmp_path / "out" / DAYS[0] / "part-00000.parquet"
    table = pq.read_table(path)
    pq.write_table(table, path)  # the same values, written otherwise
    rows = table.to_pylist()
    for column in table.column_names:
        if column == "bytes_value":
            continue  # all are null
        at = [number for number, row in enumerate(rows) if row[column] is not None]
        first = at[0]
        second = next(number for number in at if rows[number][column] != rows[first][column])
        swapped = [dict(row) for row in rows]
        swapped[first][column], swapped[second][column] = rows[second][column], rows[first][column]
        pq.write_table(pa.Table.from_pylist(swapped, schema=table.schema), path)
        assert f"checksum of {column} is" in export(store, tmp_path, *RANGE, "--verify", code=1).err


def test_metrics_that_file_systems_take_for_one_and_names_that_they_do_not_take(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    store = AnyStore.create(bigtable, prefix, "opentsdb")
    metrics = ("cpu", "CPU", "Cpu", "Mem", "m" * 248, "n" * 249, "\xe9" * 42)
    lines = [f"put {metric} 1357000000 {number} host=a\n" for number, metric in enumerate(metrics)]
    path = write_file(tmp_path / "in.txt", [line.encode() for line in lines])
    result = ingest(tmp_path, *store.flags, *store.auto_create, "--format=opentsdb-text", "--input", path)
    assert not result.letters
    flags = ("--day=2013-01-01", "--by-metric")
    summary = json.loads(export(store, tmp_path, *flags, "--summary=json").out)
    folders = {Path(name).parent.name for name in files(tmp_path) if name.endswith(".parquet")}
    assert folders == {
        "metric=cpu",
        "metric=%43%50%55",
        "metric=%43pu",
        "metric=Mem",
        "metric=" + "m" * 248,
    }
    assert len({folder.lower() for folder in folders}) == 5
    read = {row["metric"]: row["int_value"] for row in read_with_duckdb(tmp_path)}
    assert read == {metric: number for number, metric in enumerate(metrics[:5])}
    assert {row["metric"] for row in read_with_pyarrow(tmp_path)} == set(read)
    assert summary["rejected"] == {"series-not-storable": 2}
    letters = [json.loads(line) for line in Path(summary["dead_letters"][0]).read_text().splitlines()]
    assert {letter["payload"] for letter in letters} == {metrics[5], metrics[6]}
    assert "export without --by-metric" in letters[0]["message"]
    export(store, tmp_path, *flags, "--verify")


def test_points_of_declared_tables(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    tables = Tables(bigtable, prefix, EXAMPLES / "metrics.toml")
    tables.ingest(tmp_path, EXAMPLES / "metrics.jsonl")
    records = [json.loads(line) for line in (EXAMPLES / "metrics.jsonl").read_text().splitlines()]
    latest = {record["HOSTNAME"]: record for record in sorted(records, key=lambda record: record["TS"])}
    expected = {
        (f"{start}.{category}/{name}", record["HOSTNAME"], record["TS"], value)
        for start, some in (("server", records), ("current", latest.values()))
        for record in some
        for category, entries in record["metrics"].items()
        for name, value in entries.items()
    }
    for flags in ((), ("--by-metric",), ("--tags=map",)):
        days = ("--start=2015-03-16", "--end=2015-03-17", *flags)
        place = f"--output={tmp_path / 'out'}", f"--dead-letters={tmp_path / 'dead'}"
        ran = timebeam("export", *tables.flags, *place, *days, "--summary=json")
        assert (ran.code, json.loads(ran.out)["rejected"]) == (0, {})
        exported = {
            (
                row["metric"],
                dict(row["tags"])["HOSTNAME"] if "tags" in row else row["tag_HOSTNAME"],
                round(row["time"].timestamp() * 1000),
                row["double_value"] if row["int_value"] is None else row["int_value"],
            )
            for row in read_with_duckdb(tmp_path)
        }
        assert exported == expected
        assert timebeam("export", *tables.flags, *place, *days, "--verify").code == 0


def test_a_dry_run_writes_nothing(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    store, _ = filled(bigtable, prefix, tmp_path)
    ran = export(store, tmp_path, *RANGE, "--dry-run", "--summary=json")
    assert json.loads(ran.out)["points_exported"] == 900
    assert not (tmp_path / "out").exists()


def test_a_corrupt_cell_is_a_dead_letter(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    store, points = filled(bigtable, prefix, tmp_path)
    keys = sorted({cell.key for cell in store.cells() if cell.family == "t"})
    with open_table(store.target, store.layout.tables()[0].name) as table:
        table.mutate_row(keys[0], SetCell("t", b"\x00\x00\x00\x10", bytes(40), timestamp_micros=1_000_000))
    summary = json.loads(export(store, tmp_path, *RANGE, "--summary=json").out)
    assert summary["points_exported"] == len(points)
    assert summary["rejected"] == {"corrupt-file": 1}
    assert len(summary["dead_letters"]) == 1
    assert content_of(read_with_duckdb(tmp_path)) == content([*points, *corrections_of(points[::7])])


def test_text_is_exported_as_bytes(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    store = AnyStore.create(bigtable, prefix, "kairosdb-milliseconds")
    points = [[1_357_000_000_000, "wärm"], [1_357_000_000_001, 5], [1_357_000_000_002, 0.5]]
    line = json.dumps({"name": "m", "tags": {"a": "b"}, "datapoints": points}).encode()
    path = write_file(tmp_path / "in.json", [line])
    ingest(tmp_path, *store.flags, "--format=kairosdb-json", "--input", path)
    export(store, tmp_path, "--day=2013-01-01")
    rows = sorted(read_with_duckdb(tmp_path), key=lambda row: row["time"])
    values = [(row["kind"], row["int_value"], row["double_value"], row["bytes_value"]) for row in rows]
    text = "wärm".encode()
    assert values == [("text", None, None, text), ("integer", 5, None, None), ("double", None, 0.5, None)]


def _die_in_row_group(number: int) -> None:
    """Makes the process kill itself in the midst of a file."""
    add, calls = export_transform._File.add, itertools.count()

    def add_or_die(file: Any, batch: Any) -> None:
        if next(calls) == number:
            file._stream.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        add(file, batch)

    export_transform._File.add = add_or_die  # type: ignore[method-assign]
    sorted_runs.RANGE_POINTS = 100


@pytest.mark.long
def test_ten_killed_runs_leave_no_half_file_and_another_run_the_same_files(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    store, _ = filled(bigtable, prefix, tmp_path)
    output = f"--output={tmp_path / 'out'}"
    arguments = ["export", *store.flags, output, *RANGE, f"--dead-letters={tmp_path / 'dead'}"]
    environment = {"BIGTABLE_EMULATOR_HOST": os.environ["BIGTABLE_EMULATOR_HOST"]}
    whole: dict[str, bytes] = {}
    for kill in range(10):
        before = functools.partial(_die_in_row_group, 1 + kill % 5)
        child = start_command(arguments, tmp_path / f"child{kill}", environment, before)
        child.join()
        assert child.exitcode == -signal.SIGKILL
        remains = files(tmp_path)
        assert any(name.endswith(".part") for name in remains)
        whole |= {name: raw for name, raw in remains.items() if not name.endswith(".part")}
    export(store, tmp_path)
    after = files(tmp_path)
    assert not any(name.endswith(".part") for name in after)
    assert whole.items() <= after.items()
    (tmp_path / "out").rename(tmp_path / "killed")
    export(store, tmp_path)
    assert files(tmp_path) == after


def test_ranges_that_name_no_days(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    store = AnyStore.create(bigtable, prefix, "opentsdb")
    assert "before it starts" in export(store, tmp_path, "--start=2013-01-02", "--end=2013-01-01", code=2).err
    ran = export(store, tmp_path, "--day=2013-01-01")
    assert "is empty" in ran.err
    assert list(files(tmp_path)) == [f"{DAYS[0]}/_manifest.json"]


def test_rollups_of_an_interval(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    """Each number of two hours of points, by plain counting."""
    store = Store.create(bigtable, prefix)
    config = config_file(tmp_path, [interval("1h", "1d")])
    with_tables(store, config)
    series = [Series.of("sys.cpu", {"host": host}) for host in ("a", "b")]
    points: dict[tuple[Series, int], int | float] = {
        (each, DAY + 600 * number): number + 0.5 * (each is series[1])
        for each in series
        for number in range(12)
    }
    send(store, tmp_path, points)
    flags = (f"--rollup-config={config}", "--day=2024-02-28")
    ran = timebeam("rollup", *store.flags, *flags, f"--dead-letters={tmp_path / 'dead'}")
    assert ran.code == 0, ran.err
    place = f"--output={tmp_path / 'out'}", f"--dead-letters={tmp_path / 'dead'}", "--interval=1h"
    ran = timebeam("export", *store.flags, *flags, *place)
    assert ran.code == 0, ran.err
    assert "interval=1h/day=2024-02-28/part-00000.parquet" in files(tmp_path)
    read = {
        (row["tag_host"], row["tag__rollup"], round(row["time"].timestamp())): (
            row["double_value"] if row["int_value"] is None else row["int_value"]
        )
        for row in read_with_duckdb(tmp_path)
    }
    plain = {
        "sum": sum,
        "count": len,
        "min": min,
        "max": max,
        "first": lambda v: v[0],
        "last": lambda v: v[-1],
    }
    assert read == {
        (dict(each.tags)["host"], name, DAY + hour): function(
            [
                value
                for (other, time_s), value in points.items()
                if other == each and 0 <= time_s - DAY - hour < 3600
            ]
        )
        for each in series
        for hour in (0, 3600)
        for name, function in plain.items()
    }
    assert timebeam("export", *store.flags, *flags, *place, "--verify").code == 0
    ran = timebeam("export", *store.flags, *flags, *place[:2], "--interval=5m")
    assert (ran.code, "has rollups of 1h" in ran.err) == (2, True)
    assert timebeam("export", *store.flags, "--day=2024-02-28", *place).code == 2
