"""Accumulators of several lengths at once, against those of each length from the points."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schema.rollup.rollup_points import BASE_MS, POINTS, SERIES, batch_of
from tests.support.plain.bucket_columns import columns
from timebeam.schema.rollup import accumulate as module
from timebeam.schema.rollup.accumulate import Accumulated, Accumulator, accumulate
from timebeam.schema.rollup.buckets import Buckets, Grouping, merge

LENGTHS = st.lists(st.sampled_from([1, 7, 10, 30, 45, 60, 3600]), min_size=1, max_size=4)


def taken(points: Sequence[tuple], lengths: list[int], parts: int, *, ends: bool) -> list[Accumulated]:
    held = Accumulator(lengths, ends=ends)
    found = []
    for part in range(parts):
        some = points[part::parts]
        if some:
            held.add(batch_of(some))
        if held.is_full:
            found.append(held.take())
    last = held.take()
    assert held.take() is None
    return [one for one in (*found, last) if one is not None]


def merged(found: Sequence[Accumulated], length: int) -> Buckets:
    return merge([one.by_length()[length] for one in found])


@given(POINTS.filter(bool), LENGTHS, st.integers(1, 5), st.booleans(), st.sampled_from([1, 5, 100_000]))
def test_each_length_is_as_from_the_points(points, lengths, parts, ends, most):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_BUCKETS", most)
        found = taken(points, lengths, parts, ends=ends)
    for length in lengths:
        whole = accumulate(batch_of(points), length, ends=ends)
        assert columns(merged(found, length)) == columns(whole)
    grouping = Grouping.of([SERIES[0] if number % 2 else None for number in range(len(found[0].series))])
    for length, grouped in found[0].of_groups(grouping).by_length().items():
        assert columns(grouped) == columns(found[0].by_length()[length].of_groups(grouping))


def test_what_is_held_is_bounded_and_long_intervals_are_merged_before_they_go_out(monkeypatch):
    monkeypatch.setattr(module, "MOST_BUCKETS", 100)
    held, second_ms = Accumulator([60, 3600], ends=False), range(0, 60_000, 1000)
    sizes = []
    for minute in range(500):
        held.add(batch_of([(SERIES[0], BASE_MS + minute * 60_000 + at_ms, 1) for at_ms in second_ms]))
        if held.is_full:
            found = held.take()
            assert found is not None
            sizes.append(len(found.by_length()[60]))
    assert sizes == [100] * 5
    hours = Accumulator([3600], ends=False)
    for minute in range(500):
        hours.add(batch_of([(SERIES[0], BASE_MS + minute * 60_000, 1)]))
        assert not hours.is_full
