"""`timebeam ingest --format opentsdb-histogram`: what is stored beside numbers, and read by `query`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.any_store import AnyStore
from tests.support.commands import ingest
from tests.support.inputs.annotations import query
from tests.support.points import BASE_S, FIRST_MS, write_file
from tests.support.stored import Store
from timebeam.schema.stores.opentsdb.options import OpenTsdbCellTime

BUCKETS = {"0,1": 12, "1,2.5": 16}


def lines(count: int) -> list[bytes]:
    """Histograms of two series, one a minute, as telnet lines and JSON."""
    times = [BASE_S + 60 * number for number in range(count)]
    telnet = [f"histogram sys.load {time} u=2:0,1=12:1,2.5=16:o=1 host=a" for time in times]
    objects = [
        {"metric": "sys.load", "timestamp": time * 1000 + 5, "tags": {"host": "b"}, "buckets": BUCKETS}
        for time in times
    ]
    return [line.encode() + b"\n" for line in (*telnet, *map(json.dumps, objects))]


@pytest.mark.parametrize(
    "flags", [(), ("--packing=points",), ("--packing=append",), ("--set=cell_time=event",)]
)
def test_histograms_and_numbers_of_the_same_rows(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    options = {"cell_time": OpenTsdbCellTime.EVENT} if flags == ("--set=cell_time=event",) else {}
    store = Store.create(bigtable, prefix, **options)
    place = *store.flags, "--auto-create-metrics", *(flag for flag in flags if "packing" in flag)
    numbers = [f"sys.load {BASE_S + 60 * number} {number} host=a\n".encode() for number in range(100)]
    path = write_file(tmp_path / "numbers", numbers)
    ingest(tmp_path, *place, "--format=opentsdb-text", "--input", path)
    before = query(store, "--output=csv").out
    histograms = write_file(tmp_path / "histograms", lines(100))
    cells = []
    for _ in range(2):
        ingested = ingest(tmp_path, *place, "--format=opentsdb-histogram", "--input", histograms)
        assert (ingested.summary["points_stored"], ingested.letters) == (200, [])
        cells.append(store.cells())
    assert cells[0] == cells[1]
    assert query(store, "--output=csv").out == before
    answer = {
        each["metric"]: each["dps"]
        for each in json.loads(query(store, "--histogram", "--output=json", "--downsample=1m-sum").out)
    }
    times = [str(BASE_S + 60 * number) for number in range(100)]
    assert answer == {
        "sys.load_0.0_1.0": dict.fromkeys(times, 24),
        "sys.load_1.0_2.5": dict.fromkeys(times, 32),
        "sys.load_UNDERFLOW": dict.fromkeys(times, 2),
        "sys.load_OVERFLOW": dict.fromkeys(times, 1),
    }
    changed = write_file(tmp_path / "changed", [lines(1)[0].replace(b"=12", b"=99")], FIRST_MS + 1)
    ingest(tmp_path, *place, "--format=opentsdb-histogram", "--input", changed)
    stored = query(store, "--histogram", "--output=json", "--tag=host=a", end=BASE_S + 1).out
    assert [each["dps"] for each in json.loads(stored) if "_1.0" in each["metric"][-4:]] == [{times[0]: 99}]


@pytest.mark.parametrize("variant", ["heroic", "kairosdb-milliseconds"])
def test_other_layouts_store_no_histograms(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, variant: str
) -> None:
    store = AnyStore.create(bigtable, prefix, variant)
    path = write_file(tmp_path / "histograms", lines(1))
    place = *store.flags, *store.auto_create, "--format=opentsdb-histogram", "--input", path
    ingested = ingest(tmp_path, *place)
    assert ingested.summary["points_stored"] == 0
    assert [letter["reason"] for letter in ingested.letters] == ["value-not-storable"] * 2
