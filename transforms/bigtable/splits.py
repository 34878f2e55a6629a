"""A table cut into key ranges of about the same size, so that several workers can read it."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence

from timebeam.transforms.bigtable.rows import KeyRange
from timebeam.transforms.bigtable.target import Target, open_table

MOST_SPLITS = 64

WHOLE: KeyRange = (b"", b"")


def split_keys(target: Target, table: str, most: int = MOST_SPLITS) -> list[bytes]:
    """Keys that cut a table into at most `most` ranges of about the same number of bytes, ascending.

    What Bigtable's SampleRowKeys gives, neighbours merged: an estimate, other each time, so nothing but
    the sharing of work may depend on it.
    """
    samples = [(key, offset) for key, offset in open_table(target, table).sample_row_keys() if key]
    if not samples or most < 2:
        return []
    return _cuts(samples, max(1, samples[-1][1] // most), most)


def _cuts(samples: Sequence[tuple[bytes, int]], step: int, most: int) -> list[bytes]:
    """Keys at least `step` bytes apart, of sampled ones with the bytes up to each; never the last one."""
    cuts: list[bytes] = []
    reached = step
    for key, size in samples[:-1]:
        if size >= reached and len(cuts) < most - 1:
            cuts.append(key)
            reached = size + step
    return cuts


def sampled(target: Target, table: str) -> list[tuple[bytes, int]]:
    """(key, stored bytes between the key before it and this one) of the keys that SampleRowKeys gives."""
    found = []
    before = 0
    for key, offset in open_table(target, table).sample_row_keys():
        found.append((key, offset - before))
        before = offset
    return found


def range_cuts(
    target: Target, table: str, ranges: Sequence[KeyRange], least_bytes: int, most: int = MOST_SPLITS
) -> list[bytes]:
    """Keys that cut some ranges into at most `most` parts of about the same number of bytes, ascending.

    By SampleRowKeys, as `split_keys`, but of what the ranges hold, however small a part of the table.

    Args:
      ranges: ascending, none over another (`ascend`).
      least_bytes: what every part but the last one has, by the samples.
    """
    starts = [start for start, _ in ranges]
    inside: list[tuple[bytes, int]] = []  # ends of sampled stretches, and the bytes of the ranges up to there
    size = offset = 0
    first = b""
    for key, end in open_table(target, table).sample_row_keys():
        begun = bisect.bisect_left(starts, key) if key else len(starts)
        if begun and (not ranges[begun - 1][1] or first < ranges[begun - 1][1]):
            size += end - offset
            inside.append((key, size))
        first, offset = key, end
    return _cuts(inside, max(1, least_bytes, size // most), most)


def ascend(ranges: Sequence[KeyRange]) -> bool:
    """Whether each range begins where the one before it ends, or behind that."""
    return all(end and end <= start for (_, end), (start, _) in itertools.pairwise(ranges))


def sampled_bytes(target: Target, table: str, ranges: Sequence[KeyRange]) -> tuple[int, int]:
    """(about how many bytes the rows of some ranges have, and those of the whole table), by SampleRowKeys."""
    found = total = 0
    start = b""
    for key, offset in open_table(target, table).sample_row_keys():
        if any((not end or start < end) and (not key or first < key) for first, end in ranges):
            found += offset - total
        start, total = key, offset
    return found, total


def ranges_between(cuts: Sequence[bytes]) -> list[KeyRange]:
    """The ranges between ascending keys, which together are everything."""
    return list(zip([b"", *cuts], [*cuts, b""], strict=True))


def cuts_within(cuts: Sequence[bytes], ranges: Sequence[KeyRange]) -> list[bytes]:
    """Those of some keys that lie inside of a range, and so cut it in two."""
    return [cut for cut in cuts if any(start < cut and (not end or cut < end) for start, end in ranges)]


def common_range(one: KeyRange, other: KeyRange) -> KeyRange | None:
    """The keys that are in both ranges; None if there are none."""
    start = max(one[0], other[0])
    end = min((end for end in (one[1], other[1]) if end), default=b"")
    return None if end and start >= end else (start, end)
