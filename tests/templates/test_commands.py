"""`templates/build` and `templates/run`: the calls that they print are all that they would make."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from google.cloud import dataflow_v1beta3
from google.protobuf import json_format

from tests.support.servers.dataflow import ROOT
from timebeam.pipelines.deploy.templates import JOBS

BUILD = [
    *("--repository=europe-west1-docker.pkg.dev/my-project/timebeam", "--tag=0.1.0"),
    "--bucket=gs://my-bucket/timebeam/",
]
RUN = ["--bucket=gs://my-bucket", "--region=europe-west1"]
ROLLUP = {
    "layout": "kairosdb",
    "instance": "my-instance",
    "rollup_config": "gs://my-bucket/rollups.json",
    "dead_letters": "gs://my-bucket/dead/rollup",
}
INGEST = {
    "layout": "opentsdb",
    "format": "influx",
    "instance": "my-instance",
    "input_subscription": "projects/my-project/subscriptions/points",
    "dead_letters": "projects/my-project/topics/dead",
}
FLEX = list(JOBS)


def command(name: str, *arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs one of the two, with no program on the PATH but those of `folder` and the system's own."""
    path = "/usr/bin:/bin" if folder is None else f"{folder}:/usr/bin:/bin"
    return subprocess.run(
        [str(ROOT / "templates" / name), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PATH": path, "PYTHON": sys.executable},
    )


def given(parameters: dict[str, str]) -> list[str]:
    """Parameters as options, in two words each."""
    return [word for name, value in parameters.items() for word in (f"--{name}", value)]


def lines(name: str, *arguments: str) -> list[list[str]]:
    """The words of each printed call."""
    ran = command(name, *arguments, "--print_only")
    assert ran.returncode == 0, ran.stderr
    assert not ran.stderr
    return [shlex.split(line) for line in ran.stdout.splitlines()]


def test_build_prints_all_its_calls() -> None:
    submit, *copies = lines("build", *BUILD)
    assert submit[:4] == ["gcloud", "builds", "submit", str(ROOT)]
    assert f"--config={ROOT / 'templates' / 'cloudbuild.yaml'}" in submit
    (substitutions,) = [word for word in submit if word.startswith("--substitutions=")]
    assert substitutions.endswith(f",_JOBS={' '.join(sorted(FLEX))}")
    (newer, *_) = lines("build", *BUILD, "--launcher_tag=20990101-rc00")
    assert f"{substitutions},_LAUNCHER_TAG=20990101-rc00" in newer
    assert len(copies) == len(FLEX)
    for words, job in zip(copies, sorted(FLEX), strict=True):
        assert words[-5:] == [
            *("gcloud", "storage", "cp", "-"),
            f"gs://my-bucket/timebeam/templates/{job}.json",
        ]


def test_what_is_put_into_the_bucket_names_the_image(tmp_path: Path) -> None:
    # In place of gcloud a program that keeps what it is given: the lines are run as they are printed.
    gcloud = tmp_path / "gcloud"
    gcloud.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n[ "$4" = "" ] || [ "$3" != - ] || cat > {tmp_path}/spec\n'
    )
    gcloud.chmod(0o755)
    ran = command("build", "rollup", *BUILD, folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    builds, copy = (tmp_path / "calls").read_text().splitlines()
    assert builds.startswith("builds submit ")
    assert builds.endswith("_JOBS=rollup")
    assert copy == "storage cp - gs://my-bucket/timebeam/templates/rollup.json"
    spec = json.loads((tmp_path / "spec").read_text())
    assert spec["metadata"] == json.loads((ROOT / "templates" / "rollup" / "metadata.json").read_text())
    parsed = dataflow_v1beta3.ContainerSpec.pb(dataflow_v1beta3.ContainerSpec())
    json_format.ParseDict(spec, parsed)
    assert parsed.image == "europe-west1-docker.pkg.dev/my-project/timebeam/timebeam-rollup:0.1.0"
    assert parsed.sdk_info.language == dataflow_v1beta3.SDKInfo.Language.PYTHON


def test_the_first_call_that_fails_ends_it(tmp_path: Path) -> None:
    gcloud = tmp_path / "gcloud"
    gcloud.write_text(f"#!/bin/sh\necho $1 >> {tmp_path}/calls\nexit 3\n")
    gcloud.chmod(0o755)
    assert command("build", *BUILD, folder=tmp_path).returncode == 3
    assert (tmp_path / "calls").read_text() == "builds\n"


def test_run_prints_its_call() -> None:
    (words,) = lines("run", "rollup", *RUN, *given(ROLLUP))
    assert words[:5] == ["gcloud", "dataflow", "flex-template", "run", "timebeam-rollup"]
    assert "--template-file-gcs-location=gs://my-bucket/templates/rollup.json" in words
    assert {"--staging-location=gs://my-bucket/staging", "--temp-location=gs://my-bucket/temp"} < set(words)
    (parameters,) = [word for word in words if word.startswith("--parameters=")]
    assert dict(pair.split("=", 1) for pair in parameters[13:].split(",")) == ROLLUP


def test_commas_in_values_are_told_from_those_between_them() -> None:
    wanted = ROLLUP | {"settings": "retention=7,90;salt_width=1", "dead_letters": "gs://my-bucket/a~b/c"}
    (words,) = lines("run", "rollup", *RUN, *given(wanted))
    (parameters,) = [word for word in words if word.startswith("--parameters=")]
    assert parameters.startswith("--parameters=^|^")
    assert dict(pair.split("=", 1) for pair in parameters[16:].split("|")) == wanted


def test_a_stream_can_be_updated_and_has_modes() -> None:
    wanted = [*RUN, *given(INGEST), "--update", "--streaming_mode=exactly_once", "--job_name=points"]
    ran = command("run", "ingest", *wanted, "--print_only", "--", "--max-workers=20")
    words = shlex.split(ran.stdout)
    assert words[4] == "points"
    assert {"--update", "--enable-streaming-engine", "--max-workers=20"} < set(words)
    assert "--additional-experiments=streaming_mode_exactly_once" in words


@pytest.mark.parametrize(
    ("packing", "mode"),
    [([], "at_least_once"), (["append"], "at_least_once"), (["compacted"], "exactly_once")],
)
def test_the_streaming_mode_follows_the_packing(packing: list[str], mode: str) -> None:
    flags = [f"--packing={name}" for name in packing]
    (words,) = lines("run", "ingest", *RUN, *given(INGEST), *flags)
    assert f"--additional-experiments=streaming_mode_{mode}" in words


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("run", [], "the following arguments are required: JOB"),
        ("run", ["nonsense"], "invalid choice: 'nonsense'"),
        ("run", ["copy", *RUN], "required: --from, --to, --start"),
        ("run", ["rollup", *RUN, "--dya", "2026-11-20", *given(ROLLUP)], "unrecognized arguments: --dya"),
        ("run", ["rollup", *RUN, "--day", "2026", *given(ROLLUP)], "--day: '2026' does not match ^("),
        ("run", ["rollup", "--bucket=my-bucket", "--region=r", *given(ROLLUP)], "invalid bucket value"),
        ("run", ["rollup", *RUN, "--update", *given(ROLLUP)], "unrecognized arguments: --update"),
        ("build", [], "required: --repository, --tag, --bucket"),
        ("build", ["nonsense", *BUILD], "no job 'nonsense': choose from archive"),
    ],
)
def test_what_is_wrong_is_one_line(name: str, arguments: list[str], said: str) -> None:
    ran = command(name, *arguments)
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert said in ran.stderr.splitlines()[-1]


@pytest.mark.skipif(not shutil.which("gcloud"), reason="needs gcloud")
@pytest.mark.parametrize(
    "job", [pytest.param(job, marks=[] if job == "ingest" else pytest.mark.long) for job in FLEX]
)
def test_gcloud_takes_the_metadata(job: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [
            *("gcloud", "dataflow", "flex-template", "build", "gs://my-bucket/spec.json", "--print-only"),
            *("--image=registry/image:1", "--sdk-language=PYTHON", "--project=my-project", "--format=json"),
            f"--metadata-file={ROOT / 'templates' / job / 'metadata.json'}",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"CLOUDSDK_CONFIG": str(tmp_path), "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true"},
    )
    assert ran.returncode == 0, ran.stderr
    wanted = json.loads((ROOT / "templates" / job / "metadata.json").read_text())["parameters"]
    assert ran.stdout.count("paramType") == len(wanted)
