"""Which table answers a query, and rollups and points as one series."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timebeam.schema.query.choose_rollups import SourceSpan, choose, gaps, is_covered, merged_spans
from timebeam.schema.query.downsample import Downsampling
from timebeam.schema.query.merge_intervals import NUMBERS, Partials, joined, of_points
from timebeam.schema.query.question import Question
from timebeam.schema.rollup.day_plan import RowSpan
from timebeam.schema.rollup.rollup_config import PreAggregate, RollupConfig, RollupInterval

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
DAY = 1_709_078_400_000  # 2024-02-28
NOW = DAY + 10 * DAY_MS


def interval(text, span, **more):
    return RollupInterval(text, RowSpan.parse(span), f"r{text}", f"p{text}", **more)


def config(**changes):
    given = RollupConfig(
        {"sum": 0, "count": 1, "min": 2, "max": 3},
        (
            dataclasses.replace(interval("1m", "1h", is_default=True), table="tsdb"),
            interval("10m", "1d"),
            interval("1h", "1n"),
            interval("1d", "1y", delay_s=2 * 86_400),
        ),
    )
    return dataclasses.replace(given, **changes)


def ask(downsampling, aggregator="sum", by=(), tags=(), start=DAY, end=DAY + DAY_MS, metric="sys.m"):
    how = Downsampling.parse(downsampling) if downsampling else None
    return Question(metric, dict.fromkeys(tags, frozenset()), by, aggregator, how, start, end)


def tables(plan):
    return [source.table for source in plan.sources]


@pytest.mark.parametrize(
    ("downsampling", "table", "ids"),
    [
        ("10m-sum", "r10m", (0,)),
        ("30m-count", "r10m", (1,)),
        ("90m-min", "r10m", (2,)),
        ("1h-max", "r1h", (3,)),
        ("36h-avg", "r1h", (0, 1)),
        ("1w-avg-zero", "r1d", (0, 1)),
        ("1n-sum", "r1d", (0,)),
    ],
)
def test_the_longest_interval_that_divides(downsampling, table, ids):
    plan = choose(config(), ask(downsampling), NOW)
    assert (tables(plan), plan.sources[0].ids, plan.notes) == ([table], ids, ())


@pytest.mark.parametrize(
    ("aggregators", "downsampling", "source"),
    [
        (("count",), "1h-count", ("p1h", "count", (0,))),
        (("sum",), "1h-count", ("p1h", "sum", (1,))),
        (("count", "sum"), "1h-count", ("p1h", "sum", (1,))),
        (("count", "sum"), "1h-sum", ("p1h", "sum", (0,))),
        (("count", "sum"), "1m-count", ("p1m", "count", ())),
        (("sum",), "1m-count", None),
    ],
)
def test_counts_of_groups_are_in_the_rows_of_sum_and_of_count(aggregators, downsampling, source):
    """docs/use/rollups.md, "Pre-aggregates": of one interval the rows of SUM serve."""
    groups = config(pre_aggregates=(PreAggregate(("*",), ("dc",), aggregators),))
    sources = choose(groups, ask(downsampling, "zimsum", by=("dc",)), NOW).sources
    of_groups = [(one.table, one.aggregator, one.ids) for one in sources if one.group is not None]
    assert of_groups == ([source] if source else [])


@pytest.mark.parametrize(
    ("asked", "note"),
    [
        (ask(None), "no rollups: the query has no downsampling"),
        (ask("0all-sum"), "no rollups: 0all has no intervals"),
        (ask("1h-dev"), "no rollups: dev cannot be computed from them"),
        (ask("1h-sum", by=["_aggregate"]), "no rollups: the query asks for the tag _aggregate"),
        (ask("1h-sum", tags=["_aggregate"]), "no rollups: the query asks for the tag _aggregate"),
        (ask("1h-first"), "no rollups of series: first has no aggregation id"),
        (ask("7m-sum"), "no rollups of series: 420000 ms are not a multiple of one of their intervals"),
        (ask("500ms-sum"), "no rollups of series: 500 ms are not a multiple of one of their intervals"),
        (ask("1h-sum", metric="other"), "no rollups of series: other is not one of timebeam.metrics"),
    ],
)
def test_what_rollups_cannot_serve(asked, note):
    plan = choose(config(metrics=("sys.*",)), asked, NOW)
    assert plan.sources == ()
    assert plan.notes[0].startswith(note)


def test_no_number_is_asked_for_under_the_id_5():
    """No TSD reads rollups there, and none are written: all answers come from points or other numbers."""
    ids = {"sum": 0, "count": 1, "min": 2, "max": 3, "last": 4, "first": 5}
    first, last = (choose(config(aggregation_ids=ids), ask(f"1h-{name}"), NOW) for name in ("first", "last"))
    why = "no rollups of series: first has the aggregation id 5, under which no TSD reads rollups"
    assert (first.sources, first.notes) == ((), (why,))
    assert (tables(last), last.sources[0].ids) == (["r1h"], (4,))
    groups = (PreAggregate(("*",), ("dc",), ("max", "sum")),)
    of_max = config(aggregation_ids={"sum": 0, "count": 1, "max": 5}, pre_aggregates=groups)
    (plain,) = choose(of_max, ask("1h-max", "mimmax", by=("dc",)), NOW).sources
    assert (plain.table, plain.ids) == ("p1m", ())
    assert tables(choose(of_max, ask("1h-sum", "zimsum", by=("dc",)), NOW))[0] == "p1h"
    for name in ("count", "sum"):
        plan = choose(config(aggregation_ids={"sum": 0, "count": 1, "max": 3, name: 5}), ask("1h-max"), NOW)
        assert plan.sources == ()
        assert plan.notes == (
            f"no rollups: {name} has the aggregation id 5, under which no TSD reads rollups",
        )


def test_whole_intervals_of_the_hours_that_the_range_touches():
    plan = choose(config(), ask("90m-sum", start=DAY + HOUR_MS * 7 // 4, end=DAY + 4 * HOUR_MS), NOW)
    assert (plan.start_ms - DAY, plan.end_ms - DAY) == (1 * HOUR_MS, 5 * HOUR_MS)
    (source,) = plan.sources
    assert (source.first_ms, source.until_ms) == (plan.start_ms, plan.end_ms)
    days = choose(config(), ask("1d-sum", start=DAY + 1, end=DAY + DAY_MS + 1), NOW).sources[0]
    assert (days.first_ms, days.until_ms) == (DAY, DAY + 2 * DAY_MS)


@pytest.mark.parametrize(
    ("now", "table", "until"),
    [
        (DAY + 3 * DAY_MS, "r1d", DAY + DAY_MS),
        (DAY + 3 * DAY_MS - 1, "r1h", DAY + 2 * DAY_MS),
        (DAY + 5 * HOUR_MS - 1, "r1h", DAY + 4 * HOUR_MS),
        (DAY + HOUR_MS - 1, "r10m", DAY + 5 * HOUR_MS // 6),
        (DAY + 60_000, None, None),
    ],
)
def test_only_what_is_old_enough(now, table, until):
    plan = choose(config(), ask("1d-sum", end=DAY + DAY_MS + 1), now)
    if table is None:
        assert plan.sources == ()
    else:
        assert (tables(plan), plan.sources[0].until_ms) == ([table], until)


BY_DC = PreAggregate(("sys.*",), ("dc",), ("max", "min", "sum"))


@pytest.mark.parametrize(
    ("asked", "serves"),
    [
        (ask("1h-sum", "zimsum", by=["dc"]), True),
        (ask("1h-count", "zimsum", tags=["dc"]), True),
        (ask("1h-sum-nan", "sum", by=["dc"]), True),
        (ask("1h-sum-zero", "pfsum", by=["dc"]), True),
        (ask("1h-max", "mimmax", by=["dc"]), True),
        (ask("1h-min-null", "min", by=["dc"]), True),
        (ask("1h-sum", "sum", by=["dc"]), False),  # interpolates
        (ask("1h-sum", "pfsum", by=["dc"]), False),
        (ask("1h-min", "min", by=["dc"]), False),
        (ask("1h-min-zero", "mimmin", by=["dc"]), False),  # the zero counts
        (ask("1h-min-nan", "mimmax", by=["dc"]), False),
        (ask("1h-avg-nan", "avg", by=["dc"]), False),  # of averages
        (ask("1h-avg-nan", "sum", by=["dc"]), False),
        (ask("1h-sum-nan", "count", by=["dc"]), False),  # of series
        (ask("1h-sum-nan", "none", by=["dc"]), False),
        (ask("1h-sum", "zimsum"), False),  # series without dc are in the answer, and in no group
        (ask("1h-sum", "zimsum", by=["dc", "host"]), False),
        (ask("1h-sum", "zimsum", by=["dc"], tags=["host"]), False),
        (ask("1h-sum", "zimsum", by=["dc"], metric="other"), False),
    ],
)
def test_groups_that_cannot_change_the_answer(asked, serves):
    plan = choose(config(pre_aggregates=(BY_DC,)), asked, NOW)
    assert tables(plan) == (["p1h", "r1h"] if serves else ["r1h"])
    assert [note.startswith("no pre-aggregates: ") for note in plan.notes] == ([] if serves else [True])


@pytest.mark.parametrize(
    ("downsampling", "aggregators", "source"),
    [
        ("2m-sum", ("sum",), ("p1m", "sum", ())),
        ("2m-count", ("count",), ("p1m", "count", ())),
        ("1h-count", ("count",), ("p1h", "count", (0,))),
        ("1h-count", ("sum",), ("p1h", "sum", (1,))),
    ],
)
def test_where_the_number_of_a_group_stands(downsampling, aggregators, source):
    everything = PreAggregate(("*",), (), aggregators)
    found = choose(config(pre_aggregates=(everything,)), ask(downsampling, "zimsum"), NOW).sources[0]
    assert (found.table, found.aggregator, found.ids) == source
    # A count of points does not stand in the plain points of sums.
    other = PreAggregate(("*",), (), ("sum",))
    assert tables(choose(config(pre_aggregates=(other,)), ask("2m-count", "zimsum"), NOW)) == []


VALUES = st.integers(-1000, 1000)


@given(
    values=st.dictionaries(st.integers(0, 400), VALUES, min_size=1),
    covered=st.sets(st.integers(0, 40)),
    function=st.sampled_from(sorted(NUMBERS)),
    factor=st.integers(1, 5),
)
def test_points_rolled_up_in_part_are_as_points(values, covered, function, factor):
    """In plain Python: intervals of 10 ms, some of them rolled up."""
    first_or_last = {"first": lambda some: some[0], "last": lambda some: some[-1]}
    fold = {"sum": sum, "count": len, "min": min, "max": max, **first_or_last}
    buckets: dict[int, list[int]] = {}
    wanted: dict[int, list[int]] = {}
    for time, value in sorted(values.items()):
        wanted.setdefault(time // (10 * factor) * 10 * factor, []).append(value)
        if time // 10 in covered:
            buckets.setdefault(time // 10 * 10, []).append(value)
    rollups = Partials(
        np.array(list(buckets), np.int64),
        np.array([[fold[name](one) for one in buckets.values()] for name in NUMBERS[function]], np.float64),
    )
    times = np.array(sorted(values), np.int64)
    points = of_points(function, times, np.array([values[time] for time in sorted(values)], np.int64))
    served = np.array(sorted(covered), np.int64)
    got = joined(function, 10 * factor, [points.take(~is_covered(times, served, 10)), rollups])
    mean = {"avg": lambda some: sum(some) / len(some)}
    assert dict(zip(*(column.tolist() for column in got), strict=True)) == {
        start: (fold | mean)[function](some) for start, some in wanted.items()
    }


def test_a_nan_counts_as_no_value():
    times, values = np.array([0, 1, 10], np.int64), np.array([1.0, math.nan, math.nan])
    got = {
        name: joined(name, 10, [of_points(name, times, values)])[1].tolist()
        for name in ("count", "avg", "sum")
    }
    assert got["count"] == [1, 0]
    assert [got[name][0] for name in ("avg", "sum")] == [1, 1]
    assert all(math.isnan(got[name][1]) for name in ("avg", "sum"))


@given(covered=st.sets(st.integers(1, 8)), start=st.integers(0, 10), end=st.integers(90, 100))
def test_gaps_are_what_is_not_covered(covered, start, end):
    found = gaps(np.array(sorted(covered), np.int64), 10, start, end)
    inside = [time for left, right in found for time in range(left, right)]
    assert inside == [time for time in range(start, end) if time // 10 not in covered]


@given(
    edges=st.lists(st.integers(0, 300), unique=True, max_size=24).map(sorted),
    near=st.integers(0, 20),
    most=st.integers(1, 6),
)
def test_parts_are_read_together(edges, near, most):
    parts = [SourceSpan(*edges[at : at + 2]) for at in range(0, len(edges) - 1, 2)]
    found = merged_spans(parts, near, most)
    assert len(found) <= most
    assert all(any(a <= left and right <= b for a, b in found) for left, right in parts)
    assert [edge for span in found for edge in span] == sorted({edge for span in found for edge in span})
    # Not more than needed: what lies between is read only if it is short, or among the shortest.
    separations = sorted((b.start_ms - a.end_ms for a, b in itertools.pairwise(parts)), reverse=True)
    assert len(found) == min(most, 1 + sum(one > near for one in separations)) if parts else not found
