"""`timebeam tables retention`: which cells garbage collection keeps, shown and set; `create` leaves it so."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from google.cloud import bigtable as admin
from google.cloud.bigtable.column_family import (
    GarbageCollectionRule,
    GCRuleIntersection,
    GCRuleUnion,
    MaxAgeGCRule,
    MaxVersionsGCRule,
)
from google.cloud.bigtable.table import Table

from tests.support.commands import Ran, timebeam
from timebeam.transforms.bigtable.create_tables import rule_text, with_max_age, with_versions

DAY = datetime.timedelta(days=1)
NEWEST, THREE = MaxVersionsGCRule(1), MaxVersionsGCRule(3)
WEEK, MONTH = MaxAgeGCRule(7 * DAY), MaxAgeGCRule(30 * DAY)
BOTH = GCRuleUnion([NEWEST, WEEK])


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (None, NEWEST),
        (THREE, NEWEST),
        (NEWEST, NEWEST),
        (WEEK, BOTH),
        (BOTH, BOTH),
        (GCRuleUnion([WEEK, NEWEST]), GCRuleUnion([WEEK, NEWEST])),
        (GCRuleUnion([THREE, WEEK]), BOTH),
        (GCRuleUnion([NEWEST, GCRuleIntersection([THREE, WEEK])]),) * 2,
        (GCRuleIntersection([THREE, WEEK]), GCRuleUnion([NEWEST, GCRuleIntersection([THREE, WEEK])])),
    ],
)
def test_versions_are_set_and_an_age_stays(
    found: GarbageCollectionRule | None, expected: GarbageCollectionRule
) -> None:
    assert with_versions(found, 1) == expected
    assert with_versions(expected, 1) == expected


@pytest.mark.parametrize(
    ("found", "days", "expected"),
    [
        (None, 7, BOTH),
        (NEWEST, 7, BOTH),
        (WEEK, 30, GCRuleUnion([NEWEST, MONTH])),
        (THREE, 0.5, GCRuleUnion([THREE, MaxAgeGCRule(DAY / 2)])),
        (GCRuleUnion([MONTH, WEEK, THREE]), 7, GCRuleUnion([THREE, WEEK])),
        (BOTH, 0, NEWEST),
        (None, 0, NEWEST),
    ],
)
def test_an_age_is_set_and_the_versions_stay(
    found: GarbageCollectionRule | None, days: float, expected: GarbageCollectionRule
) -> None:
    assert with_max_age(found, 1, days) == expected


def test_rules_in_words() -> None:
    assert rule_text(None) == "every version, forever"
    assert rule_text(GCRuleUnion([NEWEST, MaxAgeGCRule(DAY * 1.5)])) == "newest 1, up to 1.5 days old"
    assert rule_text(GCRuleIntersection([THREE, WEEK])) == "(newest 3 or up to 7 days old)"


def table_of(bigtable: tuple[str, str], name: str) -> Table:
    project, instance = bigtable
    return admin.Client(project=project, admin=True).instance(instance).table(name)


def rules(bigtable: tuple[str, str], name: str) -> dict[str, GarbageCollectionRule | None]:
    return {key: one.gc_rule for key, one in table_of(bigtable, name).list_column_families().items()}


def tables(bigtable: tuple[str, str], prefix: str, *arguments: str | Path, layout: str = "opentsdb") -> Ran:
    place = [f"--project={bigtable[0]}", f"--instance={bigtable[1]}", f"--table-prefix={prefix}"]
    return timebeam("tables", *arguments, f"--layout={layout}", *place)


def test_an_age_is_shown_and_set_and_create_leaves_it(bigtable: tuple[str, str], prefix: str) -> None:
    assert tables(bigtable, prefix, "retention").out.splitlines()[0] == f"table {prefix}tsdb does not exist"
    tables(bigtable, prefix, "create")
    shown = tables(bigtable, prefix, "retention").out.splitlines()
    assert shown[:3] == [
        f"table {prefix}tsdb, family t: newest 1",
        f"table {prefix}tsdb-uid, family id: newest 1",
        f"table {prefix}tsdb-uid, family name: newest 1",
    ]
    assert "counts from the arrival of the data" in shown[3]
    assert shown[4].startswith(f"table {prefix}tsdb-uid cannot have a maximum age")
    change = f"table {prefix}tsdb, family t: newest 1, up to 30 days old"
    planned = tables(bigtable, prefix, "retention", "--max-age-days=30", "--dry-run")
    assert planned.out.splitlines() == [f"would set {change} (was newest 1)"]
    assert rules(bigtable, f"{prefix}tsdb") == {"t": NEWEST}
    done = tables(bigtable, prefix, "retention", "--max-age-days=30")
    assert done.out.splitlines() == [f"set {change} (was newest 1)"]
    assert "warning" in done.err
    assert "not the time of the points" in done.err
    expected = {"t": GCRuleUnion([NEWEST, MONTH])}
    assert rules(bigtable, f"{prefix}tsdb") == expected
    assert rules(bigtable, f"{prefix}tsdb-uid") == {"id": NEWEST, "name": NEWEST}
    again = tables(bigtable, prefix, "retention", "--max-age-days=30")
    assert again.out.splitlines() == [f"{change}, unchanged"]
    created = tables(bigtable, prefix, "create").out.splitlines()
    assert created[0] == f"table {prefix}tsdb exists, families t (newest 1, up to 30 days old)"
    assert rules(bigtable, f"{prefix}tsdb") == expected
    assert tables(bigtable, prefix, "retention", "--max-age-days=0").err == ""
    assert rules(bigtable, f"{prefix}tsdb") == {"t": NEWEST}


def test_create_repairs_the_versions_beside_an_age(bigtable: tuple[str, str], prefix: str) -> None:
    tables(bigtable, prefix, "create")
    table_of(bigtable, f"{prefix}tsdb").column_family("t", gc_rule=GCRuleUnion([THREE, WEEK])).update()
    tables(bigtable, prefix, "create")
    assert rules(bigtable, f"{prefix}tsdb") == {"t": BOTH}


def test_a_family_of_its_own(bigtable: tuple[str, str], prefix: str) -> None:
    flags = ("--set=retention=7,90",)
    tables(bigtable, prefix, "create", *flags, layout="kairosdb")
    choice = (*flags, "--family=d7", "--max-age-days=7")
    assert tables(bigtable, prefix, "retention", *choice, layout="kairosdb").code == 0
    assert rules(bigtable, f"{prefix}data_points") == {"d": NEWEST, "d7": BOTH, "d90": NEWEST}


@pytest.mark.parametrize(
    ("layout", "flags", "text"),
    [
        ("opentsdb", ["--table=PREFIXtsdb-uid"], "tsdb-uid cannot have a maximum age"),
        ("opentsdb", ["--table=other"], "no such table or family; choose from: PREFIXtsdb, families t; "),
        ("opentsdb", ["--family=name"], "tsdb-uid cannot have a maximum age"),
        ("heroic", ["--table=PREFIXseries"], "series cannot have a maximum age"),
        ("kairosdb", ["--table=PREFIXrow_keys"], "row_keys cannot have a maximum age"),
    ],
)
def test_tables_that_must_not_age(
    bigtable: tuple[str, str], prefix: str, layout: str, flags: list[str], text: str
) -> None:
    tables(bigtable, prefix, "create", layout=layout)
    flags = [flag.replace("PREFIX", prefix) for flag in flags]
    ran = tables(bigtable, prefix, "retention", "--max-age-days=1", *flags, layout=layout)
    assert (ran.code, ran.out, text.replace("PREFIX", prefix) in ran.err) == (2, "", True), ran.err


def test_a_table_that_is_missing(bigtable: tuple[str, str], prefix: str) -> None:
    ran = tables(bigtable, prefix, "retention", "--max-age-days=1")
    assert (ran.code, f"table {prefix}tsdb. Create" in ran.err) == (1, True)
    assert tables(bigtable, prefix, "retention", "--max-age-days=-1").code == 2
