"""`timebeam query` of points: what `timebeam serve` answers, as text, JSON, CSV or a chart."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from timebeam.pipelines.options.parameters import DECLARED, UsageError, usage_errors
from timebeam.pipelines.options.values import (
    create_command,
    declaration_of,
    declared_points,
    layout_of,
    opentsdb_of,
    place_of,
    rollups_of,
    target_of,
)
from timebeam.pipelines.output.printable import printable
from timebeam.pipelines.output.write_results import check_output, render
from timebeam.schema.bits.times import parse_time
from timebeam.schema.core.annotations import Annotation
from timebeam.schema.core.contract import ReadableStore
from timebeam.schema.core.points import Series
from timebeam.schema.core.selection import AmbiguousNameError, Selection, UnknownNameError
from timebeam.schema.query.answer import SUM, all_of, by_start
from timebeam.schema.query.downsample import Downsampling
from timebeam.schema.query.question import KINDS, NONE, Question, TagFilter, literals_of, rate_options
from timebeam.schema.rollup.rollup_config import RollupConfig
from timebeam.transforms.bigtable.existing_tables import check_tables
from timebeam.transforms.bigtable.retry import StoppedError
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.opentsdb.read_annotations import global_annotations, series_annotations
from timebeam.transforms.opentsdb.stored_series import question_of_tsuids
from timebeam.transforms.query.answer_question import Evaluated, evaluate, evaluate_histograms
from timebeam.transforms.query.budget import Budget, Meter
from timebeam.transforms.read.find_series import why_nothing
from timebeam.transforms.read.table_reader import TableReader

if TYPE_CHECKING:
    from timebeam.schema.stores import OpenTsdb


def run(options: argparse.Namespace) -> int:
    """Prints or plots the answer; exit code 1 if a name is unknown, or the time is over."""
    if options.metric is None and not options.tsuid:
        raise UsageError("the following arguments are required: METRIC")
    try:
        if options.layout != DECLARED:
            return answer_points(options, layout_of(options))
        from timebeam.pipelines.query.query_records import query_records, record_table

        declaration = declaration_of(options, reading=True)
        table = record_table(declaration, options.table_prefix, options.metric or "")
        if table is not None:
            return query_records(options, declaration, table)
        return answer_points(options, declared_points(options, declaration))
    except (UnknownNameError, StoppedError, AmbiguousNameError) as error:
        message = error.told() if isinstance(error, UnknownNameError) else str(error)
        print(f"timebeam query: {printable(message)}", file=sys.stderr)
        return 1


@dataclasses.dataclass(frozen=True, slots=True)
class PointQuery:
    """What the options ask of points.

    Attributes:
      rollups: the rollup tables that may serve; None for points alone.
    """

    target: Target
    layout: ReadableStore
    question: Question
    rollups: tuple[OpenTsdb, RollupConfig] | None
    now_ms: int

    @classmethod
    def of(cls, options: argparse.Namespace, layout: ReadableStore) -> PointQuery:
        """The query of some options, whose tables are there.

        Raises:
          UsageError: an option is wrong, or `start` is missing.
          BigtableError: a table is missing.
          UnknownNameError: a TSUID has a UID without a name.
        """
        if options.start is None:
            raise UsageError("the following options are required: --start")
        if options.metric is not None and options.tsuid:
            raise UsageError("give METRIC or --tsuid, not both")
        if options.tsuid and (options.tag or options.group_by or options.explicit_tags):
            raise UsageError(
                "--tsuid names the series: leave out --tag, --explicit-tags and --group-by; --aggregator "
                "none shows each series"
            )
        now_ms = int(time.time() * 1000)
        meter = None if options.max_seconds is None else Meter(Budget.of_seconds(options.max_seconds))
        target = dataclasses.replace(target_of(options), stop=meter)
        with usage_errors():
            question = _question(options, now_ms)
            rollups = (
                rollups_of(place_of(options), options.rollup_config)
                if options.rollup_config and options.rollup
                else None
            )
            check_tables(target, layout.tables(), create_command(options))
            if options.tsuid:
                question = question_of_tsuids(question, layout, options.tsuid, TableReader(target))
        return cls(target, layout, question, rollups, now_ms)

    def evaluate(self, *, full_scan: bool, with_annotations: bool) -> Evaluated:
        """The answer, out of points and rollups.

        Raises:
          UsageError: it is a full scan, and `full_scan` does not say so; or a fill is too large.
          UnknownNameError: a metric, tag key or tag value is unknown.
          StoppedError: the time is over.
        """
        asked = self.question
        scanned = self.layout.full_scan(Selection(asked.metric, asked.tags, asked.start_ms, asked.end_ms))
        if scanned and not full_scan:
            raise UsageError(f"{scanned}: give --tag for these, or --full-scan")
        with usage_errors():
            return evaluate(
                self.target, self.layout, asked, self.rollups, self.now_ms, with_annotations=with_annotations
            )


def answer_points(options: argparse.Namespace, layout: ReadableStore) -> int:
    """Answers the query of points that the options describe.

    Raises:
      StoppedError: the time is over.
    """
    if options.where:
        raise UsageError(
            f"--where is for records, and {options.metric} is not a declared table: select points by --tag"
        )
    if options.global_annotations:
        opentsdb_of(options, "annotations")
    with usage_errors():
        check_output(options.output)
    query = PointQuery.of(options, layout)
    if options.output == "annotations":
        return _list_annotations(options, query)
    if options.histogram or options.percentiles:
        evaluated = _histograms(options, query)
    else:
        evaluated = query.evaluate(full_scan=options.full_scan, with_annotations=options.annotations)
    for line in evaluated.explained if options.explain else ():
        print(line, file=sys.stderr)
    results = [result for result in evaluated.results if len(result.times_ms) or result.annotations]
    damage = [*evaluated.damage]
    if options.global_annotations:
        of_all, unread = _global_annotations(options, query)
        results = [dataclasses.replace(result, global_annotations=of_all) for result in results]
        damage += unread
    for line in damage:
        print(f"skipped: {line}", file=sys.stderr)
    left_out = len(all_of(results)) if options.output == "csv" else 0
    if left_out:
        print(f"left out: {left_out} annotations (--output annotations lists them)", file=sys.stderr)
    if not results:
        print(f"nothing found: {_why_nothing(options, layout, evaluated.series)}", file=sys.stderr)
    asked = query.question
    title = " ".join(f"{options.aggregator} {options.downsample or ''} {asked.metric}".split())
    span_ms = asked.start_ms, asked.end_ms
    text = render(results, options.output, printable(title), span_ms, options.csv_guard, options.timezone)
    print(text if text is not None else f"wrote {options.output}", end="" if text else "\n")
    return 0


def _histograms(options: argparse.Namespace, query: PointQuery) -> Evaluated:
    """The answer out of histograms."""
    if options.aggregator not in (SUM, NONE):
        raise UsageError(f"no aggregator {options.aggregator!r} for histograms; choose from {SUM} and {NONE}")
    with usage_errors():
        return evaluate_histograms(
            query.target,
            opentsdb_of(options, "histograms"),
            query.question,
            options.percentiles,
            has_buckets=options.histogram,
            with_annotations=options.annotations,
        )


def _list_annotations(options: argparse.Namespace, query: PointQuery) -> int:
    """Prints the annotations that start in the range, also of series without points there."""
    notes, damage = list[Annotation](), list[str]()
    if options.annotations:
        layout = opentsdb_of(options, "annotations")
        of_series, damage = series_annotations(query.target, layout, query.question)
        notes = [note for series_notes in of_series.values() for note in series_notes]
    if options.global_annotations:
        of_all, unread = _global_annotations(options, query)
        notes, damage = [*notes, *of_all], [*damage, *unread]
    for line in damage:
        print(f"skipped: {line}", file=sys.stderr)
    for note in by_start(notes):
        print(note.shown())
    return 0


def _global_annotations(
    options: argparse.Namespace, query: PointQuery
) -> tuple[Sequence[Annotation], Sequence[str]]:
    """(the global annotations of the range, a line for each unreadable one)."""
    layout, asked = opentsdb_of(options, "annotations"), query.question
    notes, damage = global_annotations(query.target, layout, asked.start_ms, asked.end_ms)
    return notes or (), damage


def _why_nothing(options: argparse.Namespace, layout: ReadableStore, series: Sequence[Series]) -> str:
    """Why a query has no results.

    Args:
      series: those that passed its filters and have points near its range of time.
    """
    if not series:
        return why_nothing(target_of(options), layout)
    keys = sorted({key for member in series for key, _ in member.tags})
    missing = [key for key in options.group_by if key not in keys]
    if missing and options.aggregator != NONE:
        return (
            f"no series has the tag key {printable(repr(missing[0]))} of --group-by; the series that match "
            f"have {printable(', '.join(keys)) or 'no tags'}"
        )
    if options.group_by and options.aggregator != NONE:
        return "no series with all tag keys of --group-by has points in this time range"
    return "series match, but they have no points in this time range"


def tag_filters(texts: Iterable[str]) -> list[TagFilter]:
    """The filters of `--tag`.

    Raises:
      ValueError: one is wrong, in a TSD's words where it has some.
    """
    filters = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals or not value:
            raise ValueError(f"--tag {text}: give KEY=VALUE, as in host=web01|web02 or host=regexp(web.*)")
        try:
            filters.append(TagFilter.of_value(key, value, group_by=False))
        except ValueError as error:
            is_filter = value.partition("(")[0].lower() in KINDS
            hint = "" if is_filter else f"; for the value itself give {key}=literal_or({value})"
            raise ValueError(f"--tag {text}: {error}{hint}") from error
    return filters


def _question(options: argparse.Namespace, now_ms: int) -> Question:
    """What the options ask of points, TSUIDs aside.

    Raises:
      ValueError: an option is wrong, in a TSD's words where it has some.
    """
    filters = tag_filters(options.tag)
    if options.rate is not None and not options.rate.startswith("rate"):
        raise ValueError(f"--rate {options.rate}: give rate, rate{{counter}} or rate{{dropcounter}}")
    return Question(
        options.metric or "",
        literals_of(filters),
        options.group_by,
        options.aggregator,
        Downsampling.parse(options.downsample, options.timezone) if options.downsample else None,
        parse_time(options.start, now_ms, options.timezone),
        parse_time(options.end, now_ms, options.timezone),
        None if options.rate is None else rate_options(options.rate),
        filters,
        options.explicit_tags,
    )
