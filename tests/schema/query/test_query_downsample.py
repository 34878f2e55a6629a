"""Downsampling against hand-computed examples; test_query_model.py has the rest."""

import math

import numpy as np
import pytest

from timebeam.schema.query.downsample import FUNCTIONS, Downsampling, Fill, QueryRange, downsample, fill_gaps

NAN = math.nan


def run(spec, points, start_ms=0, end_ms=10**13):
    """The downsampled and filled points of {time in ms: value}, as a dict."""
    how = Downsampling.parse(spec)
    times = np.array(list(points), np.int64)
    values = np.array(list(points.values()))
    within = QueryRange.of(how, start_ms, end_ms)
    times, values = downsample(how, times, values, within)
    times, values = fill_gaps(how, times, values, within)
    assert times.dtype == np.int64
    assert values.dtype == np.float64
    return dict(zip(times.tolist(), values.tolist(), strict=True))


def same(actual, expected):
    return list(actual) == list(expected) and list(actual.values()) == pytest.approx(
        list(expected.values()), rel=1e-9, abs=1e-9, nan_ok=True
    )


def test_a_specification_says_interval_function_and_fill():
    assert Downsampling.parse("1m-avg") == Downsampling(60_000, "avg", Fill.NONE)
    assert Downsampling.parse("1h-sum-zero") == Downsampling(3_600_000, "sum", Fill.ZERO)
    assert Downsampling.parse("500ms-dev-NaN") == Downsampling(500, "dev", Fill.NAN)
    assert Downsampling.parse("1d-last-null") == Downsampling(86_400_000, "last", Fill.NULL)
    assert Downsampling.parse("0all-max") == Downsampling(None, "max", Fill.NONE)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "give <interval>-<function>"),
        ("1m", "give <interval>-<function>"),
        ("1m-avg-zero-x", "give <interval>-<function>"),
        ("1m-none", "none does not downsample"),
        ("1m-average", "no function 'average'; choose from sum, min, max, avg"),
        ("1m-avg-linear", "no fill 'linear'; choose from none, nan, null, zero"),
        ("0m-avg", "zero"),
        ("1xc-avg", "'1xc' is not a duration.*or 0all"),
        ("-avg", "is not a duration"),
    ],
)
def test_another_specification_is_rejected(spec, message):
    with pytest.raises(ValueError, match=message):
        Downsampling.parse(spec)


@pytest.mark.parametrize(
    ("function", "first", "second"),
    [
        ("sum", 16, 5),
        ("min", 1, 5),
        ("max", 8, 5),
        ("avg", 4, 5),
        ("count", 4, 1),
        ("first", 2, 5),
        ("last", 1, 5),
        ("median", 5, 5),  # the upper one of 1 2 5 8
        ("dev", math.sqrt(7.5), 0),  # of 2 5 8 1 around 4: (4 + 1 + 16 + 9) / 4
    ],
)
def test_functions_over_two_minutes(function, first, second):
    points = {60_000: 2, 70_000: 5, 80_001: 8, 119_999: 1, 120_000: 5}
    assert same(run(f"1m-{function}", points), {60_000: first, 120_000: second})


def test_intervals_are_aligned_to_1970_and_empty_ones_are_left_out():
    assert run("7s-count", {6_999: 1, 7_000: 1, 50_000: 1}) == {0: 1.0, 7_000: 1.0, 49_000: 1.0}


def test_0all_takes_start_up_to_but_not_end_and_is_stamped_with_the_start():
    points = {999: 100, 1_000: 1, 1_500: 2, 2_000: 100}
    assert run("0all-sum", points, 1_000, 2_000) == {1_000: 3.0}
    assert run("all-count-zero", points, 3_000, 4_000) == {}


@pytest.mark.parametrize(("fill", "value"), [("nan", NAN), ("null", NAN), ("zero", 0.0)])
def test_fill_gives_every_interval_of_the_hours_of_the_range(fill, value):
    points = {59_000: 1, 1_230_000: 3, 3_650_000: 5}
    expected = {minute * 60_000: value for minute in range(60)} | {0: 1.0, 1_200_000: 3.0}
    assert same(run(f"1m-sum-{fill}", points, 30_000, 239_999), expected)
    assert same(run(f"1m-sum-{fill}", points, 60_000, 180_000), expected)


def test_a_fill_of_absurd_size_is_rejected():
    with pytest.raises(ValueError, match="choose a longer interval"):
        run("1ms-sum-zero", {1: 1}, 0, 10**13)


@pytest.mark.parametrize("fill", ["none", "nan"])
@pytest.mark.parametrize(
    "interval", ["8035yc", "9000yc", "99999nc", "999999999nc", "999999wc", "999999999wc", "999999999dc"]
)
def test_an_interval_of_the_calendar_that_ends_after_the_year_9999_is_rejected(interval, fill):
    message = rf"an interval of {interval} ends after the year 9999; choose a shorter interval"
    with pytest.raises(ValueError, match=message):
        run(f"{interval}-avg-{fill}", {1_700_000_000_000: 1}, 1_700_000_000_000, 1_700_003_600_000)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_no_points_give_no_values(function):
    assert run(f"1m-{function}", {}) == {}


@pytest.mark.parametrize(
    ("function", "some", "none"),
    [
        ("sum", 4, NAN),
        ("min", 1, NAN),
        ("max", 3, NAN),
        ("avg", 2, NAN),
        ("count", 2, 0),
        ("median", 3, NAN),
        ("dev", 1, NAN),
        ("first", NAN, NAN),
        ("last", 3, NAN),
    ],
)
def test_a_nan_counts_as_no_value(function, some, none):
    points = {0: NAN, 1: 1.0, 2: 3.0, 1_000: NAN}
    assert same(run(f"1s-{function}", points), {0: some, 1_000: none})
