"""When calls are repeated and ended: errors that may pass, pauses between attempts, the stop of a request."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import grpc
from google.api_core import exceptions

Result = TypeVar("Result")

RETRYABLE = (
    exceptions.ServiceUnavailable,
    exceptions.DeadlineExceeded,
    exceptions.Aborted,
    exceptions.InternalServerError,
    exceptions.ResourceExhausted,
)
"""Errors that may pass. All calls of the connector are safe to repeat."""

REFUSALS = (
    exceptions.InvalidArgument,
    exceptions.FailedPrecondition,
    exceptions.OutOfRange,
)
"""Errors of one row, which a retry cannot change. All others concern the table, or the caller."""

_STREAM_BREAKS = (exceptions.ServiceUnavailable, exceptions.DeadlineExceeded, exceptions.Aborted)
_STREAM_BREAKS_BY_TEXT = (exceptions.InternalServerError, exceptions.Cancelled, exceptions.Unknown)
_BREAK_TEXTS = ("rst_stream", "rst stream", "goaway", "unexpected eos on data frame", "stream removed")
"""In messages of gRPC when HTTP/2 cut a stream; the status code depends on the reason in the frame."""

OPERATION_SECONDS = 120.0
"""How long an operation is retried."""

ATTEMPT_SECONDS = 60.0
"""The deadline of one call."""

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 5.0


class Backoff:
    """Pauses between attempts: each twice as long as the one before, up to a limit, with jitter.

    Args:
      seconds: how long to go on without progress; `OPERATION_SECONDS` if None.
      longest: the longest pause in seconds; `LONGEST_PAUSE` if None.
    """

    def __init__(self, seconds: float | None = None, longest: float | None = None) -> None:
        self._seconds = OPERATION_SECONDS if seconds is None else seconds
        self._longest = LONGEST_PAUSE if longest is None else longest
        self.progress()

    def progress(self) -> None:
        """Starts again from the shortest pause, after an attempt that made progress."""
        self._since, self._pause = time.monotonic(), FIRST_PAUSE

    def seconds_left(self) -> float:
        """The remaining time."""
        return self._since + self._seconds - time.monotonic()

    def wait(self, error: Exception, sleep: Callable[[float], None] | None = None) -> None:
        """Waits before the next attempt.

        Args:
          sleep: takes seconds; None for `time.sleep`.

        Raises:
          Exception: `error`, if there is no time left for another attempt.
        """
        pause = self._pause * random.uniform(0.5, 1.0)
        if pause > self.seconds_left():
            raise error
        (sleep or time.sleep)(pause)
        self._pause = min(self._longest, self._pause * 2)


def retried(attempt: Callable[[], Result], seconds: float | None = None) -> Result:
    """The result of a call, repeated after errors that may pass.

    Args:
      attempt: makes the call once.
      seconds: see `Backoff`.

    Raises:
      GoogleAPICallError: the error is none of `RETRYABLE`, or there is no time left.
    """
    backoff = Backoff(seconds)
    while True:
        try:
            return attempt()
        except grpc.RpcError as error:
            failure: exceptions.GoogleAPICallError = exceptions.from_grpc_error(error)
            if not isinstance(failure, RETRYABLE):
                raise failure from error
            backoff.wait(failure)


def breaks_stream(error: exceptions.GoogleAPICallError) -> bool:
    """Whether a read that ended with this error can be resumed."""
    if isinstance(error, _STREAM_BREAKS):
        return True
    message = str(error.message).lower()
    return isinstance(error, _STREAM_BREAKS_BY_TEXT) and any(text in message for text in _BREAK_TEXTS)


def service_error(error: BaseException) -> BaseException:
    """The last error of the service, unwrapped; the client's own error if the service never answered.

    Args:
      error: of google.cloud.bigtable.data.exceptions: of an entry of a bulk write, or a group of errors.
    """
    # These take half a second to import, and only Beam's writer raises them.
    from google.cloud.bigtable.data.exceptions import FailedMutationEntryError, RetryExceptionGroup

    if isinstance(error, FailedMutationEntryError):
        error = error.__cause__ or error
    while isinstance(error, RetryExceptionGroup) and error.exceptions:
        # The client ends the group with its own "operation timeout", caused by all errors before it.
        answers = [
            cause for cause in error.exceptions if not isinstance(cause.__cause__, RetryExceptionGroup)
        ]
        error = (answers or list(error.exceptions))[-1]
    return error


def writer_error(error: BaseException | None) -> BaseException | None:
    """The error of the service that ended Beam's writer; None if `error` is not of that writer."""
    from google.cloud.bigtable.batcher import MutationsBatchError  # also half a second

    return service_error(error.exc[0]) if isinstance(error, MutationsBatchError) else None


class StoppedError(Exception):
    """A read was ended by its `Stop`."""


class Stop:
    """What all reads of one request ask whether they may go on (`Target.stop`).

    A call of Bigtable gets no more than the seconds left; `set` cancels the calls that wait for an answer.

    Args:
      seconds: from now until all reads end.

    Attributes:
      is_set: whether `set` was called.
    """

    def __init__(self, seconds: float) -> None:
        self.is_set = False
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

    def set(self) -> None:
        """Ends all reads now; any thread may call it, also several times."""
        self.is_set = True
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
