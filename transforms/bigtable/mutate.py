"""Rows into Bigtable, many in one request, with a result for each: MutateRows by plain bytes.

The client's own bulk write makes two Python objects and their protobuf wrappers for every cell, ten times
the work of a plain message; for a cell for each point that was most of a run. Rows that are encoded already
(`timebeam.transforms.bigtable.wire`) are only concatenated.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from google.api_core import exceptions, grpc_helpers
from google.api_core.gapic_v1 import routing_header
from google.api_core.gapic_v1.client_info import ClientInfo
from google.cloud.bigtable_v2 import BigtableClient
from google.cloud.bigtable_v2.services.bigtable.transports import BigtableGrpcTransport
from google.cloud.bigtable_v2.types import MutateRowsResponse

from timebeam.transforms.bigtable.retry import ATTEMPT_SECONDS, REFUSALS, RETRYABLE, Backoff
from timebeam.transforms.bigtable.rows import RowMutation
from timebeam.transforms.bigtable.target import EMULATOR_VARIABLE, Target
from timebeam.transforms.bigtable.wire import request_bytes

_CLIENT_INFO = ClientInfo(user_agent="timebeam")


def mutate_rows(target: Target, table: str, rows: Sequence[RowMutation]) -> list[tuple[int, Exception]]:
    """Writes rows; (number, reason) of those that Bigtable refuses.

    Rows whose errors may pass are written again, for two minutes. If the service refuses a request
    as a whole, the rows are sent in halves, so that one bad row takes no others with it.

    Raises:
      GoogleAPICallError: a row could not be written for a reason that is not its own.
    """
    return _write(target, table, rows, range(len(rows)), Backoff())


def _write(
    target: Target, table: str, rows: Sequence[RowMutation], numbers: Sequence[int], backoff: Backoff
) -> list[tuple[int, Exception]]:
    """Writes the rows of these numbers; the refused ones."""
    refused: list[tuple[int, Exception]] = []
    pending = numbers
    while True:
        errors, request_error = _attempt(target, table, [rows[number] for number in pending])
        if isinstance(request_error, REFUSALS):
            unwritten = [pending[index] for index in errors]
            if len(unwritten) == 1:
                return [*refused, (unwritten[0], request_error)]
            middle = len(unwritten) // 2
            for half in (unwritten[:middle], unwritten[middle:]):
                refused += _write(target, table, rows, half, backoff)
            return refused
        repeated: list[int] = []
        last_error: Exception | None = None
        for index, error in errors.items():
            if isinstance(error, REFUSALS):
                refused.append((pending[index], error))
            elif isinstance(error, RETRYABLE):
                repeated.append(pending[index])
                last_error = error
            else:
                raise error
        if last_error is None:
            return refused
        backoff.wait(last_error)
        pending = repeated


def _attempt(
    target: Target, table: str, rows: Sequence[RowMutation]
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
        unanswered = [index for index, answer in errors.items() if answer is missing]
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
