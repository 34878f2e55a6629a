"""Running a pipeline from a command line: Beam's options checked, progress shown."""

from __future__ import annotations

import argparse
import logging
import sys
import threading
import time
from collections.abc import Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineResult

from transforms import metrics

LOCAL_RUNNER = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
"""What runs a pipeline if no runner is asked for: the engine of the DirectRunner for bounded input,
named so that the DirectRunner does not first try to download another one."""

_PROGRESS_SECONDS = 5


def beam_options(parser: argparse.ArgumentParser, rest: Sequence[str]) -> list[str]:
    """Checks that the options left over are Beam's own; returns them, with a runner.

    An option that nobody knows ends the program with exit code 2: Beam itself would ignore it.
    """
    known = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    classes = list(PipelineOptions.__subclasses__())
    for options_class in classes:
        options_class._add_argparse_args(known)  # type: ignore[arg-type]
        classes += options_class.__subclasses__()
    runner, unknown = known.parse_known_args(list(rest))
    if unknown:
        parser.error(f"unknown option {unknown[0]}")
    return list(rest) if runner.runner else [*rest, f"--runner={LOCAL_RUNNER}"]


def run_with_progress(pipeline: beam.Pipeline) -> PipelineResult:
    """Runs a pipeline to its end, with a line of progress every few seconds on standard error."""
    logging.getLogger("apache_beam").setLevel(logging.ERROR)
    metrics.totals.clear()
    done = threading.Event()
    reporter = threading.Thread(target=_report, args=(done,), daemon=True)
    reporter.start()
    try:
        result = pipeline.run()
        result.wait_until_finish()
    finally:
        done.set()
        reporter.join()
    return result


def _report(done: threading.Event) -> None:
    """Prints what this process has done so far, until it is done."""
    started = time.monotonic()
    while not done.wait(_PROGRESS_SECONDS):
        seconds = time.monotonic() - started
        totals = dict(metrics.totals)
        points = totals.get("points_read", 0)
        refused = sum(count for name, count in totals.items() if name.startswith("refused/"))
        print(
            f"{seconds:5.0f} s: {points:,} points read ({points / seconds:,.0f}/s), "
            f"{totals.get('rows_written', 0):,} rows written, {refused:,} refused",
            file=sys.stderr,
        )
