"""The points of batches by series, against the same in plain Python."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from timebeam.schema.core.points import PointBatch, Series
from timebeam.transforms.query.read_points import _by_series

SERIES = [Series.of("cpu", {"host": host}) for host in "abc"]
POINT = st.tuples(
    st.integers(0, 2),  # the series
    st.integers(0, 5),  # the time
    st.integers(0, 2),  # the arrival
    st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.sampled_from(["text"])),
)


def batch_of(points: list[tuple[int, int, int, int | float | str]]) -> PointBatch:
    batch = PointBatch.of([(SERIES[number], at, True, value) for number, at, _, value in points], 0)
    return dataclasses.replace(batch, arrivals_ms=np.array([one[2] for one in points], np.int64))


@given(st.lists(st.lists(POINT, min_size=1, max_size=12), max_size=4))
def test_of_each_instant_the_point_that_arrived_last(
    read: list[list[tuple[int, int, int, int | float | str]]],
) -> None:
    """Of one arrival the one that was read last; what is no number counts as such, and hides numbers."""
    newest: dict[int, dict[int, tuple[int, int | float | str]]] = {}
    for number, at, arrival, value in (point for points in read for point in points):
        held = newest.setdefault(number, {}).get(at)
        if held is None or held[0] <= arrival:
            newest[number][at] = arrival, value
    wanted = []
    for number, by_time in newest.items():
        values = {at: value for at, (_, value) in sorted(by_time.items()) if not isinstance(value, str)}
        wanted.append((SERIES[number], list(values.items()), len(by_time) - len(values)))
    found = [
        (series, list(zip(times_ms.tolist(), values.tolist(), strict=True)), odd)
        for series, times_ms, values, odd in _by_series([batch_of(points) for points in read])
    ]
    assert found == wanted
