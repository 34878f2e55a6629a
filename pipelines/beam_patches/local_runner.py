"""Beam's local runner, with worker processes that start sooner and leave nothing behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.portability.python_urns import SUBPROCESS_SDK
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.portability.fn_api_runner.fn_runner import ExtendedProvisionInfo, RunnerResult
from apache_beam.runners.portability.fn_api_runner.worker_handlers import (
    GrpcServer,
    GrpcWorkerHandler,
    WorkerHandler,
)
from google.protobuf import json_format

from timebeam.pipelines.beam_patches import fork_server

LOCAL_RUNNER = "timebeam.pipelines.beam_patches.local_runner.LocalRunner"
"""What runs a pipeline if no runner is asked for: the engine of the DirectRunner for bounded input,
named so that the DirectRunner does not first try to download another one."""

_FORKED = "timebeam:env:forked:v1"
"""The environment of workers that `fork_server` starts."""


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
