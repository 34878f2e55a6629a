"""An iterator run ahead of its reader by a thread: while one waits for the network, the other computes."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

One = TypeVar("One")

_END_SECONDS = 5  # for a thread that waits for the network


class Ahead(Generic[One]):
    """A thread that runs an iterator, at most `most` elements ahead, and hands over what it raises too."""

    def __init__(self, make: Callable[[], Iterable[One]], most: int) -> None:
        self._found: queue.Queue[tuple[One] | BaseException | None] = queue.Queue(most)
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(make,), name="timebeam-ahead", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[One]:
        while (found := self._found.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            yield found[0]

    def stop(self) -> None:
        """Asks the thread to end; what it has found is forgotten."""
        self._is_stopped.set()
        with contextlib.suppress(queue.Empty):
            while True:  # makes room for one and for the end behind it, so that the thread never waits
                self._found.get_nowait()

    def join(self) -> None:
        """Waits until the thread has ended, a few seconds if it waits for the network."""
        self._thread.join(_END_SECONDS)

    def _run(self, make: Callable[[], Iterable[One]]) -> None:
        end: BaseException | None = None
        try:
            for one in make():
                if self._is_stopped.is_set():
                    break
                self._found.put((one,))
        except BaseException as error:  # whatever it is, the reader must not wait for ever
            end = error
        self._found.put(end)


def ahead(make: Callable[[], Iterable[One]], most: int) -> Iterator[One]:
    """The elements of an iterable that a thread makes and runs, at most `most` elements ahead.

    To close it ends the thread: at once, or as soon as the network gives what it waits for.
    """
    running = Ahead(make, most)
    try:
        yield from running
    finally:
        running.stop()
        running.join()
