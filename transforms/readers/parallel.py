"""Scans that wait for the service read by several threads, a range of keys each, in the order of one stream.

Threads gain where a read waits: where the service looks through many rows for the few that a filter lets
through, or is far away. Where rows come as quickly as Python takes them, threads are in each other's way,
so that nothing is cut before a scan has waited. Decoding stays with the caller, and so does the order: what
relies on it (two tables read side by side, an instant that stands in two rows) need not know of threads.
"""

from __future__ import annotations

import collections
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from timebeam.schema.layouts import Row, Scan
from timebeam.transforms.bigtable.splits import ascend, ranges_between, split_keys
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.readers.ahead import Ahead
from timebeam.transforms.readers.ranges import scan_within
from timebeam.transforms.readers.table_reader import read_rows, scan_rows

AT_ONCE = 4
"""Ranges that are read at the same time."""

PATIENCE_SECONDS = 0.5
"""By how much a scan may take longer than twice the time of the processor before it is cut."""

PART_BYTES = 4 << 20
"""What a range that is worth a request has at least, as it is stored."""

_MOST_PARTS = 4096
_LIST_BYTES, _LIST_ROWS = 1 << 20, 500  # of rows that a thread hands over at once
_LISTS = 15  # that wait for the caller, of each thread
_ROW_BYTES, _CELL_BYTES = 500, 250  # of the objects, beside the value


class ParallelReader:
    """The `Reader` of commands: as `TableReader`, and quicker where a scan waits for the service.

    Memory: at most `AT_ONCE` times 16 lists of 1 MiB, or of one row where that is larger. A range that is
    longer than that is read on when its turn comes.
    """

    def __init__(self, target: Target) -> None:
        self._target = target

    def scan(self, scan: Scan) -> Iterator[Row]:
        """See `Reader.scan`. An error in a thread is raised where the next row of its range would come."""
        begun, worked = time.perf_counter(), time.process_time()
        can_be_cut = ascend(scan.ranges)
        rows = scan_rows(self._target, scan)
        for row in rows:
            yield row
            if can_be_cut and _has_waited(begun, worked):
                break
        else:
            return
        parts = self._parts(scan_within(scan, (row.key + b"\0", b"")))
        if len(parts) > 1:
            del rows  # which ends its request
            yield from in_turn([functools.partial(scan_rows, self._target, part) for part in parts])
        else:
            yield from rows

    def rows(self, table: str, keys: Sequence[bytes]) -> Mapping[bytes, Row]:
        """See `Reader.rows`."""
        return read_rows(self._target, table, keys)

    def _parts(self, scan: Scan) -> list[Scan]:
        """A scan in parts of about the same size that lie one behind the other."""
        if not scan.ranges:
            return []
        cuts = split_keys(self._target, scan.table, scan.ranges, PART_BYTES, _MOST_PARTS)
        parts = (scan_within(scan, keys) for keys in ranges_between(cuts))
        return [part for part in parts if part.ranges]


def in_turn(reads: Iterable[Callable[[], Iterable[Row]]], at_once: int = AT_ONCE) -> Iterator[Row]:
    """The rows of some reads one after the other, while the next ones are read ahead, each by a thread.

    To close it ends all threads: at once, or as soon as the network gives what they wait for.
    """
    waiting = iter(reads)
    running: collections.deque[Ahead[list[Row]]] = collections.deque()

    def start(most: int) -> None:
        for read in itertools.islice(waiting, most):
            running.append(Ahead(functools.partial(_lists, read), _LISTS))

    try:
        start(at_once)
        while running:
            for rows in running[0]:
                yield from rows
            running.popleft()
            start(1)
    finally:
        for one in running:
            one.stop()
        for one in running:
            one.join()


def _lists(read: Callable[[], Iterable[Row]]) -> Iterator[list[Row]]:
    """The rows of a read, as many together as a thread hands over at once."""
    held: list[Row] = []
    size = 0
    for row in read():
        held.append(row)
        size += _size(row)
        if size >= _LIST_BYTES or len(held) >= _LIST_ROWS:
            yield held
            held, size = [], 0
    yield held


def _has_waited(begun: float, worked: float) -> bool:
    """Whether most of the time since these times of the clock and of the processor was spent waiting."""
    left = time.perf_counter() - begun - PATIENCE_SECONDS
    return left > 0 and left > 2 * (time.process_time() - worked)


def _size(row: Row) -> int:
    """About how many bytes of memory a row takes."""
    return _ROW_BYTES + _CELL_BYTES * len(row.cells) + sum(len(cell.value) for cell in row.cells)
