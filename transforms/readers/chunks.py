"""Cuts the input of batch jobs into chunks that workers share, each of a bounded size."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from timebeam.schema.layouts import UidTables
from timebeam.schema.layouts.opentsdb.keys import SPAN_S, base_s_of, ranges
from timebeam.schema.layouts.opentsdb.options import OpenTsdbOptions
from timebeam.transforms.bigtable.rows import KeyRange
from timebeam.transforms.bigtable.splits import WHOLE_TABLE, cuts_within, ranges_between, sampled
from timebeam.transforms.bigtable.target import Target

DAY_S = 86_400


def metric_sizes(
    options: OpenTsdbOptions, samples: Sequence[tuple[bytes, int]], uids: Sequence[bytes]
) -> list[float]:
    """About how many bytes each metric has, of all times.

    What lies between two samples is shared out evenly to the metrics that may be there: samples can be
    far apart, so that a metric without one is not a small one.

    Args:
      samples: (key, stored bytes since the sample before), in the order of the keys; an empty key is the end.
      uids: of the metrics, ascending.
    """
    salted, base_at = options.salt_width, options.salt_width + options.uid_width_metric
    changes = [0.0] * (len(uids) + 1)
    previous = bytes(base_at)
    for key, size in samples:
        prefix = key[:base_at] if key else b"\xff" * base_at
        first, end = 0, len(uids)
        if previous[:salted] == prefix[:salted]:
            first, end = (
                bisect.bisect_left(uids, previous[salted:]),
                bisect.bisect_right(uids, prefix[salted:]),
            )
        if first < end:
            changes[first] += size / (end - first)
            changes[end] -= size / (end - first)
        previous = prefix
    return list(itertools.accumulate(changes[:-1]))


def share_of_day(hours: Sequence[int], range_s: int) -> float:
    """About how much of a table is a day of it, or a range of time that is shorter.

    Args:
      hours: those of sampled keys; a tenth at each end is left out, since points of 1970 are found in many a
        table.
    """
    left_out = len(hours) // 10
    inside = sorted(hours)[left_out : len(hours) - left_out]
    if len(inside) < 2:
        return 1.0
    return min(1.0, min(range_s, DAY_S) / (inside[-1] - inside[0] + SPAN_S))


CHUNK_BYTES = 64 << 20
"""Of stored rows, by the service's samples, that one chunk has, roughly."""

_MOST_METRICS = 50
"""In one chunk: what a chunk costs, however few points it has, is a dozen requests."""

_SMALL = 8
"""Small metrics, also all of a chunk together, have at most this part of `CHUNK_BYTES`: while one chunk is
read, the output of the previous one is written, so larger metrics are better read one by one."""

_Sample = tuple[int, bytes, int]
"""(hour of a sampled key, the key, stored bytes since the sample before it)."""


class Chunk(NamedTuple):
    """Rows of a data table: of some metrics, of [start_s, end_s), in a range of keys.

    Attributes:
      metrics: by name; none for all.
      uids: those of the metrics, ascending; none in layouts without UIDs.
    """

    metrics: tuple[str, ...]
    uids: tuple[bytes, ...]
    start_s: int
    end_s: int
    keys: KeyRange


def hour_chunks(
    target: Target,
    layout: UidTables,
    metrics: Mapping[str, bytes],
    start_s: int,
    end_s: int,
    alike: Callable[[str], Hashable] = lambda _: None,
) -> Iterator[Chunk]:
    """A day each, of a metric or of several small ones; or so many hours of one as are worth a chunk.

    Every row of one series and hour is in one chunk. A chunk has whole hours, and all keys; or, where one
    hour of a metric is many rows, it is a range of the keys within that hour. All chunks of the same metrics
    come one behind the other; a metric is in no others.

    Args:
      metrics: by name their UIDs.
      alike: only metrics for which it gives the same go into one chunk.
    """
    options = layout.options
    base_at = options.salt_width + options.uid_width_metric
    samples: dict[bytes, list[_Sample]] = {}
    for key, size in (sampled_keys := sampled(target, layout.data_table)):
        if len(key) > base_at:
            hour = base_s_of(options, key) // SPAN_S * SPAN_S
            samples.setdefault(key[options.salt_width : base_at], []).append((hour, key, size))
    in_order = sorted(metrics.items(), key=lambda item: item[1])
    sizes = metric_sizes(options, sampled_keys, [uid for _, uid in in_order])
    share = share_of_day(
        [hour for metric_samples in samples.values() for hour, _, _ in metric_samples], end_s - start_s
    )
    small: dict[Hashable, _Small] = {}
    for (metric, uid), stored in zip(in_order, sizes, strict=True):
        kind, of_day = alike(metric), stored * share
        if of_day <= (most := CHUNK_BYTES / _SMALL):
            together = small.setdefault(kind, _Small())
            if together.size + of_day > most or len(together.metrics) == _MOST_METRICS:
                yield from _of_days(together, start_s, end_s)
                together = small[kind] = _Small()
            together.metrics.append((metric, uid))
            together.size += of_day
            continue
        inside = [item for item in samples.get(uid, ()) if start_s < item[0] + SPAN_S and item[0] < end_s]
        for first, last, cuts in _windows(inside, start_s, end_s):
            in_hour = cuts_within(cuts, list(ranges(options, uid, first * 1000, first * 1000)))
            for keys in ranges_between(in_hour) if in_hour else [WHOLE_TABLE]:
                yield Chunk((metric,), (uid,), first, last, keys)
    for together in small.values():
        yield from _of_days(together, start_s, end_s)


@dataclasses.dataclass(slots=True)
class _Small:
    """Metrics that are read together, by name and UID, and about how many bytes of them."""

    metrics: list[tuple[str, bytes]] = dataclasses.field(default_factory=list)
    size: float = 0.0


def _of_days(metrics: _Small, start_s: int, end_s: int) -> Iterator[Chunk]:
    names, uids = zip(*metrics.metrics, strict=True)
    for first, last, _ in _days(start_s, end_s):
        yield Chunk(names, uids, first, last, WHOLE_TABLE)


def _windows(samples: Sequence[_Sample], start_s: int, end_s: int) -> Iterator[tuple[int, int, list[bytes]]]:
    """(start, end, keys that cut it) of the times that chunks have, which are [start_s, end_s) together.

    Only a window of one hour, or a part of it, is cut by keys.

    Args:
      samples: of hours that meet this range.
    """
    window_start_s, size = start_s, 0
    by_hour: dict[int, list[tuple[bytes, int]]] = {}
    for hour, key, stored in samples:
        by_hour.setdefault(hour, []).append((key, stored))
    for hour, keys in sorted(by_hour.items()):
        first, last = max(hour, start_s), min(hour + SPAN_S, end_s)
        hour_bytes = sum(stored for _, stored in keys)
        if hour_bytes > CHUNK_BYTES:
            yield from _days(window_start_s, first)
            yield first, last, _cuts(keys)
            window_start_s, size = last, 0
            continue
        size += hour_bytes
        if size >= CHUNK_BYTES:
            yield from _days(window_start_s, last)
            window_start_s, size = last, 0
    yield from _days(window_start_s, end_s)


def _days(start_s: int, end_s: int) -> Iterator[tuple[int, int, list[bytes]]]:
    """A range of time in days."""
    while start_s < end_s:
        last = min(start_s - start_s % DAY_S + DAY_S, end_s)
        yield start_s, last, []
        start_s = last


def _cuts(keys: Sequence[tuple[bytes, int]]) -> list[bytes]:
    """Those of some sampled keys between which there is a chunk each."""
    cuts, size = [], 0
    for key, stored in sorted(keys):
        size += stored
        if size >= CHUNK_BYTES:
            cuts.append(key)
            size = 0
    return cuts
