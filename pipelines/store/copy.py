"""`timebeam copy`: the points of a time range out of one layout's tables into another's."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Sequence, Set
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import PCollection

from timebeam.pipelines.ingest.store_points import StoringOptions, storing_graph
from timebeam.pipelines.jobs.job import AnyJob, Job, Run
from timebeam.pipelines.options.parameters import UsageError
from timebeam.pipelines.options.period import time_of
from timebeam.pipelines.options.place import Place, read_config, required_opentsdb
from timebeam.pipelines.options.store_settings import ESCAPE, with_names
from timebeam.pipelines.output.printable import printable
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.bits.times import ends_before
from timebeam.schema.core.contract import ReadableStore, Store
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.stores import find_opentsdb, missing
from timebeam.transforms.bigtable.existing_tables import check_tables
from timebeam.transforms.copy.copied_points import Compared, ReadBatches, compare
from timebeam.transforms.dead_letters.letter_files import count_letters, read_row_letters
from timebeam.transforms.flow import metrics
from timebeam.transforms.ingest.points_graph import PointsGraph
from timebeam.transforms.opentsdb.copy_annotations import (
    CarryAttached,
    CarryJob,
    ComparedAttached,
    compare_attached,
)
from timebeam.transforms.opentsdb.copy_to_other_uids import (
    ComparedRows,
    CopyTranslated,
    TablePair,
    TranslateJob,
    compare_translated,
    table_pairs,
)
from timebeam.transforms.read.find_series import why_nothing

_SHOWN = 10  # series of which points are missing


class _RejectedByCopy(NamedTuple):
    """The dead letters of a copy.

    Attributes:
      points: of points, annotations and histograms.
      unread: of places of the source that could not be read.
      rows: (table, row key) of rollups, metadata and trees.
    """

    points: int = 0
    unread: int = 0
    rows: Set[tuple[str, bytes]] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class Copy(Job):
    """Copies the points of a time range, and reads everything back.

    Attributes:
      graph: how the points are stored.
      source: the layout to read.
      start_ms, end_ms: first and last time.
      verify_only: copy nothing, only compare.
      translate: the rollups, metadata and trees to copy.
    """

    graph: PointsGraph
    source: ReadableStore
    start_ms: int
    end_ms: int
    verify_only: bool
    translate: TranslateJob | None = None

    def planned(self, run: Run) -> AnyJob | int:
        """Compares only, if that is asked for; see `AnyJob.planned`."""
        return self.verify(_RejectedByCopy(), as_json=run.as_json) if self.verify_only else self

    def build(self, root: beam.Pipeline) -> Sequence[PCollection[Rejected]]:
        graph, period = self.graph, (self.start_ms, self.end_ms)
        carry = None
        annotated = find_opentsdb(self.source)
        if annotated is not None:
            carry = CarryAttached(
                CarryJob(graph.target, annotated, graph.layout, graph.uids, *period, graph.dry_run)
            )
        rejected = graph.from_points(root, ReadBatches(graph.target, self.source, *period), carry)
        if self.translate is not None:
            rejected.append(root | "RollupsMetaTrees" >> CopyTranslated(self.translate))
        return rejected

    def finish(self, run: Run) -> int:
        """Reads everything back; returns 1 if a point is neither there nor a dead letter."""
        if run.dry_run:
            return 0
        assert run.dead_letters is not None
        rejected = count_letters(run.dead_letters) or metrics.rejected_by_reason()
        unread = rejected.pop(Reason.CORRUPT_FILE.value, 0)
        rows = set[tuple[str, bytes]]()
        others = 0  # letters of rows that were not unreadable
        if self.translate is not None:
            tables = {table for pair in self.translate.tables for table in (pair.source.name, pair.sink.name)}
            for reason, row in read_row_letters(run.dead_letters):
                if row.table in tables:
                    rows.add((row.table, row.key))
                    others += reason is not Reason.CORRUPT_FILE
        by_copy = _RejectedByCopy(sum(rejected.values()) - others, unread, rows)
        return self.verify(by_copy, as_json=run.as_json)

    def verify(self, rejected: _RejectedByCopy, *, as_json: bool) -> int:
        """Compares what is stored with the source, and prints the differences; returns the exit code.

        Args:
          as_json: print the figures as a line of JSON, and the sentences on standard error.
        """
        if not as_json:
            return self._compare(rejected)[0]
        with contextlib.redirect_stdout(sys.stderr):
            code, figures = self._compare(rejected)
        print(json.dumps(figures | {"verified": code == 0}))
        return code

    def _compare(self, rejected: _RejectedByCopy) -> tuple[int, dict[str, Any]]:
        """(exit code, the figures of the comparison)."""
        target, source, sink = self.graph.target, self.source, self.graph.layout
        compared = compare(target, source, sink, self.start_ms, self.end_ms)
        code = _print_compared(compared, rejected.points, rejected.unread)
        figures = dataclasses.asdict(compared) | {
            "missing": {str(series): count for series, count in compared.missing.items()},
            "different": {str(series): count for series, count in compared.different.items()},
            "unreadable": rejected.unread,
        }
        if not compared.points and not compared.missing and not compared.different:
            print(f"nothing found: {why_nothing(target, source)}", file=sys.stderr)
        annotated = find_opentsdb(source)
        if annotated is not None:
            attached = compare_attached(target, annotated, sink, self.start_ms, self.end_ms)
            code = max(code, _print_attached(attached, sink, rejected.points))
            figures["attached"] = dataclasses.asdict(attached)
        if self.translate is not None:
            rows = compare_translated(self.translate, rejected.rows)
            code = max(code, _print_rows(rows, self.translate))
            figures["rows"] = rows._asdict()
        return code, figures


@dataclasses.dataclass(frozen=True, slots=True)
class CopyOptions(StoringOptions):
    """Which points are copied, and what else."""

    start: str
    end: str
    also: Sequence[str]
    rollup_config: str | None
    verify_only: bool


def job_of(source: Place, sink: Place, options: CopyOptions, now_ms: int) -> Copy:
    """The job that the options describe.

    Raises:
      UsageError: options that cannot go together.
      BigtableError: a table to be read is missing.
    """
    read = source.readable()
    start_ms, end_ms = time_of(options.start, now_ms), time_of(options.end, now_ms)
    if start_ms > end_ms:
        raise UsageError(ends_before(start_ms, end_ms))
    uids = find_opentsdb(read)  # names that are escaped in the source stay so by default
    sink = with_names(sink, escape=uids is not None and uids.options.names == ESCAPE)
    sink = sink.creating(*(f"--{content}" for content in ("meta", "trees") if content in options.also))
    to_write = sink.store
    shared = {spec.name for spec in read.tables()} & {spec.name for spec in to_write.tables()}
    graph = storing_graph(sink, options, to_write, PointsGraph, endless=False)
    if shared:
        raise UsageError(f"table {min(shared)} is both read and written: change --to-table-prefix")
    of_points = dataclasses.replace(source, also=[word for word in source.also if word != "--meta"])
    check_tables(graph.target, read.tables(), of_points.create_command())
    pairs = _table_pairs(options, read, to_write) if options.also else []
    check_tables(graph.target, [pair.source for pair in pairs], of_points.create_command())
    period, verify_only = (start_ms, end_ms), options.verify_only
    job = Copy(
        graph.target, graph.tables(), graph, read, *period, verify_only, place=sink, stores_settings=True
    )
    if not pairs:
        return job
    translate = TranslateJob(
        graph.target,
        required_opentsdb(read, "UID tables"),
        required_opentsdb(to_write, "UID tables"),
        graph.uids,
        pairs,
        start_ms,
        end_ms,
        graph.dry_run,
    )
    tables = [*job.tables, *(pair.sink for pair in pairs)]
    return dataclasses.replace(job, tables=tables, translate=translate)


def _table_pairs(options: CopyOptions, source: ReadableStore, sink: Store) -> list[TablePair]:
    """The tables that `--also` names.

    Raises:
      UsageError: the rollup configuration is missing or wrong, or a layout is not `opentsdb`.
    """
    unknown = set(options.also) - {"rollups", "meta", "trees"}
    if unknown:
        raise UsageError(f"--also {min(unknown)}: choose from rollups, meta, trees")
    with_uids, to_write = (required_opentsdb(layout, "UID tables") for layout in (source, sink))
    config = None
    if "rollups" in options.also:
        if not options.rollup_config:
            raise UsageError("--also rollups needs --rollup-config, which names their tables")
        if to_write.options.marked_since and not options.verify_only:
            raise UsageError(
                "--also rollups: the new tables have marked_since, so `rollup --follow` alone writes their "
                "rollups; leave it out, or store marked_since when the rollups are copied"
            )
        config = read_config(options.rollup_config)
    return table_pairs(with_uids, to_write, options.also, config)


def _print_compared(compared: Compared, rejected: int, unread: int) -> int:
    """Prints the differences; returns the exit code.

    Args:
      rejected: points that went to the dead letters.
      unread: places of the source that could not be read.
    """
    missing, different = sum(compared.missing.values()), sum(compared.different.values())
    copied = f"copied {compared.points:,} points of {compared.series:,} series"
    if compared.newer:
        copied += f", {compared.newer:,} of them with newer values in the destination, which were kept"
    if unread:
        print(f"{unread:,} rows or cells could not be read: see the dead letters", file=sys.stderr)
    if missing + different <= rejected:
        absent = missing + different
        print(f"{copied}; verified" + (f", but {absent:,} rejected: see the dead letters" if absent else ""))
        return 1 if unread else 0
    wrong = f"{missing:,} are missing"
    if different:
        wrong += f" and {different:,} have a different value that is not newer"
    print(f"{copied}; {wrong}; up to {rejected:,} of them may be dead letters", file=sys.stderr)
    for word, counts in (("missing", compared.missing), ("different", compared.different)):
        for series, count in sorted(counts.items())[:_SHOWN]:
            print(f"{word}: {count:,} of {printable(str(series))}", file=sys.stderr)
    return 1


def _print_rows(compared: ComparedRows, translate: TranslateJob) -> int:
    """Prints what became of rollups, metadata and trees; returns the exit code."""
    what = ", ".join(dict.fromkeys(pair.content.name.lower() for pair in translate.tables))
    text = f"copied {compared.rows:,} rows of {what}"
    if compared.missing or compared.different:
        wrong = f"{compared.missing:,} cells are missing and {compared.different:,} differ"
        print(f"{text}; {wrong}", file=sys.stderr)
        return 1
    count = compared.rejected
    print(f"{text}; verified" + (f", but {count:,} cells rejected: see the dead letters" if count else ""))
    return 0


def _print_attached(compared: ComparedAttached, sink: Store, rejected: int) -> int:
    """Prints what became of annotations and histograms, if there are any; returns the exit code."""
    if find_opentsdb(sink) is None:
        if compared.missing:
            why = missing(sink.name, "annotations", find_opentsdb)
            print(f"not copied: {compared.missing:,} annotations and histograms: {why}")
        return 0
    if compared.annotations or compared.histograms:
        print(f"copied {compared.annotations:,} annotations and {compared.histograms:,} histograms; verified")
    if compared.missing:
        print(f"{compared.missing:,} annotations and histograms are missing", file=sys.stderr)
    return 1 if compared.missing > rejected else 0
