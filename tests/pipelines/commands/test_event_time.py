"""`--cell-time event` from the command line: what is written and read, and what is rejected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import ingest, timebeam
from tests.support.points import BASE_S
from tests.support.stored import Store
from timebeam.schema.stores.opentsdb.options import OpenTsdbCellTime


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    return Store.create(bigtable, prefix, cell_time=OpenTsdbCellTime.EVENT)


def flags(store: Store, *more: str) -> list[str]:
    """The options of a store, the enum as its text."""
    kept = [flag for flag in store.flags if not flag.startswith("--set=cell_time")]
    return [*kept, "--set=cell_time=event", *more]


def send(store: Store, folder: Path, name: str, *values: float, more: tuple[str, ...] = ()) -> None:
    path = folder / name
    path.write_text("".join(f"put m {BASE_S + 5} {value} host=a\n" for value in values))
    ingest(
        folder,
        *flags(store, *more, "--format=opentsdb-text"),
        *("--auto-create-metrics", "--input", path),
    )


def value(store: Store, *more: str) -> float:
    ran = timebeam(
        "query", "m", *flags(store, *more), f"--start={BASE_S}", f"--end={BASE_S + 60}", "--output=json"
    )
    (answer,) = json.loads(ran.out)
    (found,) = answer["dps"].values()
    return float(found)


@pytest.mark.parametrize("writer", ["beam", "direct"])
def test_values_of_one_instant(store: Store, tmp_path: Path, writer: str) -> None:
    more = (f"--bigtable-writer={writer}",)
    send(store, tmp_path, "a.txt", 7, 300, 2.5, more=more)
    assert {(qualifier, time) for _, qualifier, time, _ in store.cells()} == {
        (bytes.fromhex(qualifier), (BASE_S + 5) * 1000) for qualifier in ("0050", "0051", "005b")
    }
    assert (value(store), value(store, "--set=use_max_value=false")) == (300, 2.5)
    send(store, tmp_path, "b.txt", 200, more=more)  # on two bytes too: it takes the place of 300
    assert (value(store), value(store, "--set=use_max_value=false")) == (200, 2.5)
    assert timebeam("check", *flags(store)).code == 0


def test_annotations_have_the_time_of_their_start(store: Store, tmp_path: Path) -> None:
    """And are changed in the order of writing, since the timestamp does not tell which is newer."""
    path = tmp_path / "a.json"
    for text in ("first", "second"):
        path.write_text(json.dumps({"startTime": BASE_S + 5, "description": text}))
        ingest(tmp_path, *flags(store), "--format=opentsdb-annotations", "--input", path)
    ((_, qualifier, time_ms, found),) = store.cells()
    assert (qualifier, time_ms) == (b"\x01\x00\x05", (BASE_S + 5) * 1000)
    assert json.loads(found)["description"] == "second"


@pytest.mark.parametrize("packing", ["compacted", "append"])
def test_other_packings_are_rejected(store: Store, tmp_path: Path, packing: str) -> None:
    ran = timebeam("ingest", *flags(store, f"--packing={packing}", "--format=opentsdb-text", "--input=x"))
    assert ran.code == 2
    assert "has the time of its point, so it holds one point): choose points" in ran.err


def test_compact_rejects(store: Store) -> None:
    ran = timebeam("compact", *flags(store))
    assert ran.code == 2
    assert "a point written meanwhile" in ran.err
