"""Dataflow as a launch sees it, on this machine: the launcher's call of a template, and a server for its API.

With an endpoint on localhost the DataflowRunner takes folders for buckets and needs no credentials.
"""

from __future__ import annotations

import contextlib
import http.server
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from apache_beam import coders
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.pipeline_context import PipelineContext

from timebeam.pipelines.deploy.templates import launch

ROOT = Path(__file__).resolve().parents[3]
IMAGE = "europe-west1-docker.pkg.dev/my-project/timebeam/timebeam-test:1"
_NOWHERE = "http://localhost:9"


class Graph(NamedTuple):
    """A pipeline as Dataflow gets it."""

    proto: beam_runner_api_pb2.Pipeline

    def steps(self) -> list[str]:
        """The names of the steps of a user's eye: the outermost ones."""
        found = {one.unique_name.split("/")[0] for one in self._transforms() if one.unique_name}
        return sorted(name for name in found if not name.startswith("ref_"))

    def leaves(self) -> list[str]:
        """The full names of all steps that have none within them."""
        return sorted(one.unique_name for one in self._transforms() if not one.subtransforms)

    def external(self) -> list[str]:
        """Steps of other languages, which would need an expansion service."""
        return [one.unique_name for one in self._transforms() if "external" in one.spec.urn]

    def key_coders(self) -> dict[str, coders.Coder]:
        """By each grouping or stateful step the coder of its keys."""
        context = PipelineContext(self.proto.components)
        found = {}
        for one in self._transforms():
            if one.spec.urn == "beam:transform:group_by_key:v1":
                (source,) = one.inputs.values()
                coder = context.coders.get_by_id(self.proto.components.pcollections[source].coder_id)
                found[one.unique_name] = coder.key_coder()
        return found

    def images(self) -> set[str]:
        """The images that workers run in."""
        return {
            beam_runner_api_pb2.DockerPayload.FromString(one.payload).container_image
            for one in self.proto.components.environments.values()
            if one.urn == "beam:env:docker:v1"
        }

    def _transforms(self) -> list[beam_runner_api_pb2.PTransform]:
        return list(self.proto.components.transforms.values())


class Job(NamedTuple):
    """What a launch left: the job that Dataflow is given, and its graph."""

    body: dict[str, Any]
    graph: Graph

    @property
    def options(self) -> dict[str, Any]:
        """The pipeline's options."""
        found: dict[str, Any] = self.body["environment"]["sdkPipelineOptions"]["options"]
        return found


def service_flags(folder: Path, endpoint: str = _NOWHERE) -> list[str]:
    """Options that a launcher gives beside the template's, with folders in place of buckets."""
    for name in ("temp", "staging"):
        (folder / name).mkdir(exist_ok=True)
    return [
        *("--runner=DataflowRunner", "--region=europe-west1", "--no_auth", "--job_name=timebeam-test"),
        *(f"--temp_location={folder / 'temp'}", f"--staging_location={folder / 'staging'}"),
        f"--dataflow_endpoint={endpoint}",
    ]


def environment(job: str) -> dict[str, str]:
    """The variables of the image of a job, and one that keeps clients from looking for the cloud."""
    return {"TIMEBEAM_JOB": job, "TIMEBEAM_IMAGE": IMAGE, "NO_GCE_CHECK": "true"}


def start(job: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Starts the program of a template's image, as its launcher does."""
    return subprocess.run(
        [sys.executable, "main.py", *arguments],
        cwd=ROOT / "templates",
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | environment(job) | {"PYTHONPATH": str(ROOT)},
    )


def as_texts(parameters: Mapping[str, str]) -> list[str]:
    """Parameters as a launcher gives them."""
    return [f"--{name}={value}" for name, value in parameters.items()]


def template(job: str, folder: Path, project: str, parameters: Mapping[str, str]) -> Job:
    """What the launcher gets from a template's program, run in this process: the job, which is not sent."""
    path = folder / "template.json"
    given = [*as_texts(parameters), f"--project={project}", *service_flags(folder)]
    code, said = run(job, *given, f"--template_location={path}")
    assert code == 0, said
    return read_job(folder)


def run(job: str, *arguments: str) -> tuple[int, str]:
    """Runs the program of a template's image in this process: (exit code, standard error)."""
    said = io.StringIO()
    with (
        mock.patch.dict(os.environ, environment(job)),
        contextlib.redirect_stderr(said),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        try:
            code = launch(arguments)
        except SystemExit as stop:  # how argparse ends a program
            code = int(stop.code or 0)
    return code, said.getvalue()


def read_job(folder: Path) -> Job:
    """The job that was written, with the graph that was staged."""
    (path,) = (folder / "staging").rglob("pipeline.pb")
    graph = Graph(beam_runner_api_pb2.Pipeline.FromString(path.read_bytes()))
    return Job(json.loads((folder / "template.json").read_text()), graph)


class Service(NamedTuple):
    """A server that stands for Dataflow's API, and what was posted to it: (path, body), in order."""

    endpoint: str
    posts: list[tuple[str, dict[str, Any]]]


@contextlib.contextmanager
def service() -> Iterator[Service]:
    """A server on localhost that takes whatever is posted, and says that a job has been made of it."""
    posts: list[tuple[str, dict[str, Any]]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            path = self.path.split("?")[0]
            posts.append((path, body))
            job = {"id": "job-1", "projectId": "my-project", "location": "europe-west1"}
            reply = json.dumps({"job": job} if path.endswith(":launch") else job).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield Service(f"http://localhost:{server.server_port}", posts)
        finally:
            server.shutdown()
            thread.join()
