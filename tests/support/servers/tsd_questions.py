"""Seeded points and questions for a TSD and for `timebeam serve`, and where their answers differ.

What is documented as different (docs/use/serve.md) is not asked: two filters of one key, rollups that
are not there, regular expressions that RE2 lacks. Ranges begin and end anywhere, also within an interval.

`python -m tests.support.servers.tsd_questions` prints the rollup configuration for the TSD.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

from tests.support.servers.golden_api import differences, normal

DAY_S = 1_356_998_400  # 2013-01-01T00:00:00Z
HOURS = 6
ROLLUPS: dict[str, Any] = {
    "aggregationIds": {"sum": 0, "count": 1, "min": 2, "max": 3},
    "intervals": [
        {
            "table": "tsdb",
            "preAggregationTable": "tsdb-preagg",
            "interval": "1m",
            "rowSpan": "1h",
            "defaultInterval": True,
        },
        {
            "table": "tsdb-rollup-10m",
            "preAggregationTable": "tsdb-rollup-preagg-10m",
            "interval": "10m",
            "rowSpan": "6h",
        },
        {
            "table": "tsdb-rollup-1h",
            "preAggregationTable": "tsdb-rollup-preagg-1h",
            "interval": "1h",
            "rowSpan": "1d",
        },
    ],
}
"""The configuration of the TSD and of the server, whose prefix of tables is empty."""

_SERIES = [("a", "x"), ("b", "x"), ("c", "y"), ("d", "z")]
_AGGREGATORS = (
    *("sum", "min", "max", "avg", "count", "none", "dev", "first", "last", "diff"),
    *("zimsum", "mimmin", "mimmax", "p50", "p99", "median", "squareSum", "pfsum"),
)
_FUNCTIONS = ("sum", "min", "max", "avg", "count", "dev", "first", "last", "p90", "median")
_INTERVALS = ("1m", "7m", "10m", "20m", "30m", "1h", "2h", "1d", "0all", "1hc", "1dc")
_ROLLED = (("10m", "20m", "30m", "1h", "2h", "1d"), ("sum", "min", "max", "avg", "count"))
_FILTERS = (
    *("", "{host=*}", "{dc=*}", "{host=a|b}", "{host=a,dc=x}", "{host=*}{dc=x}", "{}{host=a}"),
    *("{host=wildcard(*)}", "{host=not_literal_or(a)}", "{dc=iliteral_or(X|y)}", "{host=regexp([a-c])}"),
)
_ZONES = ("Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe")
_ROUNDING = 1e-9
"""A rate is the difference of two sums of up to 10,000, which each side adds up in another order."""
_RATES = ("", "", "", "rate", "rate{counter}", "rate{counter,100}", "rate{dropcounter}")


def lines(seed: int) -> Iterator[str]:
    """Points in six hours, as telnet lines: about one a minute and host.

    Of the metric `load.SEED`; and of `late.SEED`, whose hosts begin and end at other times. Only points can
    answer questions about that: groups of rollups have other members at the edges of a range.
    """
    draw = random.Random(seed)
    for metric, latest_s in (("load", 0), ("late", HOURS * 3600 // 2)):
        for host, dc in _SERIES:
            first_s, end_s = draw.randint(0, latest_s), HOURS * 3600 - draw.randint(0, latest_s)
            for second in range(first_s // 60 * 60, end_s, 60):
                if draw.random() < 0.9:
                    value = draw.choice((draw.randint(-50, 100), round(draw.uniform(-50, 100), 2)))
                    time_s = DAY_S + second + draw.choice((0, 0, 0, 17))
                    yield f"put {metric}.{seed} {time_s} {value} host={host} dc={dc}"


class Question(NamedTuple):
    """A request, by POST if it has a body, and whether rollups may answer it."""

    path: str
    is_rolled_up: bool
    body: dict[str, Any] | None = None


def questions(seed: int, count: int, *, rolled: bool) -> list[Question]:
    """So many questions about the points of a seed."""
    draw = random.Random(f"{seed} {rolled}")
    return [_question(draw, seed, rolled=rolled) for _ in range(count)]


def zoned_questions(seed: int, count: int) -> list[Question]:
    """So many questions about the points of a seed in time zones, with days and intervals of the calendar."""
    draw = random.Random(seed)
    return [Question("/api/query", False, _zoned(draw, seed)) for _ in range(count)]


def _zoned(draw: random.Random, seed: int) -> dict[str, Any]:
    interval = draw.choice(("30m", "1h", "2h", "6h", "12h", "1d", "1w", "1n", "1y")) + draw.choice(("", "c"))
    downsample = f"{interval}-{draw.choice(_FUNCTIONS)}{draw.choice(('', '', '-zero', '-nan'))}"
    query = {
        "metric": f"{draw.choice(('load', 'late'))}.{seed}",
        "aggregator": draw.choice(_AGGREGATORS),
        "downsample": downsample,
        "rollupUsage": "ROLLUP_RAW",
        "tags": draw.choice(({}, {"host": "*"}, {"dc": "x|y"})),
    }
    return {
        "start": draw.choice(("2012/12/31", "2013/01/01", "2013/01/01-02:00", DAY_S)),
        "end": draw.choice(("2013/01/02", "2013/01/01-05:00", "2013/01/01 03:30:00")),
        "timezone": draw.choice(_ZONES),
        "useCalendar": draw.random() < 0.5,
        "msResolution": True,
        "queries": [query],
    }


def _question(draw: random.Random, seed: int, *, rolled: bool) -> Question:
    intervals, functions = _ROLLED if rolled else (_INTERVALS, _FUNCTIONS)
    downsample = f"{draw.choice(intervals)}-{draw.choice(functions)}"
    if not rolled and draw.random() < 0.4:
        downsample = ""
    elif not rolled and draw.random() < 0.3:
        downsample += draw.choice(("-none", "-zero", "-nan", "-null"))
    rollup = "" if rolled else "rollup_raw"
    start_s, end_s = sorted(_edge(draw) for _ in range(2))
    rate = draw.choice(_RATES[: -1 if rolled else None])  # a dropped rate shows the one before, of an edge
    words = [draw.choice(_AGGREGATORS), downsample, rate, rollup]
    metric = "load" if rolled else draw.choice(("load", "late"))
    m = ":".join([*filter(None, words), f"{metric}.{seed}{draw.choice(_FILTERS)}"])
    path = f"/api/query?start={start_s}&end={end_s + 1}&m={quote(m, safe=':')}&ms=true"
    return Question(path, rolled)


def _edge(draw: random.Random) -> int:
    """A time in s, often at the start or the end of an interval."""
    step_s = draw.choice((1, 60, 600, 3600, 3600))
    return DAY_S + draw.randrange(-3600, (HOURS + 1) * 3600) // step_s * step_s + draw.choice((0, 0, -1, 1))


def differing(question: Question, tsd: tuple[int, str], ours: tuple[int, str]) -> list[str]:
    """The places in which the answer of `timebeam serve` differs from that of a TSD.

    Args:
      tsd, ours: (status, body).
    """
    if tsd[0] != ours[0]:
        return [f"status {ours[0]}, expected {tsd[0]}: {tsd[1][:200]}"]
    expected, found = (json.loads(body) for _, body in (tsd, ours))
    if tsd[0] != 200:
        texts = [answer["error"]["message"] for answer in (expected, found)]
        return [] if texts[1].startswith(texts[0]) else [f"message {texts[1]!r}, expected {texts[0]!r}"]
    if question.is_rolled_up:
        expected = _without_edges(expected, found)
        found = [result for result in found if result["dps"]]
    return differences(normal(found), normal(expected), absolute=_ROUNDING)


def _without_edges(expected: list[dict[str, Any]], found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The answer of a TSD from rollups, without what only whole rows of rollups have.

    A TSD counts all rollups of the rows that the range touches, and of one row more for a rate: so a rate may
    begin an interval earlier, and there are results without a value (docs/use/serve.md).
    """
    firsts = {_identity(result): min(map(int, result["dps"])) for result in found if result["dps"]}
    for result in expected:
        times = sorted(map(int, result["dps"]))
        first = firsts.get(_identity(result))
        if times and (first is None or times[0] < first):
            del result["dps"][str(times[0])]
    return [result for result in expected if result["dps"]]


def _identity(result: dict[str, Any]) -> str:
    """What tells results apart, whatever their values are."""
    return json.dumps(result["tags"], sort_keys=True)


if __name__ == "__main__":
    print(json.dumps(ROLLUPS, indent=2))
