"""The refusals of one message, of which there are never many.

A message of two bytes a line holds millions of records that are none. Each of the first `SINGLE` is a
refusal of its own; of those behind, neighbours with one reason are one, so that all bytes are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from timebeam.schema.messages.base import Message
from timebeam.schema.points import Joined, Reason, RefusedError, Rejected, Stage

SINGLE = 10_000
"""Refusals of a message that are not put together."""


class _Run:
    """Neighbours with one reason."""

    def __init__(self, start: int, end: int, why: RefusedError, limit: int) -> None:
        """`limit`: where what comes behind begins at the latest, to be of the run."""
        self.start, self.end, self.why, self.limit = start, end, why, limit
        self.records = 1


class Refusals:
    """Gathers the refusals of a message, in the order of its bytes."""

    def __init__(self, message: Message, joined: Joined | None = None) -> None:
        """`joined`: the messages that the text of `message` is joined from, if it is; they stay apart."""
        self._message = message
        self._joined = joined
        self._runs: list[_Run] = []

    def add(self, start: int, end: int, why: RefusedError) -> None:
        """Takes the refusal of the bytes from `start` to `end` of the message."""
        last = self._runs[-1] if len(self._runs) >= SINGLE else None
        if last and last.why.reason is why.reason and self._neighbours(last, start):
            last.end = end
            last.records += 1
        else:
            limit = self._limit(start) if len(self._runs) + 1 >= SINGLE else 0
            self._runs.append(_Run(start, end, why.with_traceback(None), limit))

    def __bool__(self) -> bool:
        return bool(self._runs)

    def rejected(self) -> Sequence[Rejected]:
        """The refusals."""
        return [self._rejected(run) for run in self._runs]

    def _neighbours(self, run: _Run, start: int) -> bool:
        """Whether no more than what separates records is between a run and a record behind it."""
        if not run.end <= start < run.limit:
            return False
        return not self._message.text[run.end : start].strip(b" \t\r\n,")

    def _limit(self, start: int) -> int:
        """Where the message ends that a place of the text is in."""
        if self._joined is None:
            return len(self._message.text) + 1
        starts = self._joined.starts
        number = int(np.searchsorted(starts, start, side="right"))
        return int(starts[number]) if number < len(starts) else len(self._message.text) + 1

    def _rejected(self, run: _Run) -> Rejected:
        message, reason = self._message, run.why.reason
        more = f" (and {run.records - 1} more records behind it)" if run.records > 1 else ""
        payload = message.text[run.start : run.end]
        return Rejected(
            payload, reason, run.why.message + more, Stage.PARSE, message.source, message.offset + run.start
        )


def refusal(message: Message, start: int, end: int, reason: Reason, why: str) -> Rejected:
    """The refusal of some bytes of a message."""
    payload = message.text[start:end]
    return Rejected(payload, reason, why, Stage.PARSE, message.source, message.offset + start)
