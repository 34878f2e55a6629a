"""`timebeam query` of points: what `timebeam serve` answers, as text, JSON, CSV or a chart."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Sequence

from timebeam.pipelines.options.parameters import DECLARED, UsageError, usage_errors
from timebeam.pipelines.options.place import Place, required_opentsdb
from timebeam.pipelines.output.printable import printable
from timebeam.pipelines.output.write_results import check_output, render
from timebeam.pipelines.query.database import Database
from timebeam.pipelines.query.selection_options import SelectionOptions
from timebeam.schema.core.annotations import Annotation
from timebeam.schema.core.contract import ReadableStore
from timebeam.schema.core.points import Series
from timebeam.schema.core.selection import AmbiguousNameError, UnknownNameError
from timebeam.schema.query.answer import SUM, all_of, by_start
from timebeam.schema.query.question import NONE, Question
from timebeam.transforms.bigtable.retry import StoppedError
from timebeam.transforms.opentsdb.read_annotations import global_annotations, series_annotations
from timebeam.transforms.query.answer_question import Evaluated
from timebeam.transforms.query.budget import Budget, Meter
from timebeam.transforms.read.find_series import why_nothing


@dataclasses.dataclass(frozen=True, slots=True)
class QueryOptions(SelectionOptions):
    """What `timebeam query` reads, and how it shows that."""

    rollup_config: str | None
    rollup: bool
    max_seconds: float | None
    full_scan: bool
    where: Sequence[str]
    output: str
    csv_guard: bool
    annotations: bool
    global_annotations: bool
    histogram: bool
    percentiles: Sequence[float]
    explain: bool


def run(place: Place, options: QueryOptions) -> int:
    """Prints or plots the answer; exit code 1 if a name is unknown, or the time is over."""
    if options.metric is None and not options.tsuid:
        raise UsageError("the following arguments are required: METRIC")
    try:
        if place.layout != DECLARED:
            return answer_points(place, options, place.store)
        from timebeam.pipelines.query.query_records import query_records, record_table

        declaration = place.declaration(reading=True)
        table = record_table(declaration, place.table_prefix, options.metric or "")
        if table is not None:
            return query_records(place, options, declaration, table)
        return answer_points(place, options, place.declared_points(declaration))
    except (UnknownNameError, StoppedError, AmbiguousNameError) as error:
        message = error.told() if isinstance(error, UnknownNameError) else str(error)
        print(f"timebeam query: {printable(message)}", file=sys.stderr)
        return 1


def answer_points(place: Place, options: QueryOptions, store: ReadableStore) -> int:
    """Answers the query of points that the options describe.

    Raises:
      StoppedError: the time is over.
    """
    if options.where:
        raise UsageError(
            f"--where is for records, and {options.metric} is not a declared table: select points by --tag"
        )
    if options.global_annotations:
        required_opentsdb(store, "annotations")
    now_ms = int(time.time() * 1000)
    rollup_config = options.rollup_config if options.rollup else None
    with usage_errors():
        check_output(options.output)
        options.question(now_ms)  # before files and tables are read
        database = Database.of(place, store=store, rollup_config=rollup_config)
        if options.max_seconds is not None:
            database = database.metered(Meter(Budget.of_seconds(options.max_seconds)))
        question = database.question(options, now_ms)
    if options.output == "annotations":
        return _list_annotations(options, database, question)
    with usage_errors():
        evaluated = _evaluated(options, database, question, now_ms)
    for line in evaluated.explained if options.explain else ():
        print(line, file=sys.stderr)
    results = [result for result in evaluated.results if len(result.times_ms) or result.annotations]
    corruption = [*evaluated.corruption]
    if options.global_annotations:
        of_all, unread = _global_annotations(database, question)
        results = [dataclasses.replace(result, global_annotations=of_all) for result in results]
        corruption += unread
    for line in corruption:
        print(f"skipped: {line}", file=sys.stderr)
    left_out = len(all_of(results)) if options.output == "csv" else 0
    if left_out:
        print(f"left out: {left_out} annotations (--output annotations lists them)", file=sys.stderr)
    if not results:
        print(f"nothing found: {_why_nothing(options, database, evaluated.series)}", file=sys.stderr)
    title = " ".join(f"{options.aggregator} {options.downsample or ''} {question.metric}".split())
    span_ms = question.start_ms, question.end_ms
    text = render(results, options.output, printable(title), span_ms, options.csv_guard, options.timezone)
    print(text if text is not None else f"wrote {options.output}", end="" if text else "\n")
    return 0


def _evaluated(options: QueryOptions, database: Database, question: Question, now_ms: int) -> Evaluated:
    """The answer, out of points and rollups, or out of histograms; raises ValueError."""
    with_annotations = options.annotations
    if not options.histogram and not options.percentiles:
        if not options.full_scan:
            database.check_scan(question)
        return database.answer(question, now_ms, with_annotations=with_annotations)
    if options.aggregator not in (SUM, NONE):
        raise UsageError(f"no aggregator {options.aggregator!r} for histograms; choose from {SUM} and {NONE}")
    return database.histograms(
        question, options.percentiles, has_buckets=options.histogram, with_annotations=with_annotations
    )


def _list_annotations(options: QueryOptions, database: Database, question: Question) -> int:
    """Prints the annotations that start in the range, also of series without points there."""
    notes, corruption = list[Annotation](), list[str]()
    if options.annotations:
        opentsdb = required_opentsdb(database.store, "annotations")
        of_series, corruption = series_annotations(database.target, opentsdb, question)
        notes = [note for series_notes in of_series.values() for note in series_notes]
    if options.global_annotations:
        of_all, unread = _global_annotations(database, question)
        notes, corruption = [*notes, *of_all], [*corruption, *unread]
    for line in corruption:
        print(f"skipped: {line}", file=sys.stderr)
    for note in by_start(notes):
        print(note.shown())
    return 0


def _global_annotations(database: Database, question: Question) -> tuple[Sequence[Annotation], Sequence[str]]:
    """(the global annotations of the range, a line for each unreadable one)."""
    opentsdb = required_opentsdb(database.store, "annotations")
    notes, corruption = global_annotations(database.target, opentsdb, question.start_ms, question.end_ms)
    return notes or (), corruption


def _why_nothing(options: QueryOptions, database: Database, series: Sequence[Series]) -> str:
    """Why a query has no results.

    Args:
      series: those that passed its filters and have points near its range of time.
    """
    if not series:
        return why_nothing(database.target, database.store)
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
