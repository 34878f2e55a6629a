"""Running a pipeline from a command line: Beam's options checked, progress shown."""

from __future__ import annotations

import argparse
import logging
import re
import sys
import threading
import time
from collections.abc import Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions, StandardOptions
from apache_beam.runners.runner import PipelineResult, create_runner
from google.cloud.bigtable.batcher import MutationsBatchError

from pipelines.parameters import UsageError
from transforms import metrics
from transforms.bigtable.errors import service_error
from transforms.bigtable.target import BigtableError

LOCAL_RUNNER = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
"""What runs a pipeline if no runner is asked for: the engine of the DirectRunner for bounded input,
named so that the DirectRunner does not first try to download another one."""

LOCAL_RUNNERS = (LOCAL_RUNNER, "FnApiRunner", "DirectRunner", "direct", "SwitchingDirectRunner")
"""Runners that work in this process."""

SHARED = re.compile(r"[a-z0-9]+://|projects/[^/]+/topics/")
"""How the names of places begin that all machines share."""

_SERVICE_ERROR = re.compile(r"^google\.api_core\.exceptions\.\w+: (.+)$", re.MULTILINE)
"""What the service said, in the stack of a worker in another process: all that we get of its error."""

_WORKER_GONE = ("Channel closed prematurely", "SDK worker disconnected")
"""What runners say of a worker that is gone: the local one, and Prism."""

_PROGRESS_SECONDS = 5

_UNFIT = {"DaskRunner": "it mixes up the outputs of a step, good points with refused ones (docs/engines.md)"}
"""Runners of Beam that would do the wrong thing, by name."""


def beam_options(parser: argparse.ArgumentParser, rest: Sequence[str], project: str | None) -> list[str]:
    """Checks that the options left over are Beam's own; returns them, with a runner and our project.

    An option that nobody knows ends the program with exit code 2: Beam itself would ignore it.
    """
    _import_runner(parser, rest)
    known = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    classes = list(PipelineOptions.__subclasses__())
    for options_class in classes:
        if options_class.__module__.split(".")[0] != "apache_beam":
            continue  # our own, of a classic template
        options_class._add_argparse_args(known)  # type: ignore[arg-type]
        classes += options_class.__subclasses__()
    runner, unknown = known.parse_known_args(list(rest))
    if unknown:
        parser.error(f"unknown option {unknown[0]}")
    flags = [*rest, f"--project={project}"] if project else list(rest)
    return flags if runner.runner else [*flags, f"--runner={LOCAL_RUNNER}"]


def _import_runner(parser: argparse.ArgumentParser, rest: Sequence[str]) -> None:
    """Imports the runner that is asked for, by which its own options become known.

    Ends the program with exit code 2 if there is none of that name, or if it cannot run our pipelines.
    """
    asked = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    asked.add_argument("--runner")
    name = asked.parse_known_args(list(rest))[0].runner
    if not name:
        return
    try:
        runner = type(create_runner(name))
    except (ValueError, ImportError, AttributeError) as error:
        parser.error(f"--runner {name}: {error}")
    if runner.__name__ in _UNFIT:
        parser.error(f"--runner {name}: {_UNFIT[runner.__name__]}")


def is_dataflow(flags: Sequence[str]) -> bool:
    """Whether the pipeline is Dataflow's, which goes on when this program has ended."""
    return "Dataflow" in (PipelineOptions([*flags]).view_as(StandardOptions).runner or "")


def submit(pipeline: beam.Pipeline, dead_letters: str | None = None) -> int:
    """Hands a pipeline to Dataflow, or writes it as a template, and says so; the exit code.

    Args:
      dead_letters: a topic, or how names of files begin; None if it makes none.

    Raises:
      UsageError: dead letters would go to the disks of the workers, and be lost with them.
    """
    if dead_letters is not None and not SHARED.match(dead_letters):
        raise UsageError(
            f"--dead_letters {dead_letters} would be on the workers' own disks, and lost with them: "
            "give gs://BUCKET/PREFIX or projects/P/topics/T"
        )
    result = pipeline.run()
    template = pipeline.options.view_as(GoogleCloudOptions).template_location
    if template:
        print(f"template written to {template}")
    else:
        print(f"Dataflow job {result.job_id()} has been started")  # type: ignore[attr-defined]
    return 0


def run_with_progress(pipeline: beam.Pipeline) -> PipelineResult:
    """Runs a pipeline to its end, with a line of progress every few seconds on standard error.

    Raises:
      BigtableError: Beam's own writer could not store all rows, or Bigtable failed in another process; it
        names the reason.
      ChildProcessError: a worker process died.
    """
    logging.getLogger("apache_beam").setLevel(logging.ERROR)
    # Beam logs the stack of the error that ends the run, and then raises it.
    for name in ("apache_beam.runners.common", "apache_beam.runners.portability"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    logging.getLogger("PrismJobServer").disabled = True  # Beam sets its level, to all that Prism says
    metrics.totals.clear()
    done = threading.Event()
    reporter = threading.Thread(target=_report, args=(done,), daemon=True)
    reporter.start()
    try:
        result = pipeline.run()
        result.wait_until_finish()
    except RuntimeError as error:
        if isinstance(error.__context__, MutationsBatchError):
            raise _writer_error(error.__context__) from error
        told = _worker_error(str(error))
        if told is None:
            raise
        raise told from error
    finally:
        done.set()
        reporter.join()
    return result


def _writer_error(error: MutationsBatchError) -> BigtableError:
    """The failure of Beam's writer in one line; its own message has no reason in it."""
    return BigtableError(
        f"Beam's writer could not store all rows: {service_error(error.exc[0])}. Run it again to complete "
        "the work; --bigtable_writer direct retries more errors and makes dead letters of refused rows"
    )


def _worker_error(stack: str) -> Exception | None:
    """The failure of a worker in another process in one line; None if it is not one that is foreseen."""
    told = _SERVICE_ERROR.findall(stack)
    if told:
        return BigtableError(told[-1])
    if any(text in stack for text in _WORKER_GONE):
        return ChildProcessError("a worker process died (of memory?); run it again to complete the work")
    return None


def _report(done: threading.Event) -> None:
    """Prints what this process has done so far, until it is done."""
    started = time.monotonic()
    while not done.wait(_PROGRESS_SECONDS):
        seconds = time.monotonic() - started
        totals = dict(metrics.totals)
        if not totals:
            print(f"{seconds:5.0f} s: nothing counted in this process yet", file=sys.stderr)
            continue
        points = totals.get("points_read", 0)
        refused = sum(metrics.refused_by_reason().values())
        print(
            f"{seconds:5.0f} s: {points:,} points read ({points / seconds:,.0f}/s), "
            f"{totals.get('rows_written', 0):,} rows written, {refused:,} refused",
            file=sys.stderr,
        )
