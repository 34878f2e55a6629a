"""Random queries of random series, against a TSD's evaluation in plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.budget import examples
from tests.support.plain.plain_tsd import Dps, PlainQuery, Tags, evaluate
from timebeam.schema.bits.arrays import numbers
from timebeam.schema.core.points import Series
from timebeam.schema.query.aggregate import AGGREGATORS, RateOptions
from timebeam.schema.query.answer import QuerySeries, answer
from timebeam.schema.query.downsample import FUNCTIONS, Downsampling
from timebeam.schema.query.question import NONE, Question

BASE_S = 1_709_287_200  # 2024-03-01T10:00:00Z
SPAN_S = 3 * 3600

SMALL = st.one_of(st.integers(-99, 99), st.integers(-99, 99).map(lambda number: number / 4))


TAGS = [
    {"host": "a", "dc": "x"},
    {"host": "b", "dc": "y"},
    {"host": "c", "dc": "x", "rack": "1"},
    {"host": "d", "dc": "y"},
]


def points_of(values: st.SearchStrategy[int | float]) -> st.SearchStrategy[Dps]:
    times = st.integers(0, SPAN_S // 30).map(lambda step: (BASE_S + 30 * step) * 1000)
    return st.dictionaries(times, values, max_size=25).map(lambda points: sorted(points.items()))


def series_of(values: st.SearchStrategy[int | float]) -> st.SearchStrategy[list[tuple[Tags, Dps]]]:
    hosts = st.lists(points_of(values), min_size=1, max_size=4)
    return hosts.map(
        lambda members: [
            (
                {"host": "abcd"[number], "dc": "xy"[number % 2]} | ({"rack": "1"} if number == 2 else {}),
                points,
            )
            for number, points in enumerate(members)
        ]
    )


DOWNSAMPLES = st.one_of(
    st.none(),
    st.tuples(
        st.sampled_from([30, 60, 420, 600, 1800, 5400, 7200]),
        st.just("s"),
        st.sampled_from(sorted(FUNCTIONS)),
        st.sampled_from(["none", "nan", "null", "zero"]),
        st.none(),
    ),
    st.tuples(
        st.sampled_from([(1, "d"), (1, "h"), (6, "h")]),
        st.sampled_from(["sum", "count", "last"]),
        st.sampled_from(["none", "nan", "zero"]),
        st.sampled_from(["UTC", "Asia/Kolkata", "America/Los_Angeles"]),
    ).map(lambda chosen: (*chosen[0], *chosen[1:])),
)


@st.composite
def queries(draw: st.DrawFn) -> PlainQuery:
    start, end = sorted(draw(st.lists(st.integers(0, SPAN_S), min_size=2, max_size=2, unique=True)))
    return PlainQuery(
        (BASE_S + start) * 1000 + draw(st.sampled_from([0, 1, 999])),
        (BASE_S + end) * 1000 + 999,
        draw(st.sampled_from([*sorted(AGGREGATORS), NONE])),
        draw(st.sampled_from([(), ("host",), ("dc",), ("rack",)])),
        draw(DOWNSAMPLES),
        is_rate=draw(st.booleans()),
        is_counter=draw(st.booleans()),
        counter_max=draw(st.sampled_from([2**63 - 1, 100, 65_535])),
        reset_value=draw(st.sampled_from([0, 1])),
        drops_resets=draw(st.booleans()),
    )


def found(tags: Tags, points: Dps) -> QuerySeries:
    is_float = np.array([isinstance(value, float) for _, value in points], np.bool_)
    bits = np.array(
        [np.float64(value).view(np.int64) if isinstance(value, float) else value for _, value in points],
        np.int64,
    )
    times_ms = np.array([time for time, _ in points], np.int64)
    return QuerySeries(Series.of("m", tags), times_ms, numbers(bits, is_float))


def asked(query: PlainQuery) -> Question:
    how = None
    if query.downsample:
        count, unit, function, fill, zone = query.downsample
        calendar = "c" if zone else ""
        how = Downsampling.parse(f"{count}{unit}{calendar}-{function}-{fill}", zone or "UTC")
    rate = RateOptions(query.is_counter, query.counter_max, query.reset_value, query.drops_resets)
    return Question(
        "m",
        {},
        query.group_by,
        query.aggregator,
        how,
        query.start_ms,
        query.end_ms,
        rate if query.is_rate else None,
    )


def check(query: PlainQuery, series: list[tuple[Tags, Dps]]) -> None:
    question = asked(query)
    within = question.range
    read = [
        found(tags, [point for point in points if within.first_ms <= point[0] < within.until_ms])
        for tags, points in series
    ]
    results = answer(question, read)
    expected = evaluate(query, series)
    assert [(result.tags, result.aggregate_tags) for result in results] == [shape[:2] for shape in expected]
    for result, (_, __, dps) in zip(results, expected, strict=True):
        times = result.times_ms.tolist()
        assert times == [time for time, _ in dps]
        for time, value, (_, right) in zip(times, result.values.tolist(), dps, strict=True):
            if query.aggregator != NONE:  # which gives each point as it was stored
                assert isinstance(value, int) == isinstance(right, int), (time, value, right)
            if isinstance(right, int):
                assert value == right, time
            else:
                assert value == pytest.approx(right, rel=1e-9, abs=1e-12, nan_ok=True), time


@examples(400)
@given(queries(), series_of(SMALL))
def test_queries_agree_with_a_plain_evaluation(query: PlainQuery, series: list[tuple[Tags, Dps]]) -> None:
    check(query, series)


EXACT = ["sum", "min", "max", "avg", "count", "pfsum", "zimsum", "first", "last", "diff", "median"]


@examples(150)
@given(
    st.sampled_from([*EXACT, "mimmin", "squareSum", "mult", NONE]),
    series_of(st.integers(-(2**63), 2**63 - 1)),
)
def test_integers_keep_their_last_digit_and_overflow_as_in_java(
    aggregator: str, series: list[tuple[Tags, Dps]]
) -> None:
    check(PlainQuery(BASE_S * 1000, (BASE_S + SPAN_S) * 1000, aggregator), series)


@examples(100)
@given(series_of(st.integers(2**53, 2**53 + 9)), st.booleans(), st.sampled_from([2**53 + 100, 2**63 - 1]))
def test_rates_of_integers_are_exact(
    series: list[tuple[Tags, Dps]], is_counter: bool, counter_max: int
) -> None:
    span = BASE_S * 1000, (BASE_S + SPAN_S) * 1000
    query = PlainQuery(*span, is_rate=True, is_counter=is_counter, counter_max=counter_max)
    check(query, series)


def test_every_aggregator_is_a_downsampling_function() -> None:
    assert set(FUNCTIONS) == set(AGGREGATORS)
    assert len(AGGREGATORS) == 34


def test_a_rate_before_the_first_point_is_the_one_from_1970() -> None:
    """As a TSD computes it: a series counts with it before its second point where others have points."""
    early = [((BASE_S + second) * 1000, 10 * second) for second in range(0, 100, 10)]
    late = [((BASE_S + second) * 1000, 1000) for second in (50, 60)]
    query = PlainQuery(BASE_S * 1000, (BASE_S + 100) * 1000, is_rate=True)
    check(query, [({"host": "a"}, early), ({"host": "b"}, late)])
    (result,) = answer(asked(query), [found({"host": "a"}, early), found({"host": "b"}, late)])
    assert result.values.tolist()[0] == 10 + 1000 / (BASE_S + 50)


def test_a_range_without_points_in_hours_with_points_has_a_result() -> None:
    points: Dps = [(BASE_S * 1000, 1), ((BASE_S + 3000) * 1000, 2)]
    query = PlainQuery((BASE_S + 60) * 1000, (BASE_S + 120) * 1000)
    check(query, [({"host": "a"}, points)])
    (result,) = answer(asked(query), [found({"host": "a"}, points)])
    assert (result.tags, len(result.times_ms)) == ({"host": "a"}, 0)


def test_a_series_that_ends_before_the_range_belongs_to_its_group() -> None:
    a: Dps = [((BASE_S + second) * 1000, 10) for second in range(0, 3600, 60)]
    b: Dps = [((BASE_S + second) * 1000, 20) for second in range(0, 1200, 60)]
    query = PlainQuery(
        (BASE_S + 1800) * 1000, (BASE_S + 3000) * 1000, "avg", (), (600, "s", "avg", "zero", None)
    )
    check(query, [({"host": "a"}, a), ({"host": "b"}, b)])
    (result,) = answer(asked(query), [found({"host": "a"}, a), found({"host": "b"}, b)])
    assert set(result.values.tolist()) == {5.0}
    assert result.aggregate_tags == ["host"]


def test_a_leading_interval_that_is_not_read_whole_counts_for_nothing() -> None:
    a: Dps = [((BASE_S + second) * 1000, 1) for second in range(-600, 1741, 60)]
    b: Dps = [((BASE_S + second) * 1000, 1) for second in (*range(-600, 181, 60), 1500)]
    query = PlainQuery(
        (BASE_S + 600) * 1000, (BASE_S + 1600) * 1000, "sum", (), (420, "s", "count", "none", None)
    )
    check(query, [({"host": "a"}, a), ({"host": "b"}, b)])
    within = asked(query).range
    read = [
        found({"host": host}, [point for point in points if within.first_ms <= point[0]])
        for host, points in (("a", a), ("b", b))
    ]
    (result,) = answer(asked(query), read)
    assert [value for value in result.values.tolist() if not math.isnan(value)] == [7.0, 7.0, 6.0]


def test_the_first_rate_does_not_see_a_leading_interval_that_is_not_read_whole() -> None:
    """It is the rate from 1970, with which the series counts until its second interval."""
    a: Dps = [((BASE_S + second) * 1000, 0) for second in range(0, 3600, 60)]
    b: Dps = [((BASE_S + second) * 1000, 10**6) for second in (60, 900, 3000)]
    query = PlainQuery(
        BASE_S * 1000, (BASE_S + 3000) * 1000, "sum", (), (420, "s", "sum", "none", None), is_rate=True
    )
    check(query, [({"host": "a"}, a), ({"host": "b"}, b)])
