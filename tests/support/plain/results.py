"""Results of queries, as a user gets them."""

import math

import numpy as np

from timebeam.schema.query.answer import Result

BASE = 1356998400000  # 2013-01-01
SPAN_MS = BASE - 3_600_000, BASE + 7_200_000
NAN = math.nan


def result(
    values, step_ms=1000, tags=None, over=(), metric="sys.load", nan_is_null=False, annotations=()
) -> Result:
    """A result with a value each `step_ms`, from `BASE` on."""
    values = np.array(values)
    times = BASE + step_ms * np.arange(len(values), dtype=np.int64)
    tags = {"host": "a"} if tags is None else tags
    return Result(metric, tags, list(over), times, values, nan_is_null, annotations)
