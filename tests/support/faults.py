"""A gRPC proxy between the Bigtable client and the emulator that injects faults: nothing is mocked.

The client speaks to the proxy as to any Bigtable, so its own retries are at work; the emulator does
the real work unless the fault comes before it.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import grpc
import pytest

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


Plan = Callable[[Call], Fault | None]


class FaultProxy(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Passes every call on, save for the faults of a plan; remembers the methods called and the faults."""

    def __init__(self, upstream: str, plan: Plan) -> None:
        self._channel = grpc.insecure_channel(upstream)
        self._plan = plan
        self._lock = threading.Lock()
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(64), handlers=[self])
        self.host = f"localhost:{self._server.add_insecure_port('127.0.0.1:0')}"
        self.calls: collections.Counter[str] = collections.Counter()
        self.faults: list[tuple[Call, Fault]] = []
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
            fault = self._fault(details.method.rpartition("/")[2], request)
            if fault and fault.when == BEFORE:
                context.abort(fault.code, "injected before the call")
            try:
                answers = forward(iter([request]), timeout=context.time_remaining())
                if fault:
                    collections.deque(answers, 0)
                else:
                    yield from answers
            except grpc.RpcError as error:
                context.abort(error.code(), error.details())
            if fault:
                context.abort(fault.code, "injected after the call")

        return grpc.stream_stream_rpc_method_handler(handle)

    def _fault(self, method: str, request: bytes) -> Fault | None:
        with self._lock:
            self.calls[method] += 1
            call = Call(method, self.calls[method], request)
            fault = self._plan(call)
            if fault:
                self.faults.append((call, fault))
            return fault


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
