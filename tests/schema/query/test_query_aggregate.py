"""Aggregation with interpolation against docs/spec/opentsdb.md §8.4, by hand and by a loop over points."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timebeam.schema.query.aggregate import AGGREGATORS, aggregate

MAX = 2**63 - 1
NAN = math.nan


def run(name, *members):
    """Aggregates members given as {time in ms: value}; ints stay ints."""
    columns = []
    for member in members:
        integers = all(isinstance(value, int) for value in member.values())
        values = np.array(list(member.values()), np.int64 if integers else np.float64)
        columns.append((np.array(list(member), np.int64), values))
    times, values = aggregate(AGGREGATORS[name], columns)
    assert times.dtype == np.int64
    return dict(zip(times.tolist(), values.tolist(), strict=True))


# a:  0 ........ 10 ........ 20        b:  5 ........ 15
A = {0: 10, 10: 20, 20: 40}
B = {5: 7, 15: 8}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # at 5 a is 15, at 10 b is 7 + 5 * 1 / 10 = 7, at 15 a is 30; b is not under way at 0 and 20
        ("sum", {0: 10, 5: 22, 10: 27, 15: 38, 20: 40}),
        ("min", {0: 10, 5: 7, 10: 7, 15: 8, 20: 40}),
        ("max", {0: 10, 5: 15, 10: 20, 15: 30, 20: 40}),
        ("avg", {0: 10, 5: 11, 10: 13, 15: 19, 20: 40}),
        ("count", {0: 1, 5: 2, 10: 2, 15: 2, 20: 1}),
        ("zimsum", {0: 10, 5: 7, 10: 20, 15: 8, 20: 40}),
        ("mimmin", {0: 10, 5: 7, 10: 20, 15: 8, 20: 40}),
        ("mimmax", {0: 10, 5: 7, 10: 20, 15: 8, 20: 40}),
        ("pfsum", {0: 10, 5: 17, 10: 27, 15: 28, 20: 40}),
    ],
)
def test_two_interleaved_series_of_integers(name, expected):
    actual = run(name, A, B)
    assert actual == expected
    assert all(isinstance(value, int) for value in actual.values())


def test_one_series_of_floats_makes_all_values_floats():
    floats = {time: float(value) for time, value in B.items()}
    assert run("sum", A, floats) == {0: 10.0, 5: 22.0, 10: 27.5, 15: 38.0, 20: 40.0}
    assert run("avg", A, floats) == {0: 10.0, 5: 11.0, 10: 13.75, 15: 19.0, 20: 40.0}
    assert all(isinstance(value, float) for value in run("count", A, floats).values())


def test_integer_division_truncates_toward_zero():
    assert run("sum", {0: 0, 3: -10}, {1: 0, 2: 0}) == {0: 0, 1: -3, 2: -6, 3: -10}
    assert run("avg", {0: -3}, {0: 0}) == {0: -1}
    assert run("avg", {0: -3}, {0: -2}, {0: 0}) == {0: -1}


def test_integers_above_2_to_53_keep_their_last_digit():
    big = 2**62 + 1
    assert run("sum", {0: big}, {0: 2}) == {0: big + 2}
    assert run("max", {0: big, 2: big + 4}, {1: 0}) == {0: big, 1: big + 2, 2: big + 4}
    assert run("avg", {0: big}, {0: 1}) == {0: 2**61 + 1}


def test_integers_overflow_as_in_java():
    assert run("sum", {0: MAX}, {0: 1}) == {0: -(2**63)}
    # the rise, 2**63, wraps to -2**63, and so does 5 times that; a tenth of it is added to -2**62
    steep = {0: -(2**62), 10: 2**62}
    assert run("sum", steep, {5: 0})[5] == -922337203685477580 - 2**62


@pytest.mark.parametrize("name", ["min", "max", "mimmin", "mimmax"])
@pytest.mark.parametrize("value", [MAX, -(2**63), math.inf, -math.inf])
def test_the_extremes_of_a_type_are_values_like_others(name, value):
    assert run(name, {0: value}) == {0: value}


def test_a_nan_takes_no_part():
    members = {0: NAN, 1: 5.0}, {0: 3.0, 1: NAN}
    assert run("sum", *members) == {0: 3.0, 1: 5.0}
    assert run("avg", *members) == {0: 3.0, 1: 5.0}
    assert run("count", *members) == {0: 1.0, 1: 1.0}


@pytest.mark.parametrize("name", AGGREGATORS)
def test_only_nan_gives_nan(name):
    expected = 0.0 if name == "count" else NAN
    assert list(run(name, {0: NAN}, {0: NAN}).values()) == pytest.approx([expected], nan_ok=True)


@pytest.mark.parametrize("name", AGGREGATORS)
def test_nothing_gives_nothing(name):
    assert run(name) == {}
    assert run(name, {}, {}) == {}


def test_an_empty_member_does_not_change_the_others():
    assert run("sum", {}, A) == A


# The oracle: at each time ask every series, and compute in Python's unbounded integers.


def truncated(numerator, divisor):
    return abs(numerator) // divisor * (1 if numerator >= 0 else -1)


def value_at(series, time, name, integers):
    """What one series gives at a time: None if it does not take part."""
    times = sorted(series)
    if not times or time < times[0] or time > times[-1]:
        return None
    if time in series:
        return series[time]
    x0 = max(x for x in times if x < time)
    x1 = min(x for x in times if x > time)
    if name in ("zimsum", "count"):
        return 0
    if name in ("mimmin", "mimmax"):
        return None
    if name == "pfsum":
        return series[x0]
    rise = (time - x0) * (series[x1] - series[x0])
    return series[x0] + (truncated(rise, x1 - x0) if integers else rise / (x1 - x0))


def loop(name, members):
    integers = all(isinstance(value, int) for member in members for value in member.values())
    answer = {}
    for time in sorted({time for member in members for time in member}):
        values = [value_at(member, time, name, integers) for member in members]
        values = [value for value in values if value is not None]
        if name in ("sum", "zimsum", "pfsum"):
            answer[time] = sum(values)
        elif name == "avg":
            answer[time] = truncated(sum(values), len(values)) if integers else sum(values) / len(values)
        elif name == "count":
            answer[time] = len(values)
        else:
            answer[time] = min(values) if name.endswith("min") else max(values)
    return answer


def series_of(values):
    times = st.integers(0, 60)
    return st.dictionaries(times, values, max_size=12).map(lambda points: dict(sorted(points.items())))


@settings(max_examples=80, derandomize=True, deadline=None)
@given(st.sampled_from(sorted(AGGREGATORS)), st.lists(series_of(st.integers(-(2**55), 2**55)), max_size=5))
def test_integers_agree_with_a_loop_over_points(name, members):
    assert run(name, *members) == loop(name, members)


@settings(max_examples=80, derandomize=True, deadline=None)
@given(
    st.sampled_from(sorted(AGGREGATORS)),
    st.lists(st.one_of(series_of(st.floats(-1e6, 1e6)), series_of(st.integers(-99, 99))), max_size=5),
)
def test_floats_agree_with_a_loop_over_points(name, members):
    actual, expected = run(name, *members), loop(name, members)
    assert list(actual) == list(expected)
    assert list(actual.values()) == pytest.approx(list(expected.values()), rel=1e-9, abs=1e-6)
