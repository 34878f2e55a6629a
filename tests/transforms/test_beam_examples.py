"""The pipelines in examples/beam against the emulator: an own source, Beam YAML, rows of Kafka."""

from __future__ import annotations

import importlib.util
import json
import logging
import re
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from tests.support.stored import Store
from timebeam.pipelines.jobs.runners import LOCAL_RUNNER
from timebeam.schema.core.points import Series

EXAMPLES = Path(__file__).parents[2] / "examples" / "beam"
NOON = 1_795_521_600


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    return Store.create(bigtable, prefix)


def target_of(store: Store) -> str:
    return f"projects/{store.target.project}/instances/{store.target.instance}"


def module(name: str) -> ModuleType:
    """An example, imported from its file."""
    spec = importlib.util.spec_from_file_location(f"beam_example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


def values(store: Store, room: str) -> dict[int, Any]:
    """Values by seconds after noon."""
    points = store.points().get(Series.of("room.temperature", {"room": room}), {})
    return {time_ms // 1000 - NOON: value for time_ms, value in points.items()}


def test_a_pipeline_of_ten_lines_writes_and_reads_in_windows(
    store: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    example = module("own_source")
    place = (
        target_of(store),
        {"table_prefix": store.layout.options.table_prefix},
        [f"--runner={LOCAL_RUNNER}"],
    )
    example.write(*place)
    (rejected,) = capfd.readouterr().out.splitlines()
    assert "give int_value or float_value" in rejected
    assert values(store, "north") == {20 * number: 20.0 + number for number in range(9)}
    example.read(*place)
    assert sorted(capfd.readouterr().out.splitlines()) == ["north 0 21.0", "north 120 27.0", "north 60 24.0"]


class Record(NamedTuple):
    """A row of the managed source."""

    payload: bytes


def test_rows_of_kafka_are_stored(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    """From a stand-in source: the graph with Kafka is one of `make test-engines`."""
    lines = [b"room,room=east temperature=%d %d000000000" % (n, NOON + n) for n in range(3)]
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        rows = pipeline | beam.Create([Record(line) for line in [*lines, b"?"]])
        options = {"table_prefix": store.layout.options.table_prefix}
        module("kafka").store(rows, target_of(store), store_options=options, auto_create_metrics=True)
    assert values(store, "east") == {0: 0.0, 1: 1.0, 2: 2.0}
    assert "bad-syntax" in capfd.readouterr().out


@pytest.mark.engines
def test_the_graph_with_kafka_is_built() -> None:
    """By Beam's expansion service, a jar that needs Java and Maven's repository."""
    kafka = module("kafka")
    pipeline = beam.Pipeline(runner=FnApiRunner())
    try:
        rows = pipeline | kafka.records("localhost:9092", "points")
    except RuntimeError as error:
        if "Unable to fetch" not in str(error):
            raise
        pytest.skip(f"no jar of Beam's expansion service: {error}")
    kafka.store(rows, "projects/p/instances/i")
    urns = {each.spec.urn for each in pipeline.to_runner_api().components.transforms.values()}
    assert any("kafka" in urn for urn in urns)


def test_a_pipeline_in_yaml_is_run(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    main = pytest.importorskip("apache_beam.yaml.main", reason="needs timebeam[yaml]")
    variables = {"TARGET": target_of(store), "PREFIX": store.layout.options.table_prefix}
    with caplog.at_level(logging.INFO):
        main.run(
            [
                f"--yaml_pipeline_file={EXAMPLES / 'points.yaml'}",
                f"--jinja_variables={json.dumps(variables)}",
                f"--runner={LOCAL_RUNNER}",
            ]
        )
    assert (values(store, "north"), values(store, "south")) == ({0: 20.5}, {0: 19.5})
    assert sorted(reason for reason in ("bad-syntax", "bad-tag") if reason in caplog.text) == [
        "bad-syntax",
        "bad-tag",
    ]
    caplog.clear()
    with caplog.at_level(logging.INFO):
        main.run([f"--yaml_pipeline={json.dumps(reading(store))}", f"--runner={LOCAL_RUNNER}"])
    assert {"north", "south"} == set(re.findall(r'"room": "(\w+)"', caplog.text))


def reading(store: Store) -> dict[str, Any]:
    """A pipeline in YAML that logs the points of the store."""
    config = {
        "target": target_of(store),
        "store": "opentsdb",
        "store_options": {"table_prefix": store.layout.options.table_prefix},
        "start_ms": NOON * 1000,
        "end_ms": NOON * 1000,
        "as_rows": True,
        "error_handling": {"output": "rejected"},
    }
    steps = [
        {"type": "ReadPoints", "config": config},
        {"type": "LogForTesting", "name": "Points", "input": "ReadPoints.good"},
        {"type": "LogForTesting", "name": "Rejected", "input": "ReadPoints.rejected"},
    ]
    provider = {"type": "python", "config": {}, "transforms": {"ReadPoints": "timebeam.io.ReadPoints"}}
    return {"pipeline": {"transforms": steps}, "providers": [provider]}


def test_files_of_yaml_keep_to_the_schema_and_name_public_transforms() -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="needs timebeam[yaml]")
    yaml = pytest.importorskip("yaml")
    from apache_beam import yaml as beam_yaml

    schema = yaml.safe_load((Path(beam_yaml.__file__).parent / "pipeline.schema.yaml").read_text())
    providers = yaml.safe_load((EXAMPLES / "providers.yaml").read_text())
    pipeline = yaml.safe_load((EXAMPLES / "points.yaml").read_text())
    jsonschema.validate(pipeline, schema)
    for provider in [*providers, *pipeline["providers"]]:
        jsonschema.validate(provider, {**schema["$defs"]["provider"], "$defs": schema["$defs"]})
        for name, path in provider["transforms"].items():
            folder, _, attribute = path.rpartition(".")
            assert name == attribute
            assert attribute in importlib.import_module(folder).__all__
    assert [provider["type"] for provider in providers] == ["pythonPackage"]
