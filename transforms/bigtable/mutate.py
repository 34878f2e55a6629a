"""Rows into Bigtable, many in one request, with a result for each: MutateRows by plain bytes.

The client's own bulk write makes two Python objects and their protobuf wrappers for every cell, ten times
the work of a plain message; for a cell for each point that was most of a run. Rows that are encoded already
(`transforms.bigtable.wire`) are only put behind each other.
"""

from __future__ import annotations

import functools
import os
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from google.api_core import exceptions, grpc_helpers
from google.api_core.gapic_v1 import routing_header
from google.api_core.gapic_v1.client_info import ClientInfo
from google.cloud.bigtable_v2 import BigtableClient
from google.cloud.bigtable_v2.services.bigtable.transports import BigtableGrpcTransport
from google.cloud.bigtable_v2.types import MutateRowsResponse

from transforms.bigtable.target import EMULATOR_VARIABLE, Target
from transforms.bigtable.wire import AnyRow, request_bytes

RETRYABLE = (
    exceptions.ServiceUnavailable,
    exceptions.DeadlineExceeded,
    exceptions.Aborted,
    exceptions.InternalServerError,
    exceptions.ResourceExhausted,
)
"""Errors that may pass."""

FOR_GOOD = (
    exceptions.InvalidArgument,
    exceptions.FailedPrecondition,
    exceptions.OutOfRange,
)
"""Errors of one row, which no repetition mends. All others are errors of the table, or of us."""

OPERATION_SECONDS = 120.0
ATTEMPT_SECONDS = 60.0
_CLIENT_INFO = ClientInfo(user_agent="timebeam")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 5.0


def mutate_rows(target: Target, table: str, rows: Sequence[AnyRow]) -> list[tuple[int, Exception]]:
    """Writes rows; (position, why) of those that are refused for good.

    What may succeed later is repeated, only those rows, for two minutes. If the service refuses a request
    as a whole, the rows are sent in halves, so that one bad row takes no others with it.

    Raises:
      GoogleAPICallError: a row could not be written for a reason that is not its own.
    """
    return _written(target, table, rows, range(len(rows)), time.monotonic() + OPERATION_SECONDS)


def _written(
    target: Target, table: str, rows: Sequence[AnyRow], numbers: Sequence[int], deadline: float
) -> list[tuple[int, Exception]]:
    """The refused ones of some of the rows."""
    refused: list[tuple[int, Exception]] = []
    pending, pause = numbers, _FIRST_PAUSE
    while True:
        errors, whole = _attempt(target, table, [rows[number] for number in pending])
        if isinstance(whole, FOR_GOOD):
            left = [pending[at] for at in errors]
            if len(left) == 1:
                return [*refused, (left[0], whole)]
            halves = (left[: len(left) // 2], left[len(left) // 2 :])
            return refused + [one for half in halves for one in _written(target, table, rows, half, deadline)]
        again: list[int] = []
        last: Exception | None = None
        for at, error in errors.items():
            if isinstance(error, FOR_GOOD):
                refused.append((pending[at], error))
            elif isinstance(error, RETRYABLE):
                again.append(pending[at])
                last = error
            else:
                raise error
        if last is None:
            return refused
        if time.monotonic() + pause > deadline:
            raise last
        time.sleep(pause * random.uniform(0.5, 1.0))
        pending, pause = again, min(_LONGEST_PAUSE, pause * 2)


def _attempt(
    target: Target, table: str, rows: Sequence[AnyRow]
) -> tuple[dict[int, Exception], Exception | None]:
    """One request: (the error of each row that is not known to be written, the error of the whole)."""
    name, profile = target.table_name(table), target.app_profile or ""
    call, about_us = _call(target.project, os.environ.get(EMULATOR_VARIABLE))
    route = routing_header.to_grpc_metadata({"table_name": name, "app_profile_id": profile})
    missing = exceptions.ServiceUnavailable("the answer ended before it spoke of this row")
    errors: dict[int, Exception] = dict.fromkeys(range(len(rows)), missing)
    try:
        request = request_bytes(name, profile, rows)
        for response in call(request, timeout=ATTEMPT_SECONDS, metadata=[route, about_us]):
            for entry in response.entries:
                if entry.status.code == 0:
                    del errors[entry.index]
                else:
                    errors[entry.index] = _error(entry.status)
    except exceptions.GoogleAPICallError as error:
        unanswered = [at for at, found in errors.items() if found is missing]
        errors.update(dict.fromkeys(unanswered, error))
        return errors, error if len(unanswered) == len(rows) else None
    return errors, None


def _error(status: Any) -> Exception:
    """The exception of a status."""
    code = next((code for code in grpc.StatusCode if code.value[0] == status.code), grpc.StatusCode.UNKNOWN)
    error: Exception = exceptions.from_grpc_status(code, status.message)
    return error


@functools.lru_cache(maxsize=4)
def _call(project: str, emulator: str | None) -> tuple[Callable[..., Any], tuple[str, str]]:
    """(MutateRows, which takes bytes and gives plain messages, and the header that says who calls)."""
    transport = raw_client(project, emulator).transport
    assert isinstance(transport, BigtableGrpcTransport)
    channel = transport.grpc_channel
    plain = channel.unary_stream(
        "/google.bigtable.v2.Bigtable/MutateRows",
        response_deserializer=MutateRowsResponse.pb().FromString,
    )
    return grpc_helpers.wrap_errors(plain), _CLIENT_INFO.to_grpc_metadata()


@functools.lru_cache(maxsize=4)
def raw_client(project: str, emulator: str | None) -> BigtableClient:
    """The client below the one that people use: one per process and emulator."""
    if emulator:
        channel = grpc.insecure_channel(
            emulator,
            options=[("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)],
        )
        return BigtableClient(transport=BigtableGrpcTransport(channel=channel))
    return BigtableClient(client_info=_CLIENT_INFO)
