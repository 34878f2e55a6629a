"""`timebeam replay` of rejected rows: what their layout would write is stored, all else rejected again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.cloud.bigtable.data import DeleteAllFromRow, RowMutationEntry

from tests.support.any_store import VARIANTS, AnyStore
from tests.support.budget import long_after
from tests.support.commands import code_of, ingest, timebeam
from tests.support.data_client import open_table
from tests.support.inputs.letters import Json, letter, payload_of, read_letters, row_payload, write_letters
from tests.support.stored import Store
from timebeam.schema.core.points import Series
from timebeam.transforms.read.table_reader import scan_table

T = 1_767_225_600
METRICS = Path(__file__).resolve().parents[3] / "examples" / "metrics"
WRITERS = {
    "direct": [],
    "beam": ["--bigtable-writer=beam"],
    "append": ["--packing=append"],
}


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> Store:
    """Tables with one point, the number 7 at T, of m{host=a}."""
    store = Store.create(bigtable, prefix)
    (tmp_path / "first.txt").write_text(f"put m {T} 7 host=a\n")
    flags = ("--format=opentsdb-text", "--auto-create-metrics", "--input", tmp_path / "first.txt")
    ingest(tmp_path, *store.flags, *flags)
    return store


def replay(place: list[str], folder: Path, *flags: str) -> tuple[dict[str, Any], list[Json]]:
    """The summary of a replay of `in.jsonl`, and the letters that it left."""
    source = ("replay", folder / "in.jsonl", *place, "--format=opentsdb-text", "--summary=json")
    ran = timebeam(*source, f"--dead-letters={folder / 'again'}", *flags)
    summary = json.loads(ran.out)
    assert ran.code == code_of(summary), ran.err
    return summary, read_letters(folder, "again")


def data_row(store: Store, key: bytes | None = None, **cell: Any) -> str:
    """The payload of a rejected data row: that of `store`, an hour later, with the number 5 at its start."""
    (row,) = store.rows()
    later = row.key[:3] + (T + 3600).to_bytes(4, "big") + row.key[7:]
    fields = {"family": "t", "qualifier": b"\x00\x00", "timestamp_ms": 1000, "value": b"\x05", **cell}
    table = store.layout.data_table
    return row_payload(table, later if key is None else key, [tuple(fields.values())])  # type: ignore[list-item]


@pytest.mark.parametrize("writer", WRITERS)
def test_a_row_of_another_table_stays_a_letter(store: Store, tmp_path: Path, writer: str) -> None:
    """The counters of UIDs, and a table that no option names: neither written nor lost."""
    counters = row_payload(
        store.layout.options.uid_table, b"\0", [("id", b"metrics", 9_000_000_000_000, b"\0" * 8)]
    )
    nowhere = row_payload("nowhere", b"k", [("t", b"\0\0", 1000, b"\1")])
    payloads = [counters, nowhere]
    write_letters(
        tmp_path / "in.jsonl",
        [letter(payload, stage) for payload in payloads for stage in ("write", "validate")],
    )
    before = store.uid_cells()
    summary, again = replay(store.flags, tmp_path, *WRITERS[writer])
    assert store.uid_cells() == before
    assert summary["rejected"] == {"write-refused": 4}
    assert (summary["points_read"], summary["rows"]) == (0, 0)
    assert sorted((payload_of(one), one["stage"]) for one in again) == sorted(
        (payload.encode(), stage) for payload in payloads for stage in ("write", "validate")
    )
    assert all("table" in one["message"] for one in again)


@pytest.mark.parametrize("writer", WRITERS)
def test_points_of_rows_are_encoded_again_and_counted(store: Store, tmp_path: Path, writer: str) -> None:
    """With appends too, where the bytes of a compacted column behind others would be no column any more."""
    compacted = data_row(store, qualifier=b"\x00\x00\x00\x10", value=b"\x05\x06\x00")
    write_letters(tmp_path / "in.jsonl", [letter(compacted), letter(compacted)])
    summary, again = replay(store.flags, tmp_path, *WRITERS[writer])
    assert again == []
    assert (summary["points_read"], summary["points_stored"], summary["rows"]) == (4, 4, 1)
    assert store.points() == {
        Series.of("m", {"host": "a"}): {T * 1000: 7, (T + 3600) * 1000: 5, (T + 3601) * 1000: 6}
    }


def test_a_row_that_the_layout_would_not_write_stays_a_letter(store: Store, tmp_path: Path) -> None:
    (row,) = store.rows()
    metric, base, tags = row.key[:3], row.key[3:7], row.key[7:]
    payloads = [
        data_row(store, key=b""),
        data_row(store, key=row.key[:-1]),
        data_row(store, key=metric + (T + 1).to_bytes(4, "big") + tags),
        data_row(store, key=b"\0\0\x09" + base + tags),
        data_row(store, key=metric + base + tags + tags),
        data_row(store, family="x"),
        data_row(store, qualifier=b""),
        data_row(store, qualifier=b"\xf0\x00", value=b"\x01"),
        data_row(store, value=b""),
        data_row(store, qualifier=b"\x00\x0b", value=b"\x7f\xf0\0\0"),
        data_row(store, timestamp_ms=1 << 70),
        data_row(store, timestamp_ms=-5),
        data_row(store, timestamp_ms=True),
        data_row(store, timestamp_ms="1"),
        data_row(store, qualifier=b"\x01\x00\x00", value=b"{}"),
        row_payload(store.layout.data_table, row.key, []),
        '{"table": 5}',
        "put m 1 1 host=a",
        "[" * 100_000,
    ]
    write_letters(tmp_path / "in.jsonl", [letter(payload) for payload in payloads])
    before = store.cells()
    summary, again = replay(store.flags, tmp_path)
    assert store.cells() == before
    rejected = [json.loads(payload_of(one)) for one in again if payload_of(one).startswith(b'{"table": "')]
    assert sum(summary["rejected"].values()) == len(again) == len(payloads), rejected
    (negative,) = [one for one in again if "below 0" in one["message"]]  # the same row, as it was encoded
    assert json.loads(payload_of(negative)) == json.loads(data_row(store, timestamp_ms=-5))
    negative["payload"] = data_row(store, timestamp_ms=-5)
    assert sorted(map(payload_of, again)) == sorted(payload.encode() for payload in payloads)


def test_annotations_of_a_row_stay_cells(store: Store, tmp_path: Path) -> None:
    """As `timebeam copy` writes them: their letters are of stage `write` too."""
    (row,) = store.rows()
    tsuid = (row.key[:3] + row.key[7:]).hex().upper()
    note = json.dumps({"tsuid": tsuid, "startTime": T + 1, "description": "x"}, separators=(",", ":"))
    cells = [("t", b"\x01\x00\x01", 1000, note.encode()), ("t", b"\x06\x00\x01", 1000, b"\x00\x01")]
    points = [*cells, ("t", b"\x00\x20", 1000, b"\x09")]
    payloads = [row_payload(store.layout.data_table, row.key, points)]
    write_letters(tmp_path / "in.jsonl", [letter(payload) for payload in payloads])
    before = store.cells()
    summary, again = replay(store.flags, tmp_path)
    assert again == []
    assert summary["points_stored"] == 1
    assert store.cells() == before | {(row.key, *cell[1:]) for cell in points}


@pytest.mark.parametrize("variant", long_after(3, VARIANTS))
def test_every_row_of_every_layout_comes_back(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, variant: str
) -> None:
    """All rows of the tables rejected, those of the index tables too; then the tables are as before."""
    store = AnyStore.create(bigtable, prefix, variant)
    (tmp_path / "points.txt").write_text(
        "".join(
            f"put {metric} {T + 600 * n} {n}{'.5' if n % 2 else ''} host=h{n % 3} dc=x\n"
            for n in range(60)
            for metric in ("m", "n")
        )
    )
    source = ("--format=opentsdb-text", "--input", tmp_path / "points.txt")
    ingest(tmp_path, *store.flags, *store.auto_create, *source)
    before = store.cells()
    payloads = []
    for spec in store.layout.tables():
        if not (spec.holds_points or spec.is_index):
            continue
        rows = list(scan_table(store.target, spec.name))
        payloads += [row_payload(spec.name, row.key, row.cells) for row in rows]
        entries = [RowMutationEntry(row.key, [DeleteAllFromRow()]) for row in rows]
        open_table(store.target, spec.name).bulk_mutate_rows(entries)
    write_letters(tmp_path / "in.jsonl", [letter(payload) for payload in payloads])
    summary, again = replay(store.flags, tmp_path)
    assert again == []
    assert summary["points_read"] == summary["points_stored"] == 120
    assert store.cells() == before


@pytest.mark.parametrize("variant", ["heroic", "heroic-readable", "kairosdb-legacy"])
def test_rows_of_an_index_that_are_none_stay_letters(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, variant: str
) -> None:
    store = AnyStore.create(bigtable, prefix, variant)
    (tmp_path / "points.txt").write_text(f"put m {T} 1 host=a\n")
    ingest(tmp_path, *store.flags, "--format=opentsdb-text", "--input", tmp_path / "points.txt")
    before = store.cells()
    payloads = []
    for spec in store.layout.tables():
        for row in scan_table(store.target, spec.name) if spec.is_index else ():
            (family, qualifier, time_ms, value), *rest = row.cells
            payloads += [
                row_payload(spec.name, row.key, []),
                row_payload(spec.name, row.key + b"x\xff", row.cells),
                row_payload(spec.name, b"\0" + row.key, row.cells),
                row_payload(spec.name, row.key, [(family, qualifier, time_ms + 1, value), *rest]),
                row_payload(spec.name, row.key, [(family, qualifier, time_ms, value + b"0"), *rest]),
                row_payload(spec.name, row.key, [("y", qualifier, time_ms, value), *rest]),
            ]
    write_letters(tmp_path / "in.jsonl", [letter(payload) for payload in payloads])
    summary, again = replay(store.flags, tmp_path)
    assert sorted(map(payload_of, again)) == sorted(payload.encode() for payload in payloads)
    assert summary["rejected"] == {"write-refused": len(payloads)}
    assert store.cells() == before
