"""The graph that stores points in a layout: the same steps whatever they were read from.

assign UIDs ─► encode ─► group per row ─► pack ─► write
    └────────────┴───────────────────────┴───────┴──► dead letters
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.trigger import AccumulationMode, AfterProcessingTime, Repeatedly
from apache_beam.transforms.window import GlobalWindows

from timebeam.pipelines.jobs.job import Flow, Needs
from timebeam.pipelines.options.parameters import UsageError
from timebeam.pipelines.options.values import check_writer, required_opentsdb, target_of
from timebeam.schema.core.contract import Store
from timebeam.schema.core.point_fragments import Encoded, Packing
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.core.rows import EncodedRow, TableSpec
from timebeam.schema.stores import find_opentsdb
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.flow.steps import REJECTED, rejecting
from timebeam.transforms.ingest.assign_keys import AssignFn, ReadUidSnapshot, SeriesKeys, UidOptions
from timebeam.transforms.ingest.encode_group_pack import EncodeFn, GroupPerRow, PackFn, PackInPartsFn
from timebeam.transforms.ingest.store_index import IndexFn
from timebeam.transforms.ingest.write_packed_rows import HoursWriter, StoreRows, data_tables
from timebeam.transforms.opentsdb.assign_uids import UidPolicy
from timebeam.transforms.opentsdb.create_meta import TrackFn
from timebeam.transforms.rollup.changed_hours import ChangedHoursWriter

if TYPE_CHECKING:
    from timebeam.transforms.ingest.limit_series import SeriesLimiter

ONCE = Flow()
"""How a graph runs over all of its input."""


@dataclasses.dataclass
class PointsGraph:
    """How points are stored in a layout, with the steps that remember things.

    Attributes:
      dry_run: assign, pack and count, and write nothing but dead letters.
      hours_writer: marks the hours of the rows that the direct writer writes; None for no marks.
      track: writes metadata of new series beside their points; only for OpenTSDB's layout.
      limiter: limits new series; None for no limits.
      assign, index, pack: the steps; without an index, None.
      pack_portion: packs the portions of files in one process; None if no portion replaces points of another.
    """

    layout: Store
    packing: Packing
    target: Target
    writer: str
    uids: UidOptions
    dry_run: bool = False
    hours_writer: HoursWriter | None = None
    track: TrackFn | None = None
    limiter: SeriesLimiter | None = None

    def __post_init__(self) -> None:
        keys = SeriesKeys(self.target, self.layout, self.uids, dry_run=self.dry_run, limiter=self.limiter)
        self.assign = AssignFn(keys)
        index, size = self.layout.index, self.uids.cache_size
        self.index = None if index is None else IndexFn(self.target, index, size, dry_run=self.dry_run)
        self.pack, self.pack_portion = PackFn(self.layout, self.packing), None
        opentsdb = find_opentsdb(self.layout)
        if opentsdb is not None and opentsdb.replacing(self.packing) and not self.dry_run:
            self.pack_portion = PackInPartsFn(self.target, opentsdb, self.packing)

    def hold(self, *, portions: bool) -> list[object]:
        """What keeps the memory of the steps alive in this process, from run to run, while it is referenced.

        Args:
          portions: whether the runs are those of portions of files.
        """
        steps = (self.assign, self.index, self.track, self.pack_portion if portions else None)
        return [step.hold() for step in steps if step is not None]

    def tables(self) -> list[TableSpec]:
        """The tables that must exist."""
        tables = [*self.layout.tables(), *([self.hours_writer.table] if self.hours_writer else [])]
        tables += [step.table for step in (self.track, self.limiter) if step is not None]
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
        return refused + self.store(root, ONCE, points)

    def store(
        self, root: beam.Pipeline, flow: Flow, points: PCollection[PointBatch]
    ) -> list[PCollection[Rejected]]:
        """Adds the steps behind parsing; returns what they refuse."""
        names = root | "UidSnapshot" >> (
            ReadUidSnapshot(self.target, self.layout, self.uids)
            if flow.snapshot
            else beam.Create([], reshuffle=False).with_output_types(list)
        )
        keyed = points | "AssignUids" >> rejecting(self.assign, PointBatch, beam.pvalue.AsIter(names))
        refused = [keyed[REJECTED]]
        batches = keyed.main
        if self.index is not None:
            indexed = batches | "Index" >> rejecting(self.index, PointBatch)
            refused.append(indexed[REJECTED])
            batches = indexed.main
        encoded = batches | "Encode" >> rejecting(EncodeFn(self.layout), Encoded)
        grouped = encoded.main
        if self.packing is not Packing.POINTS or not flow.endless:
            # In a stream a cell for each point needs nothing of the row's others, and the newer message wins
            # by its time: no shuffle. (Blocks of one file have one time, and are put in order by it.)
            group = GroupPerRow(one_bundle=flow.one_bundle)
            grouped = _on_arrival(grouped, flow) | "GroupPerRow" >> group
        is_portion = flow.one_bundle and not flow.endless
        pack = self.pack_portion if is_portion and self.pack_portion is not None else self.pack
        packed = grouped | "Pack" >> rejecting(pack, EncodedRow)
        refused += [encoded[REJECTED], packed[REJECTED]]
        if not self.dry_run:
            tables = data_tables(self.layout)
            appends = self.layout.writing.append_qualifier if self.packing is Packing.APPEND else b""
            write = StoreRows(self.target, tables, self.writer, self.hours_writer, appends)
            refused.append(packed.main | "Write" >> write)
            if self.track is not None:
                packed.main | "Meta" >> beam.ParDo(self.track).with_output_types(Rejected)
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


AnyGraph = TypeVar("AnyGraph", bound=PointsGraph)


def storing_graph(
    options: argparse.Namespace,
    layout: Store,
    graph: Callable[..., AnyGraph],
    *,
    endless: bool,
    **parsing: Any,
) -> AnyGraph:
    """The graph of storing points in a layout.

    Args:
      graph, parsing: its class, and what that has beside the attributes of `PointsGraph`.

    Raises:
      UsageError: options that cannot go together.
    """
    if layout.writing.read_only:
        raise UsageError(f"layout {layout.name}: {layout.writing.read_only}")
    default = Packing.POINTS if endless else layout.writing.packings[0]
    packing = Packing(options.packing) if options.packing else default
    if packing not in layout.writing.packings:
        raise UsageError(
            f"layout {layout.name} has no packing {packing.value}"
            f"{' (' + layout.writing.packing_limit + ')' if layout.writing.packing_limit else ''}: "
            f"choose {' or '.join(choice.value for choice in layout.writing.packings)}"
        )
    check_writer(options, packing)
    is_marked = options.mark_touched or layout.writing.marked_since_s is not None
    policy = UidPolicy(
        options.auto_create_metrics,
        options.auto_create_tagks,
        options.auto_create_tagvs,
        options.random_metrics,
    )
    return graph(
        layout,
        packing,
        target_of(options),
        options.bigtable_writer,
        UidOptions(policy, options.uid_cache_size, options.uid_snapshot_size, options.uid_negative_seconds),
        options.dry_run,
        ChangedHoursWriter(layout) if is_marked else None,
        _track_of(options, layout),
        **parsing,
    )


def _track_of(options: argparse.Namespace, layout: Store) -> TrackFn | None:
    """What writes metadata of new series, if any; raises UsageError if the layout has no metadata."""
    if options.meta == "off":
        return None
    opentsdb = required_opentsdb(layout, "metadata")
    return TrackFn(target_of(options), opentsdb, options.meta, options.uid_cache_size)
