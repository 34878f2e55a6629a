"""Cells set on a condition, many at once: where there are none yet, or where a known value stands.

CheckAndMutateRow takes one row at a time, so some dozens of calls are under way together. A call whose answer
got lost is cleared up by reading the row again.
"""

from __future__ import annotations

import collections
import functools
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import grpc
from google.api_core import exceptions
from google.api_core.gapic_v1 import routing_header
from google.cloud.bigtable.data import row_filters as filters
from google.cloud.bigtable_v2.types import CheckAndMutateRowRequest, RowFilter

from schema.layouts import Cell, Row
from transforms.bigtable.mutate import ATTEMPT_SECONDS, OPERATION_SECONDS, RETRYABLE, raw_client
from transforms.bigtable.reader import read_rows
from transforms.bigtable.target import EMULATOR_VARIABLE, Target

_UNDER_WAY = 64
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 5.0


class Replacement(NamedTuple):
    """A cell to be set in a row if the newest value of its column is the expected one."""

    key: bytes
    cell: Cell
    expected: bytes


def create_cells(target: Target, table: str, rows: Sequence[Row], found: Mapping[bytes, Row]) -> int:
    """Sets those cells of rows that are not there, those of a row at once; how many were set.

    Args:
      rows: each key once; cells of one family.
      found: those of the rows that exist, as they were read.

    Raises:
      GoogleAPICallError: cells could not be set; others may have been.
    """
    created = 0
    deadline, pause = time.monotonic() + OPERATION_SECONDS, _FIRST_PAUSE
    pending = [row for row in (_missing(row, found.get(row.key)) for row in rows) if row.cells]
    while pending:
        calls = [(row.key, _any_of(row.cells), row.cells, False) for row in pending]
        results = list(_check_and_mutate(target, table, calls))
        created += sum(
            len(row.cells) for row, exists in zip(pending, results, strict=True) if exists is False
        )
        errors = [result for result in results if isinstance(result, Exception)]
        again = [row for row, result in zip(pending, results, strict=True) if result is not False]
        if errors:
            pause = _wait(pause, deadline, errors[0])
        found = read_rows(target, table, [row.key for row in again])
        pending = [row for row in (_missing(row, found.get(row.key)) for row in again) if row.cells]
    return created


def replace_cells(target: Target, table: str, wanted: Sequence[Replacement]) -> int:
    """Sets cells where the expected values still stand; how many were set: others have changed meanwhile.

    Raises:
      GoogleAPICallError: cells could not be set; others may have been.
    """
    replaced = 0
    deadline, pause = time.monotonic() + OPERATION_SECONDS, _FIRST_PAUSE
    pending = list(wanted)
    while pending:
        calls = [(one.key, _equals(one), (one.cell,), True) for one in pending]
        results = list(_check_and_mutate(target, table, calls))
        replaced += sum(result is True for result in results)
        errors = [result for result in results if isinstance(result, Exception)]
        if not errors:
            return replaced
        pause = _wait(pause, deadline, errors[0])
        again = [one for one, result in zip(pending, results, strict=True) if isinstance(result, Exception)]
        found = read_rows(target, table, [one.key for one in again])
        done = [one for one in again if one.key in found and one.cell in found[one.key].cells]
        replaced += len(done)
        pending = [one for one in again if one not in done]
    return replaced


def _missing(row: Row, found: Row | None) -> Row:
    """The row with those of its cells whose columns are not there."""
    if found is None:
        return row
    there = {(cell.family, cell.qualifier) for cell in found.cells}
    return row._replace(cells=[cell for cell in row.cells if (cell.family, cell.qualifier) not in there])


def _wait(pause: float, deadline: float, error: Exception) -> float:
    """Waits, or raises the error if there is no time left; the next pause."""
    if time.monotonic() + pause > deadline:
        raise error
    time.sleep(pause * random.uniform(0.5, 1.0))
    return min(_LONGEST_PAUSE, pause * 2)


def _any_of(cells: Sequence[Cell]) -> Any:
    """Passes if one of the columns is there."""
    return _any_column(cells[0].family, tuple(cell.qualifier for cell in cells))


@functools.lru_cache(maxsize=64)
def _any_column(family: str, qualifiers: Sequence[bytes]) -> Any:
    """As a message, since most rows of a call lack the same columns."""
    pattern = b"|".join(map(_exactly, qualifiers))
    return _message(filters.FamilyNameRegexFilter(family), filters.ColumnQualifierRegexFilter(pattern))


def _equals(one: Replacement) -> Any:
    """Passes if the newest value of the column is the expected one."""
    return _message(
        filters.FamilyNameRegexFilter(one.cell.family),
        filters.ColumnQualifierRegexFilter(_exactly(one.cell.qualifier)),
        filters.CellsColumnLimitFilter(1),
        filters.ValueRangeFilter(one.expected, one.expected, inclusive_end=True),
    )


def _message(*chain: filters.RowFilter) -> Any:
    """A chain of filters as the plain protobuf message."""
    return RowFilter.pb(filters.RowFilterChain(list(chain))._to_pb())


def _exactly(raw: bytes) -> bytes:
    return b"".join(b"\\x%02x" % byte for byte in raw)


_Call = tuple[bytes, Any, Sequence[Cell], bool]
"""(row key, predicate as a message, cells, whether they are set if it passes, else if it does not)."""


def _check_and_mutate(
    target: Target, table: str, calls: Sequence[_Call]
) -> Iterator[bool | exceptions.GoogleAPICallError]:
    """Of each call whether its predicate passed, or the error, which may pass, that hides this.

    Raises:
      GoogleAPICallError: an error that does not pass.
    """
    name = f"projects/{target.project}/instances/{target.instance}/tables/{table}"
    profile = target.app_profile or ""
    routing = routing_header.to_grpc_metadata({"table_name": name, "app_profile_id": profile})
    client = raw_client(target.project, os.environ.get(EMULATOR_VARIABLE))
    stub: grpc.UnaryUnaryMultiCallable = client.transport.check_and_mutate_row
    under_way: collections.deque[grpc.Future] = collections.deque()
    for call in calls:
        if len(under_way) == _UNDER_WAY:
            yield _outcome(under_way.popleft())
        request = _request(name, profile, call)
        under_way.append(stub.future(request, timeout=ATTEMPT_SECONDS, metadata=[routing]))
    while under_way:
        yield _outcome(under_way.popleft())


def _outcome(future: grpc.Future) -> bool | exceptions.GoogleAPICallError:
    try:
        return bool(future.result().predicate_matched)
    except grpc.RpcError as error:
        found: exceptions.GoogleAPICallError = exceptions.from_grpc_error(error)
        if isinstance(found, RETRYABLE):
            return found
        raise found from error


_REQUEST = CheckAndMutateRowRequest.pb()


def _request(name: str, profile: str, call: _Call) -> CheckAndMutateRowRequest:
    """One call as a message."""
    key, predicate, cells, if_passed = call
    request = _REQUEST(table_name=name, app_profile_id=profile, row_key=key)
    request.predicate_filter.CopyFrom(predicate)
    mutations = request.true_mutations if if_passed else request.false_mutations
    for cell in cells:
        mutation = mutations.add().set_cell
        mutation.family_name = cell.family
        mutation.column_qualifier = cell.qualifier
        mutation.timestamp_micros = cell.timestamp_ms * 1000
        mutation.value = cell.value
    return CheckAndMutateRowRequest.wrap(request)
