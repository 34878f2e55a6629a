"""Beam's options and runners: checked before any work starts."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import functools
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, NoReturn, TypeVar

import apache_beam as beam
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
from apache_beam.runners.portability.fn_api_runner.fn_runner import ExtendedProvisionInfo, RunnerResult
from apache_beam.runners.portability.fn_api_runner.worker_handlers import (
    GrpcServer,
    GrpcWorkerHandler,
    WorkerHandler,
)
from apache_beam.runners.runner import create_runner
from apache_beam.transforms import core
from google.protobuf import json_format

from timebeam.pipelines.jobs import fork_server
from timebeam.pipelines.options.command_line import Command, CommandParser
from timebeam.pipelines.options.parameters import UsageError
from timebeam.transforms.bigtable.target import EMULATOR_VARIABLE

LOCAL_RUNNER = "timebeam.pipelines.jobs.runners.LocalRunner"
"""What runs a pipeline if no runner is asked for: the engine of the DirectRunner for bounded input,
named so that the DirectRunner does not first try to download another one."""

_FORKED = "timebeam:env:forked:v1"
"""The environment of workers that `fork_server` starts."""

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


View = TypeVar("View", bound=PipelineOptions)


class CachedOptions(PipelineOptions):
    """Beam's options, with each view of them made once.

    Beam asks for a view a few times for each step, and makes a parser of arguments for each: a sixth of the
    time that a pipeline of a dozen steps needs to start. All views share their values.
    """

    def __init__(self, flags: Sequence[str] = ()) -> None:
        super().__init__([*flags])
        self.__dict__["_views"] = {}  # an attribute would be an option

    def __getstate__(self) -> Any:
        return {name: state for name, state in super().__getstate__().items() if name != "_views"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state, _views={})

    def view_as(self, cls: type[View]) -> View:
        views = self.__dict__["_views"]
        if cls not in views:
            views[cls] = super().view_as(cls)
        view: View = views[cls]
        return view


class LocalRunner(FnApiRunner):
    """Beam's local runner, with worker processes that start sooner and leave nothing behind."""

    def run_pipeline(self, pipeline: beam.Pipeline, options: PipelineOptions) -> RunnerResult:
        if options.view_as(DirectOptions).direct_running_mode != "multi_processing":
            return super().run_pipeline(pipeline, options)
        with (
            owned(pipeline.local_tempdir),
            fork_server.running() as server,
            fork_server.stoppable(server),
        ):
            return super().run_pipeline(pipeline, options)

    def run_via_runner_api(
        self, pipeline_proto: beam_runner_api_pb2.Pipeline, options: PipelineOptions
    ) -> RunnerResult:
        for environment in pipeline_proto.components.environments.values():
            if environment.urn == SUBPROCESS_SDK:
                environment.urn = _FORKED
        return super().run_via_runner_api(pipeline_proto, options)


@WorkerHandler.register_environment(_FORKED, bytes)
class _ForkedWorker(GrpcWorkerHandler):
    """A worker of `fork_server`; modelled on Beam's SubprocessSdkWorkerHandler, which starts a program."""

    def __init__(
        self, payload: bytes, state: Any, provision_info: ExtendedProvisionInfo, grpc_server: GrpcServer
    ) -> None:
        super().__init__(state, provision_info, grpc_server)
        self._number = -1

    def start_worker(self) -> None:
        """Starts the process."""
        with fork_server.running() as server:
            self._number = server.fork(
                {
                    "WORKER_ID": self.worker_id,
                    "CONTROL_API_SERVICE_DESCRIPTOR": str(self.control_api_service_descriptor()),
                    "PIPELINE_OPTIONS": json_format.MessageToJson(
                        self.provision_info.provision_info.pipeline_options
                    ),
                },
                self._on_loss,
            )

    def close(self) -> None:
        """Closes the data connection before the worker ends, else that would be a connection error."""
        self.data_conn.close()
        super().close()

    def stop_worker(self) -> None:
        """Waits for the end of the process, whose connections are closed."""
        with fork_server.running() as server:
            server.wait(self._number)

    def _on_loss(self) -> None:
        """Ends the bundles that wait for the worker or come later, as if the connection were lost."""
        lost = RuntimeError("SDK worker disconnected")
        push = self.control_conn.push

        def reject(request: Any) -> Any:
            future = push(request)
            if future is not None:
                future.abort(lost)
            return future

        self.control_conn.push = reject  # type: ignore[assignment, method-assign]
        self.data_conn.close()
        self.control_conn.abort(lost)


@dataclasses.dataclass(frozen=True, slots=True)
class Runner:
    """What runs the pipelines of a command.

    Attributes:
      flags: Beam's options.
      is_dataflow: whether it is Dataflow, which continues after this program has ended.
      is_local: whether it works in this process.
      is_in_process: whether one worker does all the work, in this process.
    """

    flags: Sequence[str]
    is_dataflow: bool
    is_local: bool
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
        options = PipelineOptions(flags)
        name, direct = options.view_as(StandardOptions).runner or "", options.view_as(DirectOptions)
        is_dataflow, is_local = "Dataflow" in name, name in LOCAL_RUNNERS
        is_one = direct.direct_running_mode == "in_memory" and direct.direct_num_workers == 1
        if check:
            _check_options(options, is_dataflow=is_dataflow)
        return cls(flags, is_dataflow, is_local, is_local and is_one)


def runner_of(command: Command, options: argparse.Namespace, rest: Sequence[str]) -> Runner:
    """The runner of a command line; see `Runner.of`."""
    check = not getattr(options, "preflight", False)
    return Runner.of(command.parser(), rest, options.project, check=check)


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
        namespace: argparse.Namespace,
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


_PREFIX = "beam-pipeline-temp"
"""How Beam names these folders."""

_LOCK = "timebeam.lock"


@contextlib.contextmanager
def owned(folder: str) -> Iterator[None]:
    """A context in which a lock shows that a folder is in use; removes folders of dead processes beside it.

    The kernel releases a lock with the process that holds it, however that ends. A process id says less:
    another process may have it by now. The folder itself is removed by Beam at the end of the run.
    """
    _remove_orphans(Path(folder).parent)
    # Locked before it has its name: else another process could take its folder for that of a dead one.
    unnamed = Path(folder, f"{_LOCK}.new")
    with unnamed.open("wb") as lock:
        with contextlib.suppress(OSError):  # a file system without locks: only Beam removes the folder
            fcntl.flock(lock, fcntl.LOCK_EX)
            unnamed.rename(unnamed.with_name(_LOCK))
        yield


def _remove_orphans(parent: Path) -> None:
    """Removes the folders of this user's dead processes."""
    for path in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError):  # another process removes it too
            if path.parent.lstat().st_uid != os.getuid():
                continue
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent)


def remember() -> None:
    """Lets Beam inspect each method of a class of steps once in this process.

    To look for state and timers, Beam inspects the signatures of all thirty methods of a step, and does so
    eight times for each step: half of the time that a pipeline of thirty steps needs to start. A signature is
    that of the function of the class, whatever the object.
    """
    if not isinstance(core.get_function_args_defaults, _Remembered):
        core.get_function_args_defaults = _Remembered(  # type: ignore[assignment]  # its parameter has another name
            core.get_function_args_defaults
        )


class _Remembered:
    """`get_function_args_defaults` of Beam, which remembers its answers for methods."""

    def __init__(self, inspect: Callable[[Any], tuple[list[str], list[Any]]]) -> None:
        self._inspect = inspect
        self._of_function = functools.lru_cache(maxsize=4096)(self._of_bound)

    def __call__(self, function: Any) -> tuple[list[str], list[Any]]:
        if isinstance(function, MethodType) and isinstance(function.__func__, FunctionType):
            names, defaults = self._of_function(function.__func__)
            return names[:], defaults[:]
        return self._inspect(function)

    def _of_bound(self, function: FunctionType) -> tuple[list[str], list[Any]]:
        """What Beam finds for the function as a method of an object."""
        return self._inspect(MethodType(function, self))
