"""One ReadRows by plain protobuf, resumed behind the last complete row when the stream breaks off.

The data client makes several Python objects for each cell, and limits a whole read to ten minutes. Here
messages are merged by `timebeam.transforms.bigtable.chunk_rows`, and only time without progress is limited.
"""

from __future__ import annotations

import base64
import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import grpc
from google.api_core import exceptions
from google.protobuf.message import DecodeError

from timebeam.transforms.bigtable.chunk_rows import InvalidChunkError, Merged, Merger
from timebeam.transforms.bigtable.protobuf_classes import DATA_API
from timebeam.transforms.bigtable.retry import ATTEMPT_SECONDS, Backoff, Stop, StoppedError, breaks_stream
from timebeam.transforms.bigtable.target import Target, call_headers, method

PROGRESS_SECONDS = 600.0
"""A read fails after this long without a row or a last scanned row key."""

_LONGEST_PAUSE = 20.0

_JOINED, _JOINED_BYTES = 64, 1 << 16
"""Responses that are parsed together: their number, or their bytes."""

_REQUEST = DATA_API["ReadRowsRequest"]
ON_ONE_THREAD = ("SingleThreadedUnaryStream", 1)
"""Of grpc.experimental.ChannelOptions: the thread that asks for a message reads it, in half the time.

A gRPC without this option ignores it, and reads on a thread of its own.
"""


class ReadRequest(NamedTuple):
    """The rows to read.

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
    """The output of a merger for the rows of a request, ascending by key.

    Without keys and ranges no call is made. A call has `ATTEMPT_SECONDS`, which also ends one that hangs; if
    no row came, the next call has twice as long.

    Raises:
      InvalidChunkError: a response breaks the contract of ReadRows.
      GoogleAPICallError: an error that cannot be retried, or no progress for `PROGRESS_SECONDS`.
      StoppedError: by `target.stop`; or what its `check` raises.
    """
    stop = target.stop or Stop(math.inf)
    read_rows = method(target, "ReadRows", ON_ONE_THREAD)
    seconds = ATTEMPT_SECONDS
    backoff = Backoff(PROGRESS_SECONDS, _LONGEST_PAUSE)
    while (request := _request(target, read_request, merger.last, merger.count)) is not None:
        stop.check()
        headers = _metadata(target, read_request.table, target.emulator_in_use)
        timeout = min(seconds, backoff.seconds_left(), stop.seconds_left)
        call = read_rows(request, timeout=timeout, metadata=headers)
        try:
            with stop.running(call):
                before = merger.last
                for rows in _merged(call, merger):
                    if 0 < read_request.limit < merger.count:
                        raise InvalidChunkError("more rows than the limit")
                    yield from rows
                    if merger.last != before:
                        backoff.progress()
                        before, seconds = merger.last, ATTEMPT_SECONDS
                    stop.check()
            return
        except grpc.RpcError as error:
            failure: exceptions.GoogleAPICallError = exceptions.from_grpc_error(error)
            if stop.is_set:
                _leave(call)
            stop.check()
        except (GeneratorExit, InvalidChunkError, StoppedError):
            _leave(call)
            raise
        finally:
            call.cancel()
        if not breaks_stream(failure):
            raise failure
        before = merger.last
        merger.forget()
        if merger.last != before:
            backoff.progress()
            seconds = ATTEMPT_SECONDS
        backoff.wait(failure, None if target.stop is None else target.stop.sleep)
        if isinstance(failure, exceptions.DeadlineExceeded):
            seconds *= 2
    yield from merger.end()


def _merged(call: Iterable[bytes], merger: Merger[Merged]) -> Iterator[list[Merged]]:
    """The output of a merger for each response of a call, and for its end; raises as `_responses` does."""
    for response in _responses(call, merger.message):
        yield merger.take(response)
    yield merger.end()


def _responses(call: Iterable[bytes], message: Any) -> Iterator[Any]:
    """The responses of a call, parsed; small ones together, since an emulator sends one for each row.

    The bytes of several messages, joined, are one message with all their chunks. The number of responses
    that wait to be joined begins at one and doubles, so the first rows come at once.

    Raises:
      InvalidChunkError: a response is not such a message.
      RpcError: the call failed; raised after all responses before the failure.
    """
    most, waiting, size = 1, list[bytes](), 0
    try:
        for serialized in call:
            waiting.append(serialized)
            size += len(serialized)
            if len(waiting) >= most or size >= _JOINED_BYTES:
                yield from _parsed(waiting, message)
                most, waiting, size = min(2 * most, _JOINED), [], 0
    except grpc.RpcError:
        yield from _parsed(waiting, message)
        raise
    yield from _parsed(waiting, message)


def _parsed(serialized: Sequence[bytes], message: Any) -> Sequence[Any]:
    """Responses as one message; one by one if any has a last scanned row key, whose position matters."""
    try:
        joined = message.FromString(b"".join(serialized))
        if joined.last_scanned_row_key:
            return list(map(message.FromString, serialized))
    except DecodeError as error:
        raise InvalidChunkError(f"a response is not a message: {error}") from error
    return [joined] if serialized else []


def _request(target: Target, read_request: ReadRequest, last: bytes, row_count: int) -> Any:
    """The rest of a request behind the key `last`; None if nothing is left to read.

    A request without keys and ranges would read the whole table.
    """
    row_keys = [key for key in read_request.keys if key > last] if last else read_request.keys
    following = last + b"\0" if last else b""
    ranges = [keys for keys in read_request.ranges if not keys[1] or keys[0] < keys[1] > following]
    if (not row_keys and not ranges) or 0 < read_request.limit <= row_count:
        return None
    request = _REQUEST(
        table_name=target.table_name(read_request.table),
        app_profile_id=target.app_profile or "",
        filter=read_request.row_filter,
        rows_limit=read_request.limit - row_count if read_request.limit else 0,
    )
    request.rows.row_keys.extend(row_keys)
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
def _metadata(target: Target, table: str, emulator: str | None) -> Sequence[tuple[str, str]]:
    """The headers of a call; the features ask the service for last scanned row keys.

    An emulator would send one for each row that a filter drops: most of the time of a query of few series.
    """
    if emulator:
        return call_headers(target, table)
    features = DATA_API["FeatureFlags"](last_scanned_row_responses=True).SerializeToString()
    return (
        *call_headers(target, table),
        ("bigtable-features", base64.urlsafe_b64encode(features).decode()),
    )


def _leave(call: Any) -> None:
    """Cancels a call in the middle of its responses.

    The remaining events of the call must be consumed, or they stay in memory as long as the channel. gRPC has
    no public method for that after the cancellation, so private members do it; a gRPC without them reads on
    its own thread, and needs nothing. A call that a signal handler interrupted (Ctrl-C) is closed already: it
    has no events left. One that another thread cancelled (`Stop.set`) has.
    """
    take_event, state = getattr(call, "_consume_next_event", None), getattr(call, "_state", None)
    if (call.cancel() or call.cancelled()) and take_event is not None:
        while getattr(state, "due", None):
            take_event()
