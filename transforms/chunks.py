"""What batch jobs read, cut so that several workers share it and none holds too much."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from schema.layouts.opentsdb.keys import ranges
from schema.layouts.opentsdb.layout import OpenTsdb
from transforms.bigtable.splits import Range, cuts_within, ranges_between, split_keys
from transforms.bigtable.target import Target

CHUNK_HOURS = 6


class Chunk(NamedTuple):
    """Rows of a data table: of one metric (None: of all), of [start_s, end_s), in a range of keys.

    `uid` is that of the metric, empty in layouts without UIDs.
    """

    metric: str | None
    uid: bytes
    start_s: int
    end_s: int
    keys: Range


def hour_chunks(
    target: Target, layout: OpenTsdb, metrics: Mapping[str, bytes], start_s: int, end_s: int
) -> Iterator[Chunk]:
    """Six hours of a metric each, and where those are many rows, cut again at sampled keys.

    Args:
      metrics: by name their UIDs.
    """
    step = CHUNK_HOURS * 3600
    cuts = split_keys(target, layout.data_table)
    for metric, uid in metrics.items():
        for at in range(start_s - start_s % step, end_s, step):
            first, last = max(at, start_s), min(at + step, end_s)
            rows = list(ranges(layout.options, uid, first * 1000, last * 1000 - 1))
            for keys in ranges_between(cuts_within(cuts, rows)):
                yield Chunk(metric, uid, first, last, keys)
