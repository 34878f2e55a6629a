"""The graph of `timebeam rollup`, layout opentsdb, of a classic template: made once, and run on each day.

once ─► period ─┬─► chunks ─► accumulate ─┐
                └─► metrics ─► standing ──┴─► group per row ─► encode ─► write     (rejected ─► dead letters)

What a launch gives are value providers, read on the workers (notes of Beam on `ValueProvider`): each step
makes its own DoFn there, of the job for the period, and hands its elements to it. The period is found
once, in one element, so that all workers roll up the same day, whenever they start.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.options.value_provider import ValueProvider

from pipelines import rollup
from pipelines.jobs import JOBS
from pipelines.options import create_command
from pipelines.parameters import UsageError
from schema.points import Rejected
from transforms import coders
from transforms.bigtable.tables import check_tables
from transforms.dead_letters import WriteDeadLetters
from transforms.rollup.job import RollupJob, rollup_tables
from transforms.rollup.steps import add_steps
from transforms.write import DirectFn

JOB = JOBS["rollup_classic"]

Period = tuple[int, int]
"""[start, end) in ms."""


class RollupValues(PipelineOptions):
    """The value providers of a launch, as texts."""

    @classmethod
    def _add_argparse_args(cls, parser: Any) -> None:
        for parameter in JOB.parameters:
            parser.add_value_provider_argument(f"--{parameter.name}", type=str, help=argparse.SUPPRESS)


@dataclasses.dataclass(frozen=True)
class Launch:
    """What makes the job on a worker.

    Attributes:
      built: options of `timebeam rollup` that the template has.
      given: those that the launch gives, by name.
    """

    built: Mapping[str, Any]
    given: Mapping[str, ValueProvider]

    def options(self) -> argparse.Namespace:
        """The options of `timebeam rollup`; on a worker only.

        Raises:
          UsageError: one is missing, or is no value of its kind.
        """
        options = {one.name: one.default for one in rollup.PARAMETERS} | dict(self.built)
        for parameter in JOB.parameters:
            text = self.given[parameter.name].get()
            if not text and parameter.required:
                raise UsageError(f"the launch gives no {parameter.name}")
            try:
                options[parameter.name] = parameter.kind(text) if text else parameter.default
            except (ValueError, argparse.ArgumentTypeError) as error:
                raise UsageError(f"{parameter.name}: {error}") from error
        return argparse.Namespace(**options)

    def job(self, period: Period) -> RollupJob:
        """The job for a period; on a worker only."""
        return rollup.job_of(self.options(), period)


class PeriodFn(beam.DoFn):
    """Anything in; the period that is rolled up out, after a look whether all tables are there."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch

    def process(self, _: object) -> Iterator[Period]:
        """See the class."""
        options = self._launch.options()
        period = rollup.period_of(options, int(time.time() * 1000))
        job = self._launch.job(period)
        tables = [*job.layout.tables(), *rollup_tables(job.config, job.layout)]
        check_tables(job.target, tables, f"{create_command(options)} --rollup_config FILE")
        yield period


class OfPeriodFn(beam.DoFn):
    """An element and the period in; what the DoFn of the period's job makes of the element out.

    That DoFn is made for the first element, and has all of a DoFn's life from then on.
    """

    def __init__(self, launch: Launch, make: Callable[[RollupJob], beam.DoFn]) -> None:
        self._launch, self._make = launch, make
        self._made: beam.DoFn | None = None

    def start_bundle(self) -> None:
        """See the class."""
        if self._made is not None:
            self._made.start_bundle()

    def process(self, element: Any, period: Period) -> Iterator[Any]:
        """See the class."""
        if self._made is None:  # a job has one period
            made = self._make(self._launch.job(period))
            made.setup()
            made.start_bundle()
            self._made = made
        yield from self._made.process(element) or ()

    def finish_bundle(self) -> Iterator[Any]:
        """See the class."""
        if self._made is not None:
            yield from self._made.finish_bundle() or ()

    def teardown(self) -> None:
        """See the class."""
        if self._made is not None:
            self._made.teardown()


def writer_of(job: RollupJob) -> DirectFn:
    """What writes the rows of a job."""
    return DirectFn(job.target, None)


def build(root: beam.Pipeline, launch: Launch) -> None:
    """Adds the graph to a pipeline: the steps of `pipelines.rollup.build`, and `Period`."""
    coders.register()
    once = root | "Once" >> beam.Create([None], reshuffle=False)
    found = once | "Period" >> beam.ParDo(PeriodFn(launch)).with_output_types(Period)
    period = beam.pvalue.AsSingleton(found)
    added = add_steps(once, lambda make: OfPeriodFn(launch, make), period)
    written = [
        rows | name >> beam.ParDo(OfPeriodFn(launch, writer_of), period).with_output_types(Rejected)
        for name, rows in added.rows.items()
    ]
    (
        (*added.refused, *written)
        | "AllRefused" >> beam.Flatten()
        | "DeadLetters" >> WriteDeadLetters(launch.given["dead_letters"], None, bounded=False)
    )
