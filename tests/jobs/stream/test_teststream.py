"""The streaming graph on the bundle-based runner: panes, late points, watermarks. Stored content is exact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.testing import test_stream

from tests.support.stored import Store
from timebeam.pipelines.ingest.ingest_jobs import IngestGraph
from timebeam.pipelines.jobs.job import write_dead_letters
from timebeam.schema.core.point_fragments import Packing
from timebeam.schema.core.rejections import Envelope
from timebeam.schema.formats import Message
from timebeam.transforms.flow.steps import register_coders
from timebeam.transforms.ingest.points_graph import Flow
from timebeam.transforms.ingest.series_keys import UidOptions
from timebeam.transforms.opentsdb.assign_uids import UidPolicy

HOUR = 3600
T = 1_767_225_600  # a full hour
FLUSH = 30
PACKINGS = (Packing.POINTS, Packing.COMPACTED, Packing.APPEND)


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    return Store.create(bigtable, prefix)


def message(arrival_s: int, *points: tuple[int, float], host: str = "a") -> Message:
    """A message published `arrival_s` after T, with points of (seconds after T, value)."""
    lines = [
        json.dumps({"metric": "m", "timestamp": T + at, "value": value, "tags": {"host": host}})
        for at, value in points
    ]
    arrival_ms = (T + arrival_s) * 1000
    envelope = Envelope(f"{arrival_s}", arrival_ms, {})
    return Message("\n".join(lines).encode(), arrival_ms, "test", 0, envelope)


def start() -> test_stream.TestStream:
    register_coders()
    return test_stream.TestStream(coder=beam.coders.registry.get_coder(Message)).advance_watermark_to(T)


def run(
    store: Store, folder: Path, events: test_stream.TestStream, packing: Packing, writer: str = "direct"
) -> None:
    """Runs the graph that Dataflow runs, with the events in place of its source."""
    uids = UidOptions(UidPolicy(auto_create_metrics=True))
    graph = IngestGraph(
        store.layout, packing, store.target, writer, uids, format_name="opentsdb-json", format_options={}
    )
    options = PipelineOptions(["--streaming"])
    with beam.Pipeline(runner=BundleBasedDirectRunner(), options=options) as pipeline:
        read = events.advance_watermark_to_infinity()
        rejected = graph.from_messages(pipeline, read, Flow(endless=True, flush_seconds=FLUSH))
        write_dead_letters(rejected, str(folder / "dead"), None)
    assert not list(folder.glob("dead*"))


def values(store: Store, host: str = "a") -> dict[int, Any]:
    """Values by seconds after T."""
    return {
        time_ms // 1000 - T: value
        for series, points in store.points().items()
        if series.tags == (("host", host),)
        for time_ms, value in points.items()
    }


@pytest.mark.parametrize("packing", PACKINGS)
def test_late_points_by_hours_and_months_are_stored(store: Store, tmp_path: Path, packing: Packing) -> None:
    month = 31 * 24 * HOUR
    events = (
        start()
        .add_elements([message(0, (0, 1.0), (10, 2.0))])
        .advance_watermark_to(T + 10 * HOUR)
        .advance_processing_time(FLUSH + 1)
        .add_elements([message(5, (20, 3.0), (-5 * HOUR, 4.0)), message(6, (-3 * month, 5.0))])
        .advance_processing_time(FLUSH + 1)
        .advance_watermark_to(T + 2 * month)
        .add_elements([message(7, (30, 6.0))])
        .advance_processing_time(FLUSH + 1)
    )
    run(store, tmp_path, events, packing)
    assert values(store) == {0: 1.0, 10: 2.0, 20: 3.0, -5 * HOUR: 4.0, -3 * month: 5.0, 30: 6.0}


@pytest.mark.parametrize("packing", PACKINGS)
def test_empty_panes_and_watermark_jumps(store: Store, tmp_path: Path, packing: Packing) -> None:
    events = start()
    for step in range(5):
        events = events.advance_processing_time(10 * FLUSH).advance_watermark_to(T + step * 24 * HOUR + 1)
    events = events.add_elements([message(1, (0, 1.0))]).advance_processing_time(10 * FLUSH)
    for step in range(5, 9):
        events = events.advance_processing_time(10 * FLUSH).advance_watermark_to(T + step * 24 * HOUR)
    # The runner's clock stands still at the end: what has not fired by then would never fire.
    events = events.add_elements([message(2, (1, 2.0))]).advance_processing_time(FLUSH + 1)
    run(store, tmp_path, events, packing)
    assert values(store) == {0: 1.0, 1: 2.0}


@pytest.mark.parametrize("packing", PACKINGS)
def test_two_panes_of_one_row(store: Store, tmp_path: Path, packing: Packing) -> None:
    first = [message(0, *((at, float(at)) for at in range(0, 100, 2))), message(0, (0, 9.0), host="b")]
    second = [message(40, *((at, float(at)) for at in range(1, 100, 2)))]
    events = (
        start()
        .add_elements(first)
        .advance_processing_time(FLUSH + 1)
        .add_elements(second)
        .advance_processing_time(FLUSH + 1)
    )
    run(store, tmp_path, events, packing)
    assert values(store) == {at: float(at) for at in range(100)}
    assert values(store, "b") == {0: 9.0}
    (row,) = [row for row in store.rows() if len(row.cells) != 1 or packing is Packing.APPEND][:1]
    assert len(row.cells) == {Packing.POINTS: 100, Packing.COMPACTED: 2, Packing.APPEND: 1}[packing]


@pytest.mark.parametrize("writer", ["direct", "beam"])
@pytest.mark.parametrize("packing", [Packing.POINTS, Packing.COMPACTED])
def test_a_pane_with_a_correction_of_an_earlier_one(
    store: Store, tmp_path: Path, packing: Packing, writer: str
) -> None:
    """In whichever order the panes come; also where old and new stand in one pane."""
    old, new = message(0, (0, 1.0), (10, 2), (20, 3.0)), message(50, (10, 2.5), (20, 3.5))
    for host, panes in (("a", [[old], [new]]), ("b", [[new], [old]]), ("c", [[new, old]])):
        events = start()
        for pane in panes:
            again = [one.text.replace(b'"a"', f'"{host}"'.encode()) for one in pane]
            elements = [
                Message(text, one.arrival_ms, "test", 0, one.envelope)
                for text, one in zip(again, pane, strict=True)
            ]
            events = events.add_elements(elements).advance_processing_time(FLUSH + 1)
        run(store, tmp_path, events, packing, writer)
        assert values(store, host) == {0: 1.0, 10: 2.5, 20: 3.5}, host
