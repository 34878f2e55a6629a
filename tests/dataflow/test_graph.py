"""What Dataflow is given: the graph of the streaming ingest, built offline as for a template."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from apache_beam.portability.api import beam_runner_api_pb2

from tests.support.stored import Store


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    return Store.create(bigtable, prefix)


def template(store: Store, folder: Path, *flags: str) -> beam_runner_api_pb2.Pipeline:
    """The graph in the template that `timebeam ingest` makes; nothing is sent anywhere."""
    for name in ("temp", "staging"):
        (folder / name).mkdir()
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "pipelines.cli", "ingest", *store.flags, "--format=opentsdb-json"),
            *("--runner=DataflowRunner", "--region=europe-west1", "--dataflow_endpoint=http://localhost:9"),
            *(f"--temp_location={folder / 'temp'}", f"--staging_location={folder / 'staging'}"),
            *(f"--template_location={folder / 'template.json'}", "--no_auth", "--job_name=ingest", *flags),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"NO_GCE_CHECK": "true"},
    )
    assert ran.returncode == 0, ran.stderr
    assert (folder / "template.json").exists()
    (path,) = (folder / "staging").rglob("pipeline.pb")
    return beam_runner_api_pb2.Pipeline.FromString(path.read_bytes())


def steps(graph: beam_runner_api_pb2.Pipeline) -> set[str]:
    """The steps of a user's eye: the outermost names."""
    return {one.unique_name.split("/")[0] for one in graph.components.transforms.values() if one.unique_name}


STREAM = {"UidSnapshot", "Read", "Gather", "Parse", "AssignUids", "Encode", "Pack", "Write", "AllRefused"}


@pytest.mark.parametrize("packing", ["points", "compacted"])
def test_the_streaming_graph(store: Store, tmp_path: Path, packing: str) -> None:
    source = "--input_subscription=projects/my-project/subscriptions/points"
    graph = template(store, tmp_path, source, f"--packing={packing}", "--bigtable_writer=direct")
    grouped = {"FlushOnArrival", "GroupPerRow"} if packing == "compacted" else set()
    assert {step for step in steps(graph) if not step.startswith("ref_")} >= STREAM | grouped | {
        "DeadLetters"
    }
    assert ("GroupPerRow" in steps(graph)) == (packing == "compacted")
    urns = {one.spec.urn for one in graph.components.transforms.values()}
    assert "beam:transform:pubsub_read:v1" in urns or any("pubsub" in urn for urn in urns)
    assert not any("external" in urn for urn in urns)
    triggers = [window.trigger for window in graph.components.windowing_strategies.values()]
    after = [trigger.repeat.subtrigger.after_processing_time for trigger in triggers]
    delays = {one.timestamp_transforms[0].delay.delay_millis for one in after if one.timestamp_transforms}
    assert delays == ({30_000} if packing == "compacted" else set())


def test_the_graph_of_files(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("{}")
    graph = template(store, tmp_path, f"--input={path}")
    assert {"Read", "Parse", "GroupPerRow", "Write"} <= steps(graph)
