"""Beam's options and runners: checked before any work starts."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import os
from collections.abc import Sequence
from typing import Any, NoReturn

import apache_beam as beam
from apache_beam.options.pipeline_options import (
    DirectOptions,
    GoogleCloudOptions,
    PipelineOptions,
    SetupOptions,
    StandardOptions,
    WorkerOptions,
)
from apache_beam.options.pipeline_options_validator import PipelineOptionsValidator
from apache_beam.runners.runner import create_runner

from timebeam.pipelines.beam_patches.cached import CachedOptions
from timebeam.pipelines.beam_patches.local_runner import LOCAL_RUNNER
from timebeam.pipelines.options.command_line import CommandParser
from timebeam.pipelines.options.parameters import UsageError
from timebeam.transforms.bigtable.target import EMULATOR_VARIABLE

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
    "DaskRunner": "it mixes up a step's outputs, good points with rejected ones (docs/concepts/choose.md)"
}
"""Runners of Beam that would do the wrong thing, by name."""


class RunnerKind(enum.Enum):
    """What kind of runner it is."""

    LOCAL = enum.auto()
    """It works in this process, or in processes that this one starts."""
    DATAFLOW = enum.auto()
    """It continues after this program has ended."""
    OTHER = enum.auto()
    """A server that this program waits for."""


@dataclasses.dataclass(frozen=True, slots=True)
class Runner:
    """What runs the pipelines of a command: made once, and asked for whatever depends on Beam's options.

    Attributes:
      flags: Beam's options, as they are written.
      options: the same, parsed.
      is_in_process: whether one worker does all the work, in this process.
    """

    flags: Sequence[str]
    options: PipelineOptions
    kind: RunnerKind
    is_in_process: bool

    @classmethod
    def of(
        cls, parser: CommandParser, rest: Sequence[str], project: str | None, *, check: bool = True
    ) -> Runner:
        """Checks that the remaining options are Beam's own; adds a runner and the project to them.

        Args:
          check: whether the runner must have all that it needs.

        Raises:
          UsageError: an option is unknown, which Beam itself would ignore; or the runner lacks something.
        """
        runner = _checked_runner(parser, rest) if rest else ""
        flags = [*rest, f"--project={project}"] if project else list(rest)
        flags = flags if runner else [*flags, f"--runner={LOCAL_RUNNER}"]
        options = CachedOptions(flags)
        name, direct = options.view_as(StandardOptions).runner or "", options.view_as(DirectOptions)
        kind = RunnerKind.LOCAL if name in LOCAL_RUNNERS else RunnerKind.OTHER
        kind = RunnerKind.DATAFLOW if "Dataflow" in name else kind
        is_one = direct.direct_running_mode == "in_memory" and direct.direct_num_workers == 1
        if check:
            _check_options(options, is_dataflow=kind is RunnerKind.DATAFLOW)
        return cls(flags, options, kind, kind is RunnerKind.LOCAL and is_one)

    @property
    def is_dataflow(self) -> bool:
        """Whether it is Dataflow."""
        return self.kind is RunnerKind.DATAFLOW

    @property
    def is_local(self) -> bool:
        """Whether it works in this process, or in processes that this one starts."""
        return self.kind is RunnerKind.LOCAL

    @property
    def uses_credentials(self) -> bool:
        """Whether this program uses credentials for buckets: Beam's files ignore --no_auth, which is for the
        launch of a Dataflow job."""
        return not (self.is_dataflow and self.options.view_as(GoogleCloudOptions).no_auth)

    def pipeline(self, *more_flags: str) -> beam.Pipeline:
        """An empty pipeline.

        Args:
          more_flags: Beam's options for this pipeline alone.
        """
        return beam.Pipeline(
            options=CachedOptions([*self.flags, *more_flags]) if more_flags else self.options
        )


def unstaged_packages(flags: Sequence[str], packages: Sequence[str]) -> list[str]:
    """Which packages neither an image nor an option of Beam gives to workers on other machines, in words."""
    options = PipelineOptions([*flags])
    setup = options.view_as(SetupOptions)
    if options.view_as(WorkerOptions).sdk_container_image or setup.requirements_file:
        return []
    files = [os.path.basename(path).lower().replace("_", "-") for path in setup.extra_packages or ()]
    return [
        f"workers do not get package {package}: give its sdist or wheel, --extra_package FILE, or an image "
        "that has it, --sdk_container_image IMAGE"
        for package in packages
        if not any(file.startswith(f"{package.lower().replace('_', '-')}-") for file in files)
    ]


def _check_options(options: PipelineOptions, *, is_dataflow: bool) -> None:
    """Raises UsageError if an option that the runner requires is missing."""
    setup_file = options.view_as(SetupOptions).setup_file
    if setup_file is not None and not os.path.isfile(setup_file):
        raise UsageError(f"--setup_file {setup_file} does not exist: {HOW_TO_STAGE}")
    if not is_dataflow:
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


class _StoreOnce(argparse.Action):
    """Stores a value; an option that is repeated with another value is an error."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: Any,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """See `argparse.Action`."""
        before = vars(namespace).get(self.dest, self.default)
        if before not in (self.default, values):
            parser.error(f"{option_string} is given twice, with different values: give it once")
        setattr(namespace, self.dest, values)


class _BeamParser(argparse.ArgumentParser):
    """A parser of Beam's options; what is wrong is a UsageError."""

    def __init__(self) -> None:
        super().__init__(add_help=False, allow_abbrev=False)
        for name in (None, "store"):
            self.register("action", name, _StoreOnce)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)

    def options(self) -> set[str]:
        """The names of all options, as they are written."""
        return set(self._option_string_actions)


def _checked_runner(parser: CommandParser, rest: Sequence[str]) -> str:
    """The selected runner, "" for none.

    Raises:
      UsageError: an option is not Beam's; see `_import_runner`.
    """
    _import_runner(rest)
    beam_parser = _BeamParser()
    classes = list(PipelineOptions.__subclasses__())
    for options_class in classes:
        options_class._add_argparse_args(beam_parser)  # type: ignore[arg-type]
        classes += options_class.__subclasses__()
    options, unknown = beam_parser.parse_known_args(list(rest))
    if unknown:
        raise parser.unknown(unknown[0], beam_parser.options())
    return options.runner or ""


def _import_runner(rest: Sequence[str]) -> None:
    """Imports the selected runner, which registers its own options.

    Raises:
      UsageError: there is no such runner, or it cannot run these pipelines.
    """
    runner_parser = _BeamParser()
    runner_parser.add_argument("--runner")
    name = runner_parser.parse_known_args(list(rest))[0].runner
    if not name:
        return
    try:
        runner = type(create_runner(name))
    except (ValueError, ImportError, AttributeError) as error:
        raise UsageError(f"--runner {name}: {error}") from error
    if runner.__name__ in _UNFIT:
        raise UsageError(f"--runner {name}: {_UNFIT[runner.__name__]}")
