"""The Terraform module of `rollup --follow`: it passes options that exist, and reads what rounds print."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.house.terraform import ROOT, parsed, variables
from timebeam.pipelines.commands import find_command
from timebeam.pipelines.rollup.follow import Figures

FOLDER = ROOT / "templates" / "follow"
TEXT = (FOLDER / "main.tf").read_text()


@pytest.fixture(scope="module")
def resources() -> dict[str, dict[str, Any]]:
    blocks = parsed(FOLDER / "main.tf")["resource"]
    return {kind: body for block in blocks for kind, named in block.items() for body in named.values()}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.tf")), ids=lambda path: path.name)
def test_every_file_parses(path: Path) -> None:
    assert parsed(path)


def test_the_job_runs_the_command_with_its_options(resources: dict[str, dict[str, Any]]) -> None:
    (outer,) = resources["google_cloud_run_v2_job"]["template"]
    (container,) = outer["template"][0]["containers"]
    assert container["command"] == ["timebeam"]
    assert 'concat(["rollup", "--follow"], [for name, value in local.options' in container["args"]
    names = re.findall(r"^      (\w+) +=", TEXT.partition("buckets = {")[0], re.MULTILINE)
    known = {parameter.name for parameter in find_command("rollup").parameters}
    assert {"rounds", "summary", "rollup_config"} <= {*names} - {"source", "version"} <= known


def test_the_alert_reads_what_a_round_prints(resources: dict[str, dict[str, Any]]) -> None:
    assert "EXTRACT(jsonPayload.lag_seconds)" in resources["google_logging_metric"]["value_extractor"]
    assert "lag_seconds" in Figures._fields


def test_all_variables_are_used() -> None:
    assert set(variables(FOLDER / "variables.tf")) == set(re.findall(r"\bvar\.(\w+)", TEXT))
