"""Functions of Graphite expressions, against a TSD's arithmetic written out point by point."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timebeam.schema.bits.arrays import Mixed
from timebeam.schema.query.answer import Result
from timebeam.schema.stores.opentsdb.http.api_request import ApiError
from timebeam.schema.stores.opentsdb.http.gexp import Indexed, parse_expression

NAN = math.nan
MINUTE_MS = 60_000


def result(
    values: Sequence[float], metric: str = "cpu", times_ms: Sequence[int] | None = None, **tags: str
) -> Result:
    times = [number * MINUTE_MS for number in range(len(values))] if times_ms is None else times_ms
    return Result(metric, tags, [], np.array(times, np.int64), np.array(values))


def evaluate(text: str, **results: Sequence[Result]) -> list[Indexed]:
    """The results of an expression over queries such as `a:x`, which the keyword `a` answers."""
    results_of = {
        f"{name}:x": [Indexed(index, item, bytes([9 - index])) for item in items]
        for index, (name, items) in enumerate(results.items())
    }
    return parse_expression(text).evaluate(results_of, lambda count: None)


def values(text: str, **results: Sequence[Result]) -> list[list[float]]:
    return [item.result.values.tolist() for item in evaluate(text, **results)]


@pytest.mark.parametrize("name", ["sum", "sumSeries"])
def test_sums(name: str) -> None:
    assert values(f"{name}(a:x,b:x)", a=[result([1, 2])], b=[result([10.5, 20.5])]) == [[11.5, 22.5]]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("difference", [3.0, -2.0, 0.0]),
        ("diffSeries", [3.0, -2.0, 0.0]),
        ("divide", [2.5, 0.0, 0.0]),
        ("divideSeries", [2.5, 0.0, 0.0]),
        ("multiply", [10.0, 0.0, 0.0]),
        ("multiplySeries", [10.0, 0.0, 0.0]),
    ],
)
def test_nan_counts_as_0_and_a_quotient_by_0_is_0(name: str, expected: list[float]) -> None:
    answer = values(f"{name}(a:x,b:x)", a=[result([5.0, NAN, NAN])], b=[result([2, 2, 0])])
    assert answer == [expected]


def test_results_are_joined_by_tags_and_time() -> None:
    joined = evaluate(
        "sum(a:x,b:x)",
        a=[result([1, 2], host="h1"), result([4], host="h2")],
        b=[result([10], "mem", [MINUTE_MS], host="h1"), result([20], "mem", [0], host="h3")],
    )
    shown = [(item.result.metric, item.result.tags, item.result.values.tolist()) for item in joined]
    assert shown == [
        ("mem", {"host": "h1"}, [1.0, 12.0]),  # whose UID is lower
        ("cpu", {"host": "h2"}, [4.0]),
        ("mem", {}, [20.0]),
    ]
    assert joined[0].result.times_ms.tolist() == [0, MINUTE_MS]


def test_only_two_to_26_arguments_can_be_joined() -> None:
    for count in (1, 27):
        with pytest.raises(ApiError, match=f"Must have 2 to 26 series, got {count} instead"):
            evaluate(f"sum({','.join(['a:x'] * count)})", a=[result([1])])


def test_scale_keeps_integers_only_with_an_integer_factor() -> None:
    mixed = Mixed(np.array([3, np.float64(0.5).view(np.int64)]), np.array([False, True]))
    item = Result("cpu", {}, [], np.array([0, 1]), mixed)
    big = 9_007_199_254_740_993
    assert repr(values("scale(a:x,-2)", a=[item, result([big])])) == f"[[-6, -1.0], [{-2 * big}]]"
    assert repr(values("scale(a:x,0.5)", a=[item, result([4])])) == "[[1.5, 0.25], [2.0]]"


@pytest.mark.parametrize("factor", ["", ",ten", ",1-2", ",1e3"])
def test_a_wrong_factor_is_rejected(factor: str) -> None:
    with pytest.raises(ApiError):
        values(f"scale(a:x{factor})", a=[result([1])])


def test_an_alias_names_tags_and_takes_the_sign() -> None:
    (item,) = evaluate("alias(a:x,@host.load,@dc)", a=[result([-1, 2], host="h1", dc="lax")])
    answer = item.result
    assert (answer.metric, answer.tags, answer.aggregate_tags) == ("h1.load,lax", {}, [])
    assert answer.values.tolist() == [1, 2]
    with pytest.raises(ApiError, match="at most 1,000"):
        evaluate(f"alias(a:x,{'@host' * 100})", a=[result([1], host="h" * 11)])
    with pytest.raises(ApiError, match="1,001 characters"):
        evaluate(f"alias(a:x,{'n' * 1001})", a=[result([1])])


def test_an_alias_that_multiplies_is_rejected_before_it_is_made() -> None:
    keys = [f"k{number}" for number in range(9)]
    tags = {key: f"@{following}" * 500 for key, following in itertools.pairwise(keys)}
    tracemalloc.start()
    try:
        with pytest.raises(ApiError, match="at most 1,000"):
            evaluate("alias(a:x,@k0)", a=[result([1], **tags)])
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("name", "expected"), [("highestCurrent", ["b", "c"]), ("highestMax", ["a", "b"])])
def test_the_highest_come_first(name: str, expected: list[str]) -> None:
    results = [result([9, 1], host="a"), result([5, 3.5], host="b"), result([0, 2, NAN], host="c")]
    answer = evaluate(f"{name}(a:x,2)", a=results)
    assert [item.result.tags["host"] for item in answer] == expected


@pytest.mark.parametrize("count", ["0", "two", "9" * 5000])
def test_a_wrong_number_of_results_is_rejected(count: str) -> None:
    with pytest.raises(ApiError):
        values(f"highestMax(a:x,{count})", a=[result([1])])


@pytest.mark.parametrize(
    ("text", "later_ms"),
    [("'10sec'", 10_000), ("'2min'", 120_000), ("'1hr'", 3_600_000), ("'3days'", 259_200_000)],
)
def test_a_shift_moves_times(text: str, later_ms: int) -> None:
    for name in ("shift", "timeShift"):
        (item,) = evaluate(f"{name}(a:x,{text})", a=[result([1.5, 2.5])])
        assert item.result.times_ms.tolist() == [later_ms, later_ms + MINUTE_MS]
        assert item.result.values.tolist() == [1.5, 2.5]


@pytest.mark.parametrize("text", ["10", "'0min'", "'5years'", "10min", "'999999999weeks'"])
def test_a_wrong_shift_is_rejected(text: str) -> None:
    with pytest.raises(ApiError):
        values(f"shift(a:x,{text})", a=[result([1])])


def plain_averages(
    times_ms: Sequence[int], numbers: Sequence[float], count: int | None, window_ms: int | None
) -> list[float]:
    """MovingAverage.MovingAverageAggregator.runDouble: back from each point until the window is full."""
    averages = []
    for last in range(len(numbers)):
        total, seen, is_full = 0.0, 0, False
        for index in range(last, -1, -1):
            if window_ms is not None and times_ms[last] - times_ms[index] >= window_ms:
                is_full = True
                break
            if not math.isnan(numbers[index]):
                total, seen = total + numbers[index], seen + 1
            if count is not None and seen >= count:
                is_full = True
                break
        averages.append(total / seen if is_full and seen else 0.0)
    return averages


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(-99, 99) | st.just(NAN)), max_size=20),
    st.integers(1, 25),
    st.booleans(),
)
def test_a_moving_average_is_a_tsds(steps: list[tuple[int, float]], size: int, is_time: bool) -> None:
    times_ms = np.cumsum([step for step, _ in steps]) * 1000 if steps else []
    numbers = [float(number) for _, number in steps]
    window = f"'{size}s'" if is_time else str(size)
    (answer,) = values(f"movingAverage(a:x,{window})", a=[result(numbers, times_ms=list(times_ms))])
    limits = (None, size * 1000) if is_time else (size, None)
    assert answer == pytest.approx(plain_averages(list(times_ms), numbers, *limits), abs=1e-12)


def test_a_moving_average_takes_no_difference_of_large_sums() -> None:
    assert values("movingAverage(a:x,1)", a=[result([1e300, 1e-300, 2.0])]) == [[1e300, 1e-300, 2.0]]


@pytest.mark.parametrize("window", ["", ",0", ",'0min'", ",'2years'", ",min"])
def test_a_wrong_window_is_rejected(window: str) -> None:
    with pytest.raises(ApiError):
        values(f"movingAverage(a:x{window})", a=[result([1])])
