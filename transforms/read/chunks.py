"""Cuts the input of batch jobs into chunks of a bounded size, which workers share."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import apache_beam as beam
from apache_beam.pvalue import PBegin, PCollection

from timebeam.schema.bits.times import DAY_S, floor_to
from timebeam.schema.core.rows import WHOLE_TABLE, KeyRange
from timebeam.schema.stores.opentsdb.keys import SPAN_S, base_s_of, ranges
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions
from timebeam.transforms.bigtable.read_ranges import cuts_within, ranges_between, split_keys
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.flow import metrics

if TYPE_CHECKING:
    from timebeam.schema.stores import OpenTsdb


T = TypeVar("T")


def spread_chunks(
    root: beam.Pipeline | PBegin, name: str, plan: Callable[[], Iterable[T]], kind: Any, suffix: str = ""
) -> PCollection[T]:
    """The chunks of a job, spread over the workers; one worker plans them.

    Each is counted as planned work; who handles a chunk counts it as done.

    Args:
      name, suffix: of the steps.
      plan: gives the chunks; it is pickled.
      kind: their type.
    """
    planned: PCollection[T] = (
        root
        | f"Once{suffix}" >> beam.Create([None], reshuffle=False)
        | f"{name}{suffix}" >> beam.FlatMap(lambda _: metrics.planned(plan())).with_output_types(kind)
        | f"Spread{name}{suffix}" >> beam.Reshuffle()
    )
    return planned


def table_ranges(
    target: Target, table: str, cut_at: Callable[[bytes], bytes] | None = None
) -> Iterator[KeyRange]:
    """Key ranges of about the same size, which together are a table: at most 64, or of `CHUNK_BYTES` each.

    Args:
      cut_at: see `split_keys`.
    """
    return iter(ranges_between(split_keys(target, table, cut_at=cut_at, most_bytes=CHUNK_BYTES)))


def metric_sizes(
    options: OpenTsdbOptions, samples: Sequence[tuple[bytes, int]], uids: Sequence[bytes]
) -> list[float]:
    """About the stored bytes of each metric, of all times.

    The bytes between two samples are divided evenly among the metrics between them: samples can be far apart,
    so a metric without a sample need not be small.

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
    """About the share of a table that a day has, or a shorter range of time.

    Args:
      hours: of sampled keys; a tenth at each end is ignored, since many tables have points of 1970.
    """
    ignored = len(hours) // 10
    typical = sorted(hours)[ignored : len(hours) - ignored]
    if len(typical) < 2:
        return 1.0
    return min(1.0, min(range_s, DAY_S) / (typical[-1] - typical[0] + SPAN_S))


CHUNK_BYTES = 64 << 20
"""About the stored bytes of one chunk, by the service's samples."""

_MOST_METRICS = 50
"""In one chunk, which costs a dozen requests however few points it has."""

_SMALL = 8
"""The small metrics of a chunk have at most one eighth of `CHUNK_BYTES`: while one chunk is read, the output
of the previous one is written, so larger metrics are better read one by one."""

_Sample = tuple[int, bytes, int]
"""(hour of a sampled key, the key, stored bytes since the sample before it)."""


class Chunk(NamedTuple):
    """Rows of a data table: of some metrics, in [start_s, end_s), in a range of keys.

    Attributes:
      metrics: their names; empty for all metrics.
      uids: of the metrics, ascending; empty in layouts without UIDs.
    """

    metrics: tuple[str, ...]
    uids: tuple[bytes, ...]
    start_s: int
    end_s: int
    keys: KeyRange


def hour_chunks(
    sampled_keys: Sequence[tuple[bytes, int]],
    layout: OpenTsdb,
    metrics: Mapping[str, bytes],
    start_s: int,
    end_s: int,
    kind_of: Callable[[str], Hashable] = lambda _: None,
) -> Iterator[Chunk]:
    """Chunks of a day of one metric or of several small ones, or of fewer hours of a large one.

    Every row of one series and hour is in one chunk. A chunk has whole hours and all keys, or, if one hour of
    a metric is large, a range of keys within that hour. The chunks of the same metrics are consecutive; a
    metric is in no others.

    Args:
      sampled_keys: of the data table (`sampled`).
      metrics: UIDs by name.
      kind_of: only metrics of the same kind share a chunk.
    """
    options = layout.options
    base_at = options.salt_width + options.uid_width_metric
    samples: dict[bytes, list[_Sample]] = {}
    for key, size in sampled_keys:
        if len(key) > base_at:
            hour = floor_to(base_s_of(options, key), SPAN_S)
            samples.setdefault(key[options.salt_width : base_at], []).append((hour, key, size))
    in_order = sorted(metrics.items(), key=lambda item: item[1])
    sizes = metric_sizes(options, sampled_keys, [uid for _, uid in in_order])
    share = share_of_day(
        [hour for metric_samples in samples.values() for hour, _, _ in metric_samples], end_s - start_s
    )
    groups: dict[Hashable, _SmallMetrics] = {}
    for (metric, uid), stored in zip(in_order, sizes, strict=True):
        kind, day_bytes = kind_of(metric), stored * share
        if day_bytes <= (most := CHUNK_BYTES / _SMALL):
            group = groups.setdefault(kind, _SmallMetrics())
            if group.size + day_bytes > most or len(group.metrics) == _MOST_METRICS:
                yield from _day_chunks(group, start_s, end_s)
                group = groups[kind] = _SmallMetrics()
            group.metrics.append((metric, uid))
            group.size += day_bytes
            continue
        in_time = [sample for sample in samples.get(uid, ()) if start_s - SPAN_S < sample[0] < end_s]
        for window_start_s, window_end_s, cuts in _windows(in_time, start_s, end_s):
            hour_ranges = list(ranges(options, uid, window_start_s * 1000, window_start_s * 1000))
            # Rows of an archive are longer than an hour: no range of keys has the rest of one.
            in_hour = [] if options.archive else cuts_within(cuts, hour_ranges)
            for keys in ranges_between(in_hour) if in_hour else [WHOLE_TABLE]:
                yield Chunk((metric,), (uid,), window_start_s, window_end_s, keys)
    for group in groups.values():
        yield from _day_chunks(group, start_s, end_s)


@dataclasses.dataclass(slots=True)
class _SmallMetrics:
    """(name, UID) of metrics that share a chunk, and about their stored bytes of a day."""

    metrics: list[tuple[str, bytes]] = dataclasses.field(default_factory=list)
    size: float = 0.0


def _day_chunks(group: _SmallMetrics, start_s: int, end_s: int) -> Iterator[Chunk]:
    names, uids = zip(*group.metrics, strict=True)
    for day_start_s, day_end_s, _ in _days(start_s, end_s):
        yield Chunk(names, uids, day_start_s, day_end_s, WHOLE_TABLE)


def _windows(samples: Sequence[_Sample], start_s: int, end_s: int) -> Iterator[tuple[int, int, list[bytes]]]:
    """(start, end, keys that cut it) of windows of time, which together are [start_s, end_s).

    Only a window within one hour is cut by keys.

    Args:
      samples: of hours that overlap this range.
    """
    window_start_s, size = start_s, 0
    by_hour: dict[int, list[tuple[bytes, int]]] = {}
    for hour, key, stored in samples:
        by_hour.setdefault(hour, []).append((key, stored))
    for hour, keys in sorted(by_hour.items()):
        hour_start_s, hour_end_s = max(hour, start_s), min(hour + SPAN_S, end_s)
        hour_bytes = sum(stored for _, stored in keys)
        if hour_bytes > CHUNK_BYTES:
            yield from _days(window_start_s, hour_start_s)
            yield hour_start_s, hour_end_s, _cuts(keys)
            window_start_s, size = hour_end_s, 0
            continue
        size += hour_bytes
        if size >= CHUNK_BYTES:
            yield from _days(window_start_s, hour_end_s)
            window_start_s, size = hour_end_s, 0
    yield from _days(window_start_s, end_s)


def _days(start_s: int, end_s: int) -> Iterator[tuple[int, int, list[bytes]]]:
    """The UTC days of a range of time, each as a window."""
    while start_s < end_s:
        day_end_s = min(floor_to(start_s, DAY_S) + DAY_S, end_s)
        yield start_s, day_end_s, []
        start_s = day_end_s


def _cuts(keys: Sequence[tuple[bytes, int]]) -> list[bytes]:
    """The sampled keys that cut an hour into ranges of about `CHUNK_BYTES`."""
    cuts, size = [], 0
    for key, stored in sorted(keys):
        size += stored
        if size >= CHUNK_BYTES:
            cuts.append(key)
            size = 0
    return cuts
