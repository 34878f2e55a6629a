"""How large the metrics of a table are, by the samples that the service gives of its keys."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence

from schema.layouts.opentsdb.keys import SPAN_S
from schema.layouts.opentsdb.options import OpenTsdbOptions

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
    before = bytes(base_at)
    for key, size in samples:
        one = key[:base_at] if key else b"\xff" * base_at
        first, end = 0, len(uids)
        if before[:salted] == one[:salted]:
            first, end = bisect.bisect_left(uids, before[salted:]), bisect.bisect_right(uids, one[salted:])
        if first < end:
            changes[first] += size / (end - first)
            changes[end] -= size / (end - first)
        before = one
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
