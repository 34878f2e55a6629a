"""Reading and writing Bigtable in a pipeline: `ReadRows` and `WriteRows` (docs/reference/beam.md)."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Self

import apache_beam as beam
from apache_beam.pvalue import PBegin, PCollection, PDone
from apache_beam.transforms.display import DisplayDataItem
from apache_beam.transforms.error_handling import ErrorHandler
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue
from google.api_core.exceptions import GoogleAPICallError

from timebeam.schema.core.rows import MUTATIONS, WHOLE_TABLE, EncodedRow, KeyRange, Row, RowMutation
from timebeam.transforms.bigtable.chunk_rows import RowMerger
from timebeam.transforms.bigtable.read_ranges import (
    ascend,
    common_range,
    ranges_between,
    read_ranges,
    row_filter,
    split_keys,
)
from timebeam.transforms.bigtable.service_calls import add_sink, add_source, count_call
from timebeam.transforms.bigtable.target import Target, as_target
from timebeam.transforms.bigtable.write_rows import mutate_rows

BUFFER_BYTES = 4 << 20
REQUESTS = 2

SPLIT_BYTES = 128 << 20
"""Stored bytes of a split of `ReadRows`: some seconds of reading."""

_CELL_OVERHEAD = 64  # about the bytes of a cell beside its qualifier and value


class WithErrorHandler(beam.PTransform):  # type: ignore[type-arg]
    """A transform whose rejected elements can go to an error handler of Beam.

    With a handler they go there, in the windowing of the input, and what is left comes out; without one they
    come out themselves.
    """

    _handler: ErrorHandler | None = None

    def with_error_handler(self, handler: ErrorHandler | None) -> Self:
        """Sends rejected elements to a handler, as `with_error_handler` of Beam's own transforms; returns the
        transform."""
        self._handler = handler
        return self


@dataclasses.dataclass(eq=False)
class ReadRows(beam.PTransform):  # type: ignore[type-arg]
    """Reads rows of a table: a pipeline in, a PCollection of `Row` out, in any order.

    The ranges are cut into splits of about the same size (SampleRowKeys), which workers read in parallel. A
    read that breaks off is resumed behind its last complete row.

    >>> target = Target("my-project", "my-instance")
    >>> ReadRows(target, "readings", [(b"sensor#", b"sensor$")]).split_bytes
    134217728
    >>> ReadRows(target, "readings", [(b"b", b"c"), (b"a", b"b")])
    Traceback (most recent call last):
    ValueError: ranges of table readings must ascend and not overlap: [(b'b', b'c'), (b'a', b'b')]

    Attributes:
      target: the instance, and the app profile to read with; or its name, as `as_target` takes it.
      table: its name, without project and instance.
      ranges: half-open ranges of row keys, ascending, without overlap.
      key_pattern: RE2 that the raw bytes of each row key must match; `.` does not match 0x0A.
      columns: (family, first qualifier, end): the columns of one family in [first, end), an empty end for the
        end of the family; None for all columns of all families.
      versions: the largest number of versions of each cell, newest first.
      keys_only: read every cell with an empty value, which saves the transfer.
      split_bytes: about the stored bytes of a split; there are as many splits as the ranges need.

    Raises:
      ValueError: the ranges do not ascend, or overlap; `split_bytes` is not positive.
    """

    target: Target | str
    table: str
    ranges: Sequence[KeyRange] = (WHOLE_TABLE,)
    key_pattern: bytes | None = None
    columns: tuple[str, bytes, bytes] | None = None
    versions: int = 1
    keys_only: bool = False
    split_bytes: int = SPLIT_BYTES

    def __post_init__(self) -> None:
        self.target = as_target(self.target)
        if not ascend(self.ranges):
            raise ValueError(f"ranges of table {self.table} must ascend and not overlap: {self.ranges}")
        if self.split_bytes < 1:
            raise ValueError(f"split_bytes {self.split_bytes}: give the bytes of a split, such as 134217728")

    def display_data(self) -> dict[str, DisplayDataItem]:
        return displayed(self.target, self.table)

    def expand(self, root: PBegin) -> PCollection[Row]:
        splits = beam.FlatMap(_splits, as_target(self.target), self.ranges, self.split_bytes)
        rows = beam.FlatMap(
            _rows,
            as_target(self.target),
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


def displayed(target: Target | str, table: str = "") -> dict[str, DisplayDataItem]:
    """The display data of a transform, named as of Beam's own connector; without a table, that of all."""
    target = as_target(target)
    shown = {
        "projectId": DisplayDataItem(target.project, label="Bigtable Project Id"),
        "instanceId": DisplayDataItem(target.instance, label="Bigtable Instance Id"),
    }
    if table:
        shown["tableId"] = DisplayDataItem(table, label="Bigtable Table Id")
    return shown


def _splits(table: str, target: Target, ranges: Sequence[KeyRange], split_bytes: int) -> Iterator[KeyRange]:
    """Key ranges of about the same size, which together are `ranges` of a table."""
    cuts = split_keys(target, table, ranges, split_bytes, sys.maxsize)
    for split, key_range in itertools.product(ranges_between(cuts), ranges):
        common = common_range(split, key_range)
        if common is not None:
            yield common


def _rows(key_range: KeyRange, target: Target, table: str, **filter_options: Any) -> Iterator[Row]:
    """The rows of a key range."""
    with reading(target, table):
        yield from read_ranges(
            target, table, [key_range], row_filter(**filter_options), lambda: RowMerger(table)
        )


@contextlib.contextmanager
def reading(target: Target, table: str) -> Iterator[None]:
    """A context in which a part of a table is read: reports the source, and the call with its result."""
    add_source(target, table)
    try:
        yield
    except GoogleAPICallError as error:
        count_call(target, table, "ReadRows", error)
        raise
    count_call(target, table, "ReadRows")


class FailedRow(NamedTuple):
    """A row that Bigtable refused.

    Attributes:
      row: the input row.
      reason: the message of the service.
    """

    row: RowMutation
    reason: str


Around = Callable[[Sequence[Any]], AbstractContextManager[object]]
"""Makes of rows a context in which they are written."""

OnWritten = Callable[[Sequence[Any]], None]
"""Is called with rows."""


@dataclasses.dataclass(eq=False)
class WriteRows(WithErrorHandler):
    """Writes rows: `Row`, tuples like it or `EncodedRow` in, `FailedRow` out.

    >>> row = Row("readings", b"key", [("f", b"column", 9000, b"value")])
    >>> rows = beam.Pipeline() | beam.Create([row])
    >>> (rows | WriteRows(Target("my-project", "my-instance"))).element_type.__name__
    'FailedRow'

    A `FailedRow` has the windows and the timestamp of its input row. With `with_error_handler` they go there,
    and nothing comes out.

    Each row has its own result. Rows with errors that may pass (UNAVAILABLE, DEADLINE_EXCEEDED, ABORTED,
    INTERNAL, RESOURCE_EXHAUSTED) are retried for two minutes. A row that the service refuses
    (INVALID_ARGUMENT, FAILED_PRECONDITION, OUT_OF_RANGE) comes out with the reason. Other errors, such as a
    missing table, fail the bundle. A bundle ends when all its rows are written or rejected; a repeated bundle
    writes the same cells again.

    Attributes:
      target: the instance, and the app profile to write with; or its name, as `as_target` takes it.
      buffer_bytes: about the size of a request.
      requests: the number of requests under way in a bundle, while it makes the next rows.
      around: makes of the rows of each request a context in which they are written, in the request's thread.
      on_written: called with the rows of each request, after they are written or refused and before the
        bundle ends.
      keeps_windows: whether a `FailedRow` has the windows and the timestamp of its input. To keep them takes
        about a microsecond a row; without it, all rows must be in the global window.
    """

    target: Target | str
    buffer_bytes: int = BUFFER_BYTES
    requests: int = REQUESTS
    around: Around = nullcontext
    on_written: OnWritten | None = None
    keeps_windows: bool = True

    def __post_init__(self) -> None:
        self.target = as_target(self.target)

    def display_data(self) -> dict[str, DisplayDataItem]:
        return displayed(self.target)

    def expand(self, rows: PCollection[RowMutation]) -> PCollection[FailedRow] | PDone:
        fn = _WriteInWindowsFn if self.keeps_windows else _WriteFn
        failed = rows | "Write" >> beam.ParDo(fn(self)).with_output_types(FailedRow)
        if self._handler is None:
            return failed
        self._handler.add_error_pcollection(failed)
        return PDone(rows.pipeline)


_Request = tuple[list[RowMutation], list[WindowedValue], Future[list[tuple[int, Exception]]]]
"""(rows, the window and timestamp of each or nothing, and the (number, error) of each rejected row)."""


class RowWriter:
    """Buffers rows and writes them in requests, some of them at once, in threads of a pool.

    Args:
      send: writes rows of a table in one request; returns the (number, error) of each rejected row.
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
        self._windows: dict[str, list[WindowedValue]] = {}
        self._bytes = self._mutations = 0
        self._under_way: collections.deque[_Request] = collections.deque()

    def add(self, row: RowMutation, windows: WindowedValue | None = None) -> Iterator[Any]:
        """Adds a row; the rejected rows of requests that have ended.

        Args:
          windows: the windows and the timestamp of the row. If it is rejected, its `FailedRow` comes out in
            them. Given for all rows or for none.
        """
        if isinstance(row, EncodedRow):
            mutations, size = row.mutation_count, len(row.mutations)
        else:
            _, _, cells, deleted = row
            mutations = len(cells) + len(deleted)
            size = sum([len(cell[1]) + len(cell[3]) for cell in cells]) + len(cells) * _CELL_OVERHEAD
        if self._mutations + mutations > MUTATIONS:
            yield from self._flush()
        self._rows.setdefault(row[0], []).append(row)
        if windows is not None:
            self._windows.setdefault(row[0], []).append(windows)
        self._mutations += mutations
        self._bytes += size
        if self._bytes >= self._buffer_bytes:
            yield from self._flush()

    def finish(self) -> Iterator[Any]:
        """Waits until all rows are written or rejected; the rejected ones."""
        yield from self._flush()
        yield from self._results(0)

    def settle(self) -> None:
        """Waits until no request is under way, also after an error."""
        wait([result for _, _, result in self._under_way])

    def _flush(self) -> Iterator[Any]:
        """Sends the buffered rows, when fewer than `requests` are under way."""
        for table, rows in self._rows.items():
            yield from self._results(self._requests - 1)
            request = self._pool.submit(self._send, table, rows)
            self._under_way.append((rows, self._windows.get(table, []), request))
        self._windows = {}
        self._rows, self._bytes, self._mutations = {}, 0, 0

    def _results(self, most: int) -> Iterator[Any]:
        """Waits until at most `most` requests are under way; the rejected rows."""
        while len(self._under_way) > most:
            rows, windows, result = self._under_way.popleft()
            for number, error in result.result():
                failed = FailedRow(rows[number], str(error))
                yield windows[number].with_value(failed) if windows else failed
            if self._on_written is not None:
                self._on_written(rows)


class _WriteFn(beam.DoFn):
    """Rows in, rejected rows out; a bundle ends when all its rows have results."""

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
        self._tables = set[str]()
        self._writer = RowWriter(
            self._send, self._pool, options.buffer_bytes, options.requests, options.on_written
        )

    def process(self, row: RowMutation) -> Iterable[Any]:
        assert self._writer is not None
        return self._writer.add(row)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        assert self._writer is not None
        for failed in self._writer.finish():
            yield failed if isinstance(failed, WindowedValue) else GlobalWindows.windowed_value(failed)
        for table in self._tables:
            add_sink(as_target(self._options.target), table)

    def _send(self, table: str, rows: list[RowMutation]) -> list[tuple[int, Exception]]:
        """Writes rows in one request; the (number, error) of each rejected row."""
        target = as_target(self._options.target)
        self._tables.add(table)
        try:
            with self._options.around(rows):
                rejected = mutate_rows(target, table, rows)
        except GoogleAPICallError as error:
            count_call(target, table, "MutateRows", error)
            raise
        count_call(target, table, "MutateRows")
        for _, reason in rejected:
            count_call(target, table, "MutateRows", reason)
        return rejected


class _WriteInWindowsFn(_WriteFn):
    """As `_WriteFn`; a rejected row comes out in the windows of its input row, with its timestamp.

    A row in several windows is written once. What `process` yields comes out once for each window of the
    element that it is given, so rejected rows wait for one of one window, or for the end of the bundle.
    """

    def start_bundle(self) -> None:
        super().start_bundle()
        self._failed: list[WindowedValue] = []

    def process(
        self,
        row: RowMutation,
        windows: WindowedValue = beam.DoFn.WindowedValueParam,  # type: ignore[assignment]
    ) -> Iterable[WindowedValue]:
        assert self._writer is not None
        self._failed += self._writer.add(row, windows)
        if not self._failed or len(windows.windows) > 1:
            return ()
        failed, self._failed = self._failed, []
        return failed

    def finish_bundle(self) -> Iterator[WindowedValue]:
        yield from self._failed
        yield from super().finish_bundle()
