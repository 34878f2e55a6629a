"""Intervals computed batch by batch, beside all points downsampled at once."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timebeam.schema.bits.arrays import Kind
from timebeam.schema.core.batches import join, latest_points
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.query.downsample import Downsampling, QueryRange, downsample
from timebeam.schema.query.merge_intervals import NUMBERS, Intervals

SERIES = [Series.of("m", {"host": host}) for host in "abc"]
VALUES = st.one_of(st.integers(-(2**40), 2**40), st.floats(-1e9, 1e9), st.just(math.nan), st.just("text"))
POINTS = st.lists(st.tuples(st.sampled_from(SERIES), st.integers(0, 500), VALUES), max_size=20)


def batch(points, arrival_ms=0):
    return PointBatch.of([(series, time * 1000, False, value) for series, time, value in points], arrival_ms)


def at_once(how, batches):
    """The answer of `downsample` for each series, from the points that count."""
    points = join(batches)
    points = points.take(latest_points(points.index, points.times_ms, points.arrivals_ms))
    results = {}
    for number, series in enumerate(points.series):
        own = points.take(np.flatnonzero((points.index == number) & (points.kinds <= Kind.FLOAT)))
        within = QueryRange.of(how, 0, 1_000_000)
        times_ms, values = downsample(how, own.times_ms, own.floats, within)
        skipped = int(np.count_nonzero((points.index == number) & (points.kinds > Kind.FLOAT)))
        if len(times_ms) or skipped:
            results[series] = times_ms.tolist(), pytest.approx(values.tolist(), nan_ok=True), skipped
    return results


def goes_back(batches):
    """Whether a series has a point that is not later than those of the batches before."""
    lasts = {}
    for added in batches:
        times = {}
        for series, time_ms, _ in added.points():
            times.setdefault(series, []).append(time_ms)
        for series, times_ms in times.items():
            if min(times_ms) <= lasts.get(series, -1):
                return True
            lasts[series] = max(times_ms)
    return False


@given(st.sampled_from([*NUMBERS]), st.sampled_from(["7s", "1m", "3m"]), st.lists(POINTS, max_size=4))
def test_batches_give_what_all_points_at_once_give(function, interval, lists):
    how = Downsampling.parse(f"{interval}-{function}")
    batches = [batch(points, number) for number, points in enumerate(lists) if points]
    intervals = Intervals(how)
    if not all(map(intervals.add, batches)):
        assert goes_back(batches)
        return
    assert not goes_back(batches)
    found = {
        item.series: (item.starts_ms.tolist(), item.values.tolist(), item.skipped)
        for item in intervals.result()
        if len(item.starts_ms) or item.skipped
    }
    assert found == (at_once(how, batches) if batches else {})


@pytest.mark.parametrize("function", NUMBERS)
def test_an_interval_across_batches_is_merged(function):
    how = Downsampling.parse(f"1m-{function}")
    batches = [batch([(SERIES[0], 10, 4), (SERIES[0], 20, 8)]), batch([(SERIES[0], 30, 1.5)])]
    intervals = Intervals(how)
    for added in batches:
        intervals.add(added)
    (item,) = intervals.result()
    assert at_once(how, batches) == {SERIES[0]: (item.starts_ms.tolist(), item.values.tolist(), 0)}


def test_rows_out_of_order_with_nothing_but_text_between_them():
    intervals = Intervals(Downsampling.parse("1m-last"))
    assert intervals.add(batch([(SERIES[0], 5, 2.0), (SERIES[1], 1, "text"), (SERIES[0], 1, 1.0)]))
    assert [result.values.tolist() for result in intervals.result() if len(result.values)] == [[2.0]]


def test_the_same_instant_in_two_batches_needs_the_points_themselves():
    intervals = Intervals(Downsampling.parse("1m-sum"))
    assert intervals.add(batch([(SERIES[0], 10, 4), (SERIES[0], 20, 8)]))
    assert not intervals.add(batch([(SERIES[0], 20, 9)]))


@pytest.mark.parametrize("text", ["0all-sum", "1dc-sum", "1m-median", "1m-dev"])
def test_other_downsamplings_are_not_taken(text):
    assert not Intervals.takes(Downsampling.parse(text))
