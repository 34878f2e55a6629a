"""An ingest of text as a Beam pipeline, for tests that bring a layout of their own or look at the result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from tests.support.points import FIRST_MS
from timebeam.pipelines.ingest.ingest_jobs import IngestGraph
from timebeam.pipelines.jobs.job import write_dead_letters
from timebeam.schema.core.point_fragments import Packing
from timebeam.schema.formats import Framing
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.flow.steps import register_coders
from timebeam.transforms.ingest.series_keys import UidOptions
from timebeam.transforms.input.files import ReadBlocks
from timebeam.transforms.opentsdb.assign_uids import UidPolicy


def text_ingest(
    layout: OpenTsdb, target: Target, files: str, dead: Path, flags: Sequence[str]
) -> beam.Pipeline:
    """The pipeline, not yet run.

    Args:
      files: their pattern.
      dead: where the paths of dead letters begin.
      flags: Beam's options.
    """
    uids = UidOptions(UidPolicy(auto_create_metrics=True))
    graph = IngestGraph(
        layout, Packing.COMPACTED, target, "direct", uids, format_name="opentsdb-text", format_options={}
    )
    register_coders()
    pipeline = beam.Pipeline(options=PipelineOptions([*flags]))
    rejected = graph.from_blocks(pipeline, ReadBlocks([files], Framing.LINES))
    write_dead_letters(rejected, str(dead), FIRST_MS)
    return pipeline
