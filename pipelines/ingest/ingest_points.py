"""The graph of every ingest: the same steps for files, for a subscription and for dead letters.

source ─► parse ─► assign UIDs ─► encode ─► group per row ─► pack ─► write
   └────────┴───────────┴───────────┴───────────────────────┴───────┴──► dead letters
             (annotations leave behind parse: merged with what is stored, by compare-and-set)

What the points of a file of OpenTSDB's JSON pass on their way to a mutation, in the order in which it is
first called, as tests/jobs/ingest/test_way_of_a_file.py checks; other formats and layouts have modules of the
same kinds.

- `timebeam.transforms.input.files.blocks_by_arrival`: files by arrival, oldest first, in portions
- `timebeam.transforms.input.cut_json.JsonCutter.add`: is it one document, or lines?
- `timebeam.transforms.input.cut_lines.LineCutter.add`: bytes to blocks of whole lines, as `Message`
- `timebeam.transforms.input.parse.ParseFn.process`: the step that parses
- `timebeam.schema.formats.base.MessageFormat.parse`: the door of all formats
- `timebeam.schema.formats.linewise.LineFormat.columnar`: a block of lines at once
- `timebeam.schema.formats.opentsdb.put_points.OpenTsdbJson.locate`: where time and value are in each line
- `timebeam.schema.bits.text_columns.numbers`: digits to numbers
- `timebeam.schema.formats.opentsdb.put_points.OpenTsdbJson.records`: the first line of each series in full
- `timebeam.transforms.ingest.assign_keys.AssignFn.process`: the step that finds the key of each series
- `timebeam.transforms.opentsdb.assign_uids.UidTable.resolve`: names to UIDs, new ones assigned
- `timebeam.schema.stores.opentsdb.keys.series_key`: UIDs to the bytes before and after the base time
- `timebeam.transforms.ingest.encode_group_pack.EncodeFn.process`: the step that encodes
- `timebeam.schema.stores.opentsdb.encode.encode`: points to rows, sorted
- `timebeam.schema.stores.opentsdb.columns.point_elements.qualifier_codes`: offsets to qualifiers
- `timebeam.schema.stores.opentsdb.keys.row_keys`: base times into the keys
- `timebeam.schema.core.point_fragments.SlotPoints.fragments`: the points of a row to one fragment
- `timebeam.transforms.flow.steps.BufferedDoFn.process`: a step gathers what it handles together
- `timebeam.transforms.ingest.encode_group_pack._GroupFn.handle`: the fragments of each row come together
- `timebeam.transforms.ingest.encode_group_pack.PackFn.process`: the step that packs
- `timebeam.schema.stores.opentsdb.encode.cell_columns`: the points of rows to compacted columns
- `timebeam.transforms.bigtable.beam_steps.RowWriter.add`: the writer gathers rows to requests
- `timebeam.transforms.ingest.write_packed_rows.hours_written`: marks the hours of the rows, before and after
- `timebeam.transforms.bigtable.write_rows.mutate_rows`: sends a request, again where the service is busy
- `timebeam.transforms.bigtable.mutation_bytes.request_bytes`: the bytes of the mutations
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection

from timebeam.pipelines.ingest.store_points import ONCE, PointsGraph, Steps
from timebeam.pipelines.jobs.job import Flow
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.rejections import Rejected
from timebeam.transforms.dead_letters.replay import POINTS, ROWS, OpenLetters
from timebeam.transforms.flow.steps import REJECTED
from timebeam.transforms.ingest.write_packed_rows import StoreRows
from timebeam.transforms.input.parse import (
    ANNOTATIONS,
    JoinFn,
    ParseFn,
    ParseMessagesFn,
    gathered,
    parsing,
    single,
)
from timebeam.transforms.opentsdb.edit_annotations import StoreAnnotations


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class IngestGraph(PointsGraph):
    """How the points of files and messages are parsed and stored in a layout.

    Attributes:
      format_name, format_options: see `message_format`.
      formats: other formats that messages may name in their attributes.
    """

    format_name: str
    format_options: Mapping[str, Any]
    formats: Sequence[str] = ()

    def from_blocks(
        self,
        root: beam.Pipeline,
        read: beam.PTransform[Any, Any],
        flow: Flow = ONCE,
        steps: IngestSteps | None = None,
    ) -> list[PCollection[Rejected]]:
        """Adds the graph of an ingest of files; returns what is refused.

        Args:
          read: gives `main`, blocks of files as `Message`, and `REJECTED`.
          steps: those of all portions of a job, with what they remember.
        """
        blocks = root | "Read" >> read
        parsed = blocks.main | "Parse" >> parsing(ParseFn(self.format_name, self.format_options))
        annotations = parsed[ANNOTATIONS] | "Annotations" >> self._annotations(flow)
        refused = [blocks[REJECTED], parsed[REJECTED], annotations]
        points = parsed.main
        if flow.one_bundle:
            points = points | "JoinBlocks" >> beam.ParDo(JoinFn()).with_output_types(PointBatch)
        return refused + self.store(root, steps or IngestSteps(self), flow, points)

    def from_messages(
        self,
        root: beam.Pipeline,
        read: beam.PTransform[Any, Any],
        flow: Flow,
        steps: IngestSteps | None = None,
        *,
        letters: bool = False,
    ) -> list[PCollection[Rejected]]:
        """Adds the graph of an ingest of messages; returns what is refused.

        Args:
          read: gives `Message`, or lists of them.
          steps: those of an earlier graph of the same job, with what they remember.
          letters: whether their lines are dead letters, of which the payloads are to be ingested.
        """
        steps = steps or IngestSteps(self)
        messages = root | "Read" >> read
        refused = []
        if letters:
            waits = flow.endless and not flow.one_bundle
            opened = single(messages) | "OpenLetters" >> OpenLetters(self.target, self.layout, endless=waits)
            messages = opened["main"]
            refused.append(opened[REJECTED])
        parsed = gathered(messages) | "Parse" >> parsing(steps.parse)
        annotations = parsed[ANNOTATIONS] | "Annotations" >> self._annotations(flow)
        refused += [parsed[REJECTED], annotations]
        points = parsed.main
        if letters:
            points = (points, opened[POINTS]) | "WithPointsOfRows" >> beam.Flatten()
            if not self.dry_run:
                write = StoreRows(self.target, (), "direct")
                refused.append(opened[ROWS] | "WriteOtherRows" >> write)
        return refused + self.store(root, steps, flow, points)

    def _annotations(self, flow: Flow) -> StoreAnnotations:
        return StoreAnnotations(
            self.target, self.layout, self.uids, endless=flow.endless, dry_run=self.dry_run
        )


class IngestSteps(Steps):
    """The steps of an ingest that remember things."""

    def __init__(self, job: IngestGraph, *, portions: bool = False) -> None:
        super().__init__(job, portions=portions)
        self.parse = ParseMessagesFn(job.format_name, job.format_options, job.formats)

    def hold(self) -> list[object]:
        return [self.parse.hold(), *super().hold()]
