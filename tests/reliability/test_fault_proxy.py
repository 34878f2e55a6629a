"""The tool of these tests: each fault does what it says, and the same under the same seed."""

from __future__ import annotations

import grpc
import pytest
from google.api_core.exceptions import Aborted, ServiceUnavailable
from google.cloud.bigtable.data import RowMutationEntry, SetCell
from google.cloud.bigtable.data.exceptions import MutationsExceptionGroup
from google.cloud.bigtable_v2.types import ReadRowsRequest

from tests.support.data_client import open_table
from tests.support.fault_proxy import (
    AFTER,
    BEFORE,
    MUTATE_ROWS,
    READ_ROWS,
    AnyFault,
    BadEntries,
    Break,
    Call,
    Do,
    Fault,
    Plan,
    every,
    faulty,
    nth,
    share,
    some_keys,
)
from tests.support.stored import Store
from timebeam.transforms.bigtable.retry import service_error

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
KEYS = [b"a", b"b", b"c", b"d"]


def write(store: Store, emulator: str, fault: AnyFault) -> tuple[dict[int, type[BaseException]], set[bytes]]:
    """(the error of each row that failed, by its place; the rows that are stored)."""
    entries = [RowMutationEntry(key, [SetCell("t", b"q", b"v", 1000)]) for key in KEYS]
    failed = {}
    with faulty(emulator, nth(MUTATE_ROWS, (1,), fault)):
        try:
            open_table(store.target, store.layout.data_table).bulk_mutate_rows(entries, retryable_errors=())
        except MutationsExceptionGroup as group:
            failed = {failure.index: type(service_error(failure)) for failure in group.exceptions}
    return failed, {row.key for row in store.rows()}


@pytest.mark.parametrize(("when", "stored"), [(BEFORE, set()), (AFTER, set(KEYS))])
def test_an_error_before_or_after_the_call(
    store: Store, emulator: str, when: str, stored: set[bytes]
) -> None:
    failed = dict.fromkeys(range(4), ServiceUnavailable)
    assert write(store, emulator, Fault(UNAVAILABLE, when)) == (failed, stored)


@pytest.mark.parametrize(("when", "stored"), [(BEFORE, {b"a", b"c"}), (AFTER, set(KEYS))])
def test_errors_of_some_entries(store: Store, emulator: str, when: str, stored: set[bytes]) -> None:
    fault = BadEntries(grpc.StatusCode.ABORTED, lambda key: key in (b"b", b"d"), when)
    assert write(store, emulator, fault) == ({1: Aborted, 3: Aborted}, stored)


def test_something_done_before_the_call(store: Store, emulator: str) -> None:
    seen: list[int] = []
    assert write(store, emulator, Do(lambda: seen.append(len(store.rows())))) == ({}, set(KEYS))
    assert seen == [0]


@pytest.mark.parametrize("messages", range(6))
def test_an_answer_that_breaks_off(store: Store, emulator: str, messages: int) -> None:
    """The raw stream, without the client that would resume it; behind the last message the end is lost."""
    write(store, emulator, Do(lambda: None))
    table = open_table(store.target, store.layout.data_table).table_name
    request = ReadRowsRequest.serialize(ReadRowsRequest(table_name=table))
    with (
        faulty(emulator, nth(READ_ROWS, (1,), Break(messages))) as proxy,
        grpc.insecure_channel(proxy.host) as channel,
    ):
        answers = channel.unary_stream(f"/google.bigtable.v2.Bigtable/{READ_ROWS}")(request)
        for _ in range(min(messages, len(KEYS))):
            next(answers)
        with pytest.raises(grpc.RpcError):
            next(answers)
        assert answers.code() is UNAVAILABLE


def test_plans_are_functions_of_the_seed() -> None:
    fault = Fault(UNAVAILABLE)

    def numbers(plan: Plan, method: str = MUTATE_ROWS) -> list[int]:
        return [number for number in range(1, 1001) if plan(Call(method, number, b"", 0.0))]

    first = numbers(share(MUTATE_ROWS, 0.3, 1, fault))
    assert first == numbers(share(MUTATE_ROWS, 0.3, 1, fault))
    assert first != numbers(share(MUTATE_ROWS, 0.3, 2, fault))
    assert 250 < len(first) < 350
    assert numbers(share(MUTATE_ROWS, 0.3, 1, fault), READ_ROWS) == []
    assert numbers(every(MUTATE_ROWS, 400, fault)) == [400, 800]
    keys = [str(number).encode() for number in range(1000)]
    assert 50 < sum(map(some_keys(0.1, 1), keys)) < 150
