"""ReadRows by plain protobuf: rows as they come, resumed behind the last one when the answer breaks off.

The data client makes several Python objects for each cell, and limits the whole of a read to ten minutes.
Here a message is merged by `transforms.bigtable.merge`, and only the time without progress counts.
"""

from __future__ import annotations

import base64
import functools
import os
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import grpc
from google.api_core import exceptions
from google.api_core.gapic_v1 import routing_header
from google.api_core.gapic_v1.client_info import ClientInfo
from google.cloud.bigtable_v2 import BigtableClient
from google.cloud.bigtable_v2.services.bigtable.transports import BigtableGrpcTransport
from google.cloud.bigtable_v2.types import FeatureFlags, ReadRowsRequest
from grpc import experimental

from transforms.bigtable.merge import InvalidChunkError, Merged, Merger, response_class
from transforms.bigtable.target import EMULATOR_VARIABLE, Target

PROGRESS_SECONDS = 600.0
"""A read is given up if no row, and no sign of rows that were passed over, came for so long."""

ATTEMPT_SECONDS = 60.0
"""The deadline of a call, which also ends one that hangs; doubled while calls run into it without a row."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 20.0

_BREAKS = (exceptions.ServiceUnavailable, exceptions.DeadlineExceeded, exceptions.Aborted)
_BREAKS_BY_TEXT = (exceptions.InternalServerError, exceptions.Cancelled, exceptions.Unknown)
_TEXTS = ("rst_stream", "rst stream", "goaway", "unexpected eos on data frame", "stream removed")
"""What gRPC says where HTTP/2 cut a stream; the code depends on the reason that came with the frame."""

_METHOD = "/google.bigtable.v2.Bigtable/ReadRows"
_REQUEST = ReadRowsRequest.pb()
_NO_LIMIT = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
_ON_ONE_THREAD = (experimental.ChannelOptions.SingleThreadedUnaryStream, 1)
"""Messages are read by the thread that wants them: half the time of a message, and no thread besides."""


class Wanted(NamedTuple):
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


def read(target: Target, wanted: Wanted, merger: Merger[Merged]) -> Iterator[Merged]:
    """What a merger makes of the rows, ascending by key. Nothing is asked for if nothing is wanted.

    Raises:
      InvalidChunkError: an answer breaks the contract.
      GoogleAPICallError: an error that does not pass, or that did not for `PROGRESS_SECONDS`.
    """
    service = _service(os.environ.get(EMULATOR_VARIABLE))
    given, since = 0, time.monotonic()
    pause, seconds = _FIRST_PAUSE, ATTEMPT_SECONDS
    while (request := _request(target, wanted, merger.last, given)) is not None:
        left = since + PROGRESS_SECONDS - time.monotonic()
        headers = _metadata(target, wanted.table)
        call = service.read_rows(request, timeout=min(seconds, left), metadata=headers)
        try:
            for response in call:
                before = merger.last
                rows = merger.take(response)
                given += len(rows)
                if 0 < wanted.limit < given:
                    raise InvalidChunkError("more rows than were asked for")
                yield from rows
                if merger.last != before:
                    since, pause, seconds = time.monotonic(), _FIRST_PAUSE, ATTEMPT_SECONDS
            merger.end()
            return
        except grpc.RpcError as error:
            failed: exceptions.GoogleAPICallError = exceptions.from_grpc_error(error)
            wait = pause * random.uniform(0.5, 1.0)
            if not _may_pass(failed) or time.monotonic() + wait > since + PROGRESS_SECONDS:
                raise failed from error
        except (GeneratorExit, InvalidChunkError):
            _leave(call)
            raise
        finally:
            call.cancel()
        merger.forget()
        time.sleep(wait)
        pause = min(_LONGEST_PAUSE, pause * 2)
        if isinstance(failed, exceptions.DeadlineExceeded):
            seconds *= 2


def _may_pass(error: exceptions.GoogleAPICallError) -> bool:
    """Whether a read that ended so can go on."""
    if isinstance(error, _BREAKS):
        return True
    text = str(error.message).lower()
    return isinstance(error, _BREAKS_BY_TEXT) and any(known in text for known in _TEXTS)


def _request(target: Target, wanted: Wanted, last: bytes, given: int) -> Any:
    """What of the wanted rows lies behind the key `last`; None if there is nothing.

    Never a request without keys and ranges: to the service that is the whole table.
    """
    keys = [key for key in wanted.keys if key > last] if last else wanted.keys
    following = last + b"\0" if last else b""
    ranges = [(start, end) for start, end in wanted.ranges if not end or max(start, following) < end]
    if (not keys and not ranges) or 0 < wanted.limit <= given:
        return None
    request = _REQUEST(
        table_name=target.table_name(wanted.table),
        app_profile_id=target.app_profile or "",
        filter=wanted.row_filter,
        rows_limit=wanted.limit - given if wanted.limit else 0,
    )
    request.rows.row_keys.extend(keys)
    new_range = request.rows.row_ranges.add
    for start, end in ranges:
        one = new_range()
        if last and start <= last:
            one.start_key_open = last
        elif start:
            one.start_key_closed = start
        if end:
            one.end_key_open = end
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
            transport=lambda **found: BigtableGrpcTransport(**found, channel=_secure_channel),
        )
        channel = cast(BigtableGrpcTransport, client.transport).grpc_channel
    method = channel.unary_stream(_METHOD, _REQUEST.SerializeToString, response_class().FromString)
    return _Service(method, channel)


def _secure_channel(host: str, **found: Any) -> grpc.Channel:
    """A channel to the service; a connection that died without a word is found out by pings."""
    pings = [("grpc.keepalive_time_ms", 30_000), ("grpc.keepalive_timeout_ms", 10_000)]
    found["options"] = [*_NO_LIMIT, *pings, _ON_ONE_THREAD]
    return BigtableGrpcTransport.create_channel(host, **found)


def _leave(call: Any) -> None:
    """Cancels a call in the middle of its answer.

    What gRPC still has to say of it must be taken, or its memory stays taken for as long as the channel's,
    and there is no public way to do that once the call is cancelled. A call out of which a signal handler's
    exception came (Ctrl-C) is free already, and must not be asked any more. A gRPC that reads on a thread of
    its own, though it was asked not to, needs nothing.
    """
    take_event = getattr(call, "_consume_next_event", None)
    if call.cancel() and take_event is not None:
        while call._state.due:
            take_event()
