"""The configuration: what OpenTSDB takes is taken, and every refusal names its field."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.schema.rollup.rollup_cases import rollup_cases
from timebeam.schema.bits.reasons import RejectedError
from timebeam.schema.core.points import Series
from timebeam.schema.rollup.config_json import parse_config
from timebeam.schema.rollup.day_plan import RowSpan
from timebeam.schema.rollup.rollup_config import PreAggregate, RollupConfig, RollupConfigError

GOOD: dict[str, Any] = {
    "aggregationIds": {"sum": 0, "COUNT": 1, "min": 2, "max": 3},
    "intervals": [
        {
            "table": "tsdb",
            "preAggregationTable": "tsdb-preagg",
            "interval": "1m",
            "rowSpan": "1h",
            "defaultInterval": True,
        },
        {
            "table": "tsdb-rollup-1h",
            "preAggregationTable": "tsdb-rollup-preagg-1h",
            "interval": "1h",
            "rowSpan": "1d",
            "delaySla": "2d",
        },
    ],
    "timebeam": {
        "metrics": ["sys.*"],
        "preAggregates": [
            {"metrics": ["sys.cpu", "sys.net.*"], "keepTags": ["dc"], "aggregators": ["SUM", "max"]},
            {"metrics": ["sys.*"], "keepTags": [], "aggregators": ["count"]},
        ],
    },
}
REMOVED = object()


def changed(*changes: tuple[str, Any]) -> str:
    """The good document with other values at dotted paths."""
    document = copy.deepcopy(GOOD)
    for path, value in changes:
        *way, name = path.split(".")
        at: Any = document
        for step in way:
            at = at[int(step)] if isinstance(at, list) else at[step]
        if value is REMOVED:
            del at[name]
        elif isinstance(at, list):
            at[int(name)] = value
        else:
            at[name] = value
    return json.dumps(document)


def test_a_configuration_is_read():
    config = parse_config(json.dumps(GOOD))
    assert config.aggregation_ids == {"sum": 0, "count": 1, "min": 2, "max": 3}
    default, hourly = config.intervals
    assert config.default is default
    assert config.rollups == (hourly,)
    assert (default.seconds, default.row_intervals, default.delay_s) == (60, 60, None)
    assert (hourly.seconds, hourly.row_span, hourly.delay_s) == (3600, RowSpan(1, "d"), 172_800)
    assert (hourly.table, hourly.pre_aggregation_table) == ("tsdb-rollup-1h", "tsdb-rollup-preagg-1h")
    assert config.computed == ("sum", "count", "min", "max")
    assert config.pre_aggregates[0] == PreAggregate(("sys.cpu", "sys.net.*"), ("dc",), ("max", "sum"))
    assert pickle.loads(pickle.dumps(config)) == config


def test_the_example_and_the_error_of_the_document_are_those_of_the_code():
    text = (Path(__file__).parents[3] / "docs" / "use" / "rollups.md").read_text()
    example = parse_config(text.split("```json")[1].split("```")[0])
    assert [str(interval.row_span) for interval in example.intervals] == ["1h", "1n"]
    with pytest.raises(RollupConfigError) as rejected:
        parse_config(changed(("intervals.1.rowSpan", "1m")))
    assert str(rejected.value).split(":")[0] + ": '1m' is not a row span" in " ".join(text.split())


def test_the_configurations_of_real_tsds_are_read():
    for case in rollup_cases():
        assert [interval.interval for interval in case.config.rollups] == ["1m", "1h", "1d"]
        assert case.config.computed == ("sum", "count", "min", "max", "first", "last")


def test_the_id_5_is_read_and_not_written():
    """As in the configuration that real TSDs ran with; dev is not computed here."""
    for case in rollup_cases():
        assert case.config.aggregation_ids["first"] == 5
        with pytest.raises(
            RollupConfigError, match=r"^aggregationIds: first is not written under the id 5: TSDs"
        ):
            case.config.check_written()
    parse_config(changed(("aggregationIds.dev", 5))).check_written()
    for name in ("COUNT", "sum", "last"):
        config = parse_config(changed((f"aggregationIds.{name}", 5)))
        with pytest.raises(
            RollupConfigError, match=f"^aggregationIds: {name.lower()} is not written under the id 5"
        ):
            config.check_written()
    parse_config(json.dumps(GOOD)).check_written()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("aggregationIds", REMOVED, "aggregationIds: is missing"),
        ("aggregationIds", [], "aggregationIds: must be an object"),
        ("aggregationIds", {}, "aggregationIds: count is missing"),
        ("aggregationIds.sum", 128, "aggregationIds: sum: 128 is not from 0 to 127"),
        ("aggregationIds.sum", -1, "aggregationIds: sum: -1 is not"),
        ("aggregationIds.sum", True, "aggregationIds.sum: must be a whole number"),
        ("aggregationIds.sum", "0", "aggregationIds.sum: must be a whole number"),
        ("aggregationIds.sum", 1, "aggregationIds: sum and count both have 1"),
        ("aggregationIds.Sum", 9, "aggregationIds: duplicate sum"),
        ("aggregationIds.mean", 9, "aggregationIds: OpenTSDB has no aggregator 'mean'"),
        ("aggregationIds.squareSum", 9, "aggregationIds: OpenTSDB has no aggregator 'squaresum'"),
        ("aggregationIds.COUNT", REMOVED, "aggregationIds: count is missing"),
        ("aggregationIds.sum", REMOVED, "aggregationIds: sum is missing"),
        ("intervals", REMOVED, "intervals: is missing"),
        ("intervals", [], "intervals: 0 have defaultInterval true"),
        ("intervals", ["1h"], "intervals[0]: must be an object"),
        ("intervals.0.defaultInterval", False, "intervals: 0 have defaultInterval true"),
        ("intervals.1.defaultInterval", True, "intervals: 2 have defaultInterval true"),
        ("intervals.1.defaultInterval", "yes", "intervals[1].defaultInterval: must be true or false"),
        ("intervals.1.table", REMOVED, "intervals[1].table: is missing"),
        ("intervals.1.table", "", "intervals[1].table: '' is not a name"),
        ("intervals.1.table", "a b", "intervals[1].table: 'a b' is not a name"),
        ("intervals.1.table", "tsdb", "intervals: 1m and 1h share the table tsdb"),
        ("intervals.1.preAggregationTable", REMOVED, "intervals[1].preAggregationTable: is missing"),
        ("intervals.1.preAggregationTable", "", "intervals[1].preAggregationTable: '' is not a name"),
        ("intervals.1.interval", "1m", "intervals: duplicate 1m"),
        ("intervals.1.interval", 60, "intervals[1].interval: must be a string"),
        ("intervals.1.interval", "1 h", "intervals[1].interval: '1 h' is not a duration"),
        ("intervals.1.interval", "0h", "intervals[1].interval: '0h' is a duration of zero"),
        ("intervals.1.interval", " 1h", "intervals[1].interval: ' 1h': give whole seconds"),
        ("intervals.1.interval", "1500ms", "intervals[1].interval: '1500ms': give whole seconds"),
        ("intervals.1.interval", "60000ms", "intervals[1].interval: '60000ms': give whole seconds"),
        ("intervals.1.interval", "1d", "intervals[1].interval: 1d is not shorter than the row span 1d"),
        ("intervals.1.interval", "3h", "intervals[1].interval: a row of 1d would hold 8 intervals"),
        ("intervals.1.interval", "10s", "intervals[1].interval: a row of 1d would hold 8640 intervals"),
        ("intervals.1.interval", "7m", "intervals[1].interval: 7m does not divide a day"),
        ("intervals.1.rowSpan", REMOVED, "intervals[1].rowSpan: is missing"),
        ("intervals.1.rowSpan", "1m", "intervals[1].rowSpan: '1m' is not a row span (m is minutes"),
        ("intervals.1.rowSpan", "1w", "intervals[1].rowSpan: '1w' is not a row span"),
        ("intervals.1.rowSpan", "day", "intervals[1].rowSpan: 'day' is not a row span"),
        ("intervals.1.rowSpan", "2d", "intervals[1].rowSpan: '2d': only h may"),
        ("intervals.1.rowSpan", "3h", "intervals[1].rowSpan: '3h': only h may"),
        ("intervals.1.rowSpan", "0h", "intervals[1].rowSpan: '0h': only h may"),
        ("intervals.1.delaySla", "soon", "intervals[1].delaySla: 'soon' is not a duration"),
        ("intervals.1.delaySla", "999ms", "intervals[1].delaySla: give at least 1s"),
        ("intervals.1.delaysla", "1d", "intervals[1].delaysla: no such field"),
        ("rollups", 1, "rollups: no such field"),
        ("timebeam.metric", "a", "timebeam.metric: no such field"),
        ("timebeam.metrics", [], "metrics: give one or more patterns"),
        ("timebeam.metrics", [1], "timebeam.metrics: must be a list of strings"),
        ("timebeam.tagRaw", 1, "timebeam.tagRaw: must be true or false"),
        ("timebeam.aggTagKey", "", "aggTagKey: the tag"),
        ("timebeam.preAggregates.0.metrics", [""], "timebeam.preAggregates[0].metrics: give one or more"),
        ("timebeam.preAggregates.0.keepTags", ["a", "a"], "timebeam.preAggregates[0].keepTags: give each"),
        (
            "timebeam.preAggregates.0.keepTags",
            ["_aggregate"],
            "timebeam.preAggregates[0].keepTags: _aggregate",
        ),
        (
            "timebeam.preAggregates.0.aggregators",
            ["avg"],
            "timebeam.preAggregates[0].aggregators: avg is derived",
        ),
        (
            "timebeam.preAggregates.0.aggregators",
            ["p99"],
            "timebeam.preAggregates[0].aggregators: 'p99': choose",
        ),
        ("timebeam.preAggregates.0.aggregators", [], "timebeam.preAggregates[0].aggregators: give one"),
        (
            "timebeam.preAggregates.0.aggregators",
            ["sum", "SUM"],
            "timebeam.preAggregates[0].aggregators: give one",
        ),
        ("timebeam.preAggregates.1.by", [], "timebeam.preAggregates[1].by: no such field"),
        ("aggregationIds.max", REMOVED, "timebeam.preAggregates[0].aggregators: max has no aggregation id"),
    ],
)
def test_rejections_name_the_field(path, value, message):
    with pytest.raises(RollupConfigError) as rejected:
        parse_config(changed((path, value)))
    assert str(rejected.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "the document: must be an object"),
        ('{"intervals": 1, "intervals": 2}', "duplicate key 'intervals'"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_documents_that_are_none_are_rejected(text, message):
    with pytest.raises(RollupConfigError, match=message):
        parse_config(text)


@pytest.mark.parametrize(
    ("interval", "span", "per_row"),
    [
        ("10s", "1h", 360),
        ("1s", "1h", 3600),
        ("30s", "1d", 2880),
        ("50m", "10h", 12),
        ("1h", "1n", 768),
        ("12m", "1n", 3840),
        ("1d", "1y", 366),
        ("3h", "1y", 2928),
        ("60m", "1d", 24),
    ],
)
def test_intervals_that_fit_their_rows_are_taken(interval, span, per_row):
    text = changed(("intervals.1.interval", interval), ("intervals.1.rowSpan", span))
    assert parse_config(text).intervals[1].row_intervals == per_row


@pytest.mark.parametrize(
    ("interval", "span", "message"),
    [
        (
            "2h",
            "1y",
            "4392 intervals of 2h: choose a row span with 12 to 3840",
        ),  # OpenTSDB takes it, and wraps
        ("11m", "1n", "4189 intervals"),
        ("22s", "1d", "3927 intervals"),
        ("6m", "1h", "10 intervals"),
        ("2d", "1n", "2d does not divide a day"),
        ("1w", "1y", "1w does not divide a day"),
        ("7m", "2h", "7m does not divide the span"),
    ],
)
def test_intervals_that_break_opentsdb_are_rejected(interval, span, message):
    with pytest.raises(RollupConfigError, match=message):
        parse_config(changed(("intervals.1.interval", interval), ("intervals.1.rowSpan", span)))


def test_the_same_table_for_series_and_groups_of_one_interval_is_taken():
    config = parse_config(changed(("intervals.1.preAggregationTable", "tsdb-rollup-1h")))
    assert config.intervals[1].table == config.intervals[1].pre_aggregation_table


def config() -> RollupConfig:
    return parse_config(json.dumps(GOOD))


def test_series_are_chosen_by_metric():
    assert config().takes(Series.of("sys.cpu", {}))
    assert not config().takes(Series.of("Sys.cpu", {}))
    assert not config().takes(Series.of("app.sys.cpu", {}))
    ours = parse_config(changed(("timebeam", REMOVED)))
    assert ours.takes(Series.of("anything", {}))
    assert ours.groups(Series.of("anything", {})) == {}


def test_groups_of_a_series():
    cpu = Series.of("sys.cpu", {"host": "a", "dc": "lga"})
    by_dc, all_of_it = Series.of("sys.cpu", {"dc": "lga"}), Series.of("sys.cpu", {})
    assert config().groups(cpu) == {by_dc: ("max", "sum"), all_of_it: ("count",)}
    without = Series.of("sys.cpu", {"host": "a"})
    assert config().groups(without) == {all_of_it: ("count",)}
    assert config().group_series(by_dc, "max") == Series.of("sys.cpu", {"_aggregate": "MAX", "dc": "lga"})


def test_a_group_that_two_pre_aggregates_have_is_one():
    pre = [
        {"metrics": [m], "keepTags": ["dc"], "aggregators": a}
        for m, a in (("*", ["sum"]), ("s*", ["min", "sum"]))
    ]
    both = parse_config(changed(("timebeam.preAggregates", pre)))
    series = Series.of("sys.cpu", {"dc": "lga", "host": "a"})
    assert both.groups(series) == {Series.of("sys.cpu", {"dc": "lga"}): ("min", "sum")}


def test_rollups_of_series_are_tagged_if_tsds_tag_them():
    series = Series.of("sys.cpu", {"host": "a"})
    assert config().rollup_series(series) == series
    tagged = parse_config(changed(("timebeam.tagRaw", True)))
    assert tagged.rollup_series(series) == Series.of("sys.cpu", {"_aggregate": "RAW", "host": "a"})
    with pytest.raises(RejectedError, match="_aggregate=SUM"):
        tagged.rollup_series(Series.of("sys.cpu", {"_aggregate": "SUM"}))
    named = parse_config(
        changed(("timebeam.tagRaw", True), ("timebeam.aggTagKey", "agg"), ("timebeam.rawAggTagValue", "none"))
    )
    assert named.rollup_series(series) == Series.of("sys.cpu", {"agg": "none", "host": "a"})
