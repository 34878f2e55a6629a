"""Compare-and-set: creates cells in columns without cells, and replaces cells that have not changed.

CheckAndMutateRow takes one row at a time, so dozens of calls run together. If an answer is lost, the columns
are read again to find out whether the call was carried out.
"""

from __future__ import annotations

import collections
import functools
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import grpc
from google.api_core import exceptions

from timebeam.schema.core.rows import Cell, Deletion, Row
from timebeam.transforms.bigtable.chunk_rows import RowMerger
from timebeam.transforms.bigtable.mutation_bytes import add_mutations
from timebeam.transforms.bigtable.protobuf_classes import DATA_API
from timebeam.transforms.bigtable.read_ranges import read_keys
from timebeam.transforms.bigtable.retry import ATTEMPT_SECONDS, FIRST_PAUSE, LONGEST_PAUSE, RETRYABLE, Backoff
from timebeam.transforms.bigtable.target import Target, call_headers, method

_ATTEMPTS = 20
_CALLS_UNDER_WAY = 64
_CELLS_A_CALL = 200  # a filter has at most 20 KB
_COMPARED_BYTES = 8_000  # longest value compared by a filter, which holds it twice

_FILTER = DATA_API["RowFilter"]


class CellColumn(NamedTuple):
    """A column of a row."""

    key: bytes
    family: str
    qualifier: bytes


class CreatedCells(NamedTuple):
    """The result of `create_cells`.

    Attributes:
      created: columns whose cells were set.
      uncertain: columns that hold the new value after a lost answer: set by us, or by another writer.
      values: the value of each column afterwards.
    """

    created: set[CellColumn]
    uncertain: set[CellColumn]
    values: dict[CellColumn, bytes]


class Replacement(NamedTuple):
    """A cell, and the cell of the same column that it replaces.

    Attributes:
      old: the newest cell of the column when it was read; None if there was none.
      new: None to delete the cell.
      cells: other cells of the row that are set with it.
      deleted: other columns of the row that are deleted with it, before.
    """

    key: bytes
    old: Cell | None
    new: Cell | None
    cells: Sequence[Cell] = ()
    deleted: Sequence[Deletion] = ()

    @property
    def column(self) -> CellColumn:
        """The column of both cells."""
        cell = self.old or self.new
        assert cell is not None
        return CellColumn(self.key, cell[0], cell[1])


def create_cells(
    target: Target, table: str, rows: Iterable[Row], existing: Mapping[bytes, Row]
) -> CreatedCells:
    """Sets the cells of rows whose columns have no cell.

    Up to 200 missing cells of a row are set together; if one of them was created meanwhile, the others are
    set in another call.

    Args:
      rows: each key once; all cells of a row in one family.
      existing: rows as they were read before; may be empty or incomplete.

    Raises:
      GoogleAPICallError: cells could not be set; others may have been.
    """
    result, lost, backoff = CreatedCells(set(), set(), {}), set[CellColumn](), Backoff()
    for key, row in existing.items():
        result.values.update((CellColumn(key, cell[0], cell[1]), cell[3]) for cell in row[2])
    pending = list(_missing(rows, result.values))
    attempts = 0
    while pending:
        calls = [_Call(row.key, _newest_cells(*_columns(row)), row.cells, (), False) for row in pending]
        repeated: list[Row] = []
        error: Exception | None = None
        for row, outcome in zip(pending, _check_and_mutate(target, table, calls), strict=True):
            columns = {CellColumn(row.key, cell.family, cell.qualifier): cell.value for cell in row.cells}
            if outcome is False:
                result.created.update(columns)
                result.values.update(columns)
                continue
            repeated.append(row)
            if isinstance(outcome, Exception):
                lost.update(columns)
                error = outcome
        if error is not None or (attempts and repeated):
            backoff.wait(error or exceptions.Aborted(f"cells of table {table} keep changing"))
        _read_values(target, table, repeated, result.values)
        pending = list(_missing(repeated, result.values))
        for row in repeated:
            columns = {CellColumn(row.key, cell.family, cell.qualifier): cell.value for cell in row.cells}
            result.uncertain.update(
                column
                for column, value in columns.items()
                if column in lost and result.values.get(column) == value
            )
        attempts += 1
    return result


def replace_cells(target: Target, table: str, replacements: Sequence[Replacement]) -> list[bool]:
    """Replaces cells that have not changed since they were read; for each, whether it was replaced.

    Raises:
      GoogleAPICallError: cells could not be replaced; others may have been.
    """
    replaced = [False] * len(replacements)
    pending, backoff = list(range(len(replacements))), Backoff()
    while pending:
        calls = [_swap(replacements[number]) for number in pending]
        repeated: list[int] = []
        error: Exception | None = None
        for number, outcome in zip(pending, _check_and_mutate(target, table, calls), strict=True):
            if isinstance(outcome, Exception):
                repeated.append(number)
                error = outcome
            else:
                replaced[number] = outcome is (replacements[number].old is not None)
        if error is not None:
            backoff.wait(error)
        pending = []
        for number in repeated:
            if _is_done(target, table, replacements[number]):
                replaced[number] = True
            else:
                pending.append(number)
    return replaced


def update_rows(
    target: Target,
    table: str,
    keys: Iterable[bytes],
    change: Callable[[bytes, Row | None], Iterable[Replacement]],
) -> list[bytes]:
    """Changes rows by what they hold: reads them, and replaces cells; again if another writer was faster.

    Args:
      change: the replacements that a row needs, by its key and the row as it is stored now, None if there is
        none. Without replacements a row is done. A new cell must not keep the timestamp of a value of more
        than `_COMPARED_BYTES`, which is compared by it.

    Returns:
      The keys of the rows that other writers have kept changing, `_ATTEMPTS` times.

    Raises:
      GoogleAPICallError: cells could not be replaced; others may have been.
    """
    pending = list(keys)
    for attempt in range(_ATTEMPTS):
        if not pending:
            break
        if attempt:
            time.sleep(random.uniform(0, min(LONGEST_PAUSE, FIRST_PAUSE * attempt)))
        stored = {row.key: row for row in read_keys(target, table, pending, lambda: RowMerger(table))}
        replacements = [each for key in pending for each in change(key, stored.get(key))]
        replaced = replace_cells(target, table, replacements)
        lost = {each.key for each, is_done in zip(replacements, replaced, strict=True) if not is_done}
        pending = [key for key in pending if key in lost]
    return pending


def _missing(rows: Iterable[Row], values: Mapping[CellColumn, bytes]) -> Iterator[Row]:
    """The cells whose columns have no cell, as many together as go into a call."""
    for table, key, cells, _ in rows:
        missing = [cell for cell in cells if CellColumn(key, cell[0], cell[1]) not in values]
        for start in range(0, len(missing), _CELLS_A_CALL):
            yield Row(table, key, missing[start : start + _CELLS_A_CALL])


def _read_values(target: Target, table: str, rows: Iterable[Row], values: dict[CellColumn, bytes]) -> None:
    """Reads the columns of these rows into `values`."""
    keys_of = collections.defaultdict[tuple[str, tuple[bytes, ...]], list[bytes]](list)
    for row in rows:
        keys_of[_columns(row)].append(row.key)
    for (family, qualifiers), keys in keys_of.items():
        newest = _newest_cells(family, qualifiers)
        for row in read_keys(target, table, keys, lambda: RowMerger(table), newest):
            values.update(
                (CellColumn(row.key, cell.family, cell.qualifier), cell.value) for cell in row.cells
            )


def _is_done(target: Target, table: str, replacement: Replacement) -> bool:
    """Whether a replacement whose answer is lost was carried out."""
    key, family, qualifier = replacement.column
    newest = _newest_cells(family, (qualifier,))
    cells = [
        cell
        for row in read_keys(target, table, [key], lambda: RowMerger(table), newest)
        for cell in row.cells
    ]
    return cells == ([] if replacement.new is None else [replacement.new])


def _columns(row: Row) -> tuple[str, tuple[bytes, ...]]:
    """The family and qualifiers of a row."""
    return row.cells[0].family, tuple(cell.qualifier for cell in row.cells)


@functools.lru_cache(maxsize=64)
def _newest_cells(family: str, qualifiers: Sequence[bytes]) -> Any:
    """The filter for the newest cell of each column; the range limits where the pattern is matched."""
    message = _FILTER()
    columns = message.chain.filters.add().column_range_filter
    columns.family_name = family
    if first := min(qualifiers):
        columns.start_qualifier_closed = first
    if last := max(qualifiers):
        columns.end_qualifier_closed = last
    pattern = b"|".join(b"".join(b"\\x%02x" % byte for byte in qualifier) for qualifier in qualifiers)
    message.chain.filters.add().column_qualifier_regex_filter = b"(?:" + pattern + b")"
    message.chain.filters.add().cells_per_column_limit_filter = 1
    return message


class _Call(NamedTuple):
    """A CheckAndMutateRow.

    Attributes:
      predicate: a RowFilter message.
      if_passed: whether the mutations apply if the predicate passes a cell, or if it passes none.
    """

    key: bytes
    predicate: Any
    cells: Sequence[Cell]
    deleted: Sequence[Deletion]
    if_passed: bool


def _swap(replacement: Replacement) -> _Call:
    """The call that replaces a cell."""
    key, old, new, cells, columns = replacement
    _, family, qualifier = replacement.column
    predicate = _newest_cells(family, (qualifier,))
    deleted = list(columns)
    if old is not None:
        unchanged = _FILTER()
        unchanged.CopyFrom(predicate)
        same = unchanged.chain.filters.add()
        if len(old[3]) <= _COMPARED_BYTES:
            same.value_range_filter.start_value_closed = old[3]
            same.value_range_filter.end_value_closed = old[3]
        else:  # compared by its timestamp
            same.timestamp_range_filter.start_timestamp_micros = old[2] * 1000
            same.timestamp_range_filter.end_timestamp_micros = (old[2] + 1) * 1000
        predicate = unchanged
        if new is None or old[2] > new[2]:
            deleted.append(Deletion(family, qualifier))
    return _Call(key, predicate, cells if new is None else (*cells, new), deleted, old is not None)


def _check_and_mutate(
    target: Target, table: str, calls: Sequence[_Call]
) -> Iterator[bool | exceptions.GoogleAPICallError]:
    """For each call, whether its predicate passed a cell, or an error that may pass.

    Raises:
      GoogleAPICallError: an error that does not pass.
    """
    name, profile = target.table_name(table), target.app_profile or ""
    headers = call_headers(target, table)
    check_and_mutate = method(target, "CheckAndMutateRow")
    under_way: collections.deque[grpc.Future] = collections.deque()
    for call in calls:
        if len(under_way) == _CALLS_UNDER_WAY:
            yield _outcome(under_way.popleft())
        request = _request(name, profile, call)
        under_way.append(check_and_mutate.future(request, timeout=ATTEMPT_SECONDS, metadata=headers))
    while under_way:
        yield _outcome(under_way.popleft())


def _outcome(future: grpc.Future) -> bool | exceptions.GoogleAPICallError:
    try:
        return bool(future.result().predicate_matched)
    except grpc.RpcError as error:
        failure: exceptions.GoogleAPICallError = exceptions.from_grpc_error(error)
        if isinstance(failure, RETRYABLE):
            return failure
        raise failure from error


def _request(name: str, profile: str, call: _Call) -> Any:
    request = DATA_API["CheckAndMutateRowRequest"](table_name=name, app_profile_id=profile, row_key=call.key)
    request.predicate_filter.CopyFrom(call.predicate)
    mutations = request.true_mutations if call.if_passed else request.false_mutations
    add_mutations(mutations, call.cells, call.deleted)
    return request
