"""What the service said, out of the wrappings of the client (google.cloud.bigtable.data.exceptions)."""

from __future__ import annotations

from google.cloud.bigtable.data.exceptions import FailedMutationEntryError, RetryExceptionGroup


def service_error(error: BaseException) -> BaseException:
    """The last error that the service gave; the client's own, if there was no answer at all.

    Args:
      error: of an entry of a bulk write, or the group of errors of a call that was repeated.
    """
    if isinstance(error, FailedMutationEntryError):
        error = error.__cause__ or error
    while isinstance(error, RetryExceptionGroup) and error.exceptions:
        # The client ends the group with its own "operation timeout", caused by all that came before.
        given = [each for each in error.exceptions if not isinstance(each.__cause__, RetryExceptionGroup)]
        error = (given or list(error.exceptions))[-1]
    return error
