"""`timebeam copy`: the points of a time range out of one layout's tables into another's."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from pipelines import cli
from pipelines.bounded import run_bounded
from pipelines.graph import Job, build_from_points
from pipelines.ingest import DEAD_LETTERS, WRITING, storing_job
from pipelines.options import create_command, layout_named
from pipelines.parameters import LAYOUT, TIME, Parameter, UsageError, boolean, parser_of
from pipelines.run import beam_options, is_dataflow
from schema.layouts import LAYOUTS, Layout
from schema.layouts.opentsdb.layout import OpenTsdb
from schema.meta.rows import MetaMode
from schema.points import Reason
from schema.query.times import parse_time
from transforms import metrics
from transforms.bigtable.tables import check_tables
from transforms.carry import CarryOthers, ComparedOthers, compare_others
from transforms.compare import Compared, compare
from transforms.read_points import ReadPoints

_TO = "to_"
_SHOWN = 10  # series of which points are missing

PARAMETERS = (
    Parameter("from", "the layout to read", "From", choices=tuple(LAYOUTS), required=True),
    *(dataclasses.replace(parameter, group="From") for parameter in LAYOUT[1:]),
    Parameter("to", "the layout to write", "To", choices=tuple(LAYOUTS), required=True),
    *(
        dataclasses.replace(
            parameter,
            name=_TO + parameter.name,
            help=f"--{parameter.name} of the layout to write",
            group="To",
        )
        for parameter in LAYOUT[1:]
    ),
    Parameter(
        "start",
        "first time: 30d-ago, 2026-11-21T08:00:00Z, seconds or ms since 1970",
        "Points",
        required=True,
        regex=TIME,
        example="2026-11-01",
    ),
    Parameter("end", "last time, as --start", "Points", default="now", regex=TIME, example="2026-11-21"),
    DEAD_LETTERS,
    *WRITING,
    Parameter(
        "verify_only",
        "copy nothing: only look whether all is there",
        "Run",
        boolean,
        False,
        local="the program itself reads and compares, and starts no job",
    ),
)

EXAMPLES = """\
  timebeam copy --from opentsdb --to heroic --start 2026-11-01 --end 2026-11-21
  timebeam copy --from kairosdb --row_spec milliseconds --to opentsdb --to_salt_width 1 \\
      --to_table_prefix new- --auto_create_metrics --start 2020-01-01
  timebeam copy --from heroic --to kairosdb --start 2026-11-01 --verify_only

every option of Beam and of its runners can be given too"""


def main(argv: Sequence[str] | None = None) -> int:
    """Copies, and reads everything back; exit code 1 if a point is neither there nor a dead letter."""
    parser = parser_of(
        "copy", "Copies the points of a time range, then proves that they are there.", EXAMPLES, PARAMETERS
    )
    options, rest = parser.parse_known_args(argv)
    flags = beam_options(parser, rest, options.project)
    run_ms = int(time.time() * 1000)
    given = vars(options)
    source, sink = layout_named(given["from"], given), layout_named(options.to, _of_target(given))
    period = _period(options, run_ms)
    job = storing_job(options, sink, endless=False, run_ms=run_ms)
    _check(job, source, given)
    refused: dict[str, int] = {}
    if not options.verify_only:
        pipeline = beam.Pipeline(options=PipelineOptions([*flags]))
        others = None
        if isinstance(source, OpenTsdb):
            others = CarryOthers(job.target, source, sink, job.uids, period, dry_run=job.dry_run)
        build_from_points(pipeline, job, ReadPoints(job.target, source, *period), run_ms, others)
        run_bounded(pipeline, options, flags, run_ms, job.dead_letters)
        if job.dry_run or is_dataflow(flags):
            return 0
        refused = metrics.refused_by_reason()
    unread = refused.pop(Reason.CORRUPT_FILE.value, 0)
    code = _tell(compare(job.target, source, sink, *period), sum(refused.values()), unread)
    if isinstance(source, OpenTsdb):
        beside = compare_others(job.target, source, sink, *period)
        code = max(code, _tell_others(beside, sink, sum(refused.values())))
    return code


def _of_target(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the layout to write, by their names without `to_`."""
    return {parameter.name: given[_TO + parameter.name] for parameter in LAYOUT[1:]}


def _period(options: argparse.Namespace, now_ms: int) -> tuple[int, int]:
    """First and last time in ms.

    Raises:
      UsageError: one is no time, or the first comes after the last.
    """
    try:
        start_ms, end_ms = parse_time(options.start, now_ms), parse_time(options.end, now_ms)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if start_ms > end_ms:
        raise UsageError(f"the range ends, at {end_ms} ms, before it starts, at {start_ms} ms")
    return start_ms, end_ms


def _check(job: Job, source: Layout, given: Mapping[str, Any]) -> None:
    """Raises an error unless the tables of both are there, and are not the same."""
    shared = {spec.name for spec in source.tables()} & {spec.name for spec in job.layout.tables()}
    if shared:
        raise UsageError(
            f"table {min(shared)} would be read and written: give --to_table_prefix another value"
        )
    written = {**_of_target(given), "meta": given["meta"]}
    for layout, tables, options in (
        (source, source.tables(), {**given, "meta": MetaMode.OFF.value}),
        (job.layout, job.tables(), written),
    ):
        command = create_command(argparse.Namespace(**{**options, "layout": layout.name}))
        check_tables(job.target, tables, command)


def _tell(compared: Compared, refused: int, unread: int) -> int:
    """Prints what was found; the exit code.

    Args:
      refused: points that went to the dead letters.
      unread: places of the source that could not be read.
    """
    missing = sum(compared.missing.values())
    what = f"copied {compared.points:,} points of {compared.series:,} series"
    if unread:
        print(f"{unread:,} rows or cells could not be read: see the dead letters", file=sys.stderr)
    if missing <= refused:
        print(f"{what}; verified" + (f", but {missing:,} refused: see the dead letters" if missing else ""))
        return 1 if unread else 0
    print(f"{what}; {missing:,} are missing, of which {refused:,} may be dead letters", file=sys.stderr)
    for series, count in sorted(compared.missing.items())[:_SHOWN]:
        print(f"missing: {count:,} of {series}", file=sys.stderr)
    return 1


def _tell_others(compared: ComparedOthers, sink: Layout, refused: int) -> int:
    """Prints what became of annotations and histograms, if there are any; the exit code."""
    if not isinstance(sink, OpenTsdb):
        if compared.missing:
            print(
                f"left out: {compared.missing:,} annotations and histograms: layout {sink.name} has no place"
            )
        return 0
    if compared.annotations or compared.histograms:
        print(f"copied {compared.annotations:,} annotations and {compared.histograms:,} histograms; verified")
    if compared.missing:
        print(f"{compared.missing:,} annotations and histograms are missing", file=sys.stderr)
    return 1 if compared.missing > refused else 0


if __name__ == "__main__":
    sys.exit(cli.main(["copy", *sys.argv[1:]]))
