"""`--preflight`: what is missing is named with what mends it, nothing is touched, exit code 0 or 1."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest
from google.cloud import bigtable as admin

from tests.support.commands import Ran, timebeam
from tests.support.pubsub_server import SUBSCRIPTION, PubSubServer
from tests.support.servers.admin_server import AdminServer
from timebeam.pipelines.jobs.preflight import TABLE_PERMISSIONS, BigtableChecks, CheckStatus
from timebeam.transforms.bigtable.target import EMULATOR_VARIABLE, Target
from timebeam.transforms.read.table_reader import scan_table

LINE = '{"metric": "m", "timestamp": 1356998400, "value": 1, "tags": {"a": "b"}}\n'
ROLLUPS = {
    "aggregationIds": {"sum": 0, "count": 1},
    "intervals": [
        {
            "table": "tsdb",
            "preAggregationTable": "tsdb-preagg",
            "interval": "1m",
            "rowSpan": "1h",
            "defaultInterval": True,
        },
        {"table": "tsdb-1h", "preAggregationTable": "tsdb-preagg-1h", "interval": "1h", "rowSpan": "1n"},
    ],
}


@pytest.fixture
def flags(bigtable: tuple[str, str], prefix: str) -> list[str]:
    project, instance = bigtable
    return ["--layout=opentsdb", f"--project={project}", f"--instance={instance}", f"--table-prefix={prefix}"]


@pytest.fixture
def points(tmp_path: Path) -> str:
    path = tmp_path / "points.json"
    path.write_text(LINE)
    return str(path)


def ingest(*arguments: str, folder: Path) -> Ran:
    letters = f"--dead-letters={folder / 'dead'}"
    return timebeam("ingest", "--format=opentsdb-json", letters, "--preflight", *arguments)


def statuses(ran: Ran) -> dict[str, str]:
    """By the words of a check, its status."""
    lines = [line for line in ran.out.splitlines()[:-1] if not line.startswith(" ")]
    return {line[11:]: line[:9].strip() for line in lines}


def mends(ran: Ran) -> list[str]:
    return [line.partition("-> ")[2] for line in ran.out.splitlines() if "-> " in line]


def test_missing_tables_are_named_with_a_command_that_makes_them(
    flags: list[str], points: str, tmp_path: Path, bigtable: tuple[str, str], prefix: str
) -> None:
    first = ingest(*flags, f"--input={points}", "--auto-create-metrics", folder=tmp_path)
    assert first.code == 1
    assert first.err == ""
    found = statuses(first)
    assert found[f"table {prefix}tsdb does not exist"] == "missing"
    assert found[f"table {prefix}tsdb-uid does not exist"] == "missing"
    assert found[f"input {points}: 1 file"] == "ok"

    project, instance = bigtable
    tables = admin.Client(project=project, admin=True).instance(instance).list_tables()
    assert not [table for table in tables if table.table_id.startswith(prefix)]
    assert [path.name for path in tmp_path.iterdir()] == ["points.json"]

    (mend,) = mends(first)
    words = mend.split()
    assert words[:3] == ["timebeam", "tables", "create"]
    assert timebeam(*words[1:], *flags[1:3]).code == 0
    second = ingest(*flags, f"--input={points}", "--auto-create-metrics", folder=tmp_path)
    assert second.code == 0, second.out
    assert statuses(second)[f"table {prefix}tsdb, family t: newest 1"] == "ok"
    assert "missing" not in statuses(second).values()
    assert not list(scan_table(Target(project, instance), f"{prefix}tsdb-uid"))


def test_what_an_emulator_cannot_be_asked_is_said_to_be_unchecked(
    flags: list[str], points: str, tmp_path: Path, prefix: str
) -> None:
    assert timebeam("tables", "create", *flags).code == 0
    found = statuses(ingest(*flags, f"--input={points}", folder=tmp_path))
    assert found["app profile default: an emulator does not answer this"] == "unchecked"
    assert found[f"permissions on table {prefix}tsdb: an emulator does not answer this"] == "unchecked"


def test_garbage_collection_that_would_lose_or_keep_too_much(
    flags: list[str], points: str, tmp_path: Path, prefix: str, bigtable: tuple[str, str]
) -> None:
    assert timebeam("tables", "create", *flags).code == 0
    project, instance = bigtable
    client = admin.Client(project=project, admin=True).instance(instance)
    client.table(f"{prefix}tsdb").column_family("t", admin.column_family.MaxVersionsGCRule(3)).update()
    union = admin.column_family.GCRuleUnion(
        [
            admin.column_family.MaxVersionsGCRule(1),
            admin.column_family.MaxAgeGCRule(datetime.timedelta(days=7)),
        ]
    )
    client.table(f"{prefix}tsdb-uid").column_family("name", union).update()
    ran = ingest(*flags, f"--input={points}", folder=tmp_path)
    assert ran.code == 1
    found = statuses(ran)
    assert found[f"table {prefix}tsdb, family t: newest 3; it must be: newest 1"] == "missing"
    (aged,) = (text for text in found if "an age deletes names" in text)
    assert found[aged] == "warning"
    assert f"cbt setgcpolicy {prefix}tsdb-uid name maxversions=1" in mends(ran)


def test_uids_that_are_given_are_counted(flags: list[str], points: str, tmp_path: Path) -> None:
    assert timebeam("tables", "create", *flags).code == 0
    before = ingest(*flags, f"--input={points}", folder=tmp_path)
    assert "--auto-create-metrics" in mends(before)
    command = ["ingest", *flags, "--format=opentsdb-json", f"--input={points}", "--auto-create-metrics"]
    assert timebeam(*command, f"--dead-letters={tmp_path / 'd'}").code == 0
    after = ingest(*flags, f"--input={points}", folder=tmp_path)
    assert statuses(after)["UIDs of kind metrics: 1 of 16,777,215 are assigned"] == "ok"
    assert not mends(after)


def test_inputs_and_dead_letters(flags: list[str], tmp_path: Path) -> None:
    assert timebeam("tables", "create", *flags).code == 0
    ran = ingest(*flags, f"--input={tmp_path / 'none*.json'}", folder=tmp_path)
    assert ran.code == 1
    assert any(text.startswith("input: no file matches") for text in statuses(ran))
    (tmp_path / "file").write_text("")
    ran = ingest(*flags, f"--input={tmp_path / 'file'}", folder=tmp_path / "file")
    assert any("no folder to write to" in text or "cannot write there" in text for text in statuses(ran))


def test_a_subscription_and_a_topic(flags: list[str], tmp_path: Path) -> None:
    assert timebeam("tables", "create", *flags).code == 0
    with PubSubServer([]).running() as server:
        ran = ingest(*flags, "--auto-create-metrics", f"--input-subscription={SUBSCRIPTION}", folder=tmp_path)
        assert ran.code == 0, ran.out
        assert statuses(ran)[f"subscription {SUBSCRIPTION}, of topic projects/local/topics/points"] == "ok"
        assert not server.acknowledged
        none = "projects/local/subscriptions/none"
        ran = ingest(*flags, "--auto-create-metrics", f"--input-subscription={none}", folder=tmp_path)
        assert ran.code == 1
        assert any(text.startswith("gcloud pubsub subscriptions create none") for text in mends(ran))
        assert none not in server.subscriptions
    ran = ingest(*flags, "--input-subscription=points", folder=tmp_path)
    assert ran.code == 2
    assert "is not projects/PROJECT/subscriptions/NAME" in ran.err


def test_dataflow_is_told_what_it_lacks(flags: list[str], points: str, tmp_path: Path) -> None:
    assert timebeam("tables", "create", *flags).code == 0
    ran = ingest(*flags, f"--input={points}", "--runner=DataflowRunner", folder=tmp_path)
    assert ran.code == 1
    assert {"--region europe-west1", "--temp_location gs://BUCKET/tmp", "--sdk_container_image IMAGE"} <= set(
        mends(ran)
    )
    assert f"Dataflow: workers cannot reach {points}" in statuses(ran)


def test_a_rollup_looks_for_its_own_tables_too(flags: list[str], tmp_path: Path, prefix: str) -> None:
    config = tmp_path / "rollups.json"
    config.write_text(json.dumps(ROLLUPS))
    command = [
        "rollup",
        *flags,
        f"--rollup-config={config}",
        f"--dead-letters={tmp_path / 'd'}",
        "--preflight",
    ]
    assert timebeam("tables", "create", *flags).code == 0
    ran = timebeam(*command)
    assert ran.code == 1
    assert statuses(ran)[f"table {prefix}tsdb-1h does not exist"] == "missing"
    (mend,) = mends(ran)
    assert timebeam(*mend.split()[1:], *flags[1:3]).code == 0
    ran = timebeam(*command)
    assert ran.code == 0, ran.out
    assert [path.name for path in tmp_path.iterdir()] == ["rollups.json"]


def test_declared_tables(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    project, instance = bigtable
    given = ["--layout=table", "--tables=examples/tables/battery_promoted.toml", f"--table-prefix={prefix}"]
    given += [f"--project={project}", f"--instance={instance}"]
    (tmp_path / "a.jsonl").write_text("{}")
    command = ["ingest", *given, "--format=records", f"--input={tmp_path / 'a.jsonl'}", "--preflight"]
    assert statuses(timebeam(*command))[f"table {prefix}BATTERY does not exist"] == "missing"
    assert timebeam("tables", "create", *given).code == 0
    assert timebeam(*command).code == 0


def test_reads_of_several_clusters_may_be_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rollups, compactions and copies read what others wrote, also in layouts without UIDs."""
    with AdminServer({}, {"p": False, "single": None}, None).running() as server:
        monkeypatch.setenv(EMULATOR_VARIABLE, server.host)
        checks = [
            BigtableChecks(Target("p", "i", name)).profile(transactions=False) for name in ("p", "single")
        ]
    assert [check.status for check in checks] == [CheckStatus.WARNING, CheckStatus.OK]
    assert "may miss the newest points" in checks[0].text
    assert "--route-to=CLUSTER" in checks[0].fix


FAMILIES = {"tsdb": {"t": 1}, "tsdb-uid": {"id": 1, "name": 1}}


@pytest.mark.parametrize(
    ("profiles", "granted", "code", "said"),
    [
        ({"p": True}, TABLE_PERMISSIONS, 0, "ok         app profile p"),
        ({"p": True}, TABLE_PERMISSIONS, 0, "ok         permissions on table tsdb"),
        ({"p": None}, TABLE_PERMISSIONS, 1, "has no single-row transactions"),
        ({"p": False}, TABLE_PERMISSIONS, 1, "routes to several clusters"),
        ({}, TABLE_PERMISSIONS, 1, "app profile p does not exist"),
        ({"p": True}, TABLE_PERMISSIONS[:1], 1, "no permission bigtable.tables.mutateRows"),
        ({"p": True}, None, 0, "unchecked  permissions on table tsdb: no answer: not even to ask"),
    ],
)
def test_app_profiles_and_permissions(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    points: str,
    profiles: dict[str, bool | None],
    granted: tuple[str, ...] | None,
    code: int,
    said: str,
) -> None:
    """Against the administration's protocol, since no emulator has them."""
    with AdminServer(FAMILIES, profiles, granted).running() as server:
        monkeypatch.setenv(EMULATOR_VARIABLE, server.host)
        flags = ["--layout=opentsdb", "--project=p", "--instance=i", "--app-profile=p"]
        ran = ingest(
            *flags,
            f"--input={points}",
            "--bigtable-writer=direct",
            "--auto-create-metrics",
            folder=tmp_path,
        )
    assert ran.code == code, ran.out + ran.err
    assert said in ran.out
    assert set(server.calls) <= {"GetTable", "GetAppProfile", "TestIamPermissions"}


def test_an_emulator_that_is_not_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, points: str, tmp_path: Path
) -> None:
    monkeypatch.setenv(EMULATOR_VARIABLE, "localhost:9")
    ran = ingest("--layout=opentsdb", f"--input={points}", folder=tmp_path)
    assert ran.code == 1
    assert "no Bigtable emulator answers" in ran.err
    assert len(ran.err.splitlines()) == 1
