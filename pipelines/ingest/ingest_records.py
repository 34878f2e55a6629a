"""Ingest into tables that a user declares: records of named fields, or points, to rows.

source ─► rows ─► write
   └───────┴────────┴──► dead letters

There are no series here and nothing to pack: a record is at most one mutation in each table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection

from timebeam.pipelines.ingest.ingest_jobs import InputOptions, format_of, formats_of, open_letters
from timebeam.pipelines.ingest.store_points import check_writer
from timebeam.pipelines.jobs.job import InputGraph
from timebeam.pipelines.options.parameters import RECORDS, UsageError
from timebeam.pipelines.options.place import Place, declared_tables
from timebeam.schema.core.point_fragments import Packing
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.core.rows import EncodedRow, TableSpec
from timebeam.schema.formats import Framing
from timebeam.schema.formats.options import RecordEncoding
from timebeam.schema.stores.declared.declaration import Declaration
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.flow.steps import REJECTED, rejecting
from timebeam.transforms.ingest.declared_rows import RecordMessagesFn, RecordRowsFn, point_rows
from timebeam.transforms.ingest.points_graph import Flow
from timebeam.transforms.ingest.write_packed_rows import StoreRows
from timebeam.transforms.input.parse import ParseFn, ParseMessagesFn, gathered


@dataclasses.dataclass(slots=True)
class RecordsGraph(InputGraph):
    """How records, or points, are stored in declared tables; nothing is packed, or remembered between runs.

    Attributes:
      encoding: of the records; None if the input is points.
      format_name, format_options: of points, see `message_format`.
      dry_run: make rows and count, and write nothing but dead letters.
      formats: other formats of points that messages may name in their attributes.
    """

    declaration: Declaration
    encoding: RecordEncoding | None
    format_name: str
    format_options: Mapping[str, Any]
    target: Target
    writer: str
    dry_run: bool = False
    formats: Sequence[str] = ()

    def tables(self) -> list[TableSpec]:
        """The tables that must exist."""
        return list(self.declaration.specs)

    def from_blocks(
        self, root: beam.Pipeline, read: beam.PTransform[Any, Any], flow: Flow | None = None
    ) -> list[PCollection[Rejected]]:
        """See `InputGraph.from_blocks`. `flow` is not used: nothing is grouped."""
        blocks = root | "Read" >> read
        step: beam.DoFn = ParseFn(self.format_name, self.format_options)
        if self.encoding is not None:
            step = RecordRowsFn(self.declaration, self.encoding)
        return self._store(blocks.main, step, [blocks[REJECTED]])

    def from_messages(
        self,
        root: beam.Pipeline,
        read: beam.PTransform[Any, Any],
        flow: Flow,
        *,
        letters: bool = False,
    ) -> list[PCollection[Rejected]]:
        messages = root | "Read" >> read
        rejected: list[PCollection[Rejected]] = []
        if letters:
            messages, _, rejected = open_letters(messages, self, declared_tables(self.declaration), flow)
        step: beam.DoFn = ParseMessagesFn(self.format_name, self.format_options, self.formats)
        if self.encoding is not None:
            step = RecordMessagesFn(self.declaration, self.encoding, letters=letters)
        return self._store(gathered(messages), step, rejected)

    def _store(
        self, messages: Any, step: beam.DoFn, rejected: Sequence[PCollection[Rejected]]
    ) -> list[PCollection[Rejected]]:
        """Adds the steps behind reading; returns what is rejected, by them and before.

        Args:
          step: makes rows of records, or parses points.
        """
        if self.encoding is None:
            parsed = messages | "Parse" >> rejecting(step, PointBatch)
            rejected = [*rejected, parsed[REJECTED]]
            rows = parsed.main | "Rows" >> rejecting(point_rows, EncodedRow, self.declaration)
        else:
            rows = messages | "Rows" >> rejecting(step, EncodedRow)
        all_rejected = [*rejected, rows[REJECTED]]
        if not self.dry_run:
            names = [spec.name for spec in self.tables()]
            write = StoreRows(self.target, names, self.writer)
            all_rejected.append(rows.main | "Write" >> write)
        return all_rejected


def records_graph(place: Place, options: InputOptions) -> tuple[RecordsGraph, Framing]:
    """The graph that the options of an ingest describe, and how files of its format are cut.

    Raises:
      UsageError: options that cannot go together, or a declaration that is wrong.
    """
    if options.mark_changed:
        raise UsageError("--mark-changed is not for declared tables: leave it out")
    if options.meta != "off":
        place.opentsdb("metadata")
    if options.packing not in (None, Packing.POINTS.value):
        raise UsageError(f"declared tables have no packing {options.packing}: leave --packing out")
    check_writer(place, options.bigtable_writer, Packing.POINTS)
    declaration = place.declaration()
    encoding: RecordEncoding | None = None
    format_options: dict[str, Any] = {}
    if options.format == RECORDS:
        encoding = RecordEncoding(options.records_encoding)
        framing = Framing.AVRO if encoding is RecordEncoding.AVRO else Framing.LINES
    else:
        format_options, framing = format_of(place, options)
    graph = RecordsGraph(
        declaration,
        encoding,
        options.format,
        format_options,
        place.target,
        options.bigtable_writer,
        options.dry_run,
        formats_of(options.formats),
    )
    return graph, framing
