"""A gRPC proxy between the Bigtable client and the emulator that injects faults: nothing is mocked.

The client speaks to the proxy as to any Bigtable, so its own retries are at work; the emulator does
the real work unless the fault comes before it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import grpc
import pytest
from google.cloud.bigtable_v2.types import MutateRowsRequest, MutateRowsResponse
from google.rpc.status_pb2 import Status

from pipelines.local.emulator import HOST_VARIABLE

BEFORE, AFTER = "before", "after"


class Fault(NamedTuple):
    """An error given instead of the answer, before the call is passed on or after it was carried out."""

    code: grpc.StatusCode
    when: str = BEFORE


class Call(NamedTuple):
    """A call seen by the proxy: its method without the service, and its number, from 1, among those."""

    method: str
    number: int
    request: bytes


class Rewrite(NamedTuple):
    """Another request to be passed on, and what to make of the answers to it."""

    request: bytes
    answers: Callable[[list[bytes]], list[bytes]]


Plan = Callable[[Call], Fault | Rewrite | None]


class FaultProxy(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Passes every call on, save for what a plan has for it; remembers the calls, counts the faults."""

    def __init__(self, upstream: str, plan: Plan) -> None:
        self._channel = grpc.insecure_channel(upstream)
        self._plan = plan
        self._lock = threading.Lock()
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(64), handlers=[self])
        self.host = f"localhost:{self._server.add_insecure_port('127.0.0.1:0')}"
        self.calls: list[Call] = []
        self.faults = 0
        self._server.start()

    def stop(self) -> None:
        """Ends the server and its channel."""
        self._server.stop(None).wait()
        self._channel.close()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """Any method, unary or streaming: on the wire they are the same."""
        forward = self._channel.stream_stream(details.method)

        def handle(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            request = next(requests)
            planned = self._planned(details.method.rpartition("/")[2], request)
            if isinstance(planned, Fault) and planned.when == BEFORE:
                context.abort(planned.code, "injected before the call")
            if isinstance(planned, Rewrite):
                request = planned.request
            try:
                answers = list(forward(iter([request]), timeout=context.time_remaining()))
            except grpc.RpcError as error:
                context.abort(error.code(), error.details())
            if isinstance(planned, Fault):
                context.abort(planned.code, "injected after the call")
            yield from planned.answers(answers) if isinstance(planned, Rewrite) else answers

        return grpc.stream_stream_rpc_method_handler(handle)

    def _planned(self, method: str, request: bytes) -> Fault | Rewrite | None:
        with self._lock:
            number = 1 + sum(call.method == method for call in self.calls)
            self.calls.append(Call(method, number, request))
            planned = self._plan(self.calls[-1])
            self.faults += planned is not None
            return planned


@contextlib.contextmanager
def faulty(emulator: str, plan: Plan) -> Iterator[FaultProxy]:
    """The clients of this process go through a proxy with this plan, until the end of the block."""
    proxy = FaultProxy(emulator, plan)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(HOST_VARIABLE, proxy.host)
            yield proxy
    finally:
        proxy.stop()


def nth(method: str, numbers: range | tuple[int, ...], fault: Fault) -> Plan:
    """The plan in which the calls of one method with these numbers fail."""
    return lambda call: fault if call.method == method and call.number in numbers else None


def refusing(poison: bytes) -> Plan:
    """The plan in which the service finds a row with this key invalid and writes the others.

    The emulator itself calls such rows an internal error, which the service does not.
    """

    def plan(call: Call) -> Rewrite | None:
        if call.method != "MutateRows":
            return None
        request = MutateRowsRequest.deserialize(call.request)
        entries = list(request.entries)
        bad = [i for i, entry in enumerate(entries) if entry.row_key == poison]
        if not bad:
            return None
        good = [i for i in range(len(entries)) if i not in bad]
        request.entries = [entries[i] for i in good]

        def answers(given: list[bytes]) -> list[bytes]:
            found = [entry for one in given for entry in MutateRowsResponse.deserialize(one).entries]
            for entry in found:
                entry.index = good[entry.index]
            status = Status(code=grpc.StatusCode.INVALID_ARGUMENT.value[0], message="injected: bad row")
            found += [MutateRowsResponse.Entry(index=i, status=status) for i in bad]
            return [MutateRowsResponse.serialize(MutateRowsResponse(entries=found))]

        return Rewrite(MutateRowsRequest.serialize(request), answers)

    return plan
