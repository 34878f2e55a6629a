"""One ReadRows by plain protobuf, resumed behind the last complete row when the answer breaks off.

The data client makes several Python objects for each cell, and limits the whole of a read to ten minutes.
Here a message is merged by `timebeam.transforms.bigtable.merge`, and only the time without progress counts.
"""

from __future__ import annotations

import base64
import functools
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import grpc
from google.api_core import exceptions
from google.api_core.gapic_v1 import routing_header
from google.api_core.gapic_v1.client_info import ClientInfo
from google.cloud.bigtable_v2 import BigtableClient
from google.cloud.bigtable_v2.services.bigtable.transports import BigtableGrpcTransport
from google.cloud.bigtable_v2.types import FeatureFlags, ReadRowsRequest

from timebeam.transforms.bigtable.merge import InvalidChunkError, Merged, Merger, response_class
from timebeam.transforms.bigtable.retry import ATTEMPT_SECONDS, Backoff, breaks_stream
from timebeam.transforms.bigtable.target import EMULATOR_VARIABLE, Target

PROGRESS_SECONDS = 600.0
"""A read fails after this long without a row, or a sign of rows that were passed over."""

_LONGEST_PAUSE = 20.0

_METHOD = "/google.bigtable.v2.Bigtable/ReadRows"
_REQUEST = ReadRowsRequest.pb()
_NO_LIMIT = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
_ON_ONE_THREAD = ("SingleThreadedUnaryStream", 1)
"""`grpc.experimental.ChannelOptions`: messages are read by the thread that asks for them, in half the time.

A gRPC that does not know the option ignores it, and reads on a thread of its own.
"""


class ReadRequest(NamedTuple):
    """What to read.

    Attributes:
      row_filter: a RowFilter message.
      ranges: [start, end) of row keys, ascending, apart; an empty end is that of the table.
      keys: single rows.
      limit: of rows; 0 for none.
    """

    table: str
    row_filter: Any
    ranges: Sequence[tuple[bytes, bytes]] = ()
    keys: Sequence[bytes] = ()
    limit: int = 0


def read(target: Target, read_request: ReadRequest, merger: Merger[Merged]) -> Iterator[Merged]:
    """What a merger makes of the rows, ascending by key. No call is made for no keys and no ranges.

    A call has `ATTEMPT_SECONDS`, which also ends one that hangs; the next one twice as long if no row came.

    Raises:
      InvalidChunkError: an answer breaks the contract.
      GoogleAPICallError: an error that does not pass, or that did not for `PROGRESS_SECONDS`.
    """
    service = _service(os.environ.get(EMULATOR_VARIABLE))
    row_count, seconds = 0, ATTEMPT_SECONDS
    backoff = Backoff(PROGRESS_SECONDS, _LONGEST_PAUSE)
    while (request := _request(target, read_request, merger.last, row_count)) is not None:
        headers = _metadata(target, read_request.table)
        call = service.read_rows(request, timeout=min(seconds, backoff.seconds_left()), metadata=headers)
        try:
            for response in call:
                before = merger.last
                rows = merger.take(response)
                row_count += len(rows)
                if 0 < read_request.limit < row_count:
                    raise InvalidChunkError("more rows than were asked for")
                yield from rows
                if merger.last != before:
                    backoff.progress()
                    seconds = ATTEMPT_SECONDS
            merger.end()
            return
        except grpc.RpcError as error:
            failure: exceptions.GoogleAPICallError = exceptions.from_grpc_error(error)
        except (GeneratorExit, InvalidChunkError):
            _leave(call)
            raise
        finally:
            call.cancel()
        if not breaks_stream(failure):
            raise failure
        merger.forget()
        backoff.wait(failure)
        if isinstance(failure, exceptions.DeadlineExceeded):
            seconds *= 2


def _request(target: Target, read_request: ReadRequest, last: bytes, row_count: int) -> Any:
    """The rest of a request behind the key `last`; None if there is nothing.

    Never a request without keys and ranges: to the service that is the whole table.
    """
    keys = [key for key in read_request.keys if key > last] if last else read_request.keys
    following = last + b"\0" if last else b""
    ranges = [(start, end) for start, end in read_request.ranges if not end or max(start, following) < end]
    if (not keys and not ranges) or 0 < read_request.limit <= row_count:
        return None
    request = _REQUEST(
        table_name=target.table_name(read_request.table),
        app_profile_id=target.app_profile or "",
        filter=read_request.row_filter,
        rows_limit=read_request.limit - row_count if read_request.limit else 0,
    )
    request.rows.row_keys.extend(keys)
    new_range = request.rows.row_ranges.add
    for start, end in ranges:
        key_range = new_range()
        if last and start <= last:
            key_range.start_key_open = last
        elif start:
            key_range.start_key_closed = start
        if end:
            key_range.end_key_open = end
    return request


@functools.lru_cache(maxsize=64)
def _metadata(target: Target, table: str) -> Sequence[tuple[str, str]]:
    """The headers of a call: where it goes, who calls, and that a last scanned row key is understood."""
    routing = {"table_name": target.table_name(table), "app_profile_id": target.app_profile or ""}
    features = FeatureFlags.serialize(FeatureFlags(last_scanned_row_responses=True))
    return (
        routing_header.to_grpc_metadata(routing),
        _client_info().to_grpc_metadata(),
        ("bigtable-features", base64.urlsafe_b64encode(features).decode()),
    )


def _client_info() -> ClientInfo:
    return ClientInfo(user_agent="timebeam")


class _Service(NamedTuple):
    """The method, and its channel, which closes when nobody holds it."""

    read_rows: Any
    channel: grpc.Channel


@functools.lru_cache(maxsize=4)
def _service(emulator: str | None) -> _Service:
    """ReadRows on a channel of its own: one per process and emulator."""
    if emulator:
        channel = grpc.insecure_channel(emulator, [*_NO_LIMIT, _ON_ONE_THREAD])
    else:
        # The client finds endpoint, credentials and certificates; only the channel is made here.
        client = BigtableClient(
            client_info=_client_info(),
            transport=lambda **arguments: BigtableGrpcTransport(**arguments, channel=_secure_channel),
        )
        channel = cast(BigtableGrpcTransport, client.transport).grpc_channel
    method = channel.unary_stream(_METHOD, _REQUEST.SerializeToString, response_class().FromString)
    return _Service(method, channel)


def _secure_channel(host: str, **arguments: Any) -> grpc.Channel:
    """A channel to the service; a connection that died without a word is found out by pings."""
    pings = [("grpc.keepalive_time_ms", 30_000), ("grpc.keepalive_timeout_ms", 10_000)]
    arguments["options"] = [*_NO_LIMIT, *pings, _ON_ONE_THREAD]
    return BigtableGrpcTransport.create_channel(host, **arguments)


def _leave(call: Any) -> None:
    """Cancels a call in the middle of its answer.

    What gRPC still has to say of it must be taken, or its memory stays taken for as long as the channel's,
    and there is no public way to do that once the call is cancelled. A call out of which a signal handler's
    exception came (Ctrl-C) is free already, and must not be asked any more. A gRPC that reads on a thread of
    its own, though it was asked not to, needs nothing.
    """
    take_event, state = getattr(call, "_consume_next_event", None), getattr(call, "_state", None)
    if call.cancel() and take_event is not None:
        while getattr(state, "due", None):
            take_event()
