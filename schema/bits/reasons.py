"""Why input is rejected: stable reasons, and the error that carries one."""

from __future__ import annotations

import enum


class Reason(enum.StrEnum):
    """Why input was rejected. The values are stable: dead letters and dashboards use them.

    docs/reference/reasons.md explains each; a test proves that the page and this enum agree.
    """

    BAD_ENCODING = "bad-encoding"
    BAD_SYNTAX = "bad-syntax"
    BAD_METRIC = "bad-metric"
    BAD_TAG = "bad-tag"
    DUPLICATE_TAG = "duplicate-tag"
    NO_TAGS = "no-tags"
    TOO_MANY_TAGS = "too-many-tags"
    NAME_NOT_STORABLE = "name-not-storable"
    BAD_TIMESTAMP = "bad-timestamp"
    TIMESTAMP_OUT_OF_RANGE = "timestamp-out-of-range"
    EMPTY_VALUE = "empty-value"
    BAD_NUMBER = "bad-number"
    NUMBER_OUT_OF_RANGE = "number-out-of-range"
    VALUE_NOT_STORABLE = "value-not-storable"
    SERIES_NOT_STORABLE = "series-not-storable"
    LINE_TOO_LONG = "line-too-long"
    TRUNCATED_FILE = "truncated-file"
    CORRUPT_FILE = "corrupt-file"
    CORRUPT_MESSAGE = "corrupt-message"
    UNKNOWN_FORMAT = "unknown-format"
    UNKNOWN_NAME = "unknown-name"
    UIDS_EXHAUSTED = "uids-exhausted"
    SERIES_LIMIT = "series-limit"
    OVER_BIGTABLE_LIMIT = "over-bigtable-limit"
    WRITE_REFUSED = "write-refused"
    INTERNAL_ERROR = "internal-error"


_MESSAGE_CHARACTERS = 1000


def shortened(message: str) -> str:
    """At most 1,000 characters of a message, its beginning and end: it may quote names of megabytes."""
    if len(message) <= _MESSAGE_CHARACTERS:
        return message
    half = _MESSAGE_CHARACTERS // 2
    return f"{message[: half - 1]} … {message[2 - half :]}"


class RejectedError(ValueError):
    """A rejected record, with a stable reason and a message that says what to do."""

    def __init__(self, reason: Reason, message: str) -> None:
        self.reason = reason
        self.message = shortened(message)
        super().__init__(self.message)

    def __reduce__(self) -> tuple[type[RejectedError], tuple[Reason, str]]:
        """Pickles both arguments, since an exception pickles only its message."""
        return RejectedError, (self.reason, self.message)


def decoded(text: bytes, record: str = "record") -> str:
    """The characters of a record, as messages call it.

    Raises:
      RejectedError: BAD_ENCODING; it is not UTF-8.
    """
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        why = f"not UTF-8 at byte {error.start} of the {record}"
        raise RejectedError(Reason.BAD_ENCODING, why) from error


def short(text: str) -> str:
    """At most 40 characters of a string, for error messages."""
    return text if len(text) <= 40 else text[:37] + "..."


def shown(value: object, size: int = 40) -> str:
    """The first characters of a value of a message, for errors; JSON nests deeper than Python writes out."""
    try:
        return str(value)[:size]
    except RecursionError:
        return "nested values"
