"""`timebeam ingest --format parquet`: files of `timebeam export`, and files of others."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.any_store import AnyStore
from tests.support.budget import long_but_every
from tests.support.commands import ingest, timebeam
from tests.support.points import FIRST_MS, put_file, random_points, write_file
from timebeam.transforms.input import files

FIELDS = "--parquet-fields=metric=name,timestamp=at,value=reading,tag:host=machine"


def from_parquet(
    store: AnyStore, folder: Path, pattern: str, *flags: str
) -> tuple[int, list[tuple[str, int]]]:
    """(points stored, (reason, offset) of each dead letter) of an ingest."""
    place = *store.flags, *store.auto_create, "--format=parquet", f"--input={folder / pattern}"
    ingested = ingest(folder, *place, *flags)
    letters = [(letter["reason"], letter["offset"]) for letter in ingested.letters]
    return ingested.summary["points_stored"], sorted(letters)


@pytest.mark.parametrize(
    ("variant", "flags"),
    long_but_every(
        2, ["opentsdb", "kairosdb-milliseconds"], [["--tags=columns"], ["--tags=map"], ["--by-metric"]]
    ),
)
def test_an_export_is_ingested_as_it_was(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, variant: str, flags: tuple[str, ...]
) -> None:
    store = AnyStore.create(bigtable, prefix, variant)
    path = put_file(tmp_path / "in.txt", random_points(700, hours=29), FIRST_MS)
    ingest(tmp_path, *store.flags, *store.auto_create, "--format=opentsdb-text", "--input", path)
    out = f"--output={tmp_path / 'out'}"
    days = "--start=2013-01-01", "--end=2013-01-03"
    assert timebeam("export", *store.flags, out, *days, *flags, f"--dead-letters={tmp_path / 'd'}").code == 0
    other = AnyStore.create(bigtable, f"{prefix}to-", variant)
    assert from_parquet(other, tmp_path / "out", "day=*/**.parquet") == (700, [])
    assert other.content() == store.content()
    with_names = {cell.qualifier for cell in store.cells() if cell.family in "td"}
    assert {cell.qualifier for cell in other.cells() if cell.family in "td"} == with_names


def test_text_comes_back(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    store = AnyStore.create(bigtable, prefix, "kairosdb-milliseconds")
    points = [[1_357_000_000_000, "wärm"], [1_357_000_000_001, 2**62 + 1], [1_357_000_000_002, 0.5]]
    line = json.dumps({"name": "m", "tags": {"a": "b"}, "datapoints": points}).encode()
    path = write_file(tmp_path / "in.json", [line])
    ingest(tmp_path, *store.flags, "--format=kairosdb-json", "--input", path)
    out = f"--output={tmp_path / 'out'}", f"--dead-letters={tmp_path / 'd'}"
    assert timebeam("export", *store.flags, *out, "--day=2013-01-01").code == 0
    other = AnyStore.create(bigtable, f"{prefix}to-", "kairosdb-milliseconds")
    assert from_parquet(other, tmp_path / "out", "day=*/*.parquet") == (3, [])

    def values(cells: AnyStore) -> set[tuple[bytes, bytes]]:
        return {(cell.qualifier, cell.value) for cell in cells.cells() if cell.table.endswith("data_points")}

    assert values(other) == values(store)


@pytest.mark.parametrize("tags", ["map", "columns"])
def test_resources_come_back(bigtable: tuple[str, str], prefix: str, tmp_path: Path, tags: str) -> None:
    store = AnyStore.create(bigtable, prefix, "heroic-readable-names")
    document = {"version": "1.0.0", "key": "k", "time": 1_357_000_000_000, "value": 4.5}
    series = [({"a": "b"}, {"host": "x"}), ({"a": "b"}, {"host": "y", "rack": "z"}), ({"c": "d"}, {})]
    lines = [
        json.dumps({**document, "attributes": attributes, "resource": resources}).encode() + b"\n"
        for attributes, resources in series
    ]
    path = write_file(tmp_path / "in.json", lines)
    ingest(tmp_path, *store.flags, "--format=heroic-json", "--input", path)
    out = f"--output={tmp_path / 'out'}", f"--dead-letters={tmp_path / 'd'}", f"--tags={tags}"
    assert timebeam("export", *store.flags, *out, "--day=2013-01-01").code == 0
    other = AnyStore.create(bigtable, f"{prefix}to-", "heroic-readable-names")
    assert from_parquet(other, tmp_path / "out", "day=*/*.parquet") == (3, [])
    keys = {(cell.key, cell.qualifier, cell.value) for cell in store.cells()}
    assert {(cell.key, cell.qualifier, cell.value) for cell in other.cells()} == keys


def foreign(path: Path) -> pd.DataFrame:
    """A file of pandas with three row groups, and rows that are no points."""
    start = datetime.datetime(2013, 1, 1, tzinfo=datetime.UTC)
    rows = [
        {
            "name": f"m.{i % 3}",
            "at": start + datetime.timedelta(seconds=i),
            "reading": i / 4,
            "machine": i % 5,
        }
        for i in range(300)
    ]
    frame = pd.DataFrame(rows)
    frame["name"] = frame["name"].astype("category")
    frame.loc[7, "name"] = None
    frame.loc[150, "at"] = pd.NaT
    frame.loc[151, "reading"] = float("inf")
    table = pa.Table.from_pandas(frame)
    reading = table["reading"].to_pylist()
    reading[299] = None
    place = table.schema.get_field_index("reading")
    table = table.set_column(place, "reading", pa.array(reading, pa.float32()))
    pq.write_table(table, path, row_group_size=100)
    os.utime(path, (FIRST_MS / 1000, FIRST_MS / 1000))
    return frame


def test_files_of_others_by_their_fields_with_bad_rows_rejected(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BATCH_ROWS", 40)
    store = AnyStore.create(bigtable, prefix, "opentsdb")
    frame = foreign(tmp_path / "in.parquet")
    stored, letters = from_parquet(store, tmp_path, "in.parquet", FIELDS)
    rejected = [("bad-metric", 7), ("bad-number", 151), ("bad-timestamp", 150), ("empty-value", 299)]
    assert (stored, letters) == (296, rejected)
    expected = {
        (row["name"], (("host", str(row["machine"])),), row["at"].value // 10**6): row["reading"]
        for number, row in frame.iterrows()
        if number not in (7, 150, 151, 299)
    }
    found = store.content()
    assert {(metric, tags, time_ms) for (metric, tags), time_ms in found} == expected.keys()


def test_a_rejected_row_is_replayed(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    store = AnyStore.create(bigtable, prefix, "opentsdb")
    foreign(tmp_path / "in.parquet")
    dead = f"--dead-letters={tmp_path / 'dead'}"
    place = *store.flags, "--format=parquet", FIELDS
    ran = timebeam("ingest", *place, f"--input={tmp_path / 'in.parquet'}", dead, "--summary=json")
    assert ran.code == 1, ran.err
    assert json.loads(ran.out)["rejected"]["unknown-name"] == 296
    again = f"--dead-letters={tmp_path / 'again'}"
    ran = timebeam("replay", f"{tmp_path}/dead*", *place, "--auto-create-metrics", again, "--summary=json")
    summary = json.loads(ran.out)
    assert (summary["points_stored"], sum(summary["rejected"].values())) == (296, 4)
    assert len(store.content()) == 296


@pytest.mark.parametrize("corruption", ["footer", "page", "empty", "columns", "types"])
def test_corrupt_and_unfit_files_are_dead_letters(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, corruption: str
) -> None:
    store = AnyStore.create(bigtable, prefix, "opentsdb")
    path = tmp_path / "in.parquet"
    foreign(path)
    data = bytearray(path.read_bytes())
    flags = FIELDS
    if corruption == "footer":
        data = data[:-20]
    elif corruption == "page":
        data[60:200] = bytes(140)
    elif corruption == "empty":
        data = bytearray()
    elif corruption == "columns":
        flags = "--parquet-fields=metric=name,timestamp=at,value=nothing"
    else:
        flags = "--parquet-fields=metric=name,timestamp=name,value=reading"
    write_file(path, [bytes(data)])
    stored, letters = from_parquet(store, tmp_path, "in.parquet", flags)
    reasons = {"columns": {"bad-syntax"}, "types": {"bad-timestamp"}}.get(corruption, {"corrupt-file"})
    assert reasons <= {reason for reason, _ in letters}
    assert stored == {"page": 197}.get(corruption, 0)
