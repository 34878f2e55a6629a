"""What Dataflow is given: the graph of each template, made as its launcher makes it, and sent nowhere."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.support.budget import long_after
from tests.support.plain.rolled import config_file, interval, with_tables
from tests.support.servers.dataflow import Graph, Job, template
from tests.support.stored import Store
from timebeam.pipelines.deploy.templates import JOBS
from timebeam.pipelines.store import delete

GOLDEN = Path(__file__).with_name("steps.json")
INGEST = {"format": "opentsdb-json", "dead_letters": "gs://my-bucket/dead/points"}
SUBSCRIPTION = {"input_subscription": "projects/my-project/subscriptions/points", "bigtable_writer": "direct"}
STREAM = {"UidSnapshot", "Read", "Gather", "Parse", "AssignUids", "Encode", "Pack", "Write", "AllRejected"}
GRAPHS = ("ingest_files", "rollup", "compact", "delete", "copy")


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    return Store.create(bigtable, prefix)


def parameters(name: str, store: Store, folder: Path) -> dict[str, str]:
    """Parameters of a launch of each template, and of the stream with each way of packing."""
    place = {"instance": store.target.instance, "table_prefix": store.layout.options.table_prefix}
    place["layout"] = "opentsdb"
    if name.startswith("ingest-"):
        return place | INGEST | SUBSCRIPTION | {"packing": name.split("-")[1]}
    if name == "ingest_files":
        (folder / "a.json").write_text("{}")
        return place | INGEST | {"input": str(folder / "a.json")}
    if name == "rollup":
        config = config_file(folder, [interval("1h", "1n")])
        with_tables(store, config)
        return place | {"rollup_config": str(config), "dead_letters": "gs://my-bucket/dead/rollup"}
    if name == "copy":
        target = (store.target.project, store.target.instance)
        other = Store.create(target, "to_" + place["table_prefix"])
        del place["layout"]
        return place | {
            "from": "opentsdb",
            "to": "opentsdb",
            "to_table_prefix": other.layout.options.table_prefix,
            "start": "2026-11-01",
            "dead_letters": "gs://my-bucket/dead/copy",
        }
    if name == "delete":
        return place | {"keep_days": "400", "unattended": "true", "log": "gs://my-bucket/deleted/run"}
    return place | {"day": "2026-11-20"}


@pytest.fixture(scope="module", params=long_after(1, ["compacted", "points"]))
def stream(
    request: pytest.FixtureRequest, bigtable: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Job]:
    """A packing, and the job that streams with it."""
    store, folder = Store.create(bigtable, f"stream-{request.param}-"), tmp_path_factory.mktemp("stream")
    values = parameters(f"ingest-{request.param}", store, folder)
    return request.param, template("ingest", folder, store.target.project, values)


@pytest.mark.parametrize("name", long_after(3, GRAPHS))
def test_every_graph_can_run_on_dataflow(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(delete, "interrupted_logs", lambda *names: [])  # lists the bucket of the log
    job = template(name, tmp_path, store.target.project, parameters(name, store, tmp_path))
    check_graph(name, job.graph)


def test_every_stream_can_run_on_dataflow(stream: tuple[str, Job]) -> None:
    packing, job = stream
    check_graph(f"ingest-{packing}", job.graph)


def check_graph(name: str, graph: Graph) -> None:
    """Asserts that no step is of another language, and that the names are those of the golden list."""
    assert not graph.external()
    grouped = graph.key_coders()
    is_grouped = any(step.startswith("GroupPerRow") for step in grouped)
    assert is_grouped == (name not in ("ingest-points", "compact", "delete"))
    for step, coder in grouped.items():
        assert coder.is_deterministic(), (step, coder)
    golden = json.loads(GOLDEN.read_text())
    if os.environ.get("TIMEBEAM_ACCEPT_STEPS"):
        golden[name] = names(name, graph)
        GOLDEN.write_text(json.dumps(dict(sorted(golden.items())), indent=1) + "\n")
    assert names(name, graph) == golden[name], (
        "A job with other steps cannot replace a running one (`--update`) without a mapping of their names. "
        "If they must change, say so in CHANGELOG.md and run this test with TIMEBEAM_ACCEPT_STEPS=1"
    )


def names(name: str, graph: Graph) -> list[str]:
    """What is held against the golden list: of streams, which are updated, all steps in full."""
    if not JOBS[name.split("-")[0]].streaming:
        return graph.steps()
    return [re.sub(r"<lambda at .*>", "<lambda>", leaf) for leaf in graph.leaves()]


def test_the_stream_asks_for_its_mode(stream: tuple[str, Job]) -> None:
    packing, job = stream
    mode = {"points": "at_least_once", "compacted": "exactly_once"}[packing]
    assert job.options["dataflow_service_options"] == [f"streaming_mode_{mode}"]


def test_the_stream_waits_only_where_it_packs(stream: tuple[str, Job]) -> None:
    packing, (_, graph) = stream
    assert set(graph.steps()) >= STREAM | {"DeadLetters"}
    assert ("FlushOnArrival" in graph.steps()) == (packing == "compacted")
    assert any("pubsub" in one.spec.urn for one in graph.proto.components.transforms.values())
    triggers = [window.trigger for window in graph.proto.components.windowing_strategies.values()]
    after = [trigger.repeat.subtrigger.after_processing_time for trigger in triggers]
    delays = {one.timestamp_transforms[0].delay.delay_millis for one in after if one.timestamp_transforms}
    assert delays == ({30_000} if packing == "compacted" else set())
