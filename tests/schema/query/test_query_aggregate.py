"""Aggregation with interpolation against docs/spec/opentsdb.md §8.4, by hand."""

import math

import numpy as np
import pytest

from timebeam.schema.core.batches import distinct
from timebeam.schema.query.aggregate import AGGREGATORS, Member, aggregate

MAX = 2**63 - 1
NAN = math.nan


def run(name, *members):
    """Aggregates members given as {time in ms: value}; ints stay ints."""
    columns = []
    for member in members:
        integers = all(isinstance(value, int) for value in member.values())
        values = np.array(list(member.values()), np.int64 if integers else np.float64)
        columns.append(Member(np.array(list(member), np.int64), values))
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


def test_values_are_floats_while_a_series_of_floats_is_under_way_or_to_come():
    floats = {time: float(value) for time, value in B.items()}
    assert run("sum", A, floats) == {0: 10.0, 5: 22.0, 10: 27.5, 15: 38.0, 20: 40.0}
    assert run("avg", A, floats) == {0: 10.0, 5: 11.0, 10: 13.75, 15: 19.0, 20: 40.0}
    kinds = {time: type(value) for time, value in run("count", A, floats).items()}
    assert kinds == {0: float, 5: float, 10: float, 15: float, 20: int}  # floats has ended at 20


@pytest.mark.parametrize("sizes", [(0,), (1,), (0, 5), (300, 0, 500), (1000,) * 20])
def test_a_union_has_every_time_once_in_order(sizes):
    random = np.random.default_rng(len(sizes))
    columns = [np.unique(random.integers(-(2**63), 2**63 - 1, size) // 2**50) for size in sizes]
    union = distinct(np.concatenate(columns))
    assert union.dtype == np.int64
    assert union.tolist() == sorted({time for column in columns for time in column.tolist()})


class StopError(Exception):
    """The time is over."""


@pytest.mark.parametrize("name", AGGREGATORS)
@pytest.mark.parametrize("kinds", [(int,), (float,), (int, float)])
def test_a_check_before_each_series_can_stop_an_aggregation(name, kinds):
    times_ms = np.arange(3) * 10
    members = [
        Member(times_ms + number, (times_ms + number).astype(kinds[number % len(kinds)]))
        for number in range(10)
    ]
    calls = []

    def check():
        calls.append(None)
        if len(calls) == 13:
            raise StopError

    with pytest.raises(StopError):  # the first ten look for integers
        aggregate(AGGREGATORS[name], members, check)


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
