"""The columns of buckets, to compare them bit for bit."""

from __future__ import annotations

import numpy as np

from timebeam.schema.core.points import Series
from timebeam.schema.rollup.buckets import Buckets


def columns(buckets: Buckets) -> dict[tuple[Series, int], tuple[object, ...]]:
    """Every column of every bucket, bit for bit."""
    rows = zip(
        buckets.counts.tolist(),
        buckets.float_counts.tolist(),
        buckets.sums.tops.tolist(),
        buckets.sums.digits.T.tolist(),
        buckets.int_mins.tolist(),
        buckets.int_maxs.tolist(),
        buckets.float_mins.view(np.int64).tolist(),
        buckets.float_maxs.view(np.int64).tolist(),
        *(column.tolist() for edges in buckets.ends or () for column in edges),
        strict=True,
    )
    keys = zip(buckets.index.tolist(), buckets.starts_ms.tolist(), strict=True)
    return {(buckets.series[s], start): row for (s, start), row in zip(keys, rows, strict=True)}
