"""Several Python processes as the one worker that Prism has for a job.

Prism starts one worker for each environment of a pipeline, and all Python steps have the same one. That
worker is here a relay in this process, which hands each bundle to one of several processes of Beam's SDK
(`apache_beam.runners.worker.sdk_worker_main`):

    Prism ◄─ control, data ─► relay ◄─ control, data ─► process 0, process 1, …
      ▲────────────── state, logs ──────────────────────────────┘

`WorkerPool` speaks Beam's Fn API (beam_fn_api.proto): BeamFnExternalWorkerPool to Prism, and BeamFnControl
and BeamFnData in both directions. The processes work from this checkout: no artifacts are fetched.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import grpc
from apache_beam.portability.api import beam_fn_api_pb2 as fn
from apache_beam.portability.api import beam_fn_api_pb2_grpc as fn_grpc
from apache_beam.portability.api import beam_provision_api_pb2 as provision
from apache_beam.portability.api import beam_provision_api_pb2_grpc as provision_grpc
from apache_beam.runners.worker.worker_id_interceptor import WorkerIdInterceptor
from google.protobuf import json_format

_ANY_SIZE = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
_PORT_URNS = ("beam:runner:source:v1", "beam:runner:sink:v1")
_SECONDS = 20


class WorkerPool(fn_grpc.BeamFnExternalWorkerPoolServicer):
    """A pool for `--environment_type=EXTERNAL --environment_config=ADDRESS`; to be used in a `with`.

    Attributes:
      address: localhost:PORT.
      bundles: of each process that worked, by its number: how many bundles it ran of each step's name.
    """

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._relays: dict[str, _Relay] = {}
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
        fn_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(self, self._server)
        self.address = f"localhost:{self._server.add_insecure_port('localhost:0')}"
        self.bundles: dict[int, dict[str, int]] = {}

    def __enter__(self) -> WorkerPool:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None)
        for relay in self._relays.values():
            relay.close()

    def StartWorker(self, request: Any, context: object) -> Any:  # noqa: N802
        """Called by the runner when a job begins."""
        try:
            self._relays[request.worker_id] = _Relay(request, self._processes, self.bundles)
        except (OSError, grpc.RpcError, grpc.FutureTimeoutError) as error:
            return fn.StartWorkerResponse(error=repr(error))
        return fn.StartWorkerResponse()

    def StopWorker(self, request: Any, context: object) -> Any:  # noqa: N802
        """Called by the runner when a job has ended."""
        relay = self._relays.pop(request.worker_id, None)
        if relay is not None:
            relay.close()
        return fn.StopWorkerResponse()


class _Relay:
    """One worker to the runner; several processes behind it."""

    def __init__(self, request: Any, processes: int, bundles: dict[int, dict[str, int]]) -> None:
        self._bundles = bundles
        self._up_control: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._up_data: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._assigned = threading.Condition()
        self._process_of: dict[str, _Process] = {}  # by instruction
        self._active: dict[str, _Process] = {}
        channel = grpc.insecure_channel(request.control_endpoint.url, options=_ANY_SIZE)
        grpc.channel_ready_future(channel).result(_SECONDS)
        self._channel = channel
        runner = grpc.intercept_channel(channel, WorkerIdInterceptor(request.worker_id))
        self.control = fn_grpc.BeamFnControlStub(runner)
        info = provision_grpc.ProvisionServiceStub(runner).GetProvisionInfo(
            provision.GetProvisionInfoRequest()
        )
        environment = _environment(request, info.info)
        self._processes = [_Process(self, number, environment) for number in range(processes)]
        # Both streams begin at once, before there is anything to send.
        requests = self.control.Control(iter(self._up_control.get, None))
        data = fn_grpc.BeamFnDataStub(runner).Data(iter(self._up_data.get, None))
        _start(self._route_requests, requests)
        _start(self._route_data, data)

    def close(self) -> None:
        """Ends the processes, and the connection to the runner."""
        self._up_control.put(None)
        self._up_data.put(None)
        for process in self._processes:
            process.close()
        self._channel.close()

    def descriptor(self, request: Any, address: str) -> Any:
        """A stage of the pipeline, its data to go by an address of ours."""
        descriptor = self.control.GetProcessBundleDescriptor(request)
        for transform in descriptor.transforms.values():
            if transform.spec.urn in _PORT_URNS:
                port = fn.RemoteGrpcPort.FromString(transform.spec.payload)
                port.api_service_descriptor.url = address
                transform.spec.payload = port.SerializeToString()
        if descriptor.HasField("timer_api_service_descriptor"):
            descriptor.timer_api_service_descriptor.url = address
        return descriptor

    def answered(self, number: int, response: Any) -> None:
        """Hands on what a process answers. Each has short names of its own for its metrics."""
        self._active.pop(response.instruction_id, None)
        kind = response.WhichOneof("response")
        if kind in ("process_bundle", "process_bundle_progress"):
            answer = getattr(response, kind)
            renamed = {f"{number}/{name}": value for name, value in answer.monitoring_data.items()}
            answer.monitoring_data.clear()
            answer.monitoring_data.update(renamed)
        elif kind == "monitoring_infos":
            infos = response.monitoring_infos.monitoring_info
            for name in list(infos):
                infos[f"{number}/{name}"].CopyFrom(infos[name])
                del infos[name]
        self._up_control.put(response)

    def sent(self, elements: Any) -> None:
        """Hands on elements that a process has made."""
        self._up_data.put(elements)

    def lost(self) -> None:
        """A process has gone: the runner is to know that its worker has failed."""
        self._channel.close()

    def ran(self, number: int, names: Iterable[str]) -> None:
        """Notes that a process ran a bundle of some steps."""
        counts = self._bundles.setdefault(number, {})
        for name in names:
            counts[name] = counts.get(name, 0) + 1

    def _route_requests(self, requests: Iterable[Any]) -> None:
        for request in requests:
            self._choose(request).requests.put(request)

    def _choose(self, request: Any) -> _Process:
        """Which process a request is for."""
        kind = request.WhichOneof("request")
        if kind == "process_bundle":
            with self._assigned:
                busy = list(self._active.values())
                chosen = min(self._processes, key=lambda process: (busy.count(process), process.handed))
                chosen.handed += 1
                chosen.note(request.process_bundle.process_bundle_descriptor_id)
                self._active[request.instruction_id] = self._process_of[request.instruction_id] = chosen
                self._assigned.notify_all()
            return chosen
        if kind in ("process_bundle_progress", "process_bundle_split", "finalize_bundle"):
            return self._process_of[getattr(request, kind).instruction_id]
        if kind == "monitoring_infos":
            names = [name.partition("/") for name in request.monitoring_infos.monitoring_info_id]
            (number,) = {first for first, _, _ in names}
            del request.monitoring_infos.monitoring_info_id[:]
            request.monitoring_infos.monitoring_info_id.extend(name for _, _, name in names)
            return self._processes[int(number)]
        return self._processes[0]

    def _route_data(self, stream: Iterable[Any]) -> None:
        for elements in stream:
            by_instruction: dict[str, Any] = {}
            for field in ("data", "timers"):
                for element in getattr(elements, field):
                    instruction_elements = by_instruction.setdefault(element.instruction_id, fn.Elements())
                    getattr(instruction_elements, field).append(element)
            for instruction, instruction_elements in by_instruction.items():
                with self._assigned:  # data may be faster than the request that it is for
                    self._assigned.wait_for(lambda key=instruction: key in self._process_of, _SECONDS)  # type: ignore[misc]
                    process = self._process_of[instruction]
                process.elements.put(instruction_elements)


class _Process(fn_grpc.BeamFnControlServicer, fn_grpc.BeamFnDataServicer):
    """One process of the SDK, which takes this servicer for its runner."""

    def __init__(self, relay: _Relay, number: int, environment: Mapping[str, str]) -> None:
        self._relay, self._number = relay, number
        self.requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.elements: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.handed = 0
        self._names: dict[str, list[str]] = {}
        self._closing = False
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(8), options=_ANY_SIZE)
        fn_grpc.add_BeamFnControlServicer_to_server(self, self._server)
        fn_grpc.add_BeamFnDataServicer_to_server(self, self._server)
        self._address = f"localhost:{self._server.add_insecure_port('localhost:0')}"
        self._server.start()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "apache_beam.runners.worker.sdk_worker_main"],
            env={**environment, "CONTROL_API_SERVICE_DESCRIPTOR": f'url: "{self._address}"'},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # it sends its log to the runner
        )

    def note(self, stage: str) -> None:
        """Notes that it gets a bundle of a stage."""
        if stage not in self._names:
            asked = fn.GetProcessBundleDescriptorRequest(process_bundle_descriptor_id=stage)
            descriptor = self._relay.descriptor(asked, self._address)
            names = {
                transform.unique_name
                for transform in descriptor.transforms.values()
                if not transform.subtransforms
            }
            self._names[stage] = sorted(name for name in names if name)
        self._relay.ran(self._number, self._names[stage])

    def Control(self, responses: Iterable[Any], context: Any) -> Iterator[Any]:  # noqa: N802
        """The process asks for work, for as long as it lives."""
        _start(self._take_answers, responses)
        yield from iter(self.requests.get, None)

    def GetProcessBundleDescriptor(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The process asks what a stage is."""
        return self._relay.descriptor(request, self._address)

    def Data(self, elements: Iterable[Any], context: Any) -> Iterator[Any]:  # noqa: N802
        """The process takes and gives elements."""
        _start(self._take_elements, elements)
        yield from iter(self.elements.get, None)

    def close(self) -> None:
        """Ends the process."""
        self._closing = True
        self.requests.put(None)
        self.elements.put(None)
        self._process.terminate()
        try:
            self._process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._server.stop(None)

    def _take_answers(self, responses: Iterable[Any]) -> None:
        try:
            for response in responses:
                self._relay.answered(self._number, response)
        finally:
            if not self._closing:
                self._relay.lost()

    def _take_elements(self, stream: Iterable[Any]) -> None:
        for elements in stream:
            self._relay.sent(elements)


def _environment(request: Any, info: Any) -> dict[str, str]:
    """What a process of the SDK learns from its surroundings, as from the boot program of a container."""
    return {
        **os.environ,
        "WORKER_ID": request.worker_id,
        "PIPELINE_OPTIONS": json.dumps(json_format.MessageToDict(info.pipeline_options)),
        "RUNNER_CAPABILITIES": " ".join(info.runner_capabilities),
        "LOGGING_API_SERVICE_DESCRIPTOR": f'url: "{request.logging_endpoint.url}"',
    }


def _start(work: Any, stream: Iterable[Any]) -> None:
    """Works off a stream in a thread, until it ends or is cut off."""

    def run() -> None:
        try:
            work(stream)
        except grpc.RpcError:
            return

    threading.Thread(target=run, daemon=True).start()
