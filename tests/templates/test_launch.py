"""A template's program, started as its launcher starts it, and the job that Dataflow's API is sent."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from google.cloud import dataflow_v1beta3
from google.protobuf import json_format

from tests.support.servers.dataflow import (
    IMAGE,
    ROOT,
    as_texts,
    read_job,
    run,
    service,
    service_flags,
    start,
    template,
)
from tests.support.stored import Store
from timebeam.pipelines.deploy.templates import JOBS, metadata

STREAM = {
    "layout": "opentsdb",
    "format": "opentsdb-json",
    "input_subscription": "projects/my-project/subscriptions/points",
    "dead_letters": "gs://my-bucket/dead/points",
    "bigtable_writer": "direct",
    "settings": "salt_width=0",
    "auto_create_metrics": "true",
    "uid_negative_seconds": "60",
}


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    return Store.create(bigtable, prefix)


def place(store: Store) -> dict[str, str]:
    """The parameters that name the tables."""
    return {"instance": store.target.instance, "table_prefix": store.layout.options.table_prefix}


@pytest.mark.long
def test_the_program_leaves_the_job_at_the_template_location(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "template.json"
    given = as_texts(STREAM | place(store))
    flags = [f"--project={store.target.project}", *service_flags(tmp_path)]
    ran = start("ingest", *given, *flags, f"--template_location={path}")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == f"template written to {path}\n"
    job = read_job(tmp_path)
    assert job.body["name"] == "timebeam-test"
    assert job.body["type"] == "JOB_TYPE_STREAMING"
    assert job.options["streaming"] is True
    assert job.graph.images() == {IMAGE}  # workers run in the image of the launch
    staged = {one.name for one in (tmp_path / "staging").rglob("*") if one.is_file()}
    assert not {"workflow.tar.gz", "requirements.txt"} & staged


def test_a_parameter_can_name_another_image(store: Store, tmp_path: Path) -> None:
    given = STREAM | place(store) | {"sdk_container_image": "registry/other:2"}
    job = template("ingest", tmp_path, store.target.project, given)
    assert job.graph.images() == {"registry/other:2"}


SETTINGS = """
layout = "opentsdb"
format = "opentsdb-json"
{place}
dead_letters = "gs://my-bucket/dead/points"
auto_create_metrics = true
"""


def settings_file(folder: Path, store: Store, text: str = SETTINGS) -> str:
    """The path of a settings file with what names the tables."""
    path = folder / "timebeam.toml"
    path.write_text(text.format(place="\n".join(f'{key} = "{text}"' for key, text in place(store).items())))
    return str(path)


def test_a_settings_file_gives_what_the_template_requires(store: Store, tmp_path: Path) -> None:
    """Of all required parameters only the subscription, which is no setting, must be given."""
    subscription = STREAM["input_subscription"]
    given = {"config": settings_file(tmp_path, store), "input_subscription": subscription}
    job = template("ingest", tmp_path, store.target.project, given)
    assert job.options["streaming"] is True
    read = {one["name"] for one in metadata(JOBS["ingest"])["parameters"] if not one["isOptional"]}
    assert read <= given.keys() | {"format"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('layout = "opentsdb"', "the following arguments are required: --layout"),
        (
            'dead_letters = "gs://my-bucket/dead/points"',
            "would be on the workers' own disks",
        ),
        ("auto_create_metrics = true", ""),
    ],
)
def test_what_neither_the_parameters_nor_the_file_give_is_named(
    store: Store, tmp_path: Path, line: str, said: str
) -> None:
    config = settings_file(tmp_path, store, SETTINGS.replace(line, ""))
    path = tmp_path / "template.json"
    given = {"config": config, "input_subscription": STREAM["input_subscription"], "format": "opentsdb-json"}
    flags = [*service_flags(tmp_path), f"--project={store.target.project}", f"--template_location={path}"]
    code, printed = run("ingest", *as_texts(given), *flags)
    assert (code == 0) == (not said)
    assert said in printed


@pytest.mark.parametrize(
    ("job", "wrong", "said"),
    [
        ("ingest", {"dead_letters": "dead-letters"}, "would be on the workers' own disks"),
        ("ingest", {"auto_create_metrics": "yes"}, "'yes' is neither true nor false"),
        ("ingest", {"input": "gs://my-bucket/a.json"}, "give one of --input, --input-subscription"),
        ("ingest", {"no_such_parameter": "1"}, "unknown option --no_such_parameter"),
        ("ingest", {"table_prefix": "not-there-"}, "Create what is missing with: timebeam tables create"),
        ("rollup", {}, "unknown option --format"),
        ("nonsense", {}, "TIMEBEAM_JOB must be one of ingest, "),
    ],
)
def test_what_is_wrong_is_one_line_and_no_job(
    store: Store, tmp_path: Path, job: str, wrong: dict[str, str], said: str
) -> None:
    given = as_texts(STREAM | place(store) | wrong)
    path = tmp_path / "template.json"
    flags = [*service_flags(tmp_path), f"--project={store.target.project}", f"--template_location={path}"]
    code, said_of_it = run(job, *given, *flags)
    assert code in (1, 2)
    assert said in said_of_it
    assert not path.exists()


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("gcloud"), reason="needs gcloud")
def test_the_whole_launch(store: Store, tmp_path: Path) -> None:
    # `templates/run` calls gcloud, which calls the API; what that is given goes to the launcher, which
    # posts the job. Nothing of it leaves this machine.
    with service() as dataflow:
        given = {"layout": "opentsdb", "day": "2026-11-20", "settings": "salt_width=0;cell_time=arrival"}
        ran = subprocess.run(
            [
                *(ROOT / "templates" / "run", "compact", "--bucket=gs://my-bucket/timebeam"),
                *("--region=europe-west1", "--project=my-project", "--job_name=compact-nightly"),
                *as_texts(given | place(store)),
                *("--", "--max-workers=3", "--service-account-email=jobs@my-project.iam.gserviceaccount.com"),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            env=os.environ
            | {
                "CLOUDSDK_CONFIG": str(tmp_path / "gcloud"),
                "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
                "CLOUDSDK_API_ENDPOINT_OVERRIDES_DATAFLOW": f"{dataflow.endpoint}/",
            },
        )
        assert ran.returncode == 0, ran.stderr
        ((path, body),) = dataflow.posts
        assert path == "/v1b3/projects/my-project/locations/europe-west1/flexTemplates:launch"
        request = dataflow_v1beta3.LaunchFlexTemplateRequest.pb(dataflow_v1beta3.LaunchFlexTemplateRequest())
        json_format.ParseDict(body, request)
        asked = request.launch_parameter
        assert asked.job_name == "compact-nightly"
        assert asked.container_spec_gcs_path == "gs://my-bucket/timebeam/templates/compact.json"
        assert dict(asked.parameters) == given | place(store)
        assert asked.environment.temp_location == "gs://my-bucket/timebeam/temp"
        assert asked.environment.max_workers == 3
        assert asked.environment.service_account_email.startswith("jobs@")

        flags = service_flags(tmp_path, dataflow.endpoint)
        flags = [one for one in flags if not one.startswith("--job_name")]
        started = start(
            "compact",
            *as_texts(dict(asked.parameters)),
            *(f"--project={store.target.project}", f"--job_name={asked.job_name}", *flags),
            f"--max_num_workers={asked.environment.max_workers}",
        )
    assert started.returncode == 0, started.stderr
    assert started.stdout == "started Dataflow job job-1\n"
    path, job = dataflow.posts[1]
    assert path == f"/v1b3/projects/{store.target.project}/locations/europe-west1/jobs"
    parsed = dataflow_v1beta3.Job.pb(dataflow_v1beta3.Job())
    json_format.ParseDict(job, parsed)
    assert parsed.name == "compact-nightly"
    assert parsed.type_ == dataflow_v1beta3.JobType.JOB_TYPE_BATCH
    (pool,) = parsed.environment.worker_pools
    assert pool.autoscaling_settings.max_num_workers == 3
    assert {one.container_image for one in pool.sdk_harness_container_images} == {IMAGE}
    options = json_format.MessageToDict(parsed.environment.sdk_pipeline_options)["options"]
    assert options["pipelineUrl"].startswith(str(tmp_path / "staging"))
