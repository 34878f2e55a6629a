"""What a database keeps between queries; no answer is older than the tables.

No mark or timestamp in a table proves that its points are unchanged: only some writers mark changed hours, a
TSD may give a correction the timestamp of the cell that it replaces, and a deletion leaves nothing to see. So
an answer depends on the rows themselves. It is kept with the reads that it was made of, each with a digest of
its rows; the next request repeats these reads, and takes the answer if all digests are the same. That saves
decoding, downsampling and aggregation, but no read, and holds for all layouts and writers.

Rows of the UID table, and lists of names and series, are kept by time.
"""

from __future__ import annotations

import collections
import functools
import threading
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

from timebeam.schema.bits.lru_cache import TimedCache
from timebeam.schema.core.contract import ReadableStore
from timebeam.schema.core.rows import Row
from timebeam.schema.stores import find_opentsdb
from timebeam.transforms.query.answer_question import Evaluated
from timebeam.transforms.query.budget import MeteredReader, Transcript
from timebeam.transforms.read.table_reader import RememberingReader

if TYPE_CHECKING:
    pass

MOST_UIDS, MOST_LISTS = 200_000, 1_000

KEPT_SECONDS = 60.0
"""How long rows of the UID table and lists are kept: a renamed UID is known to all after this time."""


class _Answer(NamedTuple):
    """An answer.

    Attributes:
      points: that were counted while it was computed.
      size: about its memory in bytes.
    """

    evaluated: Evaluated
    transcript: Transcript
    points: int
    size: int


class AnswerCache:
    """Answers, each with the transcript of its reads; the one that was used least recently goes first.

    Args:
      most_bytes: of all answers together; one of more than a quarter of that is not kept.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._answers: collections.OrderedDict[Hashable, _Answer] = collections.OrderedDict()
        self._lock = threading.Lock()

    def evaluated(self, key: Hashable, evaluate: Callable[[], Evaluated], reader: MeteredReader) -> Evaluated:
        """The answer to a question.

        Args:
          key: all that the answer depends on beside the tables.
          evaluate: computes it, with readers of the meter of `reader`.
          reader: repeats the reads.
        """
        meter = reader.meter
        with self._lock:
            answer = self._answers.get(key)
        if answer is not None:
            counted = meter.rows, meter.size
            if answer.transcript.is_repeated(reader):
                meter.add_points(answer.points)
                self._put(key, answer)
                return answer.evaluated
            meter.rows, meter.size = counted  # the same rows are about to be read again
        points, transcript = meter.points, Transcript()
        meter.transcript = transcript
        try:
            evaluated = evaluate()
        finally:
            meter.transcript = None
        if transcript.is_complete:
            size = _memory(evaluated, transcript) + len(repr(key)) + _KEY_BYTES
            self._put(key, _Answer(evaluated, transcript, meter.points - points, size))
        return evaluated

    def _put(self, key: Hashable, answer: _Answer) -> None:
        """Makes an answer the one that was used last."""
        with self._lock:
            before = self._answers.pop(key, None)
            self._bytes -= 0 if before is None else before.size
            if answer.size > self._most_bytes // 4:
                return
            self._answers[key] = answer
            self._bytes += answer.size
            while self._bytes > self._most_bytes:
                _, oldest = self._answers.popitem(last=False)
                self._bytes -= oldest.size


_SERIES_BYTES, _RESULT_BYTES, _KEY_BYTES, _POINT_BYTES = 1000, 1000, 100, 24


def _memory(evaluated: Evaluated, transcript: Transcript) -> int:
    """About the bytes of memory of an answer, without its key."""
    points = sum(len(result.times_ms) for result in evaluated.results)
    objects = _SERIES_BYTES * len(evaluated.series) + _RESULT_BYTES * len(evaluated.results)
    return objects + _KEY_BYTES * transcript.key_count + _POINT_BYTES * points


class Caches:
    """All that one process keeps.

    Attributes:
      remembers: makes a reader that has rows of the UID table; None for a layout without UIDs.
      lists: the answers to suggestions and lookups.
    """

    def __init__(self, layout: ReadableStore, most_bytes: int) -> None:
        self._with_uids = find_opentsdb(layout)
        self.forget_names()
        self.lists = TimedCache[Any, Any](MOST_LISTS, KEPT_SECONDS)
        self.answers = AnswerCache(most_bytes)

    def forget_names(self) -> None:
        """Forgets the rows of the UID table, so that they are read again."""
        table = None if self._with_uids is None else self._with_uids.options.uid_table
        cache = TimedCache[tuple[str, bytes], Row](MOST_UIDS, KEPT_SECONDS)
        self.remembers = (
            None if table is None else functools.partial(RememberingReader, table=table, cache=cache)
        )
