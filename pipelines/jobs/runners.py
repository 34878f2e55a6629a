"""Beam's options and runners: checked before any work starts."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence

from apache_beam.options.pipeline_options import (
    DirectOptions,
    GoogleCloudOptions,
    PipelineOptions,
    SetupOptions,
    StandardOptions,
)
from apache_beam.options.pipeline_options_validator import PipelineOptionsValidator
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.portability.python_urns import SUBPROCESS_SDK
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.portability.fn_api_runner.fn_runner import RunnerResult
from apache_beam.runners.runner import create_runner

from timebeam.pipelines.options.command_line import Command
from timebeam.pipelines.options.parameters import UsageError
from timebeam.pipelines.options.parsing import Parser
from timebeam.transforms.bigtable.target import EMULATOR_VARIABLE

LOCAL_RUNNER = "timebeam.pipelines.jobs.runners.LocalRunner"
"""What runs a pipeline if no runner is asked for: the engine of the DirectRunner for bounded input,
named so that the DirectRunner does not first try to download another one."""

_WORKER = (
    "from timebeam.pipelines.cli import import_beam; import_beam(); "
    "from apache_beam.runners.worker.sdk_worker_main import main; main([])"
)
"""Python's program of a worker process: as Beam's own, whose imports take twice the processor time."""

LOCAL_RUNNERS = (LOCAL_RUNNER, "FnApiRunner", "DirectRunner", "direct", "SwitchingDirectRunner")
"""Runners that work in this process."""

HOW_TO_STAGE = (
    "workers get timebeam from an image (--sdk_container_image IMAGE, built by templates/build) or, in a "
    "clone of the repository, from --setup_file ./setup.py"
)
"""What to give a runner whose workers are other machines."""

EMULATOR_ON_DATAFLOW = (
    f"{EMULATOR_VARIABLE} is set, and Dataflow's workers cannot reach an emulator: unset it to use the real "
    "service, or leave --runner out to run on this machine"
)

_UNFIT = {
    "DaskRunner": "it mixes up a step's outputs, good points with refused ones (docs/explanation/engines.md)"
}
"""Runners of Beam that would do the wrong thing, by name."""


class LocalRunner(FnApiRunner):
    """Beam's local runner, with worker processes that start sooner."""

    def run_via_runner_api(
        self, pipeline_proto: beam_runner_api_pb2.Pipeline, options: PipelineOptions
    ) -> RunnerResult:
        """See `FnApiRunner.run_via_runner_api`."""
        for environment in pipeline_proto.components.environments.values():
            if environment.urn == SUBPROCESS_SDK:
                environment.payload = shlex.join([sys.executable, "-c", _WORKER]).encode()
        return super().run_via_runner_api(pipeline_proto, options)


def beam_options(
    parser: Parser, rest: Sequence[str], project: str | None, *, check: bool = True
) -> list[str]:
    """Checks that the remaining options are Beam's own; returns them with a runner and the project.

    An unknown option ends the program with exit code 2; Beam itself would ignore it.

    Args:
      check: whether the runner must have all that it needs (`check_runner`).

    Raises:
      UsageError: the runner lacks something.
    """
    runner = _checked_runner(parser, rest) if rest else ""
    flags = [*rest, f"--project={project}"] if project else list(rest)
    flags = flags if runner else [*flags, f"--runner={LOCAL_RUNNER}"]
    if check:
        check_runner(flags)
    return flags


def flags_of(command: Command, options: argparse.Namespace, rest: Sequence[str]) -> list[str]:
    """Beam's options of a command line; see `beam_options`."""
    check = not getattr(options, "preflight", False)
    return beam_options(command.parser(), rest, options.project, check=check)


def check_runner(flags: Sequence[str]) -> None:
    """Raises UsageError if an option that the runner requires is missing."""
    options = PipelineOptions([*flags])
    setup_file = options.view_as(SetupOptions).setup_file
    if setup_file is not None and not os.path.isfile(setup_file):
        raise UsageError(f"--setup_file {setup_file} does not exist: {HOW_TO_STAGE}")
    if not is_dataflow(flags):
        return
    validator = PipelineOptionsValidator(options, create_runner("DataflowRunner"))
    if not validator.is_service_runner():
        return  # an endpoint on this machine
    if os.environ.get(EMULATOR_VARIABLE):
        raise UsageError(EMULATOR_ON_DATAFLOW)
    cloud = options.view_as(GoogleCloudOptions)
    # Not `validator.validate()`, which makes a bucket if none is given.
    errors = validator.validate_cloud_options(cloud)
    temp_errors = validator.validate_gcs_path(cloud, "temp_location")
    if temp_errors and validator.validate_gcs_path(cloud, "staging_location"):
        errors += temp_errors
    if errors:
        raise UsageError(f"--runner DataflowRunner: {' '.join(errors)}")


def _checked_runner(parser: Parser, rest: Sequence[str]) -> str:
    """The selected runner, "" for none; ends the program with exit code 2 at an option that is not Beam's."""
    _import_runner(parser, rest)
    beam_parser = Parser(prog=parser.prog, add_help=False)
    classes = list(PipelineOptions.__subclasses__())
    for options_class in classes:
        options_class._add_argparse_args(beam_parser)  # type: ignore[arg-type]
        classes += options_class.__subclasses__()
    options, unknown = beam_parser.parse_known_args(list(rest))
    if unknown:
        parser.unknown(unknown[0], beam_parser.options())
    return options.runner or ""


def _import_runner(parser: Parser, rest: Sequence[str]) -> None:
    """Imports the selected runner, which registers its own options.

    Ends the program with exit code 2 if there is no such runner, or if it cannot run these pipelines.
    """
    runner_parser = Parser(prog=parser.prog, add_help=False)
    runner_parser.add_argument("--runner")
    name = runner_parser.parse_known_args(list(rest))[0].runner
    if not name:
        return
    try:
        runner = type(create_runner(name))
    except (ValueError, ImportError, AttributeError) as error:
        parser.error(f"--runner {name}: {error}")
    if runner.__name__ in _UNFIT:
        parser.error(f"--runner {name}: {_UNFIT[runner.__name__]}")


def is_dataflow(flags: Sequence[str]) -> bool:
    """Whether Dataflow runs the pipeline, which continues after this program has ended."""
    return "Dataflow" in (PipelineOptions([*flags]).view_as(StandardOptions).runner or "")


def is_in_process(flags: Sequence[str]) -> bool:
    """Whether one worker does all the work, in this process."""
    direct = PipelineOptions([*flags]).view_as(DirectOptions)
    return is_local(flags) and direct.direct_running_mode == "in_memory" and direct.direct_num_workers == 1


def is_local(flags: Sequence[str]) -> bool:
    """Whether the runner works in this process."""
    return (PipelineOptions([*flags]).view_as(StandardOptions).runner or "") in LOCAL_RUNNERS
