"""The Terraform module: it parses, and makes what the program makes and passes what the templates take."""

from __future__ import annotations

import datetime
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import timebeam
from tests.support.house.terraform import ROOT, TERRAFORM, parsed, terraform, variables
from timebeam.pipelines.deploy.infrastructure import OWNED, scheduler_body, shared_parameters
from timebeam.pipelines.deploy.templates import as_options, template_parameters
from timebeam.pipelines.options.catalogue import layout_parameters
from timebeam.pipelines.options.command_line import given_settings
from timebeam.pipelines.options.place import layout_named
from timebeam.pipelines.options.use_settings import settings_table
from timebeam.schema.core.rows import TableSpec
from timebeam.schema.rollup.config_json import parse_config
from timebeam.schema.stores import STORES
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.transforms.bigtable.create_tables import with_max_age, with_versions
from timebeam.transforms.flow import metrics
from timebeam.transforms.rollup.rollup_job import rollup_tables

MODULE = ROOT / "templates" / "terraform"
FILES = sorted(MODULE.rglob("*.tf"))
ROLLUPS = (MODULE / "examples" / "opentsdb" / "rollups.json").read_text()


def resources() -> dict[str, dict[str, Any]]:
    """Every resource by TYPE.NAME."""
    return {
        f"{kind}.{name}": body
        for path in MODULE.glob("*.tf")
        for block in parsed(path).get("resource", [])
        for kind, named in block.items()
        for name, body in named.items()
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(MODULE)))
def test_every_file_parses(path: Path) -> None:
    assert parsed(path)


def test_all_that_a_deployment_needs_is_there() -> None:
    kinds = {name.split(".")[0] for name in resources()}
    assert kinds >= {
        "google_bigtable_instance",
        "google_bigtable_table",
        "google_bigtable_gc_policy",
        "google_bigtable_app_profile",
        "google_pubsub_topic",
        "google_pubsub_subscription",
        "google_storage_bucket",
        "google_service_account",
        "google_dataflow_flex_template_job",
        "google_cloud_scheduler_job",
        "google_monitoring_alert_policy",
        "google_monitoring_dashboard",
    }


def test_app_profiles_route_to_one_cluster_with_transactions_and_batch_work_waits() -> None:
    found = resources()
    for name, priority in (("ingest", "PRIORITY_HIGH"), ("batch", "PRIORITY_LOW")):
        profile = found[f"google_bigtable_app_profile.{name}"]
        (routing,) = profile["single_cluster_routing"]
        assert routing["allow_transactional_writes"] is True
        assert profile["standard_isolation"][0]["priority"] == priority


def test_the_stream_is_drained_and_nothing_that_holds_data_is_deleted() -> None:
    found = resources()
    stream = found["google_dataflow_flex_template_job.ingest"]
    assert stream["on_delete"] == "drain"
    assert stream["skip_wait_on_job_termination"] is False
    assert found["google_bigtable_instance.this"]["deletion_protection"] is True
    assert found["google_bigtable_table.this"]["deletion_protection"] == "PROTECTED"
    assert found["google_bigtable_gc_policy.this"]["deletion_policy"] == "ABANDON"
    assert "dead_letter_policy" not in found["google_pubsub_subscription.points"]


def test_roles_are_few() -> None:
    """No owner, editor or admin of a service; what is for one thing is granted on that thing."""
    text = "".join(path.read_text() for path in MODULE.glob("*.tf"))
    roles = set(re.findall(r'"(roles/[^"]+)"', text))
    assert not [role for role in roles if re.search(r"owner|editor|\.admin$", role)]
    on_project = {
        role
        for name, body in resources().items()
        if name.startswith("google_project_iam_member.")
        for role in re.findall(r"roles/[a-zA-Z.]+", json.dumps(body))
    }
    assert on_project == {"roles/dataflow.worker", "roles/artifactregistry.reader"}
    (launching,) = (
        block["launching"] for block in parsed(MODULE / "iam.tf")["locals"] if "launching" in block
    )
    assert set(re.findall(r"roles/[a-zA-Z.]+", launching)) == {"roles/dataflow.developer", "roles/viewer"}


def test_the_stream_asks_for_the_mode_of_its_packing() -> None:
    job = resources()["google_dataflow_flex_template_job.ingest"]
    assert "local.streaming_mode" in str(job["additional_experiments"])
    (mode,) = (
        block["streaming_mode"] for block in parsed(MODULE / "jobs.tf")["locals"] if "streaming_mode" in block
    )
    compacted = 'coalesce(var.ingest.packing, module.settings.values.packing) == "compacted"'
    assert mode == f'streaming_mode_${{{compacted} ? "exactly_once" : "at_least_once"}}'


def attributes(body: dict[str, Any]) -> set[str]:
    """The names in the object type of a variable."""
    return set(
        re.findall(
            r"['\"]?(\w+)['\"]?\s*[:=]\s*['\"]?\$?\{?(?:optional|string|number|bool)", str(body["type"])
        )
    )


@pytest.mark.parametrize("job", ["ingest", "rollup", "delete", "archive"])
def test_variables_are_the_parameters_of_the_templates(job: str) -> None:
    found = variables(MODULE / "variables_jobs.tf")
    declared = {one["name"] for one in template_parameters(job)}
    own, shared = attributes(found[job]), attributes(found["layout"])
    of_declared = {"tables"} if job == "archive" else set()  # an archive is of layout opentsdb
    stored = {each.name for each in layout_parameters()[2:] if each.stored}
    assert stored < shared
    of_tables = shared - stored | {"settings"}
    assert own | of_tables | (set(OWNED) & declared) == declared | of_declared
    assert not own & of_tables
    assert of_tables == set(shared_parameters())


@pytest.mark.parametrize("job", ["ingest", "rollup", "delete", "archive"])
def test_what_the_module_passes_itself_is_what_it_owns(job: str) -> None:
    text = (MODULE / "jobs.tf").read_text()
    block = text.split(f"{job}_parameters = ")[1].split("\n  )\n")[0]
    block += text.split("settings_parameters = ")[1].split("\n  }\n")[0]
    given = set(re.findall(r"^      (\w+)\s+=", block, re.MULTILINE))
    assert given == set(OWNED) & {one["name"] for one in template_parameters(job)}


def test_the_scheduler_sends_the_fields_of_the_documented_body() -> None:
    text = (MODULE / "jobs.tf").read_text().split("launchParameter = {")[1]
    environment = set(re.findall(r"^          (\w+)\s+=", text, re.MULTILINE))
    documented = scheduler_body()["launchParameter"]
    assert set(re.findall(r"^        (\w+)\s+=", text, re.MULTILINE)) == set(documented)
    assert set(documented["environment"]) <= environment


def test_the_dashboard_shows_every_documented_metric() -> None:
    dashboard = json.loads((ROOT / "templates" / "dashboard.json").read_text())
    tiles = dashboard["mosaicLayout"]["tiles"]
    filters = [
        data["timeSeriesQuery"]["timeSeriesFilter"]["filter"]
        for tile in tiles
        for data in tile["widget"]["xyChart"]["dataSets"]
    ]
    shown = {name for one in filters for name in re.findall(r'metric_name="(\w+)"', one)}
    wanted = {*metrics.COUNTERS, *(f"{name}_MEAN" for name in metrics.DISTRIBUTIONS)}
    assert shown == wanted
    assert all('job_name="JOB_NAME"' in one for one in filters if "dataflow_job" in one)
    places = [(tile["xPos"], tile["yPos"]) for tile in tiles]
    assert len(set(places)) == len(places)


def test_the_alert_on_uids_looks_for_what_workers_say() -> None:
    said = (ROOT / "transforms" / "opentsdb" / "assign_uids.py").read_text()
    text = (MODULE / "alerts.tf").read_text()
    for words in re.findall(r'AND \\"([a-zA-Z ]+)\\"', text):
        assert words in said
    assert "UIDs of kind" in text


def test_every_alert_is_in_the_handbook() -> None:
    handbook = (ROOT / "docs" / "operate" / "runbook.md").read_text()
    titles = re.findall(r'^\s+title\s+= "(.*)"$', (MODULE / "alerts.tf").read_text(), re.MULTILINE)
    assert len(titles) == 10
    for title in titles:
        assert f"| {title} |" in handbook, title


def given_by_the_example() -> dict[str, Any]:
    """The arguments of the module in the example."""
    example = parsed(MODULE / "examples" / "opentsdb" / "main.tf")
    return example["module"][0]["timebeam"]  # type: ignore[no-any-return]


def passed(arguments: dict[str, Any], names: Sequence[str]) -> list[str]:
    """The example's parameters as the launcher passes them to the program."""
    made = {
        name: str(value).lower() if isinstance(value, bool) else value
        for one in names
        for name, value in arguments[one].items()
    }
    stored = {each.name for each in layout_parameters()[2:] if each.stored}
    settings = [f"{name}={value}" for name, value in made.items() if name in stored]
    return [
        *(f"--{name}={value}" for name, value in made.items() if name not in stored),
        *([f"--settings={';'.join(settings)}"] if settings else []),
    ]


def as_words(arguments: Sequence[str]) -> list[str]:
    """What the program of a template makes of them."""
    return [word for argument in arguments for word in as_options(argument)]


@pytest.mark.parametrize("job", ["ingest", "rollup"])
def test_the_program_takes_what_the_example_passes(
    bigtable: tuple[str, str], tmp_path: Path, job: str
) -> None:
    """With `--preflight`, so that it goes as far as a job that is not started can: wrong usage would be 2."""
    project, instance = bigtable
    arguments = passed(given_by_the_example(), ["layout", job])
    declared = {one["name"] for one in template_parameters(job)}
    assert {one[2:].partition("=")[0] for one in arguments} <= declared
    owned = {
        "input_subscription": "projects/my-project/subscriptions/points",
        "rollup_config": MODULE / "examples" / "opentsdb" / "rollups.json",
        "dead_letters": tmp_path / "dead",
        "instance": instance,
        "app_profile": "timebeam-ingest",
        "bigtable_writer": "direct",
    }
    arguments += [f"--{name}={owned[name]}" for name in OWNED if name in declared & owned.keys()]
    ran = timebeam(job, *as_words(arguments), f"--project={project}", "--preflight")
    assert ran.code == 1, ran.err
    assert "-> timebeam tables create --layout opentsdb --salt-width 1" in ran.out


def test_delete_takes_what_the_example_passes(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    """It has no `--preflight`: it runs, in empty tables."""
    project, instance = bigtable
    rollups = MODULE / "examples" / "opentsdb" / "rollups.json"
    arguments = [*passed(given_by_the_example(), ["layout", "delete"]), f"--rollup-config={rollups}"]
    place = (f"--project={project}", f"--instance={instance}", f"--table-prefix={prefix}")
    arguments = as_words(arguments)
    layout = [text for text in arguments if "keep_days" not in text]
    assert timebeam("tables", "create", *layout, *place).code == 0
    ran = timebeam("delete", *arguments, *place, "--unattended=true", f"--log={tmp_path / 'deleted'}")
    assert ran.code == 0, ran.err


def made_by_terraform(folder: Path, given: dict[str, Any]) -> dict[str, Any]:
    """The tables that the module makes of these variables."""
    shutil.copytree(MODULE / "tables", folder / "tables")
    place = folder / "tables"
    (place / "given.tfvars.json").write_text(json.dumps(given))
    terraform(place, "init", "-input=false")
    terraform(place, "validate")
    terraform(place, "plan", "-input=false", "-var-file=given.tfvars.json", "-out=plan")
    shown = json.loads(terraform(place, "show", "-json", "plan"))
    return shown["planned_values"]["outputs"]["tables"]["value"]  # type: ignore[no-any-return]


def as_rule(spec: TableSpec, family: str, days: float | None) -> dict[str, Any]:
    """The JSON of the rule that `timebeam tables` sets, out of the client's own rule."""
    rule = with_versions(None, spec.families[family])
    message = (rule if days is None else with_max_age(rule, spec.families[family], days)).to_pb()._pb
    if not message.HasField("union"):
        return {"rules": [{"max_version": message.max_num_versions}]}
    versions, age = message.union.rules
    hours = age.max_age.seconds // 3600
    assert datetime.timedelta(hours=hours) == datetime.timedelta(days=days or 0)
    return {"mode": "union", "rules": [{"max_version": versions.max_num_versions}, {"max_age": f"{hours}h"}]}


CASES = [
    ({"layout": "opentsdb"}, {}),
    ({"layout": "opentsdb", "salt_width": 1, "salt_buckets": 20, "table_prefix": "prod-"}, {"tsdb": 400}),
    ({"layout": "opentsdb", "salt_width": 1, "archive": True}, {}),
    ({"layout": "opentsdb", "rollup_config": ROLLUPS}, {"tsdb-rollup-1h": 3650}),
    ({"layout": "heroic"}, {"metrics": 90}),
    ({"layout": "heroic-readable"}, {}),
    ({"layout": "kairosdb", "retention": "7,90"}, {"data_points": 30}),
]


@pytest.mark.skipif(TERRAFORM is None, reason="needs the program terraform")
@pytest.mark.parametrize(("options", "days"), CASES, ids=lambda case: "-".join(map(str, case))[:40])
def test_tables_are_those_that_the_program_creates(
    tmp_path: Path, options: dict[str, Any], days: dict[str, float]
) -> None:
    options = dict(options)
    config = options.pop("rollup_config", None)
    given = {"max_age_days": days, **options}
    if "retention" in given:
        given["retention_days"] = [int(one) for one in given.pop("retention").split(",")]
    found = made_by_terraform(tmp_path, given | ({"rollup_config": config} if config else {}))

    defaults = {parameter.name: parameter.default for parameter in layout_parameters()}
    layout = layout_named(options["layout"], {**defaults, **options})
    prefix = options.get("table_prefix", "")
    specs = [*layout.tables()]
    if config:
        assert isinstance(layout, OpenTsdb)
        specs += rollup_tables(parse_config(config), layout)
    specs.append(settings_table(prefix))
    assert set(found) == {spec.name for spec in specs}
    for spec in specs:
        age = days.get(spec.name.removeprefix(prefix))
        rules = {family: json.loads(rule) for family, rule in found[spec.name]["families"].items()}
        assert rules == {family: as_rule(spec, family, age) for family in spec.families}
        width = getattr(getattr(layout, "options", None), "salt_width", 0)
        salted = isinstance(layout, OpenTsdb) and spec.holds_points and width
        splits = [text.encode() for text in found[spec.name]["split_keys"]]
        assert splits == ([bytes([bucket]) for bucket in range(1, 20)] if salted else [])


@pytest.mark.skipif(TERRAFORM is None, reason="needs the program terraform")
def test_an_age_on_names_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="must not expire"):
        made_by_terraform(tmp_path, {"layout": "opentsdb", "max_age_days": {"tsdb-uid": 7}})


@pytest.mark.skipif(TERRAFORM is None, reason="needs the program terraform")
def test_variables_are_checked_before_anything_is_made(tmp_path: Path) -> None:
    for name in ("variables.tf", "variables_jobs.tf"):
        shutil.copy(MODULE / name, tmp_path)
    given: dict[str, Any] = {
        **dict.fromkeys(("project", "region", "zone", "repository", "tag"), "abc"),
        "bucket": "gs://b/folder",
        "layout": {"layout": "opentsdb", "salt_width": 1},
        "ingest": {"format": "opentsdb-json", "auto_create_metrics": True, "flush_seconds": 12.5},
    }
    (tmp_path / "show.tf").write_text(
        'output "ingest" {\n'
        "  value = { for name, value in var.ingest : name => tostring(value) if value != null }\n}\n"
    )
    terraform(tmp_path, "init", "-input=false")

    def plan(changed: dict[str, Any], code: int) -> str:
        (tmp_path / "given.tfvars.json").write_text(json.dumps(given | changed))
        return terraform(tmp_path, "plan", "-input=false", "-var-file=given.tfvars.json", code=code)

    said = plan({}, 0)
    assert re.search(r'auto_create_metrics = "true"', said)
    assert re.search(r'flush_seconds +\= "12\.5"', said)
    assert "format must be one of" in plan({"ingest": {"format": "opentsdb-jsn"}}, 1)
    assert "salt_width must be" in plan({"layout": {"layout": "opentsdb", "salt_width": -1}}, 1)
    assert "without a slash" in plan({"bucket": "gs://b/"}, 1)


@pytest.mark.skipif(TERRAFORM is None, reason="needs the program terraform")
def test_files_are_formatted() -> None:
    assert terraform(MODULE, "fmt", "-check", "-recursive") == ""


def test_all_layouts_are_known_to_the_module() -> None:
    known = json.loads((MODULE / "tables" / "layouts.json").read_text())
    assert set(known) == {*STORES, "table"}


SETTINGS_FILE = """\
# A comment.
layout = "kairosdb"          # how points are stored
retention = '7,90'
  salt_width=1
packing = "points"
formats = ["influx"]
auto_create_metrics = true

[profiles.prod]
table_prefix = "prod-"
salt_width = 2

[profiles.other]
table_prefix = "other-"
"""


@pytest.mark.skipif(TERRAFORM is None, reason="needs the program terraform")
@pytest.mark.parametrize("profile", [None, "prod", "other"])
def test_terraform_reads_a_settings_file_as_the_program_does(tmp_path: Path, profile: str | None) -> None:
    """The same values of the same file; what is given goes before them."""
    place = tmp_path / "settings"
    shutil.copytree(MODULE / "settings", place)
    given = {"text": SETTINGS_FILE, "profile": profile, "given": {"salt_buckets": "7"}}
    (place / "given.tfvars.json").write_text(json.dumps(given))
    terraform(place, "init", "-input=false")
    terraform(place, "plan", "-input=false", "-var-file=given.tfvars.json", "-out=plan")
    shown = json.loads(terraform(place, "show", "-json", "plan"))
    found = shown["planned_values"]["outputs"]["values"]["value"]
    path = tmp_path / "timebeam.toml"
    path.write_text(SETTINGS_FILE)
    settings = given_settings(str(path), profile, {})
    for name in ("layout", "retention", "salt_width", "table_prefix", "packing", "archive"):
        default = {"table_prefix": ("",), "packing": ("points",), "archive": ("false",)}.get(name)
        assert (found[name],) == (settings[name].texts if name in settings else default), name
    assert found["salt_buckets"] == "7"


@pytest.mark.skipif(TERRAFORM is None, reason="needs the program terraform")
@pytest.mark.parametrize(
    ("text", "profile", "message"),
    [("salt_width = 1", None, "Give layout"), ('layout = "opentsdb"', "prod", "has no such profile")],
)
def test_settings_without_a_layout_or_the_profile_are_rejected(
    tmp_path: Path, text: str, profile: str | None, message: str
) -> None:
    place = tmp_path / "settings"
    shutil.copytree(MODULE / "settings", place)
    (place / "given.tfvars.json").write_text(json.dumps({"text": text, "profile": profile}))
    terraform(place, "init", "-input=false")
    assert message in terraform(place, "plan", "-input=false", "-var-file=given.tfvars.json", code=1)
