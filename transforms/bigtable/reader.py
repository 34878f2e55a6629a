"""Rows out of Bigtable: the newest version of each cell, of key ranges, with a pattern for keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from google.cloud.bigtable_v2.types import RowFilter

from schema.layouts import Finding, Row, Scan, Selected
from transforms.bigtable.merge import Merged, Merger, QualifierMerger, RowMerger
from transforms.bigtable.read_rows import Wanted, read
from transforms.bigtable.target import Target

_Range = tuple[bytes, bytes]

_RANGES_A_REQUEST = 500
_KEYS_A_REQUEST = 2000
_RANGE_BYTES_A_REQUEST = 200_000  # of their keys; the service takes requests of some hundred KB
_ROWS_AT_ONCE = 1000

_FILTER = RowFilter.pb()


def scan_rows(target: Target, scan: Scan) -> Iterator[Row]:
    """The rows of a scan, ascending by key within each of its ranges, the ranges in their order.

    The service gives the rows of all ranges of a request in the order of keys, so that many ranges
    that are in that order, and do not overlap, are one request; others are one each. A broken read is
    resumed behind the last whole row (`transforms.bigtable.read_rows`).
    """
    return _scan(target, scan, lambda: RowMerger(scan.table))


def scan_qualifiers(target: Target, scan: Scan) -> Iterator[tuple[bytes, list[bytes]]]:
    """(row key, the qualifiers of its cells in order) of the rows of a scan, in the order of `scan_rows`.

    Values are not sent, and no `Cell` is made.

    Args:
      scan: of a table with one family, or of the columns of one.
    """
    return _scan(target, dataclasses.replace(scan, keys_only=True), QualifierMerger)


def _scan(target: Target, scan: Scan, new_merger: Callable[[], Merger[Merged]]) -> Iterator[Merged]:
    row_filter = _filter(scan)
    for ranges in _requests(scan.ranges):
        yield from read(target, Wanted(scan.table, row_filter, ranges=ranges), new_merger())


def _filter(scan: Scan) -> Any:
    """What is wanted of the rows of a scan, as a RowFilter message."""
    chain = []
    if scan.key_pattern is not None:
        chain.append(_FILTER(row_key_regex_filter=scan.key_pattern))
    if scan.columns is not None:
        family, first, end = scan.columns
        columns = _FILTER()
        columns.column_range_filter.family_name = family
        if first:
            columns.column_range_filter.start_qualifier_closed = first
        if end:
            columns.column_range_filter.end_qualifier_open = end
        chain.append(columns)
    chain.append(_FILTER(cells_per_column_limit_filter=scan.versions))
    if scan.keys_only:
        chain.append(_FILTER(strip_value_transformer=True))
    if len(chain) == 1:
        return chain[0]
    row_filter = _FILTER()
    row_filter.chain.filters.extend(chain)
    return row_filter


def _requests(ranges: Sequence[_Range]) -> Iterator[Sequence[_Range]]:
    """The ranges by request: as many as go together."""
    some: list[_Range] = []
    size = 0
    for one in ranges:
        behind = some and some[-1][1] and some[-1][1] <= one[0]
        size += len(one[0]) + len(one[1])
        if some and (not behind or len(some) == _RANGES_A_REQUEST or size > _RANGE_BYTES_A_REQUEST):
            yield some
            some, size = [], len(one[0]) + len(one[1])
        some.append(one)
    if some:
        yield some


class TableReader:
    """The `Reader` that layouts read with."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def scan(self, scan: Scan) -> Iterator[Row]:
        """See `Reader.scan`."""
        return scan_rows(self._target, scan)

    def rows(self, table: str, keys: Sequence[bytes]) -> dict[bytes, Row]:
        """See `Reader.rows`."""
        return read_rows(self._target, table, keys)


def read_ahead(
    found: Iterable[Selected | Finding], most: int = 100_000
) -> Iterator[list[Selected] | Finding]:
    """Rows in lists that are worth decoding together; findings as they come.

    Args:
      most: points of a list, roughly.
    """
    held: list[Selected] = []
    size = 0
    for one in found:
        if isinstance(one, Finding):
            yield one
            continue
        held.append(one)
        cells = one.row.cells
        size += len(cells) + (len(cells[0].qualifier) + len(cells[0].value)) // 8 if cells else 0
        if size >= most or len(held) >= _ROWS_AT_ONCE:
            yield held
            held, size = [], 0
    if held:
        yield held


def scan_table(target: Target, table: str) -> Iterator[Row]:
    """Every row of a table."""
    return scan_rows(target, Scan(table, [(b"", b"")]))


def read_rows(target: Target, table: str, keys: Sequence[bytes]) -> dict[bytes, Row]:
    """The rows of these keys that exist."""
    newest = _FILTER(cells_per_column_limit_filter=1)
    found = {}
    for some in _key_requests(sorted(set(keys))):
        for row in read(target, Wanted(table, newest, keys=some), RowMerger(table)):
            found[row.key] = row
    return found


def _key_requests(keys: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """The keys by request."""
    start = size = 0
    for at, key in enumerate(keys):
        size += len(key)
        if at - start == _KEYS_A_REQUEST or (at > start and size > _RANGE_BYTES_A_REQUEST):
            yield keys[start:at]
            start, size = at, len(key)
    if start < len(keys):
        yield keys[start:]
