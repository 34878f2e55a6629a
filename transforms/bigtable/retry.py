"""Errors of Bigtable: which may pass, which are of one row; and the pauses between attempts."""

from __future__ import annotations

import random
import time

from google.api_core import exceptions
from google.cloud.bigtable.data.exceptions import FailedMutationEntryError, RetryExceptionGroup

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
"""Errors of one row, which no repetition changes. All others are errors of the table, or of the caller."""

_STREAM_BREAKS = (exceptions.ServiceUnavailable, exceptions.DeadlineExceeded, exceptions.Aborted)
_STREAM_BREAKS_BY_TEXT = (exceptions.InternalServerError, exceptions.Cancelled, exceptions.Unknown)
_BREAK_TEXTS = ("rst_stream", "rst stream", "goaway", "unexpected eos on data frame", "stream removed")
"""What gRPC says where HTTP/2 cut a stream; the code depends on the reason that came with the frame."""

OPERATION_SECONDS = 120.0
"""How long an operation is repeated while its errors may pass."""

ATTEMPT_SECONDS = 60.0
"""The deadline of one call."""

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 5.0


class Backoff:
    """Pauses between attempts: each twice as long as the one before it, up to a longest, with jitter.

    Args:
      seconds: how long to go on without progress; `OPERATION_SECONDS` if None.
      longest: the longest pause in seconds; `LONGEST_PAUSE` if None.
    """

    def __init__(self, seconds: float | None = None, longest: float | None = None) -> None:
        self._seconds = OPERATION_SECONDS if seconds is None else seconds
        self._longest = LONGEST_PAUSE if longest is None else longest
        self.progress()

    def progress(self) -> None:
        """Begins again: an attempt came further than those before it."""
        self._since, self._pause = time.monotonic(), FIRST_PAUSE

    def seconds_left(self) -> float:
        """How long it may still go on."""
        return self._since + self._seconds - time.monotonic()

    def wait(self, error: Exception) -> None:
        """Waits before the next attempt.

        Raises:
          Exception: `error`, if there is no time left for another attempt.
        """
        pause = self._pause * random.uniform(0.5, 1.0)
        if pause > self.seconds_left():
            raise error
        time.sleep(pause)
        self._pause = min(self._longest, self._pause * 2)


def breaks_stream(error: exceptions.GoogleAPICallError) -> bool:
    """Whether a read that ended with this error can be resumed."""
    if isinstance(error, _STREAM_BREAKS):
        return True
    message = str(error.message).lower()
    return isinstance(error, _STREAM_BREAKS_BY_TEXT) and any(text in message for text in _BREAK_TEXTS)


def service_error(error: BaseException) -> BaseException:
    """The last error that the service gave; the client's own, if there was no answer at all.

    Takes it out of what google.cloud.bigtable.data.exceptions wraps around it.

    Args:
      error: of an entry of a bulk write, or the group of errors of a call that was repeated.
    """
    if isinstance(error, FailedMutationEntryError):
        error = error.__cause__ or error
    while isinstance(error, RetryExceptionGroup) and error.exceptions:
        # The client ends the group with its own "operation timeout", caused by all that came before.
        answers = [each for each in error.exceptions if not isinstance(each.__cause__, RetryExceptionGroup)]
        error = (answers or list(error.exceptions))[-1]
    return error
