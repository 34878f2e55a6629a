"""Rollups that answer a query count as points of its budget."""

from __future__ import annotations

from pathlib import Path

from tests.support.plain.rolled import DAY, HOUR, config_file, interval, roll_up, send, with_tables
from tests.support.stored import Store
from timebeam.pipelines.options.place import read_config
from timebeam.pipelines.serve.api import Api
from timebeam.pipelines.serve.route_requests import request_of, respond
from timebeam.schema.core.points import Series
from timebeam.transforms.query.budget import Budget, Meter

HOURS = 10


def test_pre_aggregates_are_asked_for_by_their_tag(bigtable: tuple[str, str], tmp_path: Path) -> None:
    of_dc = {"metrics": ["sys.*"], "keepTags": ["dc"], "aggregators": ["sum"]}
    config = config_file(tmp_path, [interval("1h", "1d")], [of_dc])
    store = with_tables(Store.create(bigtable, "served_pre_aggregates_"), config)
    points = {
        (Series.of("sys.load", {"host": host, "dc": "lax"}), DAY + hour * HOUR): hour + number
        for number, host in enumerate("ab")
        for hour in range(HOURS)
    }
    send(store, tmp_path, points)
    roll_up(store, config, DAY, DAY + HOURS * HOUR)
    api = Api(store.target, store.layout, (store.layout, read_config(str(config))))
    url = f"/api/query?start={DAY}&end={DAY + HOURS * HOUR - 1}&show_stats&show_summary&m=sum:1h-sum:pre-agg:"
    api = api.for_request(Meter(Budget(1_000, 1_000, 1_000, 1 << 20, 60.0)))
    response = respond(api, request_of("GET", url + "sys.load{_aggregate=SUM,dc=lax}"))
    result, summary = response.body
    assert result["tags"] == {"_aggregate": "SUM", "dc": "lax"}
    assert result["dps"] == {DAY + hour * HOUR: 2.0 * hour + 1 for hour in range(HOURS)}
    stats = result["stats"]
    assert (stats["emittedDPs"], stats["dpsPostFilter"]) == (HOURS, HOURS)  # not 2 * HOURS points
    assert stats["rowsFromStorage"] > 0
    assert stats["bytesFromStorage"] > 0
    assert summary["statsSummary"]["queryIdx_00"] == stats
    assert summary["statsSummary"]["emittedDPs"] == HOURS
    response = respond(api, request_of("GET", url + "sys.load{_aggregate=MAX}"))
    assert (response.status, response.body["error"]["message"]) == (
        400,
        "preAggregate: _aggregate=MAX cannot be aggregated by sum",
    )


def test_rollups_count_as_points(bigtable: tuple[str, str], tmp_path: Path) -> None:
    config = config_file(tmp_path, [interval("1h", "1d")])
    store = with_tables(Store.create(bigtable, "rollup_budget_"), config)
    series = Series.of("sys.load", {"host": "a"})
    send(store, tmp_path, {(series, DAY + hour * HOUR): hour for hour in range(HOURS)})
    roll_up(store, config, DAY, DAY + HOURS * HOUR)
    api = Api(store.target, store.layout, (store.layout, read_config(str(config))))
    url = f"/api/query?start={DAY}&end={DAY + HOURS * HOUR - 1}&m=sum:1h-sum:sys.load"
    for points, status in ((HOURS, 200), (HOURS - 1, 413)):
        meter = Meter(Budget(1_000, points, 1_000, 1 << 20, 60.0))
        assert respond(api.for_request(meter), request_of("GET", url)).status == status
        assert meter.points == HOURS
