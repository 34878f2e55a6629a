"""Iterators that a thread runs ahead."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from timebeam.transforms.read.table_reader import Ahead


def threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "timebeam-ahead"]


def test_everything_comes_in_order() -> None:
    assert list(Ahead(lambda: range(1000), 3)) == list(range(1000))
    assert list(Ahead(lambda: [None, None], 1)) == [None, None]
    assert not threads()


def test_what_it_raises_is_raised_behind_what_came_before() -> None:
    def fails() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    found = iter(Ahead(fails, 2))
    assert next(found) == 1
    with pytest.raises(OSError, match="gone"):
        next(found)
    assert not threads()


def test_it_is_no_further_ahead_than_it_may_be() -> None:
    made: list[int] = []
    may_end = threading.Event()

    def counts() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            if number == 4:
                may_end.set()
            yield number

    found = iter(Ahead(counts, 3))
    assert next(found) == 0
    assert may_end.wait(10)  # three wait, and one is held by the thread
    assert max(made) <= 5
    found.close()


def test_to_close_it_ends_the_thread_and_the_iterator() -> None:
    ended = threading.Event()

    def endless() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            ended.set()

    found = iter(Ahead(endless, 2))
    assert next(found) == 1
    found.close()
    assert ended.wait(10)
    assert not threads()


def test_to_close_it_ends_a_thread_that_waits_to_hand_over() -> None:
    for _ in range(20):
        may_close = threading.Event()

        def counts(may_close: threading.Event = may_close) -> Iterator[int]:
            for number in range(10):
                if number == 2:  # one is taken, one is in the queue
                    may_close.set()
                yield number

        numbers = iter(Ahead(counts, 1))
        assert next(numbers) == 0
        assert may_close.wait(10)
        numbers.close()
        assert not threads()
