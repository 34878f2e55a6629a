"""Reads that are stopped: while Bigtable is silent, while it is down, and between rows."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from tests.support.servers.rows_server import RESPONSE, RowsServer, one_cell, serving
from timebeam.schema.core.selection import Scan
from timebeam.transforms.bigtable import read_stream
from timebeam.transforms.bigtable.read_ranges import scan_keys
from timebeam.transforms.bigtable.retry import Stop, StoppedError
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.read.table_reader import ParallelReader

TARGET = Target("project", "instance")
LONG_SECONDS = 300
"""Beyond the time limit of a test."""


def stopped_by(stop: Stop) -> Target:
    return dataclasses.replace(TARGET, stop=stop)


def silent(_: int, __: Any, context: grpc.ServicerContext) -> Iterator[Any]:
    """One row, then nothing, as when the service filters a long range."""
    yield one_cell(b"a")
    while context.is_active():
        time.sleep(0.02)


def scanned_only(_: int, __: Any, context: grpc.ServicerContext) -> Iterator[Any]:
    """Rows that the filter drops: only the keys of the last scanned rows."""
    number = 0
    while context.is_active():
        number += 1
        yield RESPONSE(last_scanned_row_key=b"%09d" % number)
        time.sleep(0.001)


def down(_: int, __: Any, context: grpc.ServicerContext) -> Iterator[Any]:
    context.abort(grpc.StatusCode.UNAVAILABLE, "down")
    yield


def set_at_a_call(server: RowsServer, stop: Stop) -> None:
    """Sets it from another thread, after a call has come."""

    def run() -> None:
        while not server.requests:
            time.sleep(0.01)
        time.sleep(0.1)
        stop.set()

    threading.Thread(target=run, daemon=True).start()


@pytest.mark.parametrize("answer", [silent, scanned_only, down])
@pytest.mark.parametrize("on_one_thread", [True, False])
def test_set_ends_a_read_that_gets_no_row(
    monkeypatch: pytest.MonkeyPatch, answer: Any, on_one_thread: bool
) -> None:
    if not on_one_thread:
        monkeypatch.setattr(read_stream, "ON_ONE_THREAD", ("timebeam.unknown", 1))
    stop = Stop(LONG_SECONDS)
    with serving(answer) as server:
        set_at_a_call(server, stop)
        with pytest.raises(StoppedError):
            list(scan_keys(stopped_by(stop), "table"))
        assert server.gone.wait(10)
        calls = len(server.requests)
        with pytest.raises(StoppedError):
            list(scan_keys(stopped_by(stop), "table"))
        assert len(server.requests) == calls


@pytest.mark.parametrize("answer", [silent, scanned_only, down])
def test_the_end_of_its_time_ends_a_read_that_gets_no_row(answer: Any) -> None:
    with serving(answer), pytest.raises(StoppedError):
        list(scan_keys(stopped_by(Stop(0.3)), "table"))


def test_set_ends_the_threads_of_a_scan() -> None:
    stop = Stop(LONG_SECONDS)
    with serving(silent) as server:
        set_at_a_call(server, stop)
        with pytest.raises(StoppedError):
            list(ParallelReader(stopped_by(stop)).scan(Scan("table", [(b"", b"")])))


def test_grpc_keeps_nothing_of_a_read_that_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it is stopped between two rows: see `test_grpc_keeps_nothing_of_a_read_that_is_left`."""
    calls: list[Any] = []
    leave = read_stream._leave

    def noting(call: Any) -> None:
        calls.append(call)
        leave(call)

    monkeypatch.setattr(read_stream, "_leave", noting)
    between, waiting = Stop(LONG_SECONDS), Stop(LONG_SECONDS)
    with serving(silent) as server:
        keys = scan_keys(stopped_by(between), "table")
        next(keys)
        between.set()
        with pytest.raises(StoppedError):
            next(keys)
        server.requests.clear()
        set_at_a_call(server, waiting)
        with pytest.raises(StoppedError):
            list(scan_keys(stopped_by(waiting), "table"))
    assert [call._state.due for call in calls] == [set(), set()]
    assert not between._calls
    assert not waiting._calls
