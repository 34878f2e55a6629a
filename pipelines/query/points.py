"""`timebeam query`: points back out of the tables, aggregated as OpenTSDB's /api/query does.

With a rollup configuration what is rolled up comes from there; the answer is the same.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence

from timebeam.pipelines.options.parameters import (
    DECLARED,
    UsageError,
)
from timebeam.pipelines.options.values import (
    create_command,
    declaration_of,
    declared_points,
    layout_of,
    layout_with,
    rollups_of,
    target_of,
)
from timebeam.pipelines.output.printable import printable
from timebeam.pipelines.output.render import check_output, render
from timebeam.pipelines.query.records import query_records, record_table
from timebeam.schema.common.times import parse_time
from timebeam.schema.layouts import (
    Annotations,
    Histograms,
    ReadableLayout,
    Selection,
    UnknownNameError,
    find_capability,
)
from timebeam.schema.query.answer import QuerySeries, Result, all_of, annotated, answer
from timebeam.schema.query.downsample import Downsampling
from timebeam.schema.query.histograms import answer_histograms
from timebeam.schema.query.question import NONE, Question
from timebeam.transforms.bigtable.tables import check_tables
from timebeam.transforms.query.attached import find_annotations, find_histograms
from timebeam.transforms.query.points import why_nothing
from timebeam.transforms.query.rollups import QueryResult, find_points, find_rolled_up


def tag_filters(texts: Iterable[str]) -> dict[str, frozenset[str]]:
    """The tags that a query asks for: allowed values by key, none for `*`.

    Raises:
      UsageError: a text is not k=v.
    """
    filters: dict[str, frozenset[str]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not key or not equals or not values or key in filters:
            raise UsageError(f"--tag {text}: give each key once, as k=v, k=v|w or k=*")
        filters[key] = frozenset() if values == "*" else frozenset(values.split("|"))
    return filters


def question_of(options: argparse.Namespace, now_ms: int) -> Question:
    """The question that the options ask.

    Raises:
      UsageError: an option is wrong, or `start` is missing.
    """
    if options.start is None:
        raise UsageError("the following options are required: --start")
    try:
        return Question(
            options.metric,
            tag_filters(options.tag),
            options.group_by,
            options.aggregator,
            Downsampling.parse(options.downsample) if options.downsample else None,
            parse_time(options.start, now_ms),
            parse_time(options.end, now_ms),
        )
    except ValueError as error:
        raise UsageError(str(error)) from error


def answered_of(
    options: argparse.Namespace, layout: ReadableLayout, asked: Question, now_ms: int
) -> QueryResult:
    """The points of the question, out of rollups where a configuration is given and they serve it.

    Raises:
      UsageError: the read is a full scan without `full_scan`, or the configuration is wrong.
      BigtableError: a table is missing.
      UnknownNameError: a metric, tag key or tag value is unknown.
    """
    target = target_of(options)
    rollups = rollups_of(options) if options.rollup_config and not options.no_rollup else None
    scanned = layout.full_scan(Selection(asked.metric, asked.tags, asked.start_ms, asked.end_ms))
    if scanned and not options.full_scan:
        raise UsageError(f"{scanned}: give --tag for these, or --full_scan")
    check_tables(target, layout.tables(), create_command(options))
    if rollups is None:
        return find_points(target, layout, asked)
    return find_rolled_up(target, *rollups, asked, now_ms)


def _histograms(options: argparse.Namespace, asked: Question) -> Sequence[Result]:
    """The answer out of histograms.

    Raises:
      UsageError: the options ask for what histograms do not give.
    """
    layout, target = layout_with(options, Histograms), target_of(options)
    if asked.downsampling is not None:
        raise UsageError("histograms cannot be downsampled: leave --downsample out")
    shape = (options.group_by, options.aggregator, options.percentiles)
    try:
        answer_histograms(options.metric, {}, *shape)
    except ValueError as error:
        raise UsageError(str(error)) from error
    check_tables(target, layout.tables(), create_command(options))
    selection = Selection(asked.metric, asked.tags, asked.start_ms, asked.end_ms)
    histograms, unread = find_histograms(target, layout, selection)
    for line in unread:
        print(f"skipped: {line}", file=sys.stderr)
    return answer_histograms(options.metric, histograms, *shape)


def _with_annotations(
    options: argparse.Namespace, layout: ReadableLayout, results: Sequence[Result], asked: Question
) -> Sequence[Result]:
    """The results with the requested annotations; unreadable ones are named on standard error."""
    annotating = find_capability(layout, Annotations)
    if annotating is None or (options.no_annotations and not options.global_annotations):
        return results
    selection = Selection(asked.metric, asked.tags, asked.start_ms, asked.end_ms)
    notes, unread = find_annotations(
        target_of(options),
        annotating,
        selection,
        of_series=not options.no_annotations,
        of_all=options.global_annotations,
    )
    for line in unread:
        print(f"skipped: {line}", file=sys.stderr)
    complete = annotated(results, notes, asked.metric, asked.group_by, asked.aggregator)
    left_out = len(all_of(complete)) if options.output == "csv" else 0
    if left_out:
        print(f"left out: {left_out} annotations (--output annotations lists them)", file=sys.stderr)
    return complete


def run(options: argparse.Namespace) -> int:
    """Prints or plots the answer; exit code 1 if a name is unknown."""
    try:
        if options.layout != DECLARED:
            return answer_points(options, layout_of(options))
        declaration = declaration_of(options)
        table = record_table(declaration, options.table_prefix, options.metric)
        if table is not None:
            return query_records(options, declaration, table)
        return answer_points(options, declared_points(options, declaration))
    except UnknownNameError as error:
        near = " or ".join(repr(name) for name in error.near())
        hint = f"; did you mean {near}?" if near else ""
        print(f"timebeam query: {printable(error.args[0] + hint)}", file=sys.stderr)
        return 1


def answer_points(options: argparse.Namespace, layout: ReadableLayout) -> int:
    """Answers the query of points that the options describe."""
    if options.where:
        raise UsageError(
            f"--where is for records, and {options.metric} is not a declared table: select points by --tag"
        )
    try:
        check_output(options.output)
    except ValueError as error:
        raise UsageError(str(error)) from error
    now_ms = int(time.time() * 1000)
    asked = question_of(options, now_ms)
    if options.global_annotations:
        layout_with(options, Annotations)
    if options.histogram or options.percentiles:
        return _show(options, _histograms(options, asked), asked)
    answered = answered_of(options, layout, asked, now_ms)
    for line in answered.explained if options.explain else ():
        print(line, file=sys.stderr)
    for line in answered.damage:
        print(f"skipped: {line}", file=sys.stderr)
    try:
        results = [result for result in answer(asked, answered.series) if len(result.times_ms)]
    except ValueError as error:
        raise UsageError(str(error)) from error
    complete = _with_annotations(options, layout, results, asked)
    if not complete:
        print(f"nothing found: {_why_nothing(options, layout, answered.series)}", file=sys.stderr)
    return _show(options, complete, asked)


def _why_nothing(options: argparse.Namespace, layout: ReadableLayout, series: Sequence[QuerySeries]) -> str:
    """Why a query has no results.

    Args:
      series: those that passed its filters and have points near its range of time.
    """
    if not series:
        return why_nothing(target_of(options), layout)
    keys = sorted({key for found_series in series for key, _ in found_series.series.tags})
    missing = [key for key in options.group_by if key not in keys]
    if missing and options.aggregator != NONE:
        return (
            f"no series has the tag key {printable(repr(missing[0]))} of --group_by; the series that match "
            f"have {printable(', '.join(keys)) or 'no tags'}"
        )
    if options.group_by and options.aggregator != NONE:
        return "no series with all tag keys of --group_by has points in this time range"
    return "series match, but they have no points in this time range"


def _show(options: argparse.Namespace, results: Sequence[Result], asked: Question) -> int:
    """Prints or plots results; the exit code."""
    title = " ".join(f"{options.aggregator} {options.downsample or ''} {options.metric}".split())
    span_ms = asked.start_ms, asked.end_ms
    text = render(results, options.output, printable(title), span_ms, options.csv_guard)
    print(text if text is not None else f"wrote {options.output}", end="" if text else "\n")
    return 0
