"""The hours that written rows have points in, in each layout, against plain arithmetic."""

from __future__ import annotations

import collections

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timebeam.schema.core.contract import pack_row
from timebeam.schema.core.point_fragments import Name
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.stores import make_store

SERIES = [Series.of(metric, {"host": host}) for metric in ("sys.a", "sys.ä") for host in ("x", "y")]
TIMES = st.one_of(
    st.integers(0, 3 * 3_600_000),
    st.integers(1_356_998_400_000 - 5000, 1_356_998_400_000 + 100 * 86_400_000),
    st.sampled_from([1_814_400_000 - 1, 1_814_400_000, (1 << 32) - 1, 1 << 32]),
)


@pytest.mark.parametrize("name", ["opentsdb", "heroic", "heroic-readable", "kairosdb"])
@given(st.dictionaries(st.tuples(st.sampled_from(SERIES), TIMES), st.integers(-9, 9), min_size=1))
def test_hours_are_those_of_the_points(name, points):
    layout = make_store(name, {})
    uids = collections.defaultdict(lambda: len(uids).to_bytes(3, "big"))
    batch = PointBatch.of(
        [(series, time_ms, True, float(one)) for (series, time_ms), one in points.items()], 1
    )
    keys = []
    for series in batch.series:
        names: list[Name] = list(layout.uids.names(series) if layout.uids else ())
        keys.append(layout.series_key(series, {one: uids[one] for one in names}))
    fragments = collections.defaultdict(list)
    for fragment in layout.encode(batch, keys).fragments:
        fragments[fragment.table, fragment.key].append(fragment.packed)
    rows = [pack_row(layout, *row, packed, layout.writing.packings[0]) for row, packed in fragments.items()]
    expected = set()
    for series, time_ms in points:
        metric = uids[Name("metrics", series.metric)] if layout.uids else series.metric.encode()
        expected.add((metric, time_ms // 3_600_000 * 3600))
    qualifiers = b"".join(cell.qualifier for row in rows for cell in row.cells)
    assert layout.hours([row.key for row in rows], [len(row.cells) for row in rows], qualifiers) == expected
    assert layout.hours([], [], b"") == set()
