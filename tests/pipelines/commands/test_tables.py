"""`timebeam tables create`: what is missing is made, what is there stays, and it says which."""

from __future__ import annotations

import pytest
from google.cloud import bigtable as admin
from google.cloud.bigtable import column_family
from google.cloud.bigtable.table import Table

from tests.support.commands import timebeam
from tests.support.stored import Store
from timebeam.pipelines.local.emulator import HOST_VARIABLE


def flags_of(bigtable: tuple[str, str], prefix: str) -> list[str]:
    project, instance = bigtable
    return ["--layout=opentsdb", f"--project={project}", f"--instance={instance}", f"--table-prefix={prefix}"]


def table_of(bigtable: tuple[str, str], name: str) -> Table:
    project, instance = bigtable
    return admin.Client(project=project, admin=True).instance(instance).table(name)


def versions(bigtable: tuple[str, str], name: str) -> dict[str, object]:
    """What garbage collection keeps of each family of a table: a number of versions."""
    families = table_of(bigtable, name).list_column_families()
    return {
        family: rule.gc_rule.max_num_versions if rule.gc_rule else None for family, rule in families.items()
    }


SOUND = {"tsdb": {"t": 1}, "tsdb-uid": {"id": 1, "name": 1}}


def check_sound(bigtable: tuple[str, str], prefix: str) -> None:
    """Asserts that both tables are as OpenTSDB's are to be."""
    assert {name: versions(bigtable, prefix + name) for name in SOUND} == SOUND


def create(bigtable: tuple[str, str], prefix: str, *flags: str) -> list[str]:
    """What the command says of the layout's tables; see tests/pipelines/options/test_use_settings.py."""
    ran = timebeam("tables", "create", *flags_of(bigtable, prefix), *flags)
    assert (ran.code, ran.err) == (0, "")
    return [line for line in ran.out.splitlines() if "settings" not in line]


def test_create_and_create_again(bigtable: tuple[str, str], prefix: str) -> None:
    assert create(bigtable, prefix) == [
        f"created table {prefix}tsdb, families t (newest 1)",
        f"created table {prefix}tsdb-uid, families id (newest 1), name (newest 1)",
    ]
    check_sound(bigtable, prefix)
    assert create(bigtable, prefix) == [
        f"table {prefix}tsdb exists, families t (newest 1)",
        f"table {prefix}tsdb-uid exists, families id (newest 1), name (newest 1)",
    ]
    check_sound(bigtable, prefix)


def test_creating_again_keeps_what_is_stored(bigtable: tuple[str, str], prefix: str) -> None:
    store = Store.create(bigtable, prefix)
    store.set_cell(store.layout.data_table, b"row", "t", b"q", b"v")
    store.set_counter("metrics", 5)
    create(bigtable, prefix)
    assert store.cells() == {(b"row", b"q", 1000, b"v")}
    assert store.counters() == {"metrics": 5}


def test_a_dry_run_makes_nothing(bigtable: tuple[str, str], prefix: str) -> None:
    assert create(bigtable, prefix, "--dry-run") == [
        f"would create table {prefix}tsdb, families t (newest 1)",
        f"would create table {prefix}tsdb-uid, families id (newest 1), name (newest 1)",
    ]
    assert not table_of(bigtable, f"{prefix}tsdb").exists()
    table_of(bigtable, f"{prefix}tsdb").create()
    assert create(bigtable, prefix, "--dry-run")[0] == (
        f"would set family t of table {prefix}tsdb: newest 1 version(s)"
    )
    assert versions(bigtable, f"{prefix}tsdb") == {}


def test_a_missing_family_is_added(bigtable: tuple[str, str], prefix: str) -> None:
    rule = column_family.MaxVersionsGCRule(1)
    table_of(bigtable, f"{prefix}tsdb-uid").create(column_families={"id": rule})
    assert create(bigtable, prefix) == [
        f"created table {prefix}tsdb, families t (newest 1)",
        f"set family name of table {prefix}tsdb-uid: newest 1 version(s)",
    ]
    check_sound(bigtable, prefix)


@pytest.mark.parametrize("versions_kept", [None, 3])
def test_garbage_collection_is_repaired(
    bigtable: tuple[str, str], prefix: str, versions_kept: int | None
) -> None:
    """Without it every version of every cell would be kept for ever. Other families stay as they are."""
    Store.create(bigtable, prefix)
    table = table_of(bigtable, f"{prefix}tsdb")
    rule = column_family.MaxVersionsGCRule(versions_kept) if versions_kept else None
    table.column_family("t", gc_rule=rule).update()
    table.column_family("other", gc_rule=column_family.MaxVersionsGCRule(9)).create()
    assert versions(bigtable, f"{prefix}tsdb") == {"t": versions_kept, "other": 9}
    assert create(bigtable, prefix) == [
        f"set garbage collection of family t of table {prefix}tsdb: newest 1 version(s)",
        f"table {prefix}tsdb-uid exists, families id (newest 1), name (newest 1)",
    ]
    assert versions(bigtable, f"{prefix}tsdb") == {"t": 1, "other": 9}


def test_a_table_without_its_family_is_named(bigtable: tuple[str, str], prefix: str) -> None:
    table_of(bigtable, f"{prefix}tsdb").create()
    table_of(bigtable, f"{prefix}tsdb-uid").create(column_families={"id": None, "name": None})
    ran = timebeam("check", *flags_of(bigtable, prefix))
    assert (ran.code, len(ran.err.splitlines())) == (1, 1)
    assert f"family t of table {prefix}tsdb. Create what is missing with: timebeam tables create" in ran.err


@pytest.mark.parametrize("command", [["tables"], ["tables", "drop"], ["tables", "create", "--nonsense"]])
def test_wrong_usage(bigtable: tuple[str, str], command: list[str]) -> None:
    ran = timebeam(*command, *flags_of(bigtable, "none-"))
    assert (ran.code, ran.out) == (2, "")


def test_an_emulator_that_does_not_answer(bigtable: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOST_VARIABLE, "localhost:1")
    ran = timebeam("tables", "create", *flags_of(bigtable, "none-"))
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (1, "", 1)
    assert "start one with `timebeam emulator`" in ran.err
