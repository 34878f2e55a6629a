"""Rows into Bigtable: Beam's own writer, our own with per-row results, and appends.

| writer | refused rows | retries | app profile |
|---|---|---|---|
| `beam` (WriteToBigTable) | fail the bundle | UNAVAILABLE, DEADLINE_EXCEEDED | default only |
| `direct` | go to the dead letters | also ABORTED, INTERNAL, RESOURCE_EXHAUSTED | any |
| appends | go to the dead letters | as direct; an answer lost may append twice, which is harmless | any |
"""

from __future__ import annotations

import collections
import datetime
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import apache_beam as beam
from apache_beam.io.gcp.bigtableio import WriteToBigTable
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue
from google.api_core import exceptions
from google.api_core.retry import Retry, if_exception_type
from google.cloud.bigtable.data.read_modify_write_rules import AppendValueRule, ReadModifyWriteRule
from google.cloud.bigtable.row import DirectRow

from schema.layouts import Layout, Packing, Row, TableSpec
from schema.points import Reason, Rejected, Stage
from transforms import metrics
from transforms.bigtable.limits import MUTATIONS, refused_row
from transforms.bigtable.mutate import FOR_GOOD, OPERATION_SECONDS, RETRYABLE, mutate_rows
from transforms.bigtable.target import Target, open_table
from transforms.bigtable.wire import AnyRow, EncodedRow, row_of

BUFFER_BYTES = 4 << 20
"""Bytes of rows that the direct writer sends at once."""

_REQUESTS = 2
"""Requests that it has under way, of each bundle."""

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


class Marker(Protocol):
    """Is told of rows after they are written, and before their bundle ends."""

    @property
    def table(self) -> TableSpec:
        """Where it notes them."""

    def mark(self, target: Target, rows: Iterable[AnyRow]) -> None:
        """Notes them."""


class WriteRows(beam.PTransform):  # type: ignore[type-arg]
    """Writes `Row` mutations (`direct`: any row); returns the PCollection of `Rejected` ones.

    Args:
      tables: the names of the tables that rows may be for.
      writer: `beam` or `direct`.
      packing: rows of packing `append` are appended to, all others set.
      marker: told of the rows that the direct writer has written.
    """

    def __init__(
        self,
        target: Target,
        tables: Sequence[str],
        writer: str,
        packing: Packing,
        marker: Marker | None = None,
    ) -> None:
        super().__init__()
        self._target, self._tables, self._writer, self._packing = target, tables, writer, packing
        self._marker = marker

    def expand(self, rows: PCollection[Row]) -> PCollection[Rejected]:
        """See the class."""
        if self._packing is Packing.APPEND:
            return rows | "Append" >> beam.ParDo(_AppendFn(self._target))
        if self._writer == "direct":
            return rows | "WriteDirect" >> beam.ParDo(DirectFn(self._target, self._marker))
        for table in self._tables:
            (
                rows
                | f"RowsOf[{table}]" >> beam.ParDo(_DirectRowFn(table)).with_output_types(DirectRow)
                | f"WriteToBigTable[{table}]"
                >> WriteToBigTable(self._target.project, self._target.instance, table)
            )
        return rows.pipeline | "NothingRefused" >> beam.Create([], reshuffle=False)


def data_tables(layout: Layout) -> list[str]:
    """The tables of a layout that hold points."""
    return [spec.name for spec in layout.tables() if spec.holds_points]


class _DirectRowFn(beam.DoFn):
    """Rows of one table as the client's DirectRow."""

    def __init__(self, table: str) -> None:
        self._table = table

    def process(self, row: Row) -> Iterable[DirectRow]:
        if row.table != self._table:
            return
        direct = DirectRow(row.key)
        for cell in row.cells:
            timestamp = _EPOCH + datetime.timedelta(milliseconds=cell.timestamp_ms)
            direct.set_cell(cell.family, cell.qualifier, cell.value, timestamp)
        yield direct


class DirectFn(beam.DoFn):
    """Writes rows in batches and waits for the result of each row; a bundle ends when all are written.

    While Bigtable works on some requests, the next rows are made: with one cell for each point both take
    about as long.
    """

    def __init__(self, target: Target, marker: Marker | None) -> None:
        self._target, self._marker = target, marker
        self._held: dict[str, list[AnyRow]] = {}
        self._bytes = 0
        self._cells = 0
        self._under_way: collections.deque[tuple[list[AnyRow], Future[list[Rejected]]]] = collections.deque()
        self._pool: ThreadPoolExecutor | None = None

    def setup(self) -> None:
        self._pool = ThreadPoolExecutor(_REQUESTS)

    def teardown(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def start_bundle(self) -> None:
        self._held, self._bytes, self._cells = {}, 0, 0
        self._under_way.clear()

    def process(self, row: AnyRow) -> Iterator[Rejected]:
        if isinstance(row, EncodedRow):
            mutations, size = row.mutation_count, len(row.mutations)
        else:
            mutations = len(row.cells) + len(row.deleted)
            size = sum(len(cell.qualifier) + len(cell.value) + 64 for cell in row.cells)
        if self._cells + mutations > MUTATIONS:
            yield from self._flush()
        self._held.setdefault(row.table, []).append(row)
        self._cells += mutations
        self._bytes += size
        if self._bytes >= BUFFER_BYTES:
            yield from self._flush()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for rejected in itertools.chain(self._flush(), self._results(0)):
            yield GlobalWindows.windowed_value(rejected)

    def _flush(self) -> Iterator[Rejected]:
        """Hands on what is held, as soon as there is room for it."""
        assert self._pool is not None
        for table, rows in self._held.items():
            yield from self._results(_REQUESTS - 1)
            self._under_way.append((rows, self._pool.submit(self._write, table, rows)))
        self._held, self._bytes, self._cells = {}, 0, 0

    def _results(self, left: int) -> Iterator[Rejected]:
        """Waits for all requests but the latest `left`; what was refused of them."""
        while len(self._under_way) > left:
            rows, result = self._under_way.popleft()
            yield from result.result()
            _observe(rows)

    def _write(self, table: str, rows: list[AnyRow]) -> list[Rejected]:
        rejected = write_batch(self._target, table, rows)
        if self._marker is not None:
            self._marker.mark(self._target, rows)
        return rejected


def _observe(rows: Sequence[AnyRow]) -> None:
    """Measures a flush: its rows, and how long after its arrival the newest cell of each was stored."""
    metrics.observe("flush_rows", len(rows))
    now_ms = int(time.time() * 1000)
    for row in rows:
        if isinstance(row, Row) and row.cells:
            metrics.observe("delay_ms", max(0, now_ms - row.cells[-1].timestamp_ms))


def write_batch(target: Target, table: str, rows: Sequence[AnyRow]) -> list[Rejected]:
    """Writes rows in one request (repeated for those that may succeed later); the refused ones.

    Raises:
      GoogleAPICallError: a row could not be written for a reason that is not its own.
    """
    return [_refused(rows[number], error) for number, error in mutate_rows(target, table, rows)]


class _AppendFn(beam.DoFn):
    """Appends the cells of rows to what is there (ReadModifyWriteRow), as a TSD with enable_appends."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._retry = Retry(if_exception_type(*RETRYABLE), initial=0.05, maximum=5, timeout=OPERATION_SECONDS)

    def process(self, row: Row) -> Iterator[Rejected]:
        rules: list[ReadModifyWriteRule] = [
            AppendValueRule(cell.family, cell.qualifier, cell.value) for cell in row.cells
        ]
        append = self._retry(open_table(self._target, row.table).read_modify_write_row)
        try:
            append(row.key, rules)
        except FOR_GOOD as error:
            yield _refused(row, error)
        except exceptions.RetryError as error:  # which hides in its text what the service said
            raise error.cause from error


def _refused(row: AnyRow, error: BaseException) -> Rejected:
    return refused_row(row_of(row), Reason.WRITE_REFUSED, f"Bigtable refused the row: {error}", Stage.WRITE)
