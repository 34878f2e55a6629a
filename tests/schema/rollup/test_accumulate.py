"""Accumulators against plain loops over Python numbers, in every order of splitting and merging."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schema.rollup.plain_rollup import Point, plain_summaries
from tests.schema.rollup.rollup_points import BASE_MS, POINTS, SERIES, batch_of
from tests.schema.stores.plain_opentsdb import Number, number
from tests.support.plain.bucket_columns import columns
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.rejections import Stage
from timebeam.schema.rollup.accumulate import accumulate, aggregatable, numbers
from timebeam.schema.rollup.buckets import Buckets, Grouping, merge, unpacked
from timebeam.schema.rollup.rollup_config import COMPUTED


def content(buckets: Buckets) -> dict[tuple[Series, int], dict[str, Number]]:
    """What the six aggregators make of each bucket."""
    found: dict[tuple[Series, int], dict[str, Number]] = {}
    for name in COMPUTED:
        result = numbers(buckets, name)
        none = result.bits[:0]
        values = PointBatch((), none, none, none.astype(bool), result.kinds, result.bits, none)
        for i, (series, start) in enumerate(
            zip(buckets.index.tolist(), buckets.starts_ms.tolist(), strict=True)
        ):
            found.setdefault((buckets.series[series], start), {})[name] = number(values.value(i))
    return found


@given(POINTS, st.sampled_from([1, 10, 60, 3600]))
def test_buckets_are_those_of_a_plain_loop(points, interval_s):
    buckets = accumulate(batch_of(points), interval_s)
    assert content(buckets) == plain_summaries(points, interval_s)
    assert [*zip(buckets.index.tolist(), buckets.starts_ms.tolist(), strict=True)] == sorted(
        set(zip(buckets.index.tolist(), buckets.starts_ms.tolist(), strict=True))
    )


@given(POINTS, st.randoms(use_true_random=False), st.integers(1, 6))
def test_any_split_and_order_of_merging_gives_the_same_accumulators(points, chance, count):
    whole = columns(accumulate(batch_of(points), 60))
    shuffled = chance.sample(points, len(points))
    heap = [accumulate(batch_of(shuffled[i::count]), 60) for i in range(count)]
    while len(heap) > 1:
        taken = [heap.pop(chance.randrange(len(heap))) for _ in range(min(len(heap), chance.choice((2, 3))))]
        heap.append(merge(taken))
    assert columns(heap[0]) == whole


@given(POINTS, st.randoms(use_true_random=False))
def test_merging_is_associative_and_commutative(points, chance):
    shuffled = chance.sample(points, len(points))
    a, b, c = (accumulate(batch_of(shuffled[i::3]), 10) for i in range(3))
    assert columns(merge([a, b])) == columns(merge([b, a]))
    assert columns(merge([merge([a, b]), c])) == columns(merge([a, merge([b, c])]))
    assert columns(merge([a, unpacked([], 10, ends=True)])) == columns(a)


@given(POINTS, st.sampled_from([(1, 60), (60, 3600), (10, 86400), (60, 60)]))
def test_coarser_buckets_are_those_of_the_points(points, intervals):
    fine, coarse = intervals
    batch = batch_of(points)
    assert columns(accumulate(batch, fine).coarser(coarse)) == columns(accumulate(batch, coarse))


@given(POINTS)
def test_groups_have_the_accumulators_of_all_their_points(points):
    groups = {series: Series.of("cpu", {"dc": dict(series.tags)["dc"]}) for series in SERIES}
    batch = batch_of(points)
    merged = accumulate(batch, 60).of_groups(Grouping.of([groups[series] for series in batch.series]))
    found = content(merged)
    members: dict[tuple[Series, int], list[Point]] = {}
    for series, time, value in points:
        members.setdefault((groups[series], time - time % 60_000), []).append((groups[series], time, value))
    assert found.keys() == members.keys()
    for bucket, of_bucket in members.items():
        (expected,) = plain_summaries(of_bucket, 60).values()
        for name in ("sum", "count", "min", "max"):
            assert found[bucket][name] == expected[name]
        times = [time for _, time, _ in of_bucket]
        for name, at in (("first", min(times)), ("last", max(times))):
            assert found[bucket][name] in [number(v) for _, time, v in of_bucket if time == at]


@given(POINTS, st.randoms(use_true_random=False))
def test_groups_do_not_depend_on_the_order_of_their_series(points, chance):
    group = Series.of("cpu", {})
    a, b = (accumulate(batch_of(order), 60) for order in (points, chance.sample(points, len(points))))
    first, second = (part.of_groups(Grouping.of([group] * len(part.series))) for part in (a, b))
    assert columns(first) == columns(second)


def test_of_points_of_one_time_in_a_group_kind_and_bits_are_of_the_same_point():
    values = (1, -1.0, 7, 2.0)  # the bits of -1.0 are the least, those of 2.0 the greatest
    series = [Series.of("cpu", {"host": str(i)}) for i in range(len(values))]
    points = [(one, BASE_MS, value) for one, value in zip(series, values, strict=True)]
    buckets = accumulate(batch_of(points), 60).of_groups(Grouping.of([SERIES[0]] * len(values)))
    found = content(buckets)[SERIES[0], BASE_MS]
    assert (found["first"], found["last"]) == (number(1), number(2.0))


def test_series_of_no_group_are_left_out():
    batch = batch_of([(series, BASE_MS, i) for i, series in enumerate(SERIES)])
    buckets = accumulate(batch, 60).of_groups(Grouping.of([None, SERIES[0], None]))
    assert content(buckets) == plain_summaries([(SERIES[0], BASE_MS, 1)], 60)
    assert len(accumulate(batch, 60).of_groups(Grouping.of([None] * 3))) == 0


@pytest.mark.parametrize(
    ("values", "expected", "rounded"),
    [
        ([2**63 - 1, 2**63 - 1, 5], float(2**64 + 3), True),
        ([2**63 - 1, 2**63 - 1, -(2**63), -(2**63), 5], 3, False),  # too large only on the way
        ([-(2**63), 1, -1], -(2**63), False),
        ([-(2**63), -1], float(-(2**63)), True),
    ],
)
def test_a_sum_beyond_64_bits_is_a_float_and_says_so(values, expected, rounded):
    buckets = accumulate(batch_of([(SERIES[0], BASE_MS + i, v) for i, v in enumerate(values)]), 60)
    assert numbers(buckets, "sum").rounded.tolist() == [rounded]
    assert content(buckets)[SERIES[0], BASE_MS]["sum"] == number(expected)


def test_within_takes_the_buckets_that_start_there():
    points = [(series, BASE_MS + i * 60_000, i) for series in SERIES for i in range(10)]
    buckets = accumulate(batch_of(points), 60).within(BASE_MS + 60_000, BASE_MS + 180_001)
    assert sorted(set(buckets.starts_ms.tolist())) == [BASE_MS + i * 60_000 for i in (1, 2, 3)]
    assert content(buckets) == plain_summaries([p for p in points if p[2] in (1, 2, 3)], 60)


def test_what_cannot_be_accumulated_is_rejected():
    bad = [
        (SERIES[0], BASE_MS + i, True, v) for i, v in enumerate((1, float("nan"), "x", b"y", float("inf")))
    ]
    taken, rejected = aggregatable(PointBatch.of(bad, 1))
    assert [value for _, _, value in taken.points()] == [1]
    assert [(one.reason, one.stage) for one in rejected] == [
        (Reason.NUMBER_OUT_OF_RANGE, Stage.ENCODE),
        (Reason.VALUE_NOT_STORABLE, Stage.ENCODE),
        (Reason.VALUE_NOT_STORABLE, Stage.ENCODE),
        (Reason.NUMBER_OUT_OF_RANGE, Stage.ENCODE),
    ]
    for point in bad[1:]:
        with pytest.raises(ValueError, match="numbers can be accumulated"):
            accumulate(PointBatch.of([point], 1), 60)


def test_a_point_is_never_counted_twice():
    point = (SERIES[0], BASE_MS, 5)
    with pytest.raises(ValueError, match=r"two points at one time.*cpu\{dc=x,host=a\} at 1356998400000 ms"):
        accumulate(batch_of([point, (SERIES[1], BASE_MS, 1), point]), 60)


def test_wrong_intervals_are_rejected():
    buckets = accumulate(batch_of([(SERIES[0], BASE_MS, 5)]), 60)
    with pytest.raises(ValueError, match="60 s do not divide 90 s"):
        buckets.coarser(90)
    with pytest.raises(ValueError, match="same interval"):
        merge([buckets, buckets.coarser(3600)])
    with pytest.raises(ValueError, match="no aggregator 'avg'"):
        numbers(buckets, "avg")


def test_no_points_are_no_buckets():
    buckets = accumulate(PointBatch.of([], 1), 60)
    assert (len(buckets), content(buckets), len(buckets.coarser(3600))) == (0, {}, 0)
    assert len(merge([buckets, buckets])) == 0
