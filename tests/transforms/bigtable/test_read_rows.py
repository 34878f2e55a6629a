"""Reads that break off, hang, or are left, against a server of our own that notes every request."""

from __future__ import annotations

import base64
import random
import signal
import time
import types
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.cloud.bigtable.data import BigtableDataClient, ReadRowsQuery, RowRange
from google.cloud.bigtable.data import row_filters as filters
from google.cloud.bigtable_v2.types import FeatureFlags
from grpc import experimental
from hypothesis import given
from hypothesis import strategies as st

from tests.support.budget import examples
from tests.support.servers.rows_server import (
    RESPONSE,
    Answer,
    RowsServer,
    asked_for,
    chunk,
    one_cell,
    serving,
)
from timebeam.schema.core.rows import Row
from timebeam.schema.core.selection import ColumnRange, Scan
from timebeam.transforms.bigtable import read_stream, retry
from timebeam.transforms.bigtable.chunk_rows import InvalidChunkError, RowMerger
from timebeam.transforms.bigtable.read_ranges import scan_keys
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.read.table_reader import read_rows as rows_of_keys
from timebeam.transforms.read.table_reader import scan_columns, scan_rows, scan_table

TARGET = Target("project", "instance", "a profile")
KEYS = [b"a", b"b", b"b\0", b"c", b"d", b"dd", b"e", b"f"]
WHOLE = [(b"", b"")]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_PAUSE", 0.001)


def keys_of(ranges: Sequence[tuple[bytes, bytes]] = WHOLE) -> list[bytes]:
    return [row.key for row in scan_rows(TARGET, Scan("table", ranges))]


def keys_in_columns(ranges: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    return [key for rows in scan_columns(TARGET, Scan("table", ranges)) for key in rows.keys]


def abort(context: grpc.ServicerContext, code: str = "UNAVAILABLE", text: str = "injected") -> None:
    context.abort(grpc.StatusCode[code], text)


def breaking(messages: int, *, calls: int = 1, keys: Sequence[bytes] = KEYS) -> Answer:
    """A table with a row for each key; the first calls break off after some rows."""

    def answer(number: int, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        for at, key in enumerate([key for key in keys if asked_for(request, key)]):
            if number < calls and at == messages:
                abort(context)
            yield one_cell(key)
        if number < calls:
            abort(context)

    return answer


def ranges_of(request: Any) -> list[tuple[str, bytes, bytes]]:
    """(how a range begins, where, its end)."""
    return [
        (str(one.WhichOneof("start_key")), one.start_key_closed or one.start_key_open, one.end_key_open)
        for one in request.rows.row_ranges
    ]


@pytest.mark.parametrize(
    ("ranges", "messages", "again"),
    [
        (WHOLE, 0, [("None", b"", b"")]),
        (WHOLE, 1, [("start_key_open", b"a", b"")]),
        (WHOLE, 8, [("start_key_open", b"f", b"")]),
        ([(b"a", b"c")], 2, [("start_key_open", b"b", b"c")]),
        ([(b"a", b"c"), (b"d", b"e")], 1, [("start_key_open", b"a", b"c"), ("start_key_closed", b"d", b"e")]),
        ([(b"a", b"b"), (b"d", b"e")], 1, [("start_key_open", b"a", b"b"), ("start_key_closed", b"d", b"e")]),
        ([(b"a", b"b"), (b"d", b"e")], 2, [("start_key_open", b"d", b"e")]),
        ([(b"a", b"b"), (b"d", b"")], 3, [("start_key_open", b"dd", b"")]),
        (
            [(b"a", b"b"), (b"b", b"c"), (b"d", b"")],
            2,
            [("start_key_open", b"b", b"c"), ("start_key_closed", b"d", b"")],
        ),
        ([(b"b", b"b\0")], 1, None),  # nothing is between b and the end
        ([(b"a", b"a\0"), (b"b", b"b\0")], 2, None),
        ([(b"b", b"b\0\0")], 1, [("start_key_open", b"b", b"b\0\0")]),
    ],
)
def test_a_broken_read_goes_on_behind_the_last_row(
    ranges: list[tuple[bytes, bytes]], messages: int, again: list[tuple[str, bytes, bytes]] | None
) -> None:
    expected = [key for start, end in ranges for key in KEYS if start <= key and (not end or key < end)]
    for read in (keys_of, keys_in_columns):
        with serving(breaking(messages)) as server:
            assert read(ranges) == expected
        assert [ranges_of(request) for request in server.requests[1:]] == ([] if again is None else [again])
        assert not any(request.rows.row_keys for request in server.requests)


@pytest.mark.parametrize("messages", range(5))
def test_a_broken_read_of_keys(messages: int) -> None:
    wanted = [b"e", b"none", b"b", b"a", b"b", b"d"]
    with serving(breaking(messages)) as server:
        assert sorted(rows_of_keys(TARGET, "table", wanted)) == [b"a", b"b", b"d", b"e"]
    assert list(server.requests[0].rows.row_keys) == [b"a", b"b", b"d", b"e", b"none"]
    left = [b"a", b"b", b"d", b"e", b"none"][messages:]
    assert [list(request.rows.row_keys) for request in server.requests[1:]] == [left]
    assert not any(request.rows.row_ranges for request in server.requests)


def test_no_request_without_keys_and_ranges() -> None:
    """To the service that would be the whole table."""
    with serving(breaking(1, keys=[b"a", b"b"])) as server:
        assert keys_of([]) == keys_of([(b"b", b"b")]) == keys_of([(b"c", b"b")]) == []
        assert rows_of_keys(TARGET, "table", []) == {}
        assert not server.requests
        assert sorted(rows_of_keys(TARGET, "table", [b"a"])) == [b"a"]
        assert len(server.requests) == 1


@examples(25)
@given(
    st.sets(st.binary(min_size=1, max_size=2), max_size=12),
    st.lists(st.binary(max_size=2), max_size=6).map(sorted),
    st.integers(0, 2**32),
)
def test_rows_broken_at_any_chunk(keys: set[bytes], bounds: list[bytes], seed: int) -> None:
    """Three cells a row in messages of any size, rows that a filter hides, and breaks in every other call."""
    ranges = list(zip(bounds[::2], [bound or b"\0" for bound in bounds[1::2]], strict=False)) or WHOLE
    rng = random.Random(seed)

    def answer(number: int, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        response = RESPONSE()
        for key in sorted(key for key in keys if asked_for(request, key)):
            if hidden(key):
                if rng.random() < 0.5:
                    yield response
                    yield RESPONSE(last_scanned_row_key=key)
                    response = RESPONSE()
                continue
            for at in range(3):
                response.chunks.append(chunk(key, "f", b"%d" % at, 1000, b"v", commit_row=at == 2))
                if rng.random() < 0.4:
                    yield response
                    response = RESPONSE()
                if number % 2 == 0 and rng.random() < 0.2:
                    abort(context)
        yield response

    def hidden(key: bytes) -> bool:
        return key[-1] % 2 == 1

    with serving(answer):
        found = list(scan_rows(TARGET, Scan("table", ranges)))
    assert [row.key for row in found] == [
        key
        for start, end in ranges
        for key in sorted(keys)
        if start <= key and (not end or key < end) and not hidden(key)
    ]
    assert all([cell.qualifier for cell in row.cells] == [b"0", b"1", b"2"] for row in found)


def test_rows_passed_over_are_not_read_again() -> None:
    def answer(number: int, _: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        if number == 0:
            yield one_cell(b"a")
            yield RESPONSE(last_scanned_row_key=b"m")
            abort(context)
        yield one_cell(b"x")

    with serving(answer) as server:
        assert keys_of([(b"a", b"c"), (b"f", b"z")]) == [b"a", b"x"]
    assert ranges_of(server.requests[1]) == [("start_key_open", b"m", b"z")]


def test_a_row_that_is_not_complete_comes_again_as_a_whole() -> None:
    def answer(number: int, _: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        yield RESPONSE(chunks=[chunk(b"a", "f", b"q", 1000, b"0123", value_size=8)])
        if number == 0:
            abort(context)
        yield RESPONSE(chunks=[chunk(value=b"4567", commit_row=True)])

    with serving(answer) as server:
        ((cell,),) = [row.cells for row in scan_table(TARGET, "table")]
    assert cell == ("f", b"q", 1, b"01234567")
    assert ranges_of(server.requests[1]) == [("None", b"", b"")]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("UNAVAILABLE", ""),
        ("UNAVAILABLE", "GOAWAY received"),
        ("DEADLINE_EXCEEDED", ""),
        ("ABORTED", ""),
        ("INTERNAL", "Received RST_STREAM with error code 2"),
        ("INTERNAL", "Received unexpected EOS on DATA frame from server"),
        ("CANCELLED", "Received RST_STREAM with error code 8"),
        ("UNKNOWN", "Stream removed"),
    ],
)
def test_errors_that_pass(code: str, text: str) -> None:
    def answer(number: int, _: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        if number < 3:
            abort(context, code, text)
        yield one_cell(b"a")

    with serving(answer) as server:
        assert keys_of() == [b"a"]
    assert len(server.requests) == 4


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("NOT_FOUND", exceptions.NotFound),
        ("PERMISSION_DENIED", exceptions.PermissionDenied),
        ("UNAUTHENTICATED", exceptions.Unauthenticated),
        ("INVALID_ARGUMENT", exceptions.InvalidArgument),
        ("FAILED_PRECONDITION", exceptions.FailedPrecondition),
        ("RESOURCE_EXHAUSTED", exceptions.ResourceExhausted),
        ("INTERNAL", exceptions.InternalServerError),
        ("UNKNOWN", exceptions.Unknown),
        ("CANCELLED", exceptions.Cancelled),
    ],
)
@pytest.mark.parametrize("messages", [0, 1])
def test_errors_for_good(code: str, error: type[Exception], messages: int) -> None:
    def answer(_: int, __: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        yield from [one_cell(b"a")][:messages]
        abort(context, code, "said the server")

    found = []
    with serving(answer) as server, pytest.raises(error, match="said the server"):
        found += [row.key for row in scan_table(TARGET, "table")]
    assert len(server.requests) == 1


def test_an_error_that_stays_is_raised_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_stream, "PROGRESS_SECONDS", 0.3)
    with (
        serving(breaking(1, calls=10_000, keys=[b"a"])) as server,
        pytest.raises(exceptions.ServiceUnavailable),
    ):
        keys_of()
    assert len(server.requests) > 3


def test_only_the_time_without_progress_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call gives one row and breaks off; all together take longer, and so does the caller once."""
    monkeypatch.setattr(read_stream, "PROGRESS_SECONDS", 0.5)
    keys = [b"%02d" % number for number in range(20)]

    def answer(number: int, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        time.sleep(0.05)
        return breaking(1, calls=10_000 if number < 20 else 0, keys=keys)(number, request, context)

    found = []
    with serving(answer) as server:
        for row in scan_table(TARGET, "table"):
            found.append(row.key)
            if len(found) == 10:
                time.sleep(0.6)
    assert found == keys
    assert len(server.requests) == 21


@pytest.mark.parametrize("messages", [0, 1])
def test_a_server_that_falls_silent(monkeypatch: pytest.MonkeyPatch, messages: int) -> None:
    monkeypatch.setattr(read_stream, "ATTEMPT_SECONDS", 0.3)

    def answer(number: int, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        for at, key in enumerate(key for key in KEYS if asked_for(request, key)):
            while number < 2 and at == messages and context.is_active():
                time.sleep(0.02)
            yield one_cell(key)

    with serving(answer) as server:
        assert keys_of() == KEYS
    assert len(server.requests) == 3


def test_a_server_that_is_silent_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_stream, "ATTEMPT_SECONDS", 0.1)
    monkeypatch.setattr(read_stream, "PROGRESS_SECONDS", 0.6)

    def answer(_: int, __: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        while context.is_active():
            time.sleep(0.02)
        yield from ()

    with serving(answer) as server, pytest.raises(exceptions.DeadlineExceeded):
        keys_of()
    assert len(server.requests) < 5  # each call may take twice as long as the one before


def test_a_server_that_says_goaway_and_cuts_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_stream, "_LONGEST_PAUSE", 0.1)

    def silent_after_one(_: int, __: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        yield one_cell(b"a")
        while context.is_active():
            time.sleep(0.02)

    with serving(silent_after_one) as server:
        reading = scan_table(TARGET, "table")
        assert next(reading).key == b"a"
        server.stop()
        after = RowsServer(breaking(0, calls=0), server.port)
        try:
            assert [row.key for row in reading] == KEYS[1:]
        finally:
            after.stop()
    assert ranges_of(after.requests[0]) == [("start_key_open", b"a", b"")]


def _endless(_: int, __: Any, context: grpc.ServicerContext) -> Iterator[Any]:
    for number in range(10**6):
        if not context.is_active():
            return
        yield one_cell(b"%09d" % number)


@pytest.mark.parametrize("on_one_thread", [True, False])
def test_a_read_that_is_left_is_cancelled(monkeypatch: pytest.MonkeyPatch, on_one_thread: bool) -> None:
    """Also by a gRPC that does not know the experimental option."""
    if not on_one_thread:
        monkeypatch.setattr(read_stream, "ON_ONE_THREAD", ("timebeam.unknown", 1))
    with serving(_endless) as server:
        reading = scan_table(TARGET, "table")
        assert isinstance(next(reading), Row)
        reading.close()
        assert server.gone.wait(10)
        server.gone.clear()
        assert next(scan_keys(TARGET, "table")) == b"%09d" % 0  # and is forgotten at once
        assert server.gone.wait(10)


def test_grpc_keeps_nothing_of_a_read_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that nobody takes would be kept with their call until the channel ends, about 20 KB each."""
    calls: list[Any] = []
    leave = read_stream._leave

    def noting(call: Any) -> None:
        calls.append(call)
        leave(call)

    monkeypatch.setattr(read_stream, "_leave", noting)
    with serving(_endless):
        next(scan_table(TARGET, "table"))
        next(scan_keys(TARGET, "table"))
    assert [call._state.due for call in calls] == [set(), set()]


def test_the_installed_grpc_has_what_the_reader_leans_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """An experimental option, and private members of a call: if this fails, reads still work, more slowly."""
    assert experimental.ChannelOptions.SingleThreadedUnaryStream == read_stream.ON_ONE_THREAD[0]
    calls: list[Any] = []
    monkeypatch.setattr(read_stream, "_leave", calls.append)
    with serving(_endless):
        next(scan_table(TARGET, "table"))
        (call,) = calls
        assert callable(call._consume_next_event)
        assert isinstance(call._state.due, set)


@pytest.mark.parametrize(
    "members", [{}, {"_consume_next_event": None}, {"_consume_next_event": lambda: 1 / 0}]
)
def test_a_call_without_private_members_is_cancelled(members: dict[str, Any]) -> None:
    """As a gRPC may make it some day."""
    cancelled: list[bool] = []

    def cancel() -> bool:
        cancelled.append(True)
        return True

    read_stream._leave(types.SimpleNamespace(cancel=cancel, **members))
    assert cancelled == [True]


def test_a_signal_handler_ends_a_read_that_waits() -> None:
    """As Ctrl-C does; the channel stays good."""

    def silent_after_one(number: int, _: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        yield one_cell(b"a")
        while number == 0 and context.is_active():
            time.sleep(0.02)

    def handler(*_: Any) -> None:
        raise TimeoutError("by a signal")

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with serving(silent_after_one) as server:
            reading = scan_table(TARGET, "table")
            assert next(reading).key == b"a"
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(TimeoutError, match="by a signal"):
                next(reading)
            assert server.gone.wait(10)
            assert keys_of() == [b"a"]
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_read_is_cancelled_at_an_answer_that_cannot_be_taken() -> None:
    def answer(number: int, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        yield one_cell(b"x")
        yield from _endless(number, request, context)

    with serving(answer) as server:
        with pytest.raises(InvalidChunkError, match="500 row keys do not ascend"):
            keys_of()
        assert server.gone.wait(10)
    assert len(server.requests) == 1


def test_an_answer_that_ends_in_the_middle_of_a_row() -> None:
    def answer(*_: Any) -> Iterator[Any]:
        yield RESPONSE(chunks=[chunk(b"a", "f", b"q")])

    with serving(answer), pytest.raises(InvalidChunkError, match="before the row was complete"):
        keys_of()


def test_responses_are_joined_but_for_last_scanned_row_keys() -> None:
    keys = [b"%03d" % number for number in range(300)]
    scanned = {keys[number] + b"+" for number in (0, 1, 7, 150, 151, 299)}
    serialized = [
        (RESPONSE(last_scanned_row_key=key) if key in scanned else one_cell(key)).SerializeToString()
        for key in sorted({*keys, *scanned})
    ]
    merger = RowMerger("table")
    responses = list(read_stream._responses(serialized, merger.message))
    assert [row.key for response in responses for row in merger.take(response)] == keys
    assert merger.last == max(scanned)
    assert len(responses) < len(serialized)
    first = read_stream._responses(iter([*serialized[:1], b"never asked for"]), merger.message)
    assert len(next(first).chunks) == 1


def test_a_response_that_is_not_a_message() -> None:
    with pytest.raises(InvalidChunkError, match="not a message"):
        list(read_stream._responses([b"\xff"], RowMerger("table").message))


def test_a_limit() -> None:
    with serving(breaking(2)) as server:
        with pytest.raises(InvalidChunkError, match="more rows"):
            list(scan_keys(TARGET, "table", limit=3))
        assert [request.rows_limit for request in server.requests] == [3, 1]
    with serving(breaking(2, keys=KEYS[:2])) as server:
        assert list(scan_keys(TARGET, "table", limit=2)) == KEYS[:2]
        assert [request.rows_limit for request in server.requests] == [2]


def test_messages_larger_than_grpc_takes_by_itself() -> None:
    value = random.Random(1).randbytes(9 << 20)
    with serving(lambda *_: iter([one_cell(b"a", value)])):
        ((cell,),) = [row.cells for row in scan_table(TARGET, "table")]
    assert cell.value == value


@pytest.mark.parametrize("target", [TARGET, Target("project", "instance")])
@pytest.mark.parametrize("ranges", [WHOLE, [(b"a", b"c"), (b"d", b"")]])
def test_requests_and_headers_are_those_of_the_data_client(
    target: Target, ranges: list[tuple[bytes, bytes]]
) -> None:
    """What the service routes and answers by; only the caller's name and the features are our own."""
    row_filter = filters.RowFilterChain(
        [
            filters.RowKeyRegexFilter(b"\\C*"),
            filters.ColumnRangeFilter("f", b"a", b"b", inclusive_start=True, inclusive_end=False),
            filters.CellsColumnLimitFilter(2),
            filters.StripValueTransformerFilter(True),
        ]
    )
    scan = Scan("table", ranges, b"\\C*", ColumnRange("f", b"a", b"b"), True, 2)
    with serving(breaking(0, calls=0)) as server:
        assert list(scan_columns(target, scan))
        assert list(scan_rows(target, scan))
        with BigtableDataClient(project="project") as client:
            table = client.get_table("instance", "table", app_profile_id=target.app_profile)
            table.read_rows(
                ReadRowsQuery(
                    row_ranges=[RowRange(start or None, end or None) for start, end in ranges],
                    row_filter=row_filter,
                )
            )
    columns, ours, theirs = server.requests
    assert columns == ours == theirs
    _, our_headers, their_headers = server.headers
    assert our_headers["x-goog-request-params"] == their_headers["x-goog-request-params"]
    assert "app_profile_id=" in our_headers["x-goog-request-params"]
    assert our_headers["x-goog-api-client"].startswith("timebeam")
    assert their_headers.keys() - our_headers.keys() <= {
        "bigtable-attempt",
        "bigtable-client-attempt-epoch-usec",
        "bigtable-features",
    }
    assert "bigtable-features" not in our_headers  # of an emulator nothing is asked


def test_the_service_is_asked_for_last_scanned_row_keys() -> None:
    features = dict(read_stream._metadata(TARGET, "table", None))["bigtable-features"]
    assert FeatureFlags.deserialize(base64.urlsafe_b64decode(features)) == FeatureFlags(
        last_scanned_row_responses=True
    )
