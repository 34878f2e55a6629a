"""Runs the jobs of all commands, each in the same order.

preflight ─► input ─► tables ─► dry run ─► dead letters ─► settings ─► graph ─► run, progress ─► summary
─► exit code
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import logging
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import GoogleCloudOptions
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.runners.runner import PipelineResult

from timebeam.pipelines.beam_patches.fork_server import DEATH
from timebeam.pipelines.jobs.job import (
    AnyJob,
    FilesJob,
    Job,
    Run,
    RunOptions,
    StreamJob,
    check_place,
    write_dead_letters,
)
from timebeam.pipelines.jobs.runners import Runner, unstaged_packages
from timebeam.pipelines.options.parameters import UsageError
from timebeam.pipelines.options.place import Place
from timebeam.pipelines.options.store_settings import store_first
from timebeam.pipelines.output.progress_and_summary import Progress, Summary
from timebeam.schema.archive.archive_cell import CodecMissingError
from timebeam.transforms.bigtable.existing_tables import check_tables
from timebeam.transforms.bigtable.retry import writer_error
from timebeam.transforms.bigtable.target import BigtableError
from timebeam.transforms.dead_letters.letter_files import TOPIC
from timebeam.transforms.flow import metrics
from timebeam.transforms.flow.steps import register_coders

_SHARED = re.compile(r"[a-z0-9]+://|projects/[^/]+/topics/")
"""How the names of places begin that all machines share."""

_SERVICE_ERROR = re.compile(r"^google\.api_core\.exceptions\.\w+: (.+)$", re.MULTILINE)
"""What the service said, in the stack of a worker in another process: all that we get of its error."""

_STEP_ERROR = re.compile(r"^(?:RuntimeError: )?(?:\w+\.)*(\w+): (.+?) \[while running '", re.MULTILINE)
"""The last line of such a stack: the class of the error of a step, and what it says."""

_FORESEEN: dict[str, type[Exception]] = {
    **{
        name: kind
        for name, kind in vars(builtins).items()
        if isinstance(kind, type) and issubclass(kind, OSError)
    },
    **{kind.__name__: kind for kind in (BigtableError, CodecMissingError)},
}
"""Errors of steps that become one line, by name."""

_RUN_AGAIN = (
    "Run it again to complete the work; the default, --bigtable-writer direct, retries more errors and sends "
    "rejected rows to the dead letters"
)

_WORKER_GONE = ("Channel closed prematurely", "SDK worker disconnected")
"""What runners say of a worker that is gone: the local one, and Prism."""


def clock_ms() -> int:
    """The time now, in ms since 1970."""
    return int(time.time() * 1000)


def run_command(job_of: Callable[..., AnyJob], options: RunOptions, runner: Runner, place: Place) -> int:
    """Runs the job of a command; returns the exit code.

    Args:
      job_of: makes the job, with `now_ms`: the time in ms since 1970.
      place: that which is written.

    Raises:
      UsageError, BigtableError, OSError: see `run_job`.
    """
    run_ms, now_ms = int(time.time() * 1000), clock_ms()
    job = job_of(now_ms=now_ms)
    create = (job.place or place).create_command()
    run = Run.of(options, runner, create, run_ms, now_ms)
    return run_job(job, dataclasses.replace(run, dry_run=run.dry_run or job.dry_run))


def run_job(job: AnyJob, run: Run) -> int:
    """Runs a job, or hands it to Dataflow; returns the exit code.

    Raises:
      UsageError: the job cannot be run as the options say.
      BigtableError: a table is missing, or Bigtable failed.
      OSError: there is no input.
    """
    if run.preflight:
        from timebeam.pipelines.jobs.preflight import preflight  # the admin client takes half a second

        return preflight(job, run)
    _check_dataflow(job, run)
    if inputs := job.needs().inputs:
        from timebeam.transforms.input.files import match  # most jobs read no files

        match(inputs)
    check_tables(job.target, job.tables, run.create_command)
    planned = job.planned(run)
    if isinstance(planned, int):
        return planned
    place = run.dead_letters_option
    if place is not None and not TOPIC.fullmatch(place):
        check_place("--dead-letters", place)
    if job.stores_settings and not run.dry_run:
        assert job.place is not None
        store_first(job.place)
    if isinstance(planned, StreamJob):
        from timebeam.pipelines.jobs.run_input import run_stream  # most jobs are no streams

        return run_stream(planned, run)
    assert isinstance(planned, Job)
    job = planned
    job.prepare(run)
    if isinstance(job, FilesJob) and run.runner.is_in_process:
        from timebeam.pipelines.jobs.run_input import run_portions  # for files alone

        return show(run_portions(job, run), run)
    pipeline = run.runner.pipeline()
    try:
        build(pipeline, job, run)
        if run.runner.is_dataflow:
            return submit(pipeline)
        result = run_with_progress(pipeline)
    finally:  # Beam removes the folder only of a pipeline that it has run
        shutil.rmtree(pipeline.local_tempdir, ignore_errors=True)
    return max(show(job.summarize(result, run), run), job.finish(run))


def build(root: beam.Pipeline, job: Job, run: Run) -> None:
    """Adds the whole graph of a job to a pipeline."""
    register_coders()
    write_dead_letters(job.build(root), run.dead_letters, run.run_ms, in_process=run.runner.is_in_process)


def show(summary: Summary, run: Run) -> int:
    """Prints a summary; returns the exit code."""
    print(summary.to_json() if run.as_json else summary.to_text())
    if summary.why_nothing:
        print(f"nothing found: {summary.why_nothing}", file=sys.stderr)
    return summary.code(run.max_rejected)


def _check_dataflow(job: AnyJob, run: Run) -> None:
    """Raises UsageError if Dataflow runs the job and cannot do what the options ask for."""
    if not run.runner.is_dataflow:
        return
    if why := job.needs().local_only:
        raise UsageError(why)
    if unstaged := unstaged_packages(run.runner.flags, run.packages):
        raise UsageError(*unstaged)
    if run.max_rejected is not None:
        raise UsageError(
            "--max-rejected is for runs on this machine: on Dataflow set an alert on the rejected_ counters "
            "(docs/reference/reasons.md)"
        )
    if run.dead_letters is not None and not _SHARED.match(run.dead_letters):
        raise UsageError(
            f"--dead-letters {run.dead_letters} would be on the workers' own disks, and lost with them: "
            "give gs://BUCKET/PREFIX or projects/P/topics/T"
        )


def submit(pipeline: beam.Pipeline) -> int:
    """Hands a pipeline to Dataflow, or writes it as a template, and says so; returns the exit code."""
    result = pipeline.run()
    template = pipeline.options.view_as(GoogleCloudOptions).template_location
    if template:
        print(f"template written to {template}")
    else:
        print(f"started Dataflow job {result.job_id()}")  # type: ignore[attr-defined]
    return 0


def run_with_progress(pipeline: beam.Pipeline) -> PipelineResult:
    """Runs a pipeline to its end, with its progress on standard error.

    Raises:
      Exception: see `progress`.
    """
    with progress() as shown:
        result = start(pipeline)
        shown.result = result
        result.wait_until_finish()
    return result


@contextlib.contextmanager
def progress() -> Iterator[Progress]:
    """Shows the progress of a run, and translates its errors.

    Raises:
      UsageError: the runner cannot be started.
      BigtableError: Beam's own writer could not store all rows, or Bigtable failed in another process; it
        names the reason.
      ChildProcessError: a worker process died.
      KeyboardInterrupt: Ctrl-C was pressed.
      OSError, CodecMissingError: a step raised it in this process.
    """
    logging.getLogger("apache_beam").setLevel(logging.ERROR)
    # Beam logs the stack of the error that ends the run, and then raises it.
    for name in ("apache_beam.runners.common", "apache_beam.runners.portability"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    logging.getLogger("PrismJobServer").disabled = True  # Beam sets its level, to all that Prism says
    metrics.totals.clear()
    try:
        with Progress() as shown:
            yield shown
    except RuntimeError as error:
        if isinstance(error.__context__, OSError | CodecMissingError):
            raise error.__context__ from error
        cause = writer_error(error.__context__)
        if cause is not None:
            raise BigtableError(f"Beam's writer could not store all rows: {cause}. {_RUN_AGAIN}") from error
        if _is_interrupt(error):
            raise KeyboardInterrupt from error
        failure = _worker_error(str(error))
        if failure is None:
            raise
        raise failure from error


def start(pipeline: beam.Pipeline) -> PipelineResult:
    """Starts a pipeline; a local runner also runs it to its end.

    Raises:
      UsageError: the runner is a server that cannot be started or reached.
    """
    try:
        return pipeline.run()
    except (RuntimeError, OSError, grpc.RpcError, grpc.FutureTimeoutError) as error:
        if not isinstance(pipeline.runner, PortableRunner):
            raise
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise UsageError(f"--runner {type(pipeline.runner).__name__} cannot run the job: {why}") from error


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether Ctrl-C came while a step ran, which Beam raises as an error of the step."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _worker_error(stack: str) -> Exception | None:
    """The failure of a worker in another process in one line; None if it is not one that is foreseen."""
    messages = _SERVICE_ERROR.findall(stack)
    if messages:
        return BigtableError(messages[-1])
    for name, text in _STEP_ERROR.findall(stack)[-1:]:
        if name in _FORESEEN:
            return _FORESEEN[name](text)
    if any(text in stack for text in _WORKER_GONE):
        return ChildProcessError(DEATH)
    return None
