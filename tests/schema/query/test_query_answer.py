"""Groups, tags, ranges and JSON of an answer; the recorded answers are those of a real TSD 2.4.1."""

import json
import math

import numpy as np
import pytest

from timebeam.schema.core.points import Series
from timebeam.schema.query.answer import QuerySeries, Result, answer, common_tags, to_json
from timebeam.schema.query.downsample import Downsampling, QueryRange
from timebeam.schema.query.question import Question

BASE = 1356998400000  # 2013-01-01


def found(points, **tags):
    """A series of points given as {ms after BASE: value}."""
    integers = all(isinstance(value, int) for value in points.values())
    values = np.array(list(points.values()), np.int64 if integers else np.float64)
    return QuerySeries(Series.of("m", tags), BASE + np.array(list(points), np.int64), values)


def ask(*series, by=(), aggregator="sum", downsampling=None, start=0, end=10**9):
    how = Downsampling.parse(downsampling) if downsampling else None
    return answer(Question("m", {}, by, aggregator, how, BASE + start, BASE + end), series)


def dps(result):
    return dict(zip((result.times_ms - BASE).tolist(), result.values.tolist(), strict=True))


def test_without_grouping_all_series_are_one_result():
    (result,) = ask(found({0: 1}, host="a", dc="x"), found({0: 2}, host="b", dc="x"))
    assert result.metric == "m"
    assert result.tags == {"dc": "x"}
    assert result.aggregate_tags == ["host"]
    assert dps(result) == {0: 3}


def test_a_group_for_each_combination_of_values_in_their_order():
    results = ask(
        found({0: 8}, host="b", cpu="1", dc="x"),
        found({0: 1}, host="a", cpu="0", dc="x"),
        found({0: 2}, host="a", cpu="0", dc="y"),
        found({0: 4}, host="a", cpu="1", dc="x"),
        by=("host", "cpu"),
    )
    assert [(result.tags, result.aggregate_tags, dps(result)) for result in results] == [
        ({"cpu": "0", "host": "a"}, ["dc"], {0: 3}),
        ({"cpu": "1", "dc": "x", "host": "a"}, [], {0: 4}),
        ({"cpu": "1", "dc": "x", "host": "b"}, [], {0: 8}),
    ]


def test_a_series_without_the_grouping_tag_is_in_no_group():
    (result,) = ask(found({0: 1}, host="a"), found({0: 2}, dc="x"), by=("host",))
    assert (result.tags, dps(result)) == ({"host": "a"}, {0: 1})


def test_none_keeps_every_series_apart_whatever_the_grouping():
    results = ask(found({5: 2}, host="b"), found({0: 1, 10: 3}, host="a"), by=("dc",), aggregator="none")
    assert [(result.tags, dps(result)) for result in results] == [
        ({"host": "a"}, {0: 1, 10: 3}),
        ({"host": "b"}, {5: 2}),
    ]


def test_a_key_that_only_some_series_have_is_common():
    members = [Series.of("m", tags) for tags in ({"a": "1"}, {"a": "1", "b": "2"}, {"b": "2", "c": "3"})]
    assert common_tags(members) == ({"a": "1", "b": "2", "c": "3"}, [])
    assert common_tags([*members, Series.of("m", {"c": "4"})]) == ({"a": "1", "b": "2"}, ["c"])


def test_points_outside_of_the_range_serve_interpolation_but_are_not_shown():
    (result,) = ask(found({0: 0, 100: 100}, host="a"), found({50: 1, 90: 1}, host="b"), start=50, end=60)
    assert dps(result) == {50: 51}


def test_both_ends_of_the_range_are_shown():
    (result,) = ask(found({9: 1, 10: 2, 20: 3, 21: 4}, host="a"), start=10, end=20)
    assert dps(result) == {10: 2, 20: 3}


def test_a_series_with_points_in_the_hours_of_the_range_is_of_its_group_even_if_none_is_shown():
    """As in a TSD, which reads whole hours."""
    (result,) = ask(
        found({15: 1}, host="a"),
        found({0: 1, 9: 1}, host="b"),
        found({21: 1}, host="c"),
        start=10,
        end=20,
    )
    assert (result.tags, result.aggregate_tags, dps(result)) == ({}, ["host"], {15: 1})


def test_no_points_in_the_range_give_a_result_without_points():
    assert ask() == []
    assert ask(found({}, host="a")) == []
    (result,) = ask(found({0: 1, 30: 1}, host="a"), start=10, end=20)
    assert (result.tags, dps(result)) == ({"host": "a"}, {})


def test_series_are_downsampled_before_they_are_aggregated():
    a, b = found({0: 1, 30_000: 3, 60_000: 10}, host="a"), found({10_000: 5}, host="b")
    (result,) = ask(a, b, aggregator="max", downsampling="1m-sum")
    assert dps(result) == {0: 5.0, 60_000: 10.0}
    assert result.values.dtype == np.float64


def test_intervals_that_others_have_are_interpolated_unless_filled():
    a, b = found({0: 1, 60_000: 1, 120_000: 1}, host="a"), found({0: 2, 120_000: 6}, host="b")
    assert dps(ask(a, b, downsampling="1m-sum")[0]) == {0: 3.0, 60_000: 5.0, 120_000: 7.0}
    filled = {0: 3.0, 60_000: 1.0, 120_000: 7.0}
    for fill in ("nan", "null", "zero"):
        (result,) = ask(a, b, downsampling=f"1m-sum-{fill}", end=120_000)
        assert dps(result) == filled


def test_an_interval_counts_by_its_start_and_is_whole_at_the_end_of_the_range():
    points = found({0: 1, 50_000: 1, 60_000: 2, 100_000: 2, 120_000: 4}, host="a")
    (result,) = ask(points, downsampling="1m-sum", start=30_000, end=70_000)
    assert dps(result) == {60_000: 4.0}


def test_a_filled_series_covers_the_range():
    (result,) = ask(found({60_000: 1}, host="a"), downsampling="1m-sum-zero", start=0, end=150_000)
    assert dps(result) == {0: 0.0, 60_000: 1.0, 120_000: 0.0}


def test_an_unknown_aggregator_is_rejected_with_the_known_ones():
    with pytest.raises(ValueError, match=r"no aggregator 'total'; choose from sum, .*none"):
        ask(aggregator="total")


def test_a_range_that_ends_before_it_starts_is_rejected():
    with pytest.raises(ValueError, match="before it starts"):
        ask(start=2, end=1)


# Recorded from OpenTSDB 2.4.1: GET /api/query?start=1356998390&end=1357007400&m=none:<metric>


def recorded(times_ms, values):
    dtype = np.float64 if any(isinstance(value, float) for value in values) else np.int64
    one = QuerySeries(
        Series.of("compaction.m", {"host": "a"}), np.array(times_ms, np.int64), np.array(values, dtype)
    )
    asked = Question("compaction.m", {}, [], "none", None, 1356998390000, 1357007400000)
    results = answer(asked, [one])
    return json.loads(to_json(results, milliseconds=False))


@pytest.mark.parametrize(
    ("times_ms", "values", "dps"),
    [
        (  # s_only
            [1356998400000, 1356998401000, 1356998402000, 1356998403000],
            [1, 2, 300, 1.5],
            {"1356998400": 1, "1356998401": 2, "1356998402": 300.0, "1356998403": 1.5},
        ),
        (  # ms_only: two points of one second
            [1356998400001, 1356998400002, 1357001999999],
            [1, 2, 0.1],
            {"1356998400": 2.0, "1357001999": 0.1},
        ),
        ([1356998400007], [9], {"1356998400": 9}),  # single_ms
        (  # all_widths
            [1356998400000 + 1000 * second for second in range(6)],
            [1, 1000, 100000, 1099511627776, -1.0, 0.1],
            {
                "1356998400": 1,
                "1356998401": 1000,
                "1356998402": 100000,
                "1356998403": 1099511627776,
                "1356998404": -1.0,
                "1356998405": 0.1,
            },
        ),
        (  # more_after_compaction, after the third point
            [1356998400000, 1356998405000, 1356998410000],
            [1, 3, 2],
            {"1356998400": 1, "1356998405": 3, "1356998410": 2},
        ),
    ],
)
def test_the_recorded_answers(times_ms, values, dps):
    assert recorded(times_ms, values) == [
        {"metric": "compaction.m", "tags": {"host": "a"}, "aggregateTags": [], "dps": dps}
    ]


def result(values, **fields):
    values = np.array(values)
    return Result("m", {"host": "a"}, ["cpu"], BASE + 1000 * np.arange(len(values)), values, **fields)


def test_json_has_opentsdb_s_keys_in_opentsdb_s_order():
    assert to_json([result([1, -2])], milliseconds=False) == (
        '[{"metric":"m","tags":{"host":"a"},"aggregateTags":["cpu"],"dps":{"1356998400":1,"1356998401":-2}}]'
    )


def test_json_of_no_results_is_an_empty_array():
    assert to_json([], milliseconds=False) == "[]"


def test_json_times_are_in_ms_if_asked():
    assert '"dps":{"1356998400000":1}' in to_json([result([1])], milliseconds=True)


def test_json_keeps_integers_and_floats_apart():
    assert '"dps":{"1356998400":9007199254740993}' in to_json([result([2**53 + 1])], False)
    assert '"dps":{"1356998400":300.0,"1356998401":1e+16}' in to_json([result([300.0, 1e16])], False)


def test_json_of_what_is_not_a_number():
    values = [math.nan, math.inf, -math.inf]
    assert '{"1356998400":"NaN","1356998401":"Infinity","1356998402":"-Infinity"}' in to_json(
        [result(values)], False
    )
    assert '{"1356998400":null}' in to_json([result([math.nan], nan_is_null=True)], False)


def test_fill_null_is_printed_as_null_and_fill_nan_as_nan():
    points = found({60_000: 1}, host="a")
    for fill, shown in (("null", None), ("nan", "NaN")):
        results = ask(points, downsampling=f"1m-sum-{fill}", end=60_000)
        assert json.loads(to_json(results, True))[0]["dps"] == {str(BASE): shown, str(BASE + 60_000): 1.0}


def test_json_escapes_names():
    strange = Result('a"b\\', {"k": 'v"é'}, [], np.array([0]), np.array([1]))
    (parsed,) = json.loads(to_json([strange], False))
    assert (parsed["metric"], parsed["tags"]) == ('a"b\\', {"k": 'v"é'})


@pytest.mark.parametrize(
    ("downsampling", "start", "end", "first", "last"),
    [
        (None, 0, 0, 0, 3_599_999),
        (None, 3_599_999, 3_600_000, 0, 7_199_999),
        ("1m-avg", 60_000, 7_200_000, 0, 10_799_999),
        ("1d-sum", 3_600_001, 3_600_002, 0, 86_399_999),
        ("7h-sum", 90_000_000, 90_000_001, 75_600_000, 100_799_999),
        ("0all-sum", 5_000_000, 5_000_001, 3_600_000, 7_199_999),
    ],
)
def test_what_an_answer_needs_are_whole_intervals_and_hours(downsampling, start, end, first, last):
    """Counted from 1970 on."""
    how = Downsampling.parse(downsampling) if downsampling else None
    within = QueryRange.of(how, start, end)
    assert (within.first_ms, within.until_ms - 1) == (first, last)
