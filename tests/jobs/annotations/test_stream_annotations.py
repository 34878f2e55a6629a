"""Annotations as messages of Pub/Sub, among points, through the graph of an endless ingest."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.testing import test_stream

from tests.support.inputs.annotations import A, notes
from tests.support.points import BASE_S, FIRST_MS
from tests.support.stored import Store
from timebeam.pipelines.ingest.ingest_jobs import IngestGraph
from timebeam.pipelines.jobs.job import write_dead_letters
from timebeam.schema.core import contract
from timebeam.schema.core.annotations import Annotation
from timebeam.schema.core.point_fragments import Packing
from timebeam.schema.core.rejections import Envelope
from timebeam.schema.formats import Message
from timebeam.schema.stores.heroic.layout import Heroic
from timebeam.schema.stores.heroic.options import HeroicOptions
from timebeam.schema.stores.opentsdb.columns import annotation_cells as cells
from timebeam.transforms.bigtable.create_tables import create_tables
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.flow.steps import register_coders
from timebeam.transforms.ingest.points_graph import Flow
from timebeam.transforms.ingest.series_keys import UidOptions
from timebeam.transforms.opentsdb.assign_uids import UidPolicy

ANNOTATION = {"format": "opentsdb-annotations"}


def message(body: dict[str, Any], after_ms: int, attributes: dict[str, str] | None = None) -> Message:
    """A message published some ms after the first one."""
    envelope = Envelope(str(after_ms), FIRST_MS + after_ms, attributes or {})
    return Message(json.dumps(body).encode(), FIRST_MS + after_ms, "test", 0, envelope)


def run(
    target: Target, layout: contract.Store, folder: Path, *bundles: list[Message]
) -> list[dict[str, Any]]:
    """Runs the graph that Dataflow runs on messages, bundle after bundle; the dead letters."""
    register_coders()
    events = test_stream.TestStream(coder=beam.coders.registry.get_coder(Message)).advance_watermark_to(0)
    for bundle in bundles:
        events = events.add_elements(bundle).advance_processing_time(1)
    uids = UidOptions(UidPolicy(auto_create_metrics=True))
    graph = IngestGraph(
        layout, Packing.POINTS, target, "direct", uids, format_name="opentsdb-json", format_options={}
    )
    graph = dataclasses.replace(graph, formats=["opentsdb-annotations"])
    options = PipelineOptions(["--streaming"])
    with beam.Pipeline(runner=BundleBasedDirectRunner(), options=options) as pipeline:
        read = events.advance_watermark_to_infinity()
        rejected = graph.from_messages(pipeline, read, Flow(endless=True, flush_seconds=1))
        write_dead_letters(rejected, str(folder / "dead"), None)
    return [json.loads(line) for path in folder.glob("dead*") for line in path.read_text().splitlines()]


POINT = {"metric": "sys.load", "timestamp": BASE_S, "value": 1, "tags": {"host": "a"}}
FIRST = {"metric": "sys.load", "tags": {"host": "a"}, "startTime": BASE_S + 7, "description": "a"}
LATER = {"tsuid": A, "startTime": BASE_S + 7, "notes": "b"}


def test_annotations_among_points(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    store = Store.create(bigtable, prefix)
    first, later = message(FIRST, 1, ANNOTATION), message(LATER, 2, ANNOTATION)
    bad = message({"startTime": BASE_S}, 3, ANNOTATION)
    letters = run(
        store.target, store.layout, tmp_path, [message(POINT, 0), first], [first, later, bad], [first]
    )
    place = cells.place(store.layout.options, bytes.fromhex(A), BASE_S + 7)
    expected = Annotation(A, BASE_S + 7, 0, "a", "b").stored()
    assert notes(store) == {(*place, FIRST_MS + 2, expected)}
    assert [list(points.values()) for points in store.points().values()] == [[1]]
    assert [(one["reason"], one["attributes"]) for one in letters] == [("empty-value", ANNOTATION)]
    delete = message({"tsuid": A, "startTime": BASE_S + 7}, 4, ANNOTATION | {"method": "DELETE"})
    run(store.target, store.layout, tmp_path, [delete])
    assert notes(store) == set()


def test_a_layout_without_a_place_for_them_rejects_them(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    target, layout = Target(*bigtable), Heroic(HeroicOptions.of({"table_prefix": prefix}))
    list(create_tables(target, layout.tables(), dry_run=False))
    (letter,) = run(
        target, layout, tmp_path, [message(POINT, 0), message({"startTime": 7, "notes": "x"}, 1, ANNOTATION)]
    )
    assert letter["reason"] == "value-not-storable"
    assert letter["message"] == "layout heroic has no annotations; opentsdb has"
    assert json.loads(letter["payload"]) == {"startTime": 7, "notes": "x"}
