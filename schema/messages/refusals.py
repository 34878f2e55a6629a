"""The refusals of one message, in a bounded number.

A message can hold millions of bad records of two bytes each. Each of the first `SINGLE` is one refusal; after
them, adjacent records with the same reason share a refusal, so all bytes are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from timebeam.schema.messages.base import Message
from timebeam.schema.points import Joined, Reason, RefusedError, Rejected, Stage

SINGLE = 10_000
"""Refusals of a message before adjacent ones are merged."""


class _RefusalRun:
    """Adjacent refused records with one reason."""

    def __init__(self, start: int, end: int, why: RefusedError, limit: int) -> None:
        """`limit`: the position before which the next record of the run must begin."""
        self.start, self.end, self.why, self.limit = start, end, why, limit
        self.records = 1


class Refusals:
    """Gathers the refusals of a message, in the order of its bytes."""

    def __init__(self, message: Message, joined: Joined | None = None) -> None:
        """`joined`: the messages that the text of `message` is joined from; their refusals are not merged."""
        self._message = message
        self._joined = joined
        self._runs: list[_RefusalRun] = []

    def add(self, start: int, end: int, why: RefusedError) -> None:
        """Adds the refusal of the bytes from `start` to `end` of the message."""
        run = self._runs[-1] if len(self._runs) >= SINGLE else None
        if run and run.why.reason is why.reason and self._neighbours(run, start):
            run.end = end
            run.records += 1
        else:
            limit = self._limit(start) if len(self._runs) + 1 >= SINGLE else 0
            self._runs.append(_RefusalRun(start, end, why.with_traceback(None), limit))

    def __bool__(self) -> bool:
        return bool(self._runs)

    def rejected(self) -> Sequence[Rejected]:
        """The refusals."""
        return [self._rejected(run) for run in self._runs]

    def _neighbours(self, run: _RefusalRun, start: int) -> bool:
        """Whether only separators are between a run and the record that begins at `start`."""
        if not run.end <= start < run.limit:
            return False
        return not self._message.text[run.end : start].strip(b" \t\r\n,")

    def _limit(self, start: int) -> int:
        """The end of the message that contains a position of the text."""
        if self._joined is None:
            return len(self._message.text) + 1
        starts = self._joined.starts
        number = int(np.searchsorted(starts, start, side="right"))
        return int(starts[number]) if number < len(starts) else len(self._message.text) + 1

    def _rejected(self, run: _RefusalRun) -> Rejected:
        message, reason = self._message, run.why.reason
        more = f" (and {run.records - 1} more records after it)" if run.records > 1 else ""
        payload = message.text[run.start : run.end]
        return Rejected(
            payload, reason, run.why.message + more, Stage.PARSE, message.source, message.offset + run.start
        )


def refusal(message: Message, start: int, end: int, reason: Reason, why: str) -> Rejected:
    """The refusal of some bytes of a message."""
    payload = message.text[start:end]
    return Rejected(payload, reason, why, Stage.PARSE, message.source, message.offset + start)
