"""What a range of time reads, writes and clears; row spans against Python's calendar."""

from __future__ import annotations

import calendar
import datetime
import json
import zoneinfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schema.rollup.plain_rollup import plain_base
from tests.support.budget import examples
from timebeam.schema.bits.times import day_range, last_complete_day
from timebeam.schema.rollup.config_json import parse_config
from timebeam.schema.rollup.day_plan import IntervalPlan, RowSpan, plan
from timebeam.schema.rollup.rollup_config import RollupConfig

DAY_MS = 86_400_000
SPANS = st.sampled_from(["1h", "2h", "6h", "10h", "1d", "1n", "1y"]).map(RowSpan.parse)
LENGTHS = {"1m": 60, "45m": 2700, "1h": 3600, "7h": 25_200, "1d": 86_400, "2d": 172_800}
SECONDS = st.one_of(
    st.integers(0, 2**32 - 1),
    st.datetimes(datetime.datetime(1970, 1, 2), datetime.datetime(2100, 1, 1)).map(
        lambda moment: calendar.timegm((moment.year, moment.month, 1, 0, 0, 0))
    ),
)


def config(*pairs: str, default: str = "1s", groups: bool = False) -> RollupConfig:
    """A configuration of intervals given as 1h/1d; the default has rows of 1h."""
    intervals = [(default, "1h"), *(pair.split("/") for pair in pairs)]
    pre = [{"metrics": ["*"], "keepTags": ["dc"], "aggregators": ["sum"]}] if groups else []
    return parse_config(
        json.dumps(
            {
                "aggregationIds": {"sum": 0, "count": 1},
                "intervals": [
                    {
                        "table": f"t-{interval}",
                        "preAggregationTable": f"p-{interval}",
                        "interval": interval,
                        "rowSpan": span,
                        "defaultInterval": i == 0,
                    }
                    for i, (interval, span) in enumerate(intervals)
                ],
                "timebeam": {"preAggregates": pre},
            }
        )
    )


def utc(text: str) -> int:
    return int(datetime.datetime.fromisoformat(text + "+00:00").timestamp())


@given(st.lists(SECONDS, min_size=1), SPANS)
def test_base_times_are_those_of_the_calendar(times, span):
    bases = span.bases(np.array(times, np.int64))
    assert bases.tolist() == [plain_base(time, span.count, span.unit) for time in times]
    ends = np.array([span.bases_between(base, base + span.nominal_s)[1] for base in bases.tolist()])
    assert (ends > np.array(times)).all()
    assert span.bases(ends).tolist() == ends.tolist()
    assert span.bases(ends - 1).tolist() == bases.tolist()
    assert (ends - bases <= span.nominal_s).all()


def parts(planned: IntervalPlan) -> list[tuple[int, int, int]]:
    """(base time, first, end): the intervals [first, end) of each row that is written."""
    step = 1 if planned.interval.is_default else planned.interval.seconds
    ends = [*planned.bases_s[1:], planned.end_s]
    return [
        (base_s, (max(base_s, planned.start_s) - base_s) // step, (end_s - base_s) // step)
        for base_s, end_s in zip(planned.bases_s, ends, strict=True)
    ]


@given(
    st.integers(0, 2**32 - 90 * 86_400),
    st.integers(1, 80 * 86_400),
    st.sampled_from(["1m/1d", "10s/6h", "1h/1n", "1d/1y", "30m/1d"]),
)
def test_the_intervals_that_start_in_the_range_are_written_and_no_others(start_s, length_s, pair):
    one = config(pair)
    (interval,) = one.rollups
    end_s = start_s + length_s
    planned = plan(one, start_s * 1000, end_s * 1000)
    step = interval.seconds
    starts = list(range(-(-start_s // step) * step, end_s, step))
    written = []
    for found in planned.intervals:
        for base_s, first, end in parts(found):
            members = [base_s + at * step for at in range(first, end)]
            assert {plain_base(at, interval.row_span.count, interval.row_span.unit) for at in members} == {
                base_s
            }
            written += members
    assert written == starts
    if starts:
        assert (planned.start_ms, planned.end_ms) == (starts[0] * 1000, (starts[-1] + step) * 1000)
        hours = {at // 3600 * 3600 for at in range(starts[0], starts[-1] + step, 10)}
        assert list(planned.raw_bases()) == sorted(hours)


@given(st.integers(0, 40_000), st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns", "Asia/Kolkata"]))
def test_days_that_follow_each_other_write_every_interval_once(day, zone):
    one = config("1m/1d", "1h/1n", "1d/1y")
    first = datetime.date(1970, 1, 2) + datetime.timedelta(days=day)
    ranges = [day_range(first + datetime.timedelta(days=i), zone) for i in range(3)]
    assert [a[1] for a in ranges[:-1]] == [b[0] for b in ranges[1:]]
    plans = [plan(one, *one_day) for one_day in ranges]
    for i in range(len(one.rollups)):
        found = [
            next((p for p in planned.intervals if p.interval is one.rollups[i]), None) for planned in plans
        ]
        ends = [p.end_s for p in found if p]
        starts = [p.start_s for p in found if p]
        assert starts[1:] == ends[:-1]


@given(
    st.integers(1, 40_000),
    st.sampled_from(sorted(zoneinfo.available_timezones())),
    st.lists(st.integers(0, 26 * 60), min_size=3, max_size=5),
)
@examples(100)
def test_nights_that_follow_each_other_make_every_interval_of_all_its_points(day, zone, waits):
    """In every zone, with intervals that divide no day, and runs that start late by so many minutes."""
    one = config("1m/1d", "45m/12h", "1h/1n", "7h/84h", "1d/1y", "2d/576h")
    first = datetime.date(1970, 1, 2) + datetime.timedelta(days=day)
    days = [day_range(first + datetime.timedelta(days=i), zone) for i in range(len(waits))]
    complete: dict[str, set[int]] = {}
    for (start_ms, end_ms), wait in zip(days, waits, strict=True):
        if start_ms == end_ms:
            continue  # a day that the zone left out
        now_ms = end_ms + wait * 60_000
        planned = plan(one, start_ms, end_ms, complete_ms=now_ms, of_days=True)
        for part in planned.intervals:
            length = part.interval.seconds
            for at in range(part.start_s, part.end_s, length):
                assert at * 1000 < end_ms
                assert (at + length) * 1000 > start_ms
                is_over = (at + length) * 1000 <= now_ms
                assert is_over or length > 86_400
                if is_over:
                    complete.setdefault(part.interval.interval, set()).add(at)
            assert planned.start_ms <= part.start_s * 1000
            assert part.end_s * 1000 <= planned.end_ms
    for name, length in LENGTHS.items():
        start = days[0][0] // 1000 // length * length
        wanted = set(range(start, days[-1][1] // 1000 - length + 1, length))
        assert wanted <= complete.get(name, set())


@given(st.integers(0, 2**31), st.integers(1, 90_000), st.integers(0, 200_000))
def test_intervals_up_to_a_day_wait_until_they_are_over_in_ranges_too(start_s, length_s, wait_s):
    one = config("1m/1d", "1h/1n", "7h/84h", "1d/1y", "2d/576h")
    end_s, now_s = start_s + length_s, start_s + wait_s
    planned = plan(one, start_s * 1000, end_s * 1000, complete_ms=now_s * 1000)
    made = {
        (part.interval.interval, at)
        for part in planned.intervals
        for at in range(part.start_s, part.end_s, part.interval.seconds)
    }
    assert made == {
        (interval.interval, at)
        for interval in one.rollups
        for at in range(-(-start_s // interval.seconds) * interval.seconds, end_s, interval.seconds)
        if at + interval.seconds <= now_s or interval.seconds > 86_400
    }


def test_a_utc_day():
    planned = plan(config("1m/1d", "1h/1n", "1d/1y"), *day_range(datetime.date(2016, 2, 29)))
    day = utc("2016-02-29")
    assert (planned.start_ms, planned.end_ms) == (day * 1000, (day + 86_400) * 1000)
    assert list(planned.raw_bases()) == [day + hour * 3600 for hour in range(24)]
    rows = {found.interval.interval: parts(found) for found in planned.intervals}
    assert rows == {
        "1m": [(day, 0, 1440)],
        "1h": [(utc("2016-02-01"), 28 * 24, 29 * 24)],
        "1d": [(utc("2016-01-01"), 59, 60)],
    }


def test_a_day_of_a_zone_takes_the_utc_intervals_that_start_in_it():
    start, end = day_range(datetime.date(2026, 7, 1), "Asia/Kolkata")  # UTC+05:30
    assert start == (utc("2026-06-30") + 18 * 3600 + 1800) * 1000
    planned = plan(config("1h/1n", "1d/1y"), start, end)
    hourly, daily = planned.intervals
    assert parts(hourly) == [
        (utc("2026-06-01"), 29 * 24 + 19, 30 * 24),
        (utc("2026-07-01"), 0, 19),
    ]
    assert parts(daily) == [(utc("2026-01-01"), 181, 182)]
    assert planned.start_ms == (utc("2026-06-30") + 19 * 3600) * 1000
    assert planned.end_ms == utc("2026-07-02") * 1000  # the last interval ends after the range


def test_days_on_which_clocks_change_are_shorter_and_longer():
    hours = [
        (b - a) // 3_600_000
        for a, b in (
            day_range(datetime.date(2026, m, d), "Europe/Berlin") for m, d in ((3, 29), (10, 25), (7, 1))
        )
    ]
    assert hours == [23, 25, 24]


def test_the_last_complete_day_is_yesterday_where_the_zone_is():
    now = utc("2026-03-01T00:30:00") * 1000
    assert last_complete_day(now) == datetime.date(2026, 2, 28)
    assert last_complete_day(now, "America/New_York") == datetime.date(2026, 2, 27)
    assert last_complete_day(now, "Asia/Kolkata") == datetime.date(2026, 2, 28)


def test_pre_aggregates_need_the_default_interval_in_hour_rows():
    day = utc("2026-01-02")
    planned = plan(config("1h/1d", default="1m", groups=True), (day + 90) * 1000, (day + 7200) * 1000)
    default, hourly = planned.intervals
    assert parts(default) == [(day, 120, 3600), (day + 3600, 0, 3600)]
    assert parts(hourly) == [(day, 1, 2)]


def test_a_range_in_which_no_interval_starts_needs_nothing():
    planned = plan(config("1h/1d"), 1000, 2000)
    assert (planned.intervals, list(planned.raw_bases())) == ((), [])


@pytest.mark.parametrize("times", [(0, 0), (5, 4), (-1, 5), (0, 2**32 * 1000 + 1)])
def test_what_is_no_range_is_rejected(times):
    with pytest.raises(ValueError, match="no range of time"):
        plan(config("1h/1d"), *times)
