"""`timebeam reindex`: what it makes of the keys is what the ingest had written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from google.cloud.bigtable.data import DeleteAllFromRow, RowMutationEntry, SetCell

from tests.support.any_store import AnyCell, AnyStore
from tests.support.budget import long_after
from tests.support.commands import ingest, timebeam
from tests.support.data_client import open_table
from timebeam.transforms.read.table_reader import scan_table

METRICS = Path(__file__).resolve().parents[3] / "examples" / "metrics"


def empty(store: AnyStore, table: str) -> None:
    """Removes every row of a table."""
    entries = [RowMutationEntry(row.key, [DeleteAllFromRow()]) for row in scan_table(store.target, table)]
    open_table(store.target, table).bulk_mutate_rows(entries)


@pytest.mark.parametrize(
    "variant",
    long_after(
        2, ["heroic", "kairosdb-milliseconds", "kairosdb-retention", "heroic-readable", "kairosdb-legacy"]
    ),
)
def test_the_index_comes_back_as_it_was(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, variant: str
) -> None:
    store = AnyStore.create(bigtable, prefix, variant)
    source = ("--format=opentsdb-json", "--input", METRICS / "cpu-memory.json.gz")
    ingest(tmp_path, *store.flags, *store.retention_class, *source)
    before: set[AnyCell] = store.cells()
    for spec in store.layout.tables():
        if spec.is_index:
            empty(store, spec.name)
    assert store.cells() != before
    dry = timebeam("reindex", *store.flags, "--dry-run")
    assert (dry.code, "index rows to write" in dry.out) == (0, True), dry.err
    assert store.cells() != before
    for _ in range(2):
        ran = timebeam("reindex", *store.flags)
        assert ran.code == 0, ran.err
        assert store.cells() == before
    assert timebeam("check", *store.flags).code == 0


def test_a_layout_without_index(bigtable: tuple[str, str], prefix: str) -> None:
    store = AnyStore.create(bigtable, prefix, "opentsdb")
    ran = timebeam("reindex", *store.flags)
    assert (ran.code, "has no index tables" in ran.err) == (2, True)


def test_keys_of_another_layout(
    bigtable: tuple[str, str], prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = AnyStore.create(bigtable, prefix, "kairosdb-legacy")
    open_table(store.target, prefix + "data_points").mutate_row(b"no key", SetCell("d", b"aaaa", b"x", 1000))
    ran = timebeam("reindex", *store.flags)
    assert ran.code == 1
    assert "skipped: row key" in caplog.text
    assert re.search(r"^data rows skipped +1$", ran.out, re.MULTILINE)
