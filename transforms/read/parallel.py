"""Reads that do not wait: scans by several threads, and an iterator that a thread runs ahead of its consumer.

A scan is read as a key range for each thread, in the order of one scan. Threads help where a scan waits:
the service filters many rows for a few, or is far away. If rows come as fast as Python takes them, threads
slow each other down, so a scan is cut only after it has waited. The caller decodes the rows, in the order
of the scan.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from timebeam.schema.bits.bounded import batched
from timebeam.schema.core.reading import Scan
from timebeam.schema.core.rows import Row
from timebeam.transforms.bigtable.reader import ascend, ranges_between, split_keys
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.read.table_reader import memory_of, read_rows, scan_rows, scan_within

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
        """The elements; closing it ends the thread, at once or when the network answers."""
        try:
            while (entry := self._queue.get()) is not None:
                if isinstance(entry, BaseException):
                    raise entry
                yield entry[0]
        finally:
            self.stop()
            self.join()

    def stop(self) -> None:
        """Asks the thread to end, and drops its elements."""
        self._is_stopped.set()
        with contextlib.suppress(queue.Empty):
            while True:  # makes room for the last element, so that the thread does not wait
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
        if not self._is_stopped.is_set():
            self._queue.put(end)


AT_ONCE = 4
"""Ranges read at the same time."""

PATIENCE_SECONDS = 0.5
"""A scan is cut when it has taken this much longer than twice its processor time."""

SPLIT_BYTES = 4 << 20
"""Stored bytes of a range that is worth a request."""

_MOST_SPLITS = 4096
_LIST_BYTES, _LIST_ROWS = 1 << 20, 500  # of a list of rows that a thread hands over
_LISTS = 15  # of each thread that may wait for the caller


class ParallelReader:
    """The `Reader` of commands: as `TableReader`, but faster where a scan waits for the service.

    Memory: at most `AT_ONCE` times 16 lists of 1 MiB, or of one larger row. The rest of a longer range is
    read in its turn.
    """

    def __init__(self, target: Target) -> None:
        self._target = target

    def scan(self, scan: Scan) -> Iterator[Row]:
        """See `Reader.scan`. An error in a thread is raised instead of its next row."""
        start_s, processor_start_s = time.perf_counter(), time.process_time()
        can_be_cut = True
        rows = scan_rows(self._target, scan)
        for row in rows:
            yield row
            if can_be_cut and _has_waited(start_s, processor_start_s):
                can_be_cut = ascend(scan.ranges)
                if can_be_cut:
                    break
        else:
            return
        splits = self._splits(scan_within(scan, (row.key + b"\0", b"")))
        if len(splits) > 1:
            del rows  # which ends its request
            yield from in_turn([functools.partial(scan_rows, self._target, split) for split in splits])
        else:
            yield from rows

    def rows(self, table: str, keys: Sequence[bytes]) -> Mapping[bytes, Row]:
        return read_rows(self._target, table, keys)

    def _splits(self, scan: Scan) -> list[Scan]:
        """A scan as several of about the same size, in order."""
        if not scan.ranges:
            return []
        cuts = split_keys(self._target, scan.table, scan.ranges, SPLIT_BYTES, _MOST_SPLITS)
        splits = (scan_within(scan, keys) for keys in ranges_between(cuts))
        return [split for split in splits if split.ranges]


def in_turn(reads: Iterable[Callable[[], Iterable[Row]]]) -> Iterator[Row]:
    """The rows of some reads in order, while threads run the next reads ahead.

    Closing it ends all threads, at once or when the network answers.
    """
    waiting = iter(reads)
    running: collections.deque[Ahead[list[Row]]] = collections.deque()

    def start(most: int) -> None:
        for read in itertools.islice(waiting, most):
            running.append(Ahead(functools.partial(_lists, read), _LISTS))

    try:
        start(AT_ONCE)
        while running:
            for rows in running[0]:
                yield from rows
            running.popleft()
            start(1)
    finally:
        for thread in running:
            thread.stop()
        for thread in running:
            thread.join()


def _lists(read: Callable[[], Iterable[Row]]) -> Iterator[list[Row]]:
    return batched(read(), _LIST_ROWS, memory_of, _LIST_BYTES)


def _has_waited(start_s: float, processor_start_s: float) -> bool:
    """Whether most of the time since then was spent waiting.

    Args:
      start_s, processor_start_s: readings of the clock and of the processor time.
    """
    seconds = time.perf_counter() - start_s - PATIENCE_SECONDS
    return seconds > 0 and seconds > 2 * (time.process_time() - processor_start_s)
