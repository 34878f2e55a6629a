"""Reads rows of key ranges, or of single keys: cut into requests, each resumed where it breaks off.

`split_keys` cuts a table so that several workers can read it. Sizes are estimates (SampleRowKeys), different
each time: only the sharing of work may depend on them.
"""

from __future__ import annotations

import bisect
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from timebeam.schema.core.rows import WHOLE_TABLE, KeyRange
from timebeam.transforms.bigtable.chunk_columns import ColumnMerger
from timebeam.transforms.bigtable.chunk_rows import Merged, Merger
from timebeam.transforms.bigtable.protobuf_classes import DATA_API
from timebeam.transforms.bigtable.read_stream import ReadRequest, read
from timebeam.transforms.bigtable.retry import ATTEMPT_SECONDS, retried
from timebeam.transforms.bigtable.target import Target, call_headers, method

MOST_SPLITS = 64


def sampled(target: Target, table: str) -> list[tuple[bytes, int]]:
    """(key, stored bytes between the key before it and this one) of the keys that SampleRowKeys gives."""
    request = DATA_API["SampleRowKeysRequest"](
        table_name=target.table_name(table), app_profile_id=target.app_profile or ""
    )
    call = method(target, "SampleRowKeys")
    headers = call_headers(target, table)
    answers = retried(lambda: list(call(request, timeout=ATTEMPT_SECONDS, metadata=headers)))
    offsets = [0, *(answer.offset_bytes for answer in answers)]
    return [
        (answer.row_key, offset - before)
        for answer, (before, offset) in zip(answers, itertools.pairwise(offsets), strict=True)
    ]


def split_keys(
    target: Target,
    table: str,
    ranges: Sequence[KeyRange] = (WHOLE_TABLE,),
    least_bytes: int = 1,
    most: int = MOST_SPLITS,
    cut_at: Callable[[bytes], bytes] | None = None,
    most_bytes: int | None = None,
) -> list[bytes]:
    """Keys that cut ranges of a table into at most `most` splits of about the same size, ascending.

    Args:
      ranges: ascending, without overlap (`ascend`).
      least_bytes: stored bytes of each split but the last one.
      cut_at: the key to cut at instead of a sampled key, so that rows that belong together stay
        together; empty for no cut there.
      most_bytes: there may be more splits than `most`, so that none has about more bytes; None for any size.
    """
    starts = [start for start, _ in ranges]
    ends: list[tuple[bytes, int]] = []  # sampled keys, and the bytes of the ranges up to each
    total = 0
    sample_start = b""
    for key, size in sampled(target, table):
        begun = bisect.bisect_left(starts, key) if key else len(starts)
        if begun and (not ranges[begun - 1][1] or sample_start < ranges[begun - 1][1]):
            total += size
            ends.append((key, total))
        sample_start = key
    most = most if most_bytes is None else max(most, total // most_bytes)
    step = max(1, least_bytes, total // most)
    cuts: list[bytes] = []
    next_cut = step
    for key, size in ends[:-1]:
        if size >= next_cut and len(cuts) < most - 1:
            cuts.append(key)
            next_cut = size + step
    return cuts if cut_at is None else sorted(set(map(cut_at, cuts)) - {b""})


def sampled_bytes(target: Target, table: str, ranges: Sequence[KeyRange]) -> tuple[int, int]:
    """(about the stored bytes of the rows in some ranges, about those of the whole table)."""
    inside = total = 0
    start = b""
    for key, size in sampled(target, table):
        if any(common_range((start, key), key_range) is not None for key_range in ranges):
            inside += size
        total += size
        start = key
    return inside, total


def ascend(ranges: Sequence[KeyRange]) -> bool:
    """Whether each range starts at or after the end of the range before it."""
    starts, ends = [start for start, _ in ranges[1:]], [end for _, end in ranges[:-1]]
    return all(ends) and all(map(operator.le, ends, starts))


def ranges_between(cuts: Sequence[bytes]) -> list[KeyRange]:
    """The ranges between ascending keys, which together are the whole table."""
    return list(zip([b"", *cuts], [*cuts, b""], strict=True))


def cuts_within(cuts: Sequence[bytes], ranges: Sequence[KeyRange]) -> list[bytes]:
    """The keys that lie inside of a range, and so cut it in two."""
    return [cut for cut in cuts if any(start < cut and (not end or cut < end) for start, end in ranges)]


def common_range(first: KeyRange, second: KeyRange) -> KeyRange | None:
    """The keys that are in both ranges; None if there are none."""
    start = max(first[0], second[0])
    end = min((end for end in (first[1], second[1]) if end), default=b"")
    return None if end and start >= end else (start, end)


_RANGES_A_REQUEST = 500
_KEYS_A_REQUEST = 2000
_RANGE_BYTES_A_REQUEST = 200_000
"""Most bytes of the keys of a request: the service refuses requests of more than 512 KiB in encoded form.

https://github.com/googleapis/google-cloud-python/issues/6836. Of these, its filter may take 20 KiB.
"""

_FILTER = DATA_API["RowFilter"]


def row_filter(
    *,
    key_pattern: bytes | None = None,
    columns: tuple[str, bytes, bytes] | None = None,
    versions: int = 1,
    keys_only: bool = False,
) -> Any:
    """A RowFilter message.

    Args:
      key_pattern: RE2 that the raw bytes of each row key must match; `.` does not match 0x0A.
      columns: (family, first qualifier, end): the columns of one family in [first, end), an empty end for the
        end of the family; None for all columns.
      versions: the largest number of versions of each cell, newest first.
      keys_only: read every cell with an empty value, which saves the transfer.
    """
    chain = []
    if key_pattern is not None:
        chain.append(_FILTER(row_key_regex_filter=key_pattern))
    if columns is not None:
        family, first, end = columns
        column_range = _FILTER()
        column_range.column_range_filter.family_name = family
        if first:
            column_range.column_range_filter.start_qualifier_closed = first
        if end:
            column_range.column_range_filter.end_qualifier_open = end
        chain.append(column_range)
    chain.append(_FILTER(cells_per_column_limit_filter=versions))
    if keys_only:
        chain.append(_FILTER(strip_value_transformer=True))
    if len(chain) == 1:
        return chain[0]
    combined = _FILTER()
    combined.chain.filters.extend(chain)
    return combined


def read_ranges(
    target: Target,
    table: str,
    ranges: Sequence[KeyRange],
    row_filter: Any,
    new_merger: Callable[[], Merger[Merged]],
) -> Iterator[Merged]:
    """The rows of some ranges in their order, ascending by key within each.

    The service sends the rows of all ranges of a request in the order of keys. So ranges that ascend without
    overlap share a request; others have one each. A read that breaks off is resumed behind its last complete
    row (`timebeam.transforms.bigtable.read_stream`).

    Args:
      row_filter: see `row_filter`.
      new_merger: makes the merger of each request.

    Raises:
      GoogleAPICallError: an error that does not pass.
    """
    for request_ranges in _requests(ranges):
        yield from read(target, ReadRequest(table, row_filter, ranges=request_ranges), new_merger())


def read_keys(
    target: Target,
    table: str,
    keys: Sequence[bytes],
    new_merger: Callable[[], Merger[Merged]],
    cell_filter: Any = None,
) -> Iterator[Merged]:
    """The existing rows with these keys, ascending by key.

    Args:
      cell_filter: a RowFilter message; None for the newest version of each cell.

    Raises:
      GoogleAPICallError: an error that does not pass.
    """
    cell_filter = row_filter() if cell_filter is None else cell_filter
    for request_keys in _key_requests(sorted(set(keys))):
        yield from read(target, ReadRequest(table, cell_filter, keys=request_keys), new_merger())


def scan_keys(
    target: Target, table: str, start: bytes = b"", end: bytes = b"", limit: int = 0
) -> Iterator[bytes]:
    """The row keys in [start, end), ascending; the service sends one cell of each row, without its value.

    Args:
      end: empty for the end of the table.
      limit: the largest number of keys; 0 for no limit.

    Raises:
      GoogleAPICallError: an error that does not pass.
    """
    one_cell = _FILTER()
    one_cell.chain.filters.add(cells_per_row_limit_filter=1)
    one_cell.chain.filters.add(strip_value_transformer=True)
    request = ReadRequest(table, one_cell, ranges=[(start, end)], limit=limit)
    for rows in read(target, request, ColumnMerger(most=1)):
        yield from rows.keys


def _requests(ranges: Sequence[KeyRange]) -> Iterator[Sequence[KeyRange]]:
    if len(ranges) <= _RANGES_A_REQUEST and ascend(ranges):
        size = sum(map(len, itertools.chain.from_iterable(ranges)))
        if size <= _RANGE_BYTES_A_REQUEST:
            yield ranges
            return
    request: list[KeyRange] = []
    size = 0
    for start, end in ranges:
        ascends = request and request[-1][1] and request[-1][1] <= start
        size += len(start) + len(end)
        if request and (not ascends or len(request) == _RANGES_A_REQUEST or size > _RANGE_BYTES_A_REQUEST):
            yield request
            request, size = [], len(start) + len(end)
        request.append((start, end))
    if request:
        yield request


def _key_requests(keys: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    start = size = 0
    for number, key in enumerate(keys):
        size += len(key)
        if number - start == _KEYS_A_REQUEST or (number > start and size > _RANGE_BYTES_A_REQUEST):
            yield keys[start:number]
            start, size = number, len(key)
    if start < len(keys):
        yield keys[start:]
