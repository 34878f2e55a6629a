"""Points that the tests of rollups share: gaps, ms, negative numbers, integers above 2**53."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from tests.schema.rollup.plain_rollup import Point
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.rows import Cell
from timebeam.schema.stores.opentsdb.columns import point_elements as el
from timebeam.schema.stores.opentsdb.rollup_tables import FAMILY, EncodedRollups

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


@dataclasses.dataclass(frozen=True, slots=True)
class RollupRow:
    """The cells of one row; `series` is the number of its series in `Buckets.series`."""

    series: int
    base_s: int
    cells: Sequence[Cell]


def rows_of(encoded: EncodedRollups) -> Sequence[RollupRow]:
    """The rows, with an object for each cell."""
    values, starts = el.value_bytes(el.Elements(encoded.codes & np.uint32(0xF), encoded.raws))
    cell_values = [values[start:end] for start, end in itertools.pairwise(starts.tolist())]
    qualifiers = [bytes(name) for name in encoded.qualifiers]
    cells = [
        Cell(FAMILY, *cell) for cell in zip(qualifiers, encoded.times_ms.tolist(), cell_values, strict=True)
    ]
    bounds = itertools.pairwise(encoded.firsts.tolist())
    rows = zip(encoded.series.tolist(), encoded.bases_s.tolist(), bounds, strict=True)
    return [RollupRow(series, base, cells[start:end]) for series, base, (start, end) in rows]
