"""A table cut into key ranges of about the same size, so that several workers can read it.

Sizes are estimates (SampleRowKeys), different each time: only the sharing of work may depend on them.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Sequence

from timebeam.transforms.bigtable.rows import KeyRange
from timebeam.transforms.bigtable.target import Target, open_table

MOST_SPLITS = 64

WHOLE_TABLE: KeyRange = (b"", b"")


def sampled(target: Target, table: str) -> list[tuple[bytes, int]]:
    """(key, stored bytes between the key before it and this one) of the keys that SampleRowKeys gives."""
    samples = []
    before = 0
    for key, offset in open_table(target, table).sample_row_keys():
        samples.append((key, offset - before))
        before = offset
    return samples


def split_keys(
    target: Target,
    table: str,
    ranges: Sequence[KeyRange] = (WHOLE_TABLE,),
    least_bytes: int = 1,
    most: int = MOST_SPLITS,
    cut_at: Callable[[bytes], bytes] | None = None,
) -> list[bytes]:
    """Keys that cut ranges of a table into at most `most` splits of about the same size, ascending.

    Args:
      ranges: ascending, without overlap (`ascend`).
      least_bytes: stored bytes of each split but the last one.
      cut_at: the key to cut at instead of a sampled key, so that rows that belong together stay
        together; empty for no cut there.
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
    """Whether each range starts at or behind the end of the range before it."""
    return all(end and end <= start for (_, end), (start, _) in itertools.pairwise(ranges))


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
