"""Points that the tests of rollups share: gaps, ms, negative numbers, integers above 2**53."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from tests.schema.rollup.plain_rollup import Point
from timebeam.schema.core.points import PointBatch, Series

BASE_MS = 1_356_998_400_000
SERIES = [Series.of("cpu", {"host": host, "dc": dc}) for host, dc in ("ax", "bx", "cy")]

# Floats are multiples of 2**-10: beside integers of 64 bits a sum keeps nothing below 2**-28.
VALUES = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-300, 300),
    st.sampled_from([2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63)]),
    st.floats(-1e6, 1e6).map(lambda value: round(value * 1024) / 1024),
    st.sampled_from([float(2**53), 2.0**63, -(2.0**63), 0.5, -0.0, 0.0, 3.0]),
)
TIMES = st.one_of(
    st.integers(0, 7200).map(lambda second: BASE_MS + second * 1000),  # gaps: two hours, few points
    st.integers(0, 120_000).map(lambda ms: BASE_MS + ms),
    st.integers(-3, 3).map(lambda ms: BASE_MS + 3_600_000 + ms),
)
POINTS = st.dictionaries(st.tuples(st.sampled_from(SERIES), TIMES), VALUES, min_size=1, max_size=60).map(
    lambda found: [(series, time, value) for (series, time), value in found.items()]
)


def batch_of(points: Sequence[Point]) -> PointBatch:
    """The batch of some points."""
    return PointBatch.of([(series, time, True, value) for series, time, value in points], 1)
