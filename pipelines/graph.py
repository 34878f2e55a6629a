"""The graph of every ingest: the same steps for files, for a subscription and for dead letters.

source ─► parse ─► assign UIDs ─► encode ─► group per row ─► pack ─► write
   └────────┴───────────┴───────────┴───────────────────────┴───────┴──► dead letters
             (annotations leave behind parse: merged with what is stored, by compare-and-set)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.trigger import AccumulationMode, AfterProcessingTime, Repeatedly
from apache_beam.transforms.window import GlobalWindows

from schema.layouts import Layout, Packing, Row, TableSpec
from schema.layouts.opentsdb.layout import OpenTsdb
from schema.messages import Message
from schema.meta.rows import MetaMode
from schema.meta.ts_meta import meta_table
from schema.points import PointBatch, Rejected
from transforms import coders
from transforms.annotations import StoreAnnotations
from transforms.assign import AssignFn, KeyedBatch, UidSnapshot
from transforms.bigtable.target import Target
from transforms.dead_letters import WriteDeadLetters
from transforms.index import IndexFn
from transforms.letters import ROWS, open_letters
from transforms.messages import GatherFn, ParseMessagesFn
from transforms.meta.track import TrackFn
from transforms.pack import EncodeFn, EncodeTogetherFn, PackFn, RowKey
from transforms.parse import ANNOTATIONS, ParseFn, parsing
from transforms.rejected import REJECTED, refusing
from transforms.series_keys import UidOptions
from transforms.write import Marker, WriteRows, data_tables


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """What an ingest is to do with its input.

    Attributes:
      format_name, format_options: see `message_format`; no name if the input is points.
      dead_letters: a topic, or how names of files begin.
      dry_run: parse, assign, pack and count, and write nothing but dead letters.
      marker: told of the rows that the direct writer has written.
      meta: what is written of new series beside their points; only for OpenTSDB's layout.
    """

    format_name: str
    format_options: Mapping[str, Any]
    layout: Layout
    packing: Packing
    target: Target
    writer: str
    uids: UidOptions
    dead_letters: str
    dry_run: bool = False
    marker: Marker | None = None
    meta: MetaMode = MetaMode.OFF

    def tables(self) -> list[TableSpec]:
        """The tables that it needs."""
        found = [*self.layout.tables(), *([self.marker.table] if self.marker else [])]
        if self.meta is not MetaMode.OFF:
            assert isinstance(self.layout, OpenTsdb)
            found.append(meta_table(self.layout.options.table_prefix))
        return found


class Steps:
    """The steps of a job that remember things. Held, their memory outlives a run of the pipeline."""

    def __init__(self, job: Job) -> None:
        self.parse = ParseMessagesFn(job.format_name, job.format_options)
        self.assign = AssignFn(job.target, job.layout, job.uids, dry_run=job.dry_run)
        self.index = IndexFn(job.target, job.layout, job.uids.cache_size, dry_run=job.dry_run)
        self.track: TrackFn | None = None
        if job.meta is not MetaMode.OFF:
            assert isinstance(job.layout, OpenTsdb)
            self.track = TrackFn(job.target, job.layout, job.meta, job.uids.cache_size)

    def hold(self) -> list[object]:
        """What keeps the memory of this process alive as long as it is held."""
        held = [self.parse.hold(), self.assign.hold(), self.index.hold()]
        return held if self.track is None else [*held, self.track.hold()]


@dataclasses.dataclass(frozen=True, slots=True)
class Flow:
    """How a pipeline's input comes.

    Attributes:
      endless: whether it is a stream, of which one run, or one pane, sees a part.
      run_ms: time of the run in ms, for the dead letters; None for the time of each refusal.
      flush_seconds: of a pipeline that runs for ever: how long pieces of a row are gathered to be packed.
      snapshot: whether the UID table is read ahead; not if the steps remember it from an earlier run.
    """

    endless: bool
    run_ms: int | None = None
    flush_seconds: float | None = None
    snapshot: bool = True


def build_from_blocks(root: beam.Pipeline, job: Job, read: beam.PTransform, run_ms: int) -> None:
    """Adds the graph of an ingest of files.

    Args:
      read: gives `main`, blocks of files as `Message`, and `REJECTED`.
    """
    coders.register()
    blocks = root | "Read" >> read
    parsed = blocks.main | "Parse" >> parsing(ParseFn(job.format_name, job.format_options))
    annotations = parsed[ANNOTATIONS] | "Annotations" >> _annotations(job, endless=False)
    refused = [blocks[REJECTED], parsed[REJECTED], annotations]
    _store(root, job, Steps(job), Flow(False, run_ms), parsed.main, refused)


def build_from_points(
    root: beam.Pipeline,
    job: Job,
    read: beam.PTransform,
    run_ms: int,
    others: beam.PTransform | None = None,
) -> None:
    """Adds the graph of storing points that need no parsing.

    Args:
      read: gives `main`, `PointBatch`, and `REJECTED`.
      others: stores what is there beside points, and gives what it refused.
    """
    coders.register()
    found = root | "Read" >> read
    points = found.main | "Spread" >> beam.Reshuffle().with_output_types(PointBatch)
    refused = [found[REJECTED]]
    if others is not None:
        refused.append(root | "Others" >> others)
    _store(root, job, Steps(job), Flow(False, run_ms), points, refused)


def build_from_messages(
    root: beam.Pipeline,
    job: Job,
    read: beam.PTransform,
    flow: Flow,
    steps: Steps | None = None,
    *,
    letters: bool = False,
) -> None:
    """Adds the graph of an ingest of messages.

    Args:
      read: gives `Message`.
      letters: whether their lines are dead letters, of which the payloads are to be ingested.
      steps: those of an earlier graph of the same job, with what they remember.
    """
    coders.register()
    steps = steps or Steps(job)
    messages = root | "Read" >> read
    refused, rows = [], None
    if letters:
        opened = messages | "OpenLetters" >> open_letters()
        messages, rows = opened.main, opened[ROWS]
        refused.append(opened[REJECTED])
    gathered = messages | "Gather" >> beam.ParDo(GatherFn()).with_output_types(list[Message])
    parsed = gathered | "Parse" >> parsing(steps.parse)
    annotations = parsed[ANNOTATIONS] | "Annotations" >> _annotations(job, endless=flow.endless)
    refused += [parsed[REJECTED], annotations]
    _store(root, job, steps, flow, parsed.main, refused, rows)


def _annotations(job: Job, *, endless: bool) -> StoreAnnotations:
    """The step that stores annotations."""
    return StoreAnnotations(job.target, job.layout, job.uids, endless=endless, dry_run=job.dry_run)


def _store(
    root: beam.Pipeline,
    job: Job,
    steps: Steps,
    flow: Flow,
    points: PCollection[PointBatch],
    refused: list[PCollection[Rejected]],
    rows: PCollection[Row] | None = None,
) -> None:
    """The steps behind parsing; `rows` are written as they are."""
    snapshot = root | "UidSnapshot" >> (
        UidSnapshot(job.target, job.layout, job.uids)
        if flow.snapshot
        else beam.Create([], reshuffle=False).with_output_types(list)
    )
    keyed = points | "AssignUids" >> refusing(steps.assign, KeyedBatch, beam.pvalue.AsIter(snapshot))
    refused.append(keyed[REJECTED])
    batches = keyed.main
    if any(spec.is_index for spec in job.layout.tables()):
        indexed = batches | "Index" >> refusing(steps.index, KeyedBatch)
        refused.append(indexed[REJECTED])
        batches = indexed.main
    if job.packing is Packing.POINTS and flow.endless:
        # A cell for each point needs nothing of the row's others, and the newer message wins by its time: no
        # shuffle. (Blocks of one file have one time, and are put in order by it.)
        encoded = batches | "Encode" >> refusing(EncodeTogetherFn(job.layout), tuple[RowKey, list[bytes]])
        grouped = encoded.main
    else:
        encoded = batches | "Encode" >> refusing(EncodeFn(job.layout), tuple[RowKey, bytes])
        pieces = encoded.main
        if flow.flush_seconds is not None:
            # On arrival, never by the points' own times: nothing can be late.
            pieces = pieces | "FlushOnArrival" >> beam.WindowInto(
                GlobalWindows(),
                trigger=Repeatedly(AfterProcessingTime(math.ceil(flow.flush_seconds))),
                accumulation_mode=AccumulationMode.DISCARDING,
            )
        grouped = pieces | "GroupPerRow" >> beam.GroupByKey()
    packed = grouped | "Pack" >> refusing(PackFn(job.layout, job.packing), Row)
    refused += [encoded[REJECTED], packed[REJECTED]]
    if not job.dry_run:
        write = WriteRows(job.target, data_tables(job.layout), job.writer, job.packing, job.marker)
        all_rows = packed.main if rows is None else (packed.main, rows) | "WithRowsAgain" >> beam.Flatten()
        refused.append(all_rows | "Write" >> write)
        if steps.track is not None:
            all_rows | "Meta" >> beam.ParDo(steps.track).with_output_types(Rejected)
    letters = WriteDeadLetters(job.dead_letters, flow.run_ms, bounded=not flow.endless)
    refused | "AllRefused" >> beam.Flatten() | "DeadLetters" >> letters
