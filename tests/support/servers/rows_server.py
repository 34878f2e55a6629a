"""A ReadRows of our own for tests: gRPC on localhost, which answers as a test says and notes requests."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import grpc
import pytest
from google.cloud.bigtable_v2.types import ReadRowsRequest, ReadRowsResponse

from timebeam.transforms.bigtable.target import EMULATOR_VARIABLE

RESPONSE: Any = ReadRowsResponse.pb()
CHUNK: Any = ReadRowsResponse.CellChunk.pb()

Answer: TypeAlias = Callable[[int, Any, grpc.ServicerContext], Iterator[Any]]
"""From the number of a call, from 0, its request and its context to the responses."""


class RowsServer:
    """Answers every ReadRows by a function.

    Attributes:
      requests, headers: of each call, in their order.
      gone: set when a call ends, whatever the reason, after its answer began.
    """

    def __init__(self, answer: Answer, port: int = 0) -> None:
        self._answer = answer
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(8))
        handler = grpc.unary_stream_rpc_method_handler(
            self._read_rows, ReadRowsRequest.pb().FromString, RESPONSE.SerializeToString
        )
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("google.bigtable.v2.Bigtable", {"ReadRows": handler})]
        )
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self.requests: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.gone = threading.Event()
        self._server.start()

    def stop(self) -> None:
        """Says GOAWAY and cuts all calls."""
        self._server.stop(0).wait()

    def _read_rows(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        number = len(self.requests)
        self.requests.append(request)
        self.headers.append(dict(context.invocation_metadata()))
        context.add_callback(self.gone.set)
        return self._answer(number, request, context)


@contextlib.contextmanager
def serving(answer: Answer) -> Iterator[RowsServer]:
    """The clients of this process speak to a server with these answers, until the end of the block."""
    server = RowsServer(answer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(EMULATOR_VARIABLE, f"127.0.0.1:{server.port}")
        try:
            yield server
        finally:
            server.stop()


def asked_for(request: Any, key: bytes) -> bool:
    """Whether a request is for a row; one without keys and ranges is for all."""
    rows = request.rows
    if not rows.row_keys and not rows.row_ranges:
        return True
    return key in rows.row_keys or any(
        one.start_key_closed <= key
        and (not one.start_key_open or one.start_key_open < key)
        and (not one.end_key_open or key < one.end_key_open)
        for one in rows.row_ranges
    )


def one_cell(key: bytes, value: bytes = b"v") -> Any:
    """A response with one whole row."""
    return RESPONSE(chunks=[chunk(key, "f", b"q", 1_000, value, commit_row=True)])


def chunk(
    key: bytes = b"",
    family: str | None = None,
    qualifier: bytes | None = None,
    micros: int = 0,
    value: bytes = b"",
    *,
    labels: Sequence[str] = (),
    value_size: int = 0,
    reset_row: bool = False,
    commit_row: bool = False,
) -> Any:
    """A chunk; None for what it does not say."""
    made = CHUNK(row_key=key, timestamp_micros=micros, value=value, labels=labels, value_size=value_size)
    if family is not None:
        made.family_name.value = family
    if qualifier is not None:
        made.qualifier.value = qualifier
    if reset_row:
        made.reset_row = True
    if commit_row:
        made.commit_row = True
    return made
