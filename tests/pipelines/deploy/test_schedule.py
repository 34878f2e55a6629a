"""The schedules: the body that Cloud Scheduler sends, the DAG, and the units."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.cloud import dataflow_v1beta3
from google.protobuf import json_format

from tests.support.house.parsers import rejection
from timebeam.pipelines.deploy.infrastructure import files
from timebeam.pipelines.deploy.templates import template_parameters
from timebeam.schema.rollup.config_json import parse_config

ROOT = Path(__file__).resolve().parents[3]
SCHEDULE = ROOT / "templates" / "schedule"
BODY = json.loads((SCHEDULE / "rollup.json").read_text())


def accepted(parameters: dict[str, str]) -> None:
    """Asserts that a template takes these parameters: all that it needs, no others, each of its form."""
    declared = {one["name"]: one for one in template_parameters("rollup")}
    assert set(parameters) <= set(declared)
    assert {name for name, one in declared.items() if one["required"]} <= set(parameters)
    for name, value in parameters.items():
        assert isinstance(value, str)
        concrete = value.replace("{{ data_interval_start | ds }}", "2026-11-20").replace("MY-", "my-").lower()
        regex = declared[name]["regex"]
        assert regex is None or re.fullmatch(regex, concrete), (name, value)


def test_the_generated_files_are_those_of_the_program() -> None:
    for path, content in files().items():
        command = "python -m timebeam.pipelines.deploy.infrastructure write"
        assert (ROOT / path).read_text() == content, f"{path}: run `{command}`"


def test_the_body_is_a_launch_request() -> None:
    request = dataflow_v1beta3.LaunchFlexTemplateRequest.pb()()
    json_format.ParseDict(BODY, request)
    assert request.launch_parameter.job_name == "timebeam-rollup"
    assert request.launch_parameter.environment.max_workers == 10


def test_the_body_has_what_the_template_needs_and_the_same_every_night() -> None:
    parameters = BODY["launchParameter"]["parameters"]
    accepted(parameters)
    assert not {"day", "start", "end"} & set(parameters)
    assert rejection(["rollup", *(f"--{name}={value}" for name, value in parameters.items())]) is None


def kubernetes(kind: str) -> dict[str, Any]:
    """The object of a kind in cronjob.yaml."""
    objects = yaml.safe_load_all((SCHEDULE / "cronjob.yaml").read_text())
    (match,) = (manifest for manifest in objects if manifest["kind"] == kind)
    return dict(match)


def test_kubernetes_has_what_the_job_names() -> None:
    pod = kubernetes("CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert kubernetes("ServiceAccount")["metadata"]["name"] == pod["serviceAccountName"]
    config = kubernetes("ConfigMap")
    (volume,) = pod["volumes"]
    assert config["metadata"]["name"] == volume["configMap"]["name"]
    assert parse_config(config["data"]["rollups.json"]).intervals


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the DAG makes: Airflow's three names that it uses, which note what they are given."""
    made: list[dict[str, Any]] = []

    class Dag:
        def __init__(self, **given: Any) -> None:
            made.append(given)

        def __enter__(self) -> Dag:
            return self

        def __exit__(self, *_: object) -> None:
            return None

    def operator(**given: Any) -> None:
        made.append(given)

    dataflow = "airflow.providers.google.cloud.operators.dataflow"
    for module in (dataflow, "airflow.timetables.interval"):
        names = module.split(".")
        for length in range(1, len(names) + 1):
            monkeypatch.setitem(sys.modules, ".".join(names[:length]), types.ModuleType(names[length - 1]))
    sys.modules["airflow"].DAG = Dag  # type: ignore[attr-defined]
    sys.modules[dataflow].DataflowStartFlexTemplateOperator = operator  # type: ignore[attr-defined]
    timetables = sys.modules["airflow.timetables.interval"]
    timetables.CronDataIntervalTimetable = lambda *cron, **zone: (*cron, zone)  # type: ignore[attr-defined]
    return made


def test_the_dag_runs_each_day_by_its_own_job(operators: list[dict[str, Any]]) -> None:
    spec = importlib.util.spec_from_file_location("rollup_dag", SCHEDULE / "rollup_dag.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    dag, operator = operators
    assert dag["catchup"] is False
    assert dag["schedule"] == ("15 2 * * *", {"timezone": "UTC"})
    assert dag["start_date"].tzinfo is not None
    launch = operator["body"]["launchParameter"]
    assert launch["parameters"]["day"] == "{{ data_interval_start | ds }}"
    assert launch["parameters"]["lookback_days"] == "2"
    assert "delay_hours" not in launch["parameters"]
    assert launch["jobName"] == "timebeam-rollup-{{ data_interval_start | ds_nodash }}"
    assert operator["append_job_name"] is False
    accepted(launch["parameters"])
    json_format.ParseDict(operator["body"], dataflow_v1beta3.LaunchFlexTemplateRequest.pb()())


def test_no_second_one_runs_beside_the_first() -> None:
    job = kubernetes("CronJob")
    assert job["spec"]["concurrencyPolicy"] == "Forbid"
    assert job["spec"]["timeZone"] == "Etc/UTC"
    nights = [line for line in (SCHEDULE / "timebeam.cron").read_text().splitlines() if "$TIMEBEAM" in line]
    assert nights
    assert all("flock --nonblock" in line for line in nights)
    service = (SCHEDULE / "timebeam-rollup.service").read_text()
    assert "Type=oneshot" in service


def test_all_forms_start_at_the_same_time() -> None:
    crontab = (SCHEDULE / "timebeam.cron").read_text()
    assert "CRON_TZ=" not in crontab  # Debian's cron does not know it
    assert "15 2 * * *  timebeam  flock" in crontab
    assert "OnCalendar=*-*-* 02:15:00 UTC" in (SCHEDULE / "timebeam-rollup.timer").read_text()
    assert '"15 2 * * *"' in (SCHEDULE / "rollup_dag.py").read_text()
    assert kubernetes("CronJob")["spec"]["schedule"] == "15 2 * * *"
    variables = (ROOT / "templates" / "terraform" / "variables.tf").read_text()
    assert '"15 2 * * *"' in variables
