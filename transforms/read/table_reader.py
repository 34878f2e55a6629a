"""Readers of Bigtable for stores: plain, parallel, remembering, of a key range; and decoded rows in batches.

`ParallelReader` reads a scan as a key range for each thread, in the order of one scan. Threads help where a
scan waits: the service filters many rows for a few, or is far away. If rows come as fast as Python takes
them, threads slow each other down, so a scan is cut only after it has waited. The caller decodes the rows, in
the order of the scan.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from timebeam.schema.bits.lru_cache import BoundedDict, TimedCache, batched
from timebeam.schema.core.contract import ReadableStore
from timebeam.schema.core.points import Series
from timebeam.schema.core.rows import WHOLE_TABLE, KeyRange, Row
from timebeam.schema.core.selection import (
    ColumnRange,
    DecodedRows,
    Finding,
    Reader,
    Scan,
    Selected,
    Selection,
)
from timebeam.transforms.bigtable.chunk_columns import ColumnMerger, MergedRows
from timebeam.transforms.bigtable.chunk_rows import RowMerger
from timebeam.transforms.bigtable.read_ranges import (
    ascend,
    common_range,
    ranges_between,
    read_keys,
    read_ranges,
    row_filter,
    split_keys,
)
from timebeam.transforms.bigtable.target import Target

_ROWS_AT_ONCE = 4000

RowCache = BoundedDict[tuple[str, bytes], Row] | TimedCache[tuple[str, bytes], Row]

MOST_REMEMBERED_ROWS = 200_000


def scan_rows(target: Target, scan: Scan) -> Iterator[Row]:
    """The rows of the ranges of a scan in their order, ascending by key within each."""
    return read_ranges(target, scan.table, scan.ranges, _filter(scan), lambda: RowMerger(scan.table))


def scan_columns(target: Target, scan: Scan) -> Iterator[MergedRows]:
    """The rows of a scan of one family, in the order of `scan_rows`, many together and without `Cell`s."""
    return read_ranges(target, scan.table, scan.ranges, _filter(scan), ColumnMerger)


_ROW_BYTES, _CELL_BYTES = 500, 250  # memory of the objects, beside qualifier and value


def memory_of(row: Row) -> int:
    """About the bytes of memory that a row takes."""
    return _ROW_BYTES + sum(_CELL_BYTES + len(cell.value) + len(cell.qualifier) for cell in row.cells)


def _filter(scan: Scan) -> object:
    return row_filter(
        key_pattern=scan.key_pattern, columns=scan.columns, versions=scan.versions, keys_only=scan.keys_only
    )


class TableReader:
    """The `Reader` of a Bigtable instance."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def scan(self, scan: Scan) -> Iterator[Row]:
        return scan_rows(self._target, scan)

    def rows(self, table: str, keys: Sequence[bytes]) -> dict[bytes, Row]:
        return read_rows(self._target, table, keys)


def read_ahead(
    selection: Iterable[Selected | Finding], most: int = 100_000
) -> Iterator[list[Selected] | Finding]:
    """Rows in lists that are worth decoding together; findings one by one.

    Args:
      most: about the number of points in a list.
    """
    rows: list[Selected] = []
    size = 0
    for selected in selection:
        if isinstance(selected, Finding):
            yield selected
            continue
        rows.append(selected)
        size += selected.size
        if size >= most or len(rows) >= _ROWS_AT_ONCE:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


def scan_table(target: Target, table: str) -> Iterator[Row]:
    """Every row of a table."""
    return scan_rows(target, Scan(table, [(b"", b"")]))


def read_rows(
    target: Target, table: str, keys: Sequence[bytes], columns: ColumnRange | None = None
) -> dict[bytes, Row]:
    """The existing rows with these keys, by key; with these columns, or all for None."""
    cell_filter = None if columns is None else row_filter(columns=columns)
    rows = read_keys(target, table, keys, lambda: RowMerger(table), cell_filter)
    return {row.key: row for row in rows}


def existing_keys(target: Target, table: str, keys: Sequence[bytes]) -> set[bytes]:
    """Those of the keys that rows of a table with one family have."""
    merged = read_keys(target, table, keys, ColumnMerger, row_filter(keys_only=True))
    return {key for rows in merged for key in rows.keys}


class RememberingReader:
    """A `Reader` that reads each row by key once, for rows that never change, as those of the UID table.

    Missing rows are read again.

    Args:
      table: the table whose rows are remembered; None for all tables.
      cache: the rows by table and key; by default one of `MOST_REMEMBERED_ROWS`.
    """

    def __init__(self, reader: Reader, table: str | None = None, cache: RowCache | None = None) -> None:
        self._reader, self._table = reader, table
        self._cache: RowCache = BoundedDict(MOST_REMEMBERED_ROWS) if cache is None else cache

    def scan(self, scan: Scan) -> Iterable[Row]:
        return self._reader.scan(scan)

    def rows(self, table: str, keys: Sequence[bytes]) -> Mapping[bytes, Row]:
        if self._table not in (None, table):
            return self._reader.rows(table, keys)
        get = self._cache.get
        rows = {key: row for key in keys if (row := get((table, key))) is not None}
        missing = [key for key in keys if key not in rows]
        for key, row in self._reader.rows(table, missing).items() if missing else ():
            self._cache[table, key] = rows[key] = row
        return rows


def within(reader: Reader, layout: ReadableStore, keys: KeyRange) -> Reader:
    """A reader limited to the data rows in a range of keys, and to index rows with the same keys."""
    whole = {spec.name for spec in layout.tables() if not (spec.holds_points or spec.same_keys)}
    return RangeReader(reader, whole, keys)


def scan_within(scan: Scan, keys: KeyRange) -> Scan:
    """A scan limited to a range of keys; it may have no ranges."""
    ranges = [common for scanned in scan.ranges if (common := common_range(scanned, keys)) is not None]
    return dataclasses.replace(scan, ranges=ranges)


class RangeReader:
    """A `Reader` limited to a range of keys, but for the tables of `whole`."""

    def __init__(self, reader: Reader, whole: Collection[str], within: KeyRange) -> None:
        self._reader, self._whole, self._within = reader, whole, within

    def scan(self, scan: Scan) -> Iterator[Row]:
        if scan.table not in self._whole and self._within != WHOLE_TABLE:
            scan = scan_within(scan, self._within)
            if not scan.ranges:
                return
        yield from self._reader.scan(scan)

    def rows(self, table: str, keys: Sequence[bytes]) -> Mapping[bytes, Row]:
        if table not in self._whole:
            start, end = self._within
            keys = [key for key in keys if start <= key and (not end or key < end)]
        return self._reader.rows(table, keys)


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


BATCH_POINTS = 500_000


def read_decoded(
    layout: ReadableStore,
    selection: Selection,
    reader: Reader,
    most: int = BATCH_POINTS,
    passes: Callable[[Series], bool] | None = None,
    keys: dict[Series, tuple[str, bytes]] | None = None,
) -> Iterator[DecodedRows | Finding]:
    """The selected rows in batches of about `most` points, decoded together and cut to the time range.

    A finding about an unreadable row comes before the rows that are buffered at that time. The readable cells
    of a corrupt row are decoded.

    Batches come in the order of `ReadableStore.select`. Within a batch, rows may come in any order, except
    rows that can hold the same time of one series (`ReadableStore.several_rows`): these keep the order in
    which they are read. A time may come twice: the latest arrival wins; within one arrival, the last
    point.

    Args:
      passes: whether the rows of a series are decoded; None for all.
      keys: takes the table and key of one row of each series that is decoded.

    Raises:
      UnknownNameError: see `ReadableStore.select`.
    """
    selected = layout.select(selection, reader)
    if passes is not None:
        cached = functools.cache(passes)
        selected = (row for row in selected if isinstance(row, Finding) or cached(row.series))
    for rows in read_ahead(selected, most):
        if isinstance(rows, Finding):
            yield rows
            continue
        if keys is not None:
            keys.update([(each.series, (each.row.table, each.row.key)) for each in rows])
        yield layout.decode_rows(rows).within(selection.start_ms, selection.end_ms + 1)
