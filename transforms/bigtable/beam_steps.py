"""Reading and writing Bigtable in a pipeline: `ReadRows` and `WriteRows` (docs/reference/beam.md)."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import PBegin, PCollection
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from timebeam.schema.core.rows import MUTATIONS, WHOLE_TABLE, EncodedRow, KeyRange, Row, RowMutation
from timebeam.transforms.bigtable.chunk_rows import RowMerger
from timebeam.transforms.bigtable.read_ranges import (
    MOST_SPLITS,
    ascend,
    common_range,
    ranges_between,
    read_ranges,
    row_filter,
    split_keys,
)
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.bigtable.write_rows import mutate_rows

BUFFER_BYTES = 4 << 20
REQUESTS = 2

_SPLIT_BYTES = 1 << 20  # stored bytes of a split that is worth a request
_CELL_OVERHEAD = 64  # about the bytes of a cell beside its qualifier and value


@dataclasses.dataclass(eq=False)
class ReadRows(beam.PTransform):  # type: ignore[type-arg]
    """Reads rows of a table: a pipeline in, a PCollection of `Row` out, in any order.

    The ranges are cut into splits of about the same size (SampleRowKeys), which workers read in parallel. A
    read that breaks off is resumed behind its last complete row.

    Attributes:
      target: the instance, and the app profile to read with.
      table: its name, without project and instance.
      ranges: half-open ranges of row keys, ascending, without overlap.
      key_pattern: RE2 that the raw bytes of each row key must match; `.` does not match 0x0A.
      columns: (family, first qualifier, end): the columns of one family in [first, end), an empty end for the
        end of the family; None for all columns of all families.
      versions: the largest number of versions of each cell, newest first.
      keys_only: read every cell with an empty value, which saves the transfer.
      splits: the largest number of splits, and so of workers that read: 64 for a table of any size. Give more
        for more workers; a split has at least 1 MiB.

    Raises:
      ValueError: the ranges do not ascend, or overlap.
    """

    target: Target
    table: str
    ranges: Sequence[KeyRange] = (WHOLE_TABLE,)
    key_pattern: bytes | None = None
    columns: tuple[str, bytes, bytes] | None = None
    versions: int = 1
    keys_only: bool = False
    splits: int = MOST_SPLITS

    def __post_init__(self) -> None:
        if not ascend(self.ranges):
            raise ValueError(f"ranges of table {self.table} must ascend and not overlap: {self.ranges}")

    def expand(self, root: PBegin) -> PCollection[Row]:
        splits = beam.FlatMap(_splits, self.target, self.ranges, self.splits)
        rows = beam.FlatMap(
            _rows,
            self.target,
            self.table,
            key_pattern=self.key_pattern,
            columns=self.columns,
            versions=self.versions,
            keys_only=self.keys_only,
        )
        return (
            root
            | "Table" >> beam.Create([self.table], reshuffle=False)
            | "Split" >> splits.with_output_types(KeyRange)
            | "Reshuffle" >> beam.Reshuffle()
            | "Read" >> rows.with_output_types(Row)
        )


def _splits(table: str, target: Target, ranges: Sequence[KeyRange], splits: int) -> Iterator[KeyRange]:
    """Key ranges of about the same size, which together are `ranges` of a table."""
    cuts = split_keys(target, table, ranges, _SPLIT_BYTES, splits)
    for split, key_range in itertools.product(ranges_between(cuts), ranges):
        common = common_range(split, key_range)
        if common is not None:
            yield common


def _rows(key_range: KeyRange, target: Target, table: str, **filter_options: Any) -> Iterator[Row]:
    """The rows of a key range."""
    return read_ranges(target, table, [key_range], row_filter(**filter_options), lambda: RowMerger(table))


class FailedRow(NamedTuple):
    """A row that Bigtable refused.

    Attributes:
      row: the input row.
      reason: the message of the service.
    """

    row: RowMutation
    reason: str


@dataclasses.dataclass(eq=False)
class WriteRows(beam.PTransform):  # type: ignore[type-arg]
    """Writes rows: `Row`, tuples like it or `EncodedRow` in, `FailedRow` out.

    Each row has its own result. Rows with errors that may pass (UNAVAILABLE, DEADLINE_EXCEEDED, ABORTED,
    INTERNAL, RESOURCE_EXHAUSTED) are retried for two minutes. A row that the service refuses
    (INVALID_ARGUMENT, FAILED_PRECONDITION, OUT_OF_RANGE) comes out with the reason. Other errors, such as a
    missing table, fail the bundle. A bundle ends when all its rows are written or refused; a repeated bundle
    writes the same cells again.

    Attributes:
      target: the instance, and the app profile to write with.
      buffer_bytes: about the size of a request.
      requests: the number of requests under way in a bundle, while it makes the next rows.
      around: makes of the rows of each request a context in which they are written, in the request's thread.
      on_written: called with the rows of each request, after they are written or refused and before the
        bundle ends.
    """

    target: Target
    buffer_bytes: int = BUFFER_BYTES
    requests: int = REQUESTS
    around: Callable[[Sequence[Any]], AbstractContextManager[object]] = nullcontext
    on_written: Callable[[Sequence[Any]], None] | None = None

    def expand(self, rows: PCollection[Any]) -> PCollection[FailedRow]:
        return rows | "Write" >> beam.ParDo(_WriteFn(self)).with_output_types(FailedRow)


_Request = tuple[list[RowMutation], Future[list[tuple[int, Exception]]]]
"""(rows, and the (number, error) of each refused row)."""


class RowWriter:
    """Buffers rows and writes them in requests, some of them at once, in threads of a pool.

    Args:
      send: writes rows of a table in one request; returns the (number, error) of each refused row.
      on_written: called with the rows of each request, after they are written or refused.
    """

    def __init__(
        self,
        send: Callable[[str, list[RowMutation]], list[tuple[int, Exception]]],
        pool: ThreadPoolExecutor,
        buffer_bytes: int = BUFFER_BYTES,
        requests: int = REQUESTS,
        on_written: Callable[[Sequence[Any]], None] | None = None,
    ) -> None:
        self._send, self._on_written, self._pool = send, on_written, pool
        self._buffer_bytes, self._requests = buffer_bytes, requests
        self._rows: dict[str, list[RowMutation]] = {}
        self._bytes = self._mutations = 0
        self._under_way: collections.deque[_Request] = collections.deque()

    def add(self, row: RowMutation) -> Iterator[FailedRow]:
        """Adds a row; the refused rows of requests that have ended."""
        if isinstance(row, EncodedRow):
            mutations, size = row.mutation_count, len(row.mutations)
        else:
            _, _, cells, deleted = row
            mutations = len(cells) + len(deleted)
            size = sum([len(cell[1]) + len(cell[3]) for cell in cells]) + len(cells) * _CELL_OVERHEAD
        if self._mutations + mutations > MUTATIONS:
            yield from self._flush()
        self._rows.setdefault(row[0], []).append(row)
        self._mutations += mutations
        self._bytes += size
        if self._bytes >= self._buffer_bytes:
            yield from self._flush()

    def finish(self) -> Iterator[FailedRow]:
        """Waits until all rows are written or refused; the refused ones."""
        yield from self._flush()
        yield from self._results(0)

    def settle(self) -> None:
        """Waits until no request is under way, also after an error."""
        wait([result for _, result in self._under_way])

    def _flush(self) -> Iterator[FailedRow]:
        """Sends the buffered rows, when fewer than `requests` are under way."""
        for table, rows in self._rows.items():
            yield from self._results(self._requests - 1)
            self._under_way.append((rows, self._pool.submit(self._send, table, rows)))
        self._rows, self._bytes, self._mutations = {}, 0, 0

    def _results(self, most: int) -> Iterator[FailedRow]:
        """Waits until at most `most` requests are under way; the refused rows."""
        while len(self._under_way) > most:
            rows, result = self._under_way.popleft()
            for number, error in result.result():
                yield FailedRow(rows[number], str(error))
            if self._on_written is not None:
                self._on_written(rows)


class _WriteFn(beam.DoFn):
    """Rows in, refused rows out; a bundle ends when all its rows have results."""

    def __init__(self, options: WriteRows) -> None:
        self._options = options
        self._pool: ThreadPoolExecutor | None = None
        self._writer: RowWriter | None = None

    def setup(self) -> None:
        self._pool = ThreadPoolExecutor(self._options.requests)

    def teardown(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def start_bundle(self) -> None:
        options = self._options
        assert self._pool is not None
        self._writer = RowWriter(
            self._send, self._pool, options.buffer_bytes, options.requests, options.on_written
        )

    def process(self, row: RowMutation) -> Iterable[FailedRow]:
        assert self._writer is not None
        return self._writer.add(row)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        assert self._writer is not None
        for failed in self._writer.finish():
            yield GlobalWindows.windowed_value(failed)

    def _send(self, table: str, rows: list[RowMutation]) -> list[tuple[int, Exception]]:
        """Writes rows in one request; the (number, error) of each refused row."""
        with self._options.around(rows):
            return mutate_rows(self._options.target, table, rows)
