"""Writes rows: MutateRows with a result for each row, and ReadModifyWriteRow.

The client's own bulk write makes two Python objects and their protobuf wrappers for every cell, ten times
the work of a plain message. Encoded rows (`timebeam.transforms.bigtable.mutation_bytes`) are only
concatenated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import grpc
from google.api_core import exceptions

from timebeam.schema.core.rows import MUTATIONS, EncodedRow, Row, RowMutation
from timebeam.transforms.bigtable.mutation_bytes import request_bytes
from timebeam.transforms.bigtable.protobuf_classes import DATA_API
from timebeam.transforms.bigtable.retry import ATTEMPT_SECONDS, REFUSALS, RETRYABLE, Backoff, retried
from timebeam.transforms.bigtable.target import Target, call_headers, method

_ROWS_A_REQUEST = 10_000
_RULE = DATA_API["ReadModifyWriteRule"]


def mutate_rows(
    target: Target, table: str, rows: Sequence[RowMutation], check: Callable[[], None] | None = None
) -> list[tuple[int, Exception]]:
    """Writes rows; (number, reason) of the rows that Bigtable refuses.

    Rows with errors that may pass are retried for two minutes. If the service refuses a whole request, its
    rows are sent again in halves, until the bad row is alone.

    Args:
      check: called before each attempt; what it raises ends them.

    Raises:
      GoogleAPICallError: a row could not be written for a reason that is not its own.
    """
    return _write(target, table, rows, range(len(rows)), Backoff(), check)


def write_all(
    target: Target, table: str, rows: Iterable[RowMutation], check: Callable[[], None] | None = None
) -> None:
    """Writes any number of rows, none of which may be rejected.

    Args:
      check: see `mutate_rows`.

    Raises:
      GoogleAPICallError: a row was rejected or could not be written; others may have been written.
    """
    for request in requests(rows):
        for _, error in mutate_rows(target, table, request, check):
            raise error


def requests(rows: Iterable[RowMutation]) -> Iterator[list[RowMutation]]:
    """Rows of one table in lists that a request takes; a row with too many cells and deletions is split."""
    request: list[RowMutation] = []
    size = 0
    for row in rows:
        for mutation in (row,) if isinstance(row, EncodedRow) else split_row(row):
            count = mutation_count(mutation)
            if request and (len(request) == _ROWS_A_REQUEST or size + count > MUTATIONS):
                yield request
                request, size = [], 0
            request.append(mutation)
            size += count
    if request:
        yield request


def mutation_count(row: RowMutation) -> int:
    """The number of cells that a row mutation sets, and of columns that it deletes."""
    return row.mutation_count if isinstance(row, EncodedRow) else len(row.cells) + len(row.deleted)


def split_row(row: Row) -> Iterator[Row]:
    """A row as mutations of at most `MUTATIONS` cells and deletions each, the deletions first."""
    if len(row.cells) + len(row.deleted) <= MUTATIONS:
        yield row
        return
    for start in range(0, len(row.deleted), MUTATIONS):
        yield row._replace(cells=(), deleted=row.deleted[start : start + MUTATIONS])
    for start in range(0, len(row.cells), MUTATIONS):
        yield row._replace(cells=row.cells[start : start + MUTATIONS], deleted=())


def _write(
    target: Target,
    table: str,
    rows: Sequence[RowMutation],
    numbers: Sequence[int],
    backoff: Backoff,
    check: Callable[[], None] | None,
) -> list[tuple[int, Exception]]:
    """Writes the rows with these numbers; the rejected ones."""
    rejected: list[tuple[int, Exception]] = []
    pending = numbers
    while True:
        if check is not None:
            check()
        errors, request_error = _attempt(target, table, [rows[number] for number in pending])
        if isinstance(request_error, REFUSALS):
            unwritten = [pending[index] for index in errors]
            if len(unwritten) == 1:
                return [*rejected, (unwritten[0], request_error)]
            middle = len(unwritten) // 2
            for half in (unwritten[:middle], unwritten[middle:]):
                rejected += _write(target, table, rows, half, backoff, check)
            return rejected
        repeated: list[int] = []
        last_error: Exception | None = None
        for index, error in errors.items():
            if isinstance(error, REFUSALS):
                rejected.append((pending[index], error))
            elif isinstance(error, RETRYABLE):
                repeated.append(pending[index])
                last_error = error
            else:
                raise error
        if last_error is None:
            return rejected
        backoff.wait(last_error)
        pending = repeated


def _attempt(
    target: Target, table: str, rows: Sequence[RowMutation]
) -> tuple[dict[int, Exception], Exception | None]:
    """Sends one request.

    Returns:
      (by index, the error of each row that may not be written; the error of the request, if no row has a
      result of its own).
    """
    name, profile = target.table_name(table), target.app_profile or ""
    call = method(target, "MutateRows")
    missing = exceptions.ServiceUnavailable("the answer ended without a result for this row")
    errors: dict[int, Exception] = dict.fromkeys(range(len(rows)), missing)
    try:
        request = request_bytes(name, profile, rows)
        for response in call(request, timeout=ATTEMPT_SECONDS, metadata=call_headers(target, table)):
            for entry in response.entries:
                if entry.status.code == 0:
                    del errors[entry.index]
                else:
                    errors[entry.index] = _error(entry.status)
    except grpc.RpcError as rpc_error:
        error: exceptions.GoogleAPICallError = exceptions.from_grpc_error(rpc_error)
        unanswered = [index for index, answer in errors.items() if answer is missing]
        errors.update(dict.fromkeys(unanswered, error))
        return errors, error if len(unanswered) == len(rows) else None
    return errors, None


def _error(status: Any) -> Exception:
    code = next((code for code in grpc.StatusCode if code.value[0] == status.code), grpc.StatusCode.UNKNOWN)
    error: Exception = exceptions.from_grpc_status(code, status.message)
    return error


def append_cells(target: Target, row: Row) -> None:
    """Appends the value of each cell to the newest cell of its column (ReadModifyWriteRow).

    A call whose answer is lost is repeated, and may append twice.

    Raises:
      GoogleAPICallError: one of `REFUSALS`, or an error that is not the row's own.
    """
    table, key, cells, _ = row
    _read_modify_write(
        target,
        table,
        key,
        [_RULE(family_name=cell[0], column_qualifier=cell[1], append_value=cell[3]) for cell in cells],
    )


def increment(target: Target, table: str, key: bytes, column: tuple[str, bytes], by: int) -> int:
    """Adds to a counter, a signed big-endian number of 64 bits; its new value.

    A call whose answer is lost is repeated, and may add twice.

    Args:
      column: family and qualifier.

    Raises:
      GoogleAPICallError: an error that does not pass.
    """
    family, qualifier = column
    rule = _RULE(family_name=family, column_qualifier=qualifier, increment_amount=by)
    row = _read_modify_write(target, table, key, [rule])
    return int.from_bytes(row.families[0].columns[0].cells[0].value, "big", signed=True)


def _read_modify_write(target: Target, table: str, key: bytes, rules: Sequence[Any]) -> Any:
    """The changed cells of a row, as a message."""
    request = DATA_API["ReadModifyWriteRowRequest"](
        table_name=target.table_name(table),
        app_profile_id=target.app_profile or "",
        row_key=key,
        rules=rules,
    )
    call = method(target, "ReadModifyWriteRow")
    headers = call_headers(target, table)
    return retried(lambda: call(request, timeout=ATTEMPT_SECONDS, metadata=headers).row)
