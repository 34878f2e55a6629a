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
- `timebeam.schema.formats.opentsdb.json_format.OpenTsdbJson.locate`: where time and value are in each line
- `timebeam.schema.bits.text_columns.numbers`: digits to numbers
- `timebeam.schema.formats.opentsdb.json_format.OpenTsdbJson.records`: the first line of each series in full
- `timebeam.transforms.ingest.assign_keys.AssignFn.process`: the step that finds the key of each series
- `timebeam.transforms.opentsdb.assign_uids.UidTable.resolve`: names to UIDs, new ones assigned
- `timebeam.schema.stores.opentsdb.keys.series_key`: UIDs to the bytes before and after the base time
- `timebeam.transforms.ingest.encode_and_pack.EncodeFn.process`: the step that encodes
- `timebeam.schema.stores.opentsdb.encode.encode`: points to rows, sorted
- `timebeam.schema.stores.opentsdb.columns.point_elements.qualifier_codes`: offsets to qualifiers
- `timebeam.schema.stores.opentsdb.keys.row_keys`: base times into the keys
- `timebeam.schema.core.point_fragments.SlotPoints.fragments`: the points of a row to one fragment
- `timebeam.transforms.flow.buffered.BufferedDoFn.process`: a step gathers what it handles together
- `timebeam.transforms.ingest.group_by_row._GroupFn.handle`: the fragments of each row come together
- `timebeam.transforms.ingest.encode_and_pack.PackFn.process`: the step that packs
- `timebeam.schema.stores.opentsdb.encode.cell_columns`: the points of rows to compacted columns
- `timebeam.transforms.bigtable.beam_steps.RowWriter.add`: the writer gathers rows to requests
- `timebeam.transforms.ingest.write_packed_rows.hours_written`: marks the hours of the rows, before and after
- `timebeam.transforms.bigtable.write_rows.mutate_rows`: sends a request, again where the service is busy
- `timebeam.transforms.bigtable.mutation_bytes.request_bytes`: the bytes of the mutations
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.trigger import AccumulationMode, AfterProcessingTime, Repeatedly
from apache_beam.transforms.window import GlobalWindows

from timebeam.pipelines.jobs.job import Flow, Needs
from timebeam.schema.core.contract import Store
from timebeam.schema.core.point_fragments import Encoded, Packing
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.core.rows import EncodedRow, TableSpec
from timebeam.schema.series.series_limits import SeriesLimits, counts_table
from timebeam.schema.stores import as_opentsdb, find_opentsdb
from timebeam.schema.stores.opentsdb.meta_documents import MetaMode, meta_table
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.dead_letters.rejected_rows import REJECTED, rejecting
from timebeam.transforms.dead_letters.replay import POINTS, ROWS, OpenLetters
from timebeam.transforms.ingest.assign_keys import AssignFn, ReadUidSnapshot, SeriesKeys, UidOptions
from timebeam.transforms.ingest.encode_and_pack import EncodeFn, PackFn, PackInPartsFn
from timebeam.transforms.ingest.group_by_row import GroupPerRow
from timebeam.transforms.ingest.limit_series import SeriesLimiter
from timebeam.transforms.ingest.store_index import IndexFn
from timebeam.transforms.ingest.write_packed_rows import HoursWriter, StoreRows, data_tables
from timebeam.transforms.input.messages import ParseMessagesFn, gathered, single
from timebeam.transforms.input.parse import ANNOTATIONS, JoinFn, ParseFn, parsing
from timebeam.transforms.opentsdb.edit_annotations import StoreAnnotations
from timebeam.transforms.opentsdb.track_meta import TrackFn

_ONCE = Flow()
"""How a graph runs over all of its input."""


@dataclasses.dataclass(frozen=True, slots=True)
class PointsGraph:
    """How points are stored in a layout.

    Attributes:
      format_name, format_options: see `message_format`; no name if the input is points.
      dry_run: parse, assign, pack and count, and write nothing but dead letters.
      hours_writer: marks the hours of the rows that the direct writer writes; None for no marks.
      meta: what is written of new series beside their points; only for OpenTSDB's layout.
      formats: other formats that messages may name in their attributes.
      limits: of new series; None for none.
      table_prefix: of the table of counts that limits are compared with.
    """

    format_name: str
    format_options: Mapping[str, Any]
    layout: Store
    packing: Packing
    target: Target
    writer: str
    uids: UidOptions
    dry_run: bool = False
    hours_writer: HoursWriter | None = None
    meta: MetaMode = MetaMode.OFF
    formats: Sequence[str] = ()
    limits: SeriesLimits | None = None
    table_prefix: str = ""

    def tables(self) -> list[TableSpec]:
        """The tables that must exist."""
        tables = [*self.layout.tables(), *([self.hours_writer.table] if self.hours_writer else [])]
        if self.meta is not MetaMode.OFF:
            tables.append(meta_table(as_opentsdb(self.layout, "metadata").options.table_prefix))
        if self.limits is not None:
            tables.append(counts_table(self.table_prefix))
        return tables

    def needs(self) -> Needs:
        """What storing the points needs beside the tables."""
        return Needs(self.layout, self.packing, self.uids.policy.auto_create_metrics)

    @property
    def packs(self) -> bool:
        """Whether points of a stream are gathered to be packed together."""
        return self.packing is not Packing.POINTS

    @property
    def exactly_once(self) -> bool:
        """Whether a repeated bundle of a stream would write more columns."""
        return self.packing is Packing.COMPACTED

    def from_blocks(
        self,
        root: beam.Pipeline,
        read: beam.PTransform[Any, Any],
        flow: Flow = _ONCE,
        steps: Steps | None = None,
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
        return refused + self._store(root, steps or Steps(self), flow, points)

    def from_points(
        self,
        root: beam.Pipeline,
        read: beam.PTransform[Any, Any],
        attached: beam.PTransform[Any, Any] | None = None,
    ) -> list[PCollection[Rejected]]:
        """Adds the graph of storing points that need no parsing; returns what is refused.

        Args:
          read: gives `main`, `PointBatch`, and `REJECTED`.
          attached: stores annotations and histograms, and gives what it refused.
        """
        source = root | "Read" >> read
        points = source.main | "Spread" >> beam.Reshuffle().with_output_types(PointBatch)
        refused = [source[REJECTED]]
        if attached is not None:
            refused.append(root | "Others" >> attached)
        return refused + self._store(root, Steps(self), _ONCE, points)

    def from_messages(
        self,
        root: beam.Pipeline,
        read: beam.PTransform[Any, Any],
        flow: Flow,
        steps: Steps | None = None,
        *,
        letters: bool = False,
    ) -> list[PCollection[Rejected]]:
        """Adds the graph of an ingest of messages; returns what is refused.

        Args:
          read: gives `Message`, or lists of them.
          steps: those of an earlier graph of the same job, with what they remember.
          letters: whether their lines are dead letters, of which the payloads are to be ingested.
        """
        steps = steps or Steps(self)
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
                write = StoreRows(self.target, (), "direct", Packing.POINTS)
                refused.append(opened[ROWS] | "WriteOtherRows" >> write)
        return refused + self._store(root, steps, flow, points)

    def _annotations(self, flow: Flow) -> StoreAnnotations:
        return StoreAnnotations(
            self.target, self.layout, self.uids, endless=flow.endless, dry_run=self.dry_run
        )

    def _store(
        self, root: beam.Pipeline, steps: Steps, flow: Flow, points: PCollection[PointBatch]
    ) -> list[PCollection[Rejected]]:
        """Adds the steps behind parsing; returns what they refuse."""
        names = root | "UidSnapshot" >> (
            ReadUidSnapshot(self.target, self.layout, self.uids)
            if flow.snapshot
            else beam.Create([], reshuffle=False).with_output_types(list)
        )
        keyed = points | "AssignUids" >> rejecting(steps.assign, PointBatch, beam.pvalue.AsIter(names))
        refused = [keyed[REJECTED]]
        batches = keyed.main
        if steps.index is not None:
            indexed = batches | "Index" >> rejecting(steps.index, PointBatch)
            refused.append(indexed[REJECTED])
            batches = indexed.main
        encoded = batches | "Encode" >> rejecting(EncodeFn(self.layout), Encoded)
        grouped = encoded.main
        if self.packing is not Packing.POINTS or not flow.endless:
            # In a stream a cell for each point needs nothing of the row's others, and the newer message wins
            # by its time: no shuffle. (Blocks of one file have one time, and are put in order by it.)
            group = GroupPerRow(one_bundle=flow.one_bundle)
            grouped = _on_arrival(grouped, flow) | "GroupPerRow" >> group
        packed = grouped | "Pack" >> rejecting(steps.pack, EncodedRow)
        refused += [encoded[REJECTED], packed[REJECTED]]
        if not self.dry_run:
            tables = data_tables(self.layout)
            write = StoreRows(self.target, tables, self.writer, self.packing, self.hours_writer)
            refused.append(packed.main | "Write" >> write)
            if steps.track is not None:
                packed.main | "Meta" >> beam.ParDo(steps.track).with_output_types(Rejected)
        return refused


def _on_arrival(encoded: PCollection[Any], flow: Flow) -> PCollection[Any]:
    """Groups the points of a stream on arrival, never by their own times: nothing can be late."""
    if flow.flush_seconds is None:
        return encoded
    return encoded | "FlushOnArrival" >> beam.WindowInto(
        GlobalWindows(),
        trigger=Repeatedly(AfterProcessingTime(math.ceil(flow.flush_seconds))),
        accumulation_mode=AccumulationMode.DISCARDING,
    )


class Steps:
    """The steps of a job that remember things. Held, their memory outlives a run of the pipeline."""

    def __init__(self, job: PointsGraph, *, portions: bool = False) -> None:
        """`portions`: see `PackInPartsFn`."""
        replacing = find_opentsdb(job.layout)
        self.pack = (
            PackInPartsFn(job.target, replacing, job.packing)
            if portions and not job.dry_run and replacing is not None and replacing.replaces(job.packing)
            else PackFn(job.layout, job.packing)
        )
        self.parse = ParseMessagesFn(job.format_name, job.format_options, job.formats)
        limiter = None
        if job.limits is not None:
            limiter = SeriesLimiter(
                job.target,
                job.layout,
                job.limits,
                counts_table(job.table_prefix).name,
                with_meta=job.meta is not MetaMode.OFF,
                dry_run=job.dry_run,
            )
        keys = SeriesKeys(job.target, job.layout, job.uids, dry_run=job.dry_run, limiter=limiter)
        self.assign = AssignFn(keys)
        indexed = job.layout.index
        self.index = (
            None
            if indexed is None
            else IndexFn(job.target, indexed, job.uids.cache_size, dry_run=job.dry_run)
        )
        self.track: TrackFn | None = None
        if job.meta is not MetaMode.OFF:
            self.track = TrackFn(
                job.target, as_opentsdb(job.layout, "metadata"), job.meta, job.uids.cache_size
            )

    def hold(self) -> list[object]:
        """What keeps the memory of this process alive as long as it is held."""
        steps = (self.parse, self.assign, self.index, self.track, self.pack)
        return [step.hold() for step in steps if step is not None]
