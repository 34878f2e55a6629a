"""Ends the reads of one request: when its time is over, or from another thread."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any


class StoppedError(Exception):
    """A read was ended by its `Stop`."""


class Stop:
    """What all reads of one request ask whether they may go on (`Target.stop`).

    A call of Bigtable gets no more than the seconds left; `set` cancels the calls that wait for an answer.

    Args:
      seconds: from now until all reads end.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._start_s = seconds, time.monotonic()
        self._event, self._lock = threading.Event(), threading.Lock()
        self._calls: set[Any] = set()

    @property
    def seconds(self) -> float:
        """Since the start of the request."""
        return time.monotonic() - self._start_s

    @property
    def seconds_left(self) -> float:
        """Negative when the time is over."""
        return self._seconds - self.seconds

    @property
    def is_set(self) -> bool:
        """Whether `set` was called."""
        return self._event.is_set()

    def set(self) -> None:
        """Ends all reads now; any thread may call it, also several times."""
        self._event.set()
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            call.cancel()

    def check(self) -> None:
        """Raises StoppedError if there is to be no more reading."""
        if self.is_set or self.seconds_left < 0:
            raise StoppedError("the read was stopped")

    @contextlib.contextmanager
    def running(self, call: Any) -> Iterator[None]:
        """Lets `set` cancel a call; raises as `check` does."""
        with self._lock:
            self._calls.add(call)
        try:
            self.check()  # `set` may have come before the call was in the set
            yield
        finally:
            with self._lock:
                self._calls.discard(call)

    def sleep(self, seconds: float) -> None:
        """Pauses; not beyond `set` or the end of the time."""
        self._event.wait(min(seconds, max(0.0, self.seconds_left)))
