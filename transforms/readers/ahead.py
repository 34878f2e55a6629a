"""An iterator that a thread runs ahead of its consumer: one waits for the network, the other computes."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

Element = TypeVar("Element")

_END_SECONDS = 5  # for a thread that waits for the network


class Ahead(Generic[Element]):
    """A thread that runs an iterator, at most `most` elements ahead; its errors reach the consumer."""

    def __init__(self, make: Callable[[], Iterable[Element]], most: int) -> None:
        self._queue: queue.Queue[tuple[Element] | BaseException | None] = queue.Queue(most)
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(make,), name="timebeam-ahead", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Element]:
        while (entry := self._queue.get()) is not None:
            if isinstance(entry, BaseException):
                raise entry
            yield entry[0]

    def stop(self) -> None:
        """Asks the thread to end, and drops its elements."""
        self._is_stopped.set()
        with contextlib.suppress(queue.Empty):
            while True:  # makes room for an element and for the end, so that the thread never waits
                self._queue.get_nowait()

    def join(self) -> None:
        """Waits until the thread has ended; a few seconds if it waits for the network."""
        self._thread.join(_END_SECONDS)

    def _run(self, make: Callable[[], Iterable[Element]]) -> None:
        end: BaseException | None = None
        try:
            for element in make():
                if self._is_stopped.is_set():
                    break
                self._queue.put((element,))
        except BaseException as error:  # any error, so that the consumer never waits forever
            end = error
        self._queue.put(end)


def ahead(make: Callable[[], Iterable[Element]], most: int) -> Iterator[Element]:
    """The elements of an iterable that a thread makes and runs, at most `most` elements ahead.

    Closing it ends the thread, at once or when the network answers.
    """
    running = Ahead(make, most)
    try:
        yield from running
    finally:
        running.stop()
        running.join()
