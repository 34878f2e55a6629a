"""The image and the Terraform module of the server: the program takes their options."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.house.terraform import ROOT, TERRAFORM, parsed, terraform, variables
from timebeam.pipelines.commands import find_command

FOLDER = ROOT / "templates" / "serve"
DOCKERFILE = (FOLDER / "Dockerfile").read_text()
EXAMPLE = ROOT / "templates" / "terraform" / "examples" / "opentsdb" / "main.tf"


def instructions(text: str, word: str) -> list[str]:
    return re.findall(rf"^{word} (.*)$", text, re.MULTILINE)


def resources() -> dict[str, dict[str, Any]]:
    blocks = parsed(FOLDER / "main.tf")["resource"]
    return {kind: body for block in blocks for kind, named in block.items() for body in named.values()}


def test_the_image_has_the_package_and_the_server_s_extra() -> None:
    of_jobs = (ROOT / "templates" / "Dockerfile").read_text()
    packed = [line for line in instructions(of_jobs, "COPY") if not line.startswith(("--from", "templates/"))]
    assert instructions(DOCKERFILE, "COPY") == packed
    assert instructions(DOCKERFILE, "FROM") == instructions(of_jobs, "FROM")[-1:]
    (install,) = [line for line in instructions(DOCKERFILE, "RUN") if "pip install" in line]
    assert install.endswith("--constraint requirements-test.lock '.[serve]' && pip check")
    assert "serve" in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_the_image_runs_the_server_as_a_user_without_rights() -> None:
    lines = [line for line in DOCKERFILE.splitlines() if line and not line.startswith("#")]
    assert instructions(DOCKERFILE, "USER") == ["65534:65534"]
    assert lines.index("USER 65534:65534") > max(n for n, line in enumerate(lines) if line.startswith("RUN"))
    (entry_point,) = instructions(DOCKERFILE, "ENTRYPOINT")
    program, command, *options = json.loads(entry_point)
    assert (program, command) == ("timebeam", "serve")
    parsed_options = find_command("serve").parser().parse_args(options)
    assert [str(parsed_options.port)] == instructions(DOCKERFILE, "EXPOSE")
    assert parsed_options.bind == "0.0.0.0"


def test_cloud_build_makes_this_image() -> None:
    config = yaml.safe_load((FOLDER / "cloudbuild.yaml").read_text())
    (step,) = config["steps"]
    assert step["args"] == ["build", "--file=templates/serve/Dockerfile", "--tag=${_IMAGE}", "."]
    assert config["images"] == ["${_IMAGE}"]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.tf")), ids=lambda path: path.name)
def test_every_file_parses(path: Path) -> None:
    assert parsed(path)


def test_the_service_reads_one_instance_and_answers_named_callers() -> None:
    found = resources()
    assert re.findall(r'"(roles/[^"]+)"', (FOLDER / "main.tf").read_text()) == [
        "roles/bigtable.reader",
        "roles/storage.objectViewer",
        "roles/pubsub.publisher",
        "roles/run.invoker",
    ]
    assert set(found) == {
        "google_service_account",
        "google_bigtable_instance_iam_member",
        "google_storage_bucket_iam_member",
        "google_pubsub_topic_iam_member",
        "google_cloud_run_v2_service",
        "google_cloud_run_v2_service_iam_member",
    }
    (rejection,) = variables(FOLDER / "variables.tf")["invokers"]["validation"]
    assert "allUsers" in rejection["condition"]
    assert "allAuthenticatedUsers" in rejection["condition"]


def test_cloud_run_waits_longer_than_the_server_and_sends_no_more_than_it_takes() -> None:
    (template,) = resources()["google_cloud_run_v2_service"]["template"]
    assert template["timeout"] == "${var.max_seconds + 30}s"
    assert "var.cpu * (var.max_queries + var.max_waiting)" in template["max_instance_request_concurrency"]
    (container,) = template["containers"]
    (port,) = container["ports"]
    assert [str(port["container_port"])] == instructions(DOCKERFILE, "EXPOSE")
    probes = [container[probe][0]["http_get"][0]["path"] for probe in ("startup_probe", "liveness_probe")]
    assert probes == ["/readyz", "/healthz"]


def given_by_the_example() -> dict[str, Any]:
    return next(block["serve"] for block in parsed(EXAMPLE)["module"] if "serve" in block)


def test_the_example_gives_what_the_module_needs() -> None:
    declared = variables(FOLDER / "variables.tf")
    required = {name for name, body in declared.items() if "default" not in body}
    given = given_by_the_example().keys() - {"source", "__is_block__"}
    assert required <= given <= declared.keys()
    own = next(block["timebeam"] for block in parsed(EXAMPLE)["module"] if "timebeam" in block)
    assert given_by_the_example()["layout"] == own["layout"]


@pytest.mark.skipif(TERRAFORM is None, reason="needs the program terraform")
@pytest.mark.parametrize("rollup_config", [None, "gs://b/rollups.json"])
def test_the_program_takes_the_options_of_the_service(tmp_path: Path, rollup_config: str | None) -> None:
    text = (FOLDER / "main.tf").read_text()
    (local_values,) = re.findall(r"^locals \{\n.*?^\}\n", text, re.MULTILINE | re.DOTALL)
    (arguments,) = re.findall(r"args  = (.*)", text)
    (tmp_path / "main.tf").write_text(f'{local_values}\noutput "arguments" {{\n  value = {arguments}\n}}\n')
    (tmp_path / "variables.tf").write_text((FOLDER / "variables.tf").read_text())
    given = {"project": "p", "region": "r", "image": "i", "instance": "my-instance"}
    given |= {"layout": {"layout": "opentsdb", "salt_width": 1}, "options": {"max_points": 5}}
    values = given | {"rollup_config": rollup_config}
    (tmp_path / "given.tfvars.json").write_text(json.dumps(values))
    terraform(tmp_path, "init", "-input=false")
    terraform(tmp_path, "plan", "-input=false", "-var-file=given.tfvars.json", "-out=plan")
    shown = json.loads(terraform(tmp_path, "show", "-json", "plan"))
    passed = shown["planned_values"]["outputs"]["arguments"]["value"]
    options = find_command("serve").parser().parse_args(passed)
    assert (options.project, options.instance, options.layout) == ("p", "my-instance", "opentsdb")
    assert (options.salt_width, options.max_points, options.workers) == (1, 5, 2)
    assert options.rollup_config == rollup_config
    everyone = ["-var", 'invokers=["allUsers"]', "-var-file=given.tfvars.json"]
    assert "name callers" in terraform(tmp_path, "plan", "-input=false", *everyone, code=1)
