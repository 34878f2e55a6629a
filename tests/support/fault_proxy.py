"""A gRPC proxy between the Bigtable client and the emulator that injects faults by a plan: no mocks.

The client speaks to the proxy as to any Bigtable, so its own retries are at work; the emulator does
the real work unless the fault comes before it. Calls pass through as bytes, whatever their method;
only `BadEntries` looks into them. A plan is a function from a call to a fault, made of `nth`, `every`,
`share` and `either`; what it does depends on the seed and the number of the call alone, not on time.

| fault | what happens |
|---|---|
| `Fault` | an error instead of the answer, before the call is passed on or after it was carried out |
| `BadEntries` | some entries of MutateRows have this status; the others are carried out |
| `Break` | the answer stops with an error after some messages |
| `Do` | a function runs before or after the call is carried out: it waits, or kills something |
| `Drop` | a function cuts the connection (`tcp_cable`); the call is lost, or its answer |
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import itertools
import random
import threading
import time
import zlib
from collections.abc import Callable, Container, Iterator
from typing import NamedTuple, TypeAlias

import grpc
import pytest
from google.cloud.bigtable_v2.types import MutateRowsRequest, MutateRowsResponse

from timebeam.pipelines.local.emulator import HOST_VARIABLE

BEFORE, AFTER = "before", "after"

MUTATE_ROWS, READ_ROWS = "MutateRows", "ReadRows"
INCREMENT, COMPARE_AND_SET = "ReadModifyWriteRow", "CheckAndMutateRow"

_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
]
_LONGEST_SECONDS = 3600  # a call without deadline has a time remaining that overflows as a timeout
_OWN_METADATA = ("user-agent", "te", "content-type")


class Fault(NamedTuple):
    """An error instead of the answer, before the call is passed on or after it was carried out."""

    code: grpc.StatusCode
    when: str = BEFORE


class BadEntries(NamedTuple):
    """Entries of MutateRows get this status; those chosen by row key, if BEFORE they are not passed on."""

    code: grpc.StatusCode
    chosen: Callable[[bytes], bool]
    when: str = BEFORE


class Break(NamedTuple):
    """The answer ends with an error after so many messages."""

    messages: int
    code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE


class Do(NamedTuple):
    """Something else to be done, in the thread of the call, which waits for it."""

    action: Callable[[], object]
    when: str = BEFORE


class Drop(NamedTuple):
    """The connection is cut by `cut`: the call is not passed on, or it is, and the answer is lost."""

    cut: Callable[[], object]
    when: str = BEFORE


AnyFault: TypeAlias = "Fault | BadEntries | Break | Do | Drop"


class Call(NamedTuple):
    """A call seen by the proxy: its method without the service, and its number, from 1, among those."""

    method: str
    number: int
    request: bytes
    at: float
    """time.monotonic() when it came."""


Plan: TypeAlias = Callable[[Call], "AnyFault | None"]


def nth(method: str, numbers: Container[int], fault: AnyFault) -> Plan:
    """The calls of one method with these numbers, from 1, have the fault."""
    return lambda call: fault if call.method == method and call.number in numbers else None


def every(method: str, k: int, fault: AnyFault) -> Plan:
    """Every k-th call of a method has the fault."""
    return lambda call: fault if call.method == method and call.number % k == 0 else None


def share(method: str, probability: float, seed: int, fault: AnyFault) -> Plan:
    """Each call of a method has the fault with this probability, by its number and the seed."""

    def plan(call: Call) -> AnyFault | None:
        if call.method != method:
            return None
        return fault if random.Random(f"{seed}/{method}/{call.number}").random() < probability else None

    return plan


def either(*plans: Plan) -> Plan:
    """The fault of the first of the plans that has one."""
    return lambda call: next((fault for plan in plans if (fault := plan(call))), None)


def no_faults(_: Call) -> None:
    """The plan in which all goes well."""


def some_keys(probability: float, seed: int) -> Callable[[bytes], bool]:
    """A fixed choice of about this share of all row keys, for `BadEntries`."""
    return lambda key: zlib.crc32(key, seed) < probability * 2**32


class FaultProxy(grpc.GenericRpcHandler):
    """Passes every call on to `upstream`, save for the faults of a plan.

    Attributes:
      host: localhost:PORT.
      calls: calls by method.
      seen: all calls of MutateRows, in their order.
      faults: each call that had a fault, with it.
    """

    def __init__(self, upstream: str, plan: Plan) -> None:
        self._channel = grpc.insecure_channel(upstream, _OPTIONS)
        self._plan = plan
        self._lock = threading.Lock()
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(64), [self], options=_OPTIONS)
        self.host = f"localhost:{self._server.add_insecure_port('127.0.0.1:0')}"
        self.calls: collections.Counter[str] = collections.Counter()
        self.seen: list[Call] = []
        self.faults: list[tuple[Call, AnyFault]] = []
        self._server.start()

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends the server and its channel."""
        self._server.stop(None).wait()
        self._channel.close()

    def await_upstream(self) -> None:
        """Waits until the server behind answers (again)."""
        grpc.channel_ready_future(self._channel).result(20)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """Any method, unary or streaming: on the wire they are the same."""
        return grpc.stream_stream_rpc_method_handler(
            lambda requests, context: self._handle(details, next(requests), context)
        )

    def _handle(
        self, details: grpc.HandlerCallDetails, request: bytes, context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        """The answers to one call, with the fault that the plan has for it."""
        fault = self._planned(details.method.rpartition("/")[2], request)
        try:
            self._act(fault, BEFORE, context)
            if isinstance(fault, BadEntries):
                yield from _with_bad_entries(
                    request, fault, lambda part: self._forward(details, part, context)
                )
                return
            answers = self._forward(details, request, context)
            if isinstance(fault, Break):
                yield from itertools.islice(answers, fault.messages)
                answers.cancel()
                context.abort(fault.code, f"injected after {fault.messages} messages")
            elif fault is not None:
                held = list(answers)
                self._act(fault, AFTER, context)
                yield from held
            else:
                yield from answers
        except grpc.RpcError as error:
            context.abort(error.code(), error.details())

    def _act(self, fault: AnyFault | None, when: str, context: grpc.ServicerContext) -> None:
        """What a fault has to do before the call is passed on, or after it was carried out."""
        if isinstance(fault, Break | BadEntries) or fault is None or fault.when != when:
            return
        if isinstance(fault, Fault):
            context.abort(fault.code, f"injected {when} the call")
        elif isinstance(fault, Do):
            fault.action()
        else:
            gone = threading.Event()
            if context.add_callback(gone.set):
                fault.cut()
                gone.wait()
            context.abort(grpc.StatusCode.UNAVAILABLE, "the connection was cut")

    def _forward(
        self, details: grpc.HandlerCallDetails, request: bytes, context: grpc.ServicerContext
    ) -> grpc.Call:
        """Passes a call on, with its headers and its deadline."""
        headers = [
            (key, value)
            for key, value in details.invocation_metadata
            if key not in _OWN_METADATA and not key.startswith("grpc-")
        ]
        call = self._channel.stream_stream(details.method)
        seconds = min(context.time_remaining(), _LONGEST_SECONDS)
        return call(iter([request]), timeout=seconds, metadata=headers)

    def _planned(self, method: str, request: bytes) -> AnyFault | None:
        with self._lock:
            self.calls[method] += 1
            call = Call(method, self.calls[method], request, time.monotonic())
            if method == MUTATE_ROWS:
                self.seen.append(call)
            fault = self._plan(call)
            if fault:
                self.faults.append((call, fault))
            return fault


def _with_bad_entries(
    request: bytes, fault: BadEntries, forward: Callable[[bytes], Iterator[bytes]]
) -> Iterator[bytes]:
    """The answer to MutateRows in which the chosen entries have the status of the fault."""
    message = MutateRowsRequest.pb(MutateRowsRequest.deserialize(request))
    bad = {number for number, entry in enumerate(message.entries) if fault.chosen(entry.row_key)}
    passed = [number for number in range(len(message.entries)) if fault.when == AFTER or number not in bad]
    part = MutateRowsRequest.pb(MutateRowsRequest.deserialize(request))
    del part.entries[:]
    part.entries.extend(message.entries[number] for number in passed)
    for answer in forward(part.SerializeToString()) if passed else ():
        response = MutateRowsResponse.pb(MutateRowsResponse.deserialize(answer))
        kept = MutateRowsResponse.pb(MutateRowsResponse())
        for entry in response.entries:
            if passed[entry.index] not in bad:
                kept.entries.add(index=passed[entry.index]).status.CopyFrom(entry.status)
        yield kept.SerializeToString()
    statuses = MutateRowsResponse.pb(MutateRowsResponse())
    for number in sorted(bad):
        statuses.entries.add(index=number).status.code = fault.code.value[0]
        statuses.entries[-1].status.message = f"injected {fault.when} the call"
    yield statuses.SerializeToString()


@contextlib.contextmanager
def faulty(emulator: str, plan: Plan) -> Iterator[FaultProxy]:
    """The clients of this process go through a proxy with this plan, until the end of the block."""
    with FaultProxy(emulator, plan) as proxy, pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOST_VARIABLE, proxy.host)
        yield proxy
