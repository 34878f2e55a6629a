"""The graph that stores points in a layout: the same steps whatever they were read from.

assign UIDs ─► encode ─► group per row ─► pack ─► write
    └────────────┴───────────────────────┴───────┴──► dead letters
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.trigger import AccumulationMode, AfterProcessingTime, Repeatedly
from apache_beam.transforms.window import GlobalWindows

from timebeam.schema.core.contract import Store
from timebeam.schema.core.point_fragments import Encoded, Packing
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.core.rows import EncodedRow, TableSpec
from timebeam.schema.stores import find_opentsdb
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.flow.steps import REJECTED, rejecting
from timebeam.transforms.ingest.encode_group_pack import (
    AssignFn,
    EncodeFn,
    GroupPerRow,
    PackFn,
    PackInPartsFn,
    ReadUidSnapshot,
    SharedSeriesKeys,
)
from timebeam.transforms.ingest.row_mutations import HoursWriter, data_tables
from timebeam.transforms.ingest.series_keys import UidOptions
from timebeam.transforms.ingest.store_index import IndexFn
from timebeam.transforms.ingest.write_packed_rows import StoreRows
from timebeam.transforms.opentsdb.create_meta import TrackFn

if TYPE_CHECKING:
    from timebeam.transforms.ingest.limit_series import SeriesLimiter


@dataclasses.dataclass(frozen=True, slots=True)
class Flow:
    """How one graph runs.

    Attributes:
      endless: whether its input is a stream, or a batch of one.
      one_bundle: whether each run in this process is one bundle, whose rows are packed without a shuffle.
      flush_seconds: how long the pieces of a row are gathered to be packed; None to the end of the run.
      snapshot: whether the UID table is read ahead; not if the steps remember it from an earlier run.
    """

    endless: bool = False
    one_bundle: bool = False
    flush_seconds: float | None = None
    snapshot: bool = True


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
      pack_in_parts: packs the portions of files in one process; None if none replaces points of another.
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
        keys = SharedSeriesKeys(
            self.target, self.layout, self.uids, dry_run=self.dry_run, limiter=self.limiter
        )
        self.assign = AssignFn(keys)
        index, size = self.layout.index, self.uids.cache_size
        self.index = None if index is None else IndexFn(self.target, index, size, dry_run=self.dry_run)
        self.pack, self.pack_in_parts = PackFn(self.layout, self.packing), None
        opentsdb = find_opentsdb(self.layout)
        if opentsdb is not None and opentsdb.replacing(self.packing) and not self.dry_run:
            self.pack_in_parts = PackInPartsFn(self.target, opentsdb, self.packing)

    def hold(self, *, portions: bool) -> list[object]:
        """What keeps the memory of the steps alive in this process, from run to run, while it is referenced.

        Args:
          portions: whether the runs are those of portions of files.
        """
        steps = (self.assign, self.index, self.track, self.pack_in_parts if portions else None)
        return [step.hold() for step in steps if step is not None]

    def tables(self) -> list[TableSpec]:
        """The tables that must exist."""
        tables = [*self.layout.tables(), *([self.hours_writer.table] if self.hours_writer else [])]
        tables += [step.table for step in (self.track, self.limiter) if step is not None]
        return tables

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
        """Adds the graph of storing points that need no parsing; returns what is rejected.

        Args:
          read: gives `main`, `PointBatch`, and `REJECTED`.
          attached: stores annotations and histograms, and gives what it rejected.
        """
        source = root | "Read" >> read
        points = source.main | "Spread" >> beam.Reshuffle().with_output_types(PointBatch)
        rejected = [source[REJECTED]]
        if attached is not None:
            rejected.append(root | "Others" >> attached)
        return rejected + self.store(root, ONCE, points)

    def store(
        self, root: beam.Pipeline, flow: Flow, points: PCollection[PointBatch]
    ) -> list[PCollection[Rejected]]:
        """Adds the steps behind parsing; returns what they reject."""
        encoded, rejected = self.encode(root, flow, points)
        return rejected + self.write(on_arrival(encoded, flow) if self.groups(flow) else encoded, flow)

    def encode(
        self, root: beam.Pipeline, flow: Flow, points: PCollection[PointBatch]
    ) -> tuple[PCollection[Encoded], list[PCollection[Rejected]]]:
        """Adds the steps that take each batch by itself; (pieces of rows, what they reject)."""
        names = root | "UidSnapshot" >> (
            ReadUidSnapshot(self.target, self.layout, self.uids)
            if flow.snapshot
            else beam.Create([], reshuffle=False).with_output_types(list)
        )
        keyed = points | "AssignUids" >> rejecting(self.assign, PointBatch, beam.pvalue.AsIter(names))
        rejected = [keyed[REJECTED]]
        batches = keyed.main
        if self.index is not None:
            indexed = batches | "Index" >> rejecting(self.index, PointBatch)
            rejected.append(indexed[REJECTED])
            batches = indexed.main
        encoded = batches | "Encode" >> rejecting(EncodeFn(self.layout), Encoded)
        return encoded.main, [*rejected, encoded[REJECTED]]

    def groups(self, flow: Flow) -> bool:
        """Whether the pieces of a row are brought together before they are packed.

        In a stream a cell for each point needs nothing of the row's others, and the newer message wins by its
        time: no shuffle. (Blocks of one file have one time, and are put in order by it.)
        """
        return self.packing is not Packing.POINTS or not flow.endless

    def write(self, encoded: PCollection[Encoded], flow: Flow) -> list[PCollection[Rejected]]:
        """Adds the steps from the pieces of rows, in the global window, to their mutations; returns what they
        reject."""
        if self.groups(flow):
            encoded = encoded | "GroupPerRow" >> GroupPerRow(one_bundle=flow.one_bundle)
        in_parts = flow.one_bundle and not flow.endless
        pack = self.pack_in_parts if in_parts and self.pack_in_parts is not None else self.pack
        packed = encoded | "Pack" >> rejecting(pack, EncodedRow)
        rejected = [packed[REJECTED]]
        if not self.dry_run:
            tables = data_tables(self.layout)
            appends = self.layout.writing.append_qualifier if self.packing is Packing.APPEND else b""
            write = StoreRows(self.target, tables, self.writer, self.hours_writer, appends)
            rejected.append(packed.main | "Write" >> write)
            if self.track is not None:
                packed.main | "Meta" >> beam.ParDo(self.track).with_output_types(Rejected)
        return rejected


def on_arrival(encoded: PCollection[Any], flow: Flow) -> PCollection[Any]:
    """Groups the points of a stream on arrival, never by their own times: nothing can be late."""
    if flow.flush_seconds is None:
        return encoded
    return encoded | "FlushOnArrival" >> beam.WindowInto(
        GlobalWindows(),
        trigger=Repeatedly(AfterProcessingTime(math.ceil(flow.flush_seconds))),
        accumulation_mode=AccumulationMode.DISCARDING,
    )
