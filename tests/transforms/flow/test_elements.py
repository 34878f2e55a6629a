"""The types between the steps of an ingest are those of `flow.steps`, and none besides."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from timebeam.pipelines.beam_patches.local_runner import LOCAL_RUNNER
from timebeam.pipelines.ingest.ingest_jobs import IngestGraph
from timebeam.schema.core.contract import Store
from timebeam.schema.core.point_fragments import Packing
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.core.rows import EncodedRow
from timebeam.schema.formats import Message
from timebeam.schema.stores.heroic.layout import Heroic
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.flow.steps import ELEMENTS, REJECTED, rejecting
from timebeam.transforms.ingest.points_graph import Flow
from timebeam.transforms.ingest.series_keys import UidOptions
from timebeam.transforms.input.parse import ANNOTATIONS

BESIDE = {"Annotations", "UidSnapshot"}
"""Steps that no point passes."""


class Read(beam.PTransform):
    def expand(self, root: beam.Pipeline) -> Any:
        return root | beam.Create([b"block"]) | rejecting(beam.DoFn(), Message)


def types_between(layout: Store, packing: Packing, flow: Flow, *, stream: bool) -> dict[str, set[Any]]:
    """By step of the graph, the types of what it puts out; of lists the types of their members."""
    root = beam.Pipeline(options=PipelineOptions([f"--runner={LOCAL_RUNNER}"]))
    graph = IngestGraph(
        layout,
        packing,
        Target("p", "i"),
        "direct",
        UidOptions(),
        format_name="opentsdb-json",
        format_options={},
    )
    if stream:
        graph.from_messages(root, beam.Create([Message(b"", 0)]), flow)
    else:
        graph.from_blocks(root, Read(), flow)
    types: dict[str, set[Any]] = {}
    for step in root.transforms_stack[0].parts:
        of_step = types.setdefault(step.full_label, set())
        of_step |= {
            Rejected if name == REJECTED else getattr(output.element_type, "inner_type", output.element_type)
            for name, output in step.outputs.items()
            if name != ANNOTATIONS
        }
    return types


@pytest.mark.parametrize("layout", [OpenTsdb(), Heroic()], ids=lambda layout: layout.name)
@pytest.mark.parametrize(
    ("flow", "stream"), [(Flow(), False), (Flow(one_bundle=True), False), (Flow(endless=True), True)]
)
def test_steps_pass_only_the_five_types(layout: Store, flow: Flow, stream: bool) -> None:
    for packing in layout.writing.packings:
        types = types_between(layout, packing, flow, stream=stream)
        passed = {name: found for name, found in types.items() if name not in BESIDE}
        assert {"Read", "Parse", "AssignUids", "Encode", "Pack", "Write"} <= passed.keys()
        others = {name: found - ELEMENTS.keys() for name, found in passed.items()}
        assert {name: found for name, found in others.items() if found} == {}
        assert EncodedRow in types["Pack"]
