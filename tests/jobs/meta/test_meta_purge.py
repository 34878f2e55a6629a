"""`timebeam meta sync --purge`: lists what has no points any more, and removes it only when told to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.meta.meta_tables import edited, meta_name, ts_cells, with_meta
from tests.support.budget import long_after
from tests.support.commands import Ran, timebeam
from tests.support.stored import Store
from tests.support.workload import Workload, run


def without(store: Store, metric: str) -> set[bytes]:
    """Removes the data rows of a metric; the TSUIDs of its series."""
    gone = set()
    at = store.layout.options.salt_width
    for row in store.rows():
        if store.series(row.key).metric == metric:
            store.remove_row(store.layout.data_table, row.key)
            gone.add(row.key[at : at + 3] + row.key[at + 7 :])
    return gone


def purged(store: Store, *flags: str) -> Ran:
    ran = timebeam("meta", "sync", *store.flags, "--summary=json", "--purge", *flags)
    assert ran.code == 0, ran.err
    return ran


@pytest.mark.parametrize("options", long_after(1, [{"salt_width": 1, "salt_buckets": 3}, {}]))
def test_a_purge_lists_first_and_removes_on_demand(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, options: dict[str, Any]
) -> None:
    store = with_meta(bigtable, prefix, **options)
    work = Workload.write(tmp_path, 3, series=14, hours=2, a_row=3)
    assert run(work, store).code == 0
    purged(store)
    before = ts_cells(store)
    assert json.loads(purged(store).out)["orphans"] == 0
    gone = without(store, "sys.m1")
    changed = next(cell for cell in before if cell.key in gone and cell.qualifier == b"ts_meta")
    store.set_cell(meta_name(store), changed.key, "name", b"ts_meta", edited(changed.value, notes="mine"))
    store.set_cell(meta_name(store), b"no TSUID", "name", b"x", b"y")
    dry = purged(store, "--dry-run")
    listed = purged(store)
    for ran in (dry, listed):
        lines = [line for line in ran.err.splitlines() if line.startswith("would be removed: ")]
        assert {line.split()[3] for line in lines} == {tsuid.hex().upper() for tsuid in gone}
        assert all("sys.m1{" in line for line in lines)
        assert [line.endswith(", edited") for line in lines].count(True) == 1
        assert (json.loads(ran.out)["orphans"], json.loads(ran.out)["removed"]) == (len(gone), 0)
    assert len(ts_cells(store)) == len(before) + 1  # the row that is none
    done = json.loads(purged(store, "--yes").out)
    assert (done["orphans"], done["removed"]) == (len(gone), len(gone))
    kept = [cell for cell in ts_cells(store) if cell.key != b"no TSUID"]
    assert kept == [cell for cell in before if cell.key not in gone]
    assert json.loads(purged(store, "--yes").out)["orphans"] == 0


def test_no_summary_is_shown_before_the_work_is_done(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is killed while it removes rows must not look finished."""
    store = with_meta(bigtable, prefix)
    work = Workload.write(tmp_path, 3, series=14, hours=2, a_row=3)
    assert run(work, store).code == 0
    purged(store)
    gone = without(store, "sys.m1")
    seen: list[set[bytes]] = []

    def not_shown(*_: object) -> None:
        seen.append({cell.key for cell in ts_cells(store)} & gone)
        raise ValueError("the summary is not shown")

    monkeypatch.setattr("timebeam.pipelines.jobs.run.show", not_shown)
    with pytest.raises(ValueError, match="is not shown"):
        purged(store, "--yes")
    assert seen == [set()]
    assert gone
