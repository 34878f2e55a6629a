"""The server over HTTP: what the endpoints answer, budgets, limits, health, metrics, and no traces."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.commands import ingest, timebeam
from tests.support.servers.golden_api import load
from tests.support.servers.running_server import running
from tests.support.stored import Store
from timebeam.pipelines.serve.api import Api
from timebeam.pipelines.serve.route_requests import request_of, respond
from timebeam.pipelines.serve.web_application import Gate, ServerLimits
from timebeam.schema.core.rows import Row
from timebeam.schema.stores.opentsdb.http.api_request import ApiError
from timebeam.schema.stores.opentsdb.http.ts_query import checked
from timebeam.schema.stores.opentsdb.http.uri_query import uri_query
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions
from timebeam.transforms.query.answer_question import evaluate
from timebeam.transforms.query.budget import AbandonedError, Budget, Meter

BUDGET = Budget(100_000, 1_000_000, 100_000, 1 << 26, 60.0)
LIMITS = ServerLimits(BUDGET, queries=2, waiting=8, body_bytes=10_000)
QUERY = "/api/query?start=1356998400&end=1357009200&m=sum:5m-avg-nan:sys.cpu.user{host=web02}"


@pytest.fixture(scope="module")
def api(bigtable: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Api:
    store = Store.create(bigtable, "served_")
    load(store, tmp_path_factory.mktemp("served"))
    return Api(store.target, store.layout)


@pytest.fixture(scope="module")
def client(api: Api) -> Iterator[httpx.Client]:
    with running(api, LIMITS) as client:
        yield client


def limited(api: Api, **budget: float) -> contextlib.AbstractContextManager[httpx.Client]:
    return running(api, dataclasses.replace(LIMITS, budget=dataclasses.replace(BUDGET, **budget)))


def test_a_query_by_url_and_by_body(client: httpx.Client) -> None:
    by_url = client.get(QUERY)
    body = {
        "start": 1356998400,
        "end": 1357009200,
        "queries": [
            {
                "metric": "sys.cpu.user",
                "aggregator": "sum",
                "downsample": "5m-avg-nan",
                "tags": {"host": "web02"},
            }
        ],
    }
    by_body = client.post("/api/query", json=body)
    assert by_url.status_code == by_body.status_code == 200
    assert by_url.headers["content-type"] == "application/json; charset=UTF-8"
    assert by_url.json() == by_body.json()
    assert "NaN" in by_url.json()[0]["dps"].values()


def test_the_page_loads_nothing_from_elsewhere(client: httpx.Client) -> None:
    for path, kind in (
        ("/", "text/html"),
        ("/page.js", "text/javascript"),
        ("/plotly.js", "text/javascript"),
    ):
        response = client.get(path)
        assert response.status_code == 200
        assert response.headers["content-type"].startswith(kind)
        assert response.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
    assert "plotly.js" in client.get("/?metric=sys.cpu.user").text


def test_grafana_gets_no_nan(client: httpx.Client) -> None:
    everything = client.get(QUERY).json()[0]["dps"]
    numbers = client.get("/grafana" + QUERY).json()[0]["dps"]
    assert numbers == {time: value for time, value in everything.items() if value != "NaN"}
    assert 0 < len(numbers) < len(everything)
    assert client.get("/grafana/api/aggregators").status_code == 200


def test_large_answers_are_compressed(client: httpx.Client) -> None:
    large = QUERY.replace("5m", "1m")
    assert client.get(large, headers={"accept-encoding": "gzip"}).headers["content-encoding"] == "gzip"
    assert "content-encoding" not in client.get(large, headers={"accept-encoding": "identity"}).headers


@pytest.mark.parametrize(
    ("budget", "noun"),
    [
        ({"rows": 2}, "2 rows"),
        ({"points": 5}, "5 points"),
        ({"shown": 5}, "5 points in its answer"),
        ({"size": 10}, "10 bytes"),
        ({"seconds": 0.0}, "0.0 seconds"),
    ],
)
def test_over_a_budget_the_answer_says_which_and_what_is_cheaper(
    api: Api, budget: dict[str, float], noun: str
) -> None:
    with limited(api, **budget) as client:
        response = client.get(QUERY)
        assert response.status_code == 413
        error = response.json()["error"]
        assert error["code"] == 413
        assert f"more than {noun}, the budget of a request. It stopped after " in error["message"]
        assert "To make it cheaper, " in error["message"]
        assert client.get("/api/aggregators").status_code == 200


def test_what_a_fill_makes_is_counted_before_it_is_made(client: httpx.Client) -> None:
    response = client.get(QUERY.replace("5m-avg-nan", "1ms-avg-zero"))
    assert response.status_code == 413
    assert "more than 1,000,000 points, the budget" in response.json()["error"]["message"]


@pytest.mark.parametrize("downsample", ["1h-avg", "1d-avg", "0all-avg"])
def test_a_range_may_end_with_the_year_9999(client: httpx.Client, downsample: str) -> None:
    response = client.get(f"/api/query?start=0&end=253402300799999&m=sum:{downsample}:sys.cpu.user")
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    "interval", ["8035yc", "999999999dc", "999999999wc", "999999999hc", "9223372036854775807ms"]
)
@pytest.mark.parametrize("fill", ["", "-nan"])
def test_an_interval_of_any_length_is_answered_or_rejected(
    client: httpx.Client, interval: str, fill: str
) -> None:
    for start in ("1356998400", "1h-ago"):
        response = client.get(f"/api/query?start={start}&m=sum:{interval}-avg{fill}:sys.cpu.user")
        assert response.status_code in (200, 400)
        if interval == "8035yc":
            assert response.json()["error"]["message"] == (
                "an interval of 8035yc ends after the year 9999; choose a shorter interval or an earlier end"
            )


def test_a_large_body_is_rejected(client: httpx.Client) -> None:
    response = client.post("/api/query", content=b" " * 10_001)
    assert (response.status_code, response.json()["error"]["code"]) == (413, 413)


@pytest.mark.parametrize(
    "target",
    [
        "/api/suggest?type=metrics&max=99999999999999999999",
        "/api/suggest?type=metrics&max=-99999999999999999999",
        "/api/suggest?type=metrics&max=2147483648",
        "/api/search/lookup?m=sys.cpu.user&limit=99999999999999999999",
        "/api/search/lookup?m=sys.cpu.user&limit=-99999999999999999999999",
        "/api/query/last?timeseries=sys.cpu.user&back_scan=" + "9" * 5000,
    ],
)
def test_a_number_of_more_than_32_bits_is_a_client_s_error(client: httpx.Client, target: str) -> None:
    response = client.get(target)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("Unable to ")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/search/lookup", '{"metric":5}'),
        ("/api/search/lookup", '{"metric":["a"]}'),
        ("/api/search/lookup", '{"tags":[{"key":["a"]}]}'),
        ("/api/search/lookup", '{"tags":[{"value":{"a":"b"}}]}'),
        ("/api/search/lookup", '{"tags":[5]}'),
        ("/api/search/lookup", '{"metric":"sys.cpu.user","limit":99999999999999999999}'),
        ("/api/search/lookup", '{"metric":"sys.cpu.user","limit":-99999999999999999999999}'),
        ("/api/search/lookup", "[]"),
        ("/api/suggest", '{"type":["metrics"]}'),
        ("/api/suggest", '{"type":"metrics","q":["a"]}'),
        ("/api/suggest", '{"type":"metrics","max":99999999999999999999}'),
        ("/api/query", '{"start":' + "9" * 400 + ',"queries":[{"aggregator":"sum","metric":"a"}]}'),
        ("/api/query/last", '{"backScan":' + "9" * 5000 + ',"queries":[{"metric":"a"}]}'),
    ],
)
def test_a_body_with_members_of_other_types_is_a_client_s_error(
    client: httpx.Client, path: str, body: str
) -> None:
    response = client.post(path, content=body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["code"] == 400


def gexp(function: str, arguments: int, parameters: str = "", times: int = 1) -> str:
    start, _, argument = QUERY.partition("&m=")
    expression = f"&exp={function}({','.join([argument] * arguments)}{parameters})"
    return start.replace("/query?", "/query/gexp?") + expression * times


def test_results_of_expressions_are_counted_as_often_as_they_come(api: Api) -> None:
    with limited(api, shown=500) as client:
        assert client.get(gexp("absolute", 1)).status_code == 200
        for target in (gexp("absolute", 50), gexp("absolute", 1, times=50)):
            response = client.get(target)
            assert response.status_code == 413
            assert "more than 500 points in its answer, the budget" in response.json()["error"]["message"]


def test_what_functions_of_expressions_read_is_counted(api: Api) -> None:
    with limited(api, points=1000) as client:
        assert client.get(gexp("diffSeries", 2)).status_code == 200
        for target in (gexp("diffSeries", 26), gexp("highestMax", 100, ",1")):
            response = client.get(target)
            assert response.status_code == 413
            assert "more than 1,000 points, the budget" in response.json()["error"]["message"]


def test_expressions_have_at_most_256_arguments(client: httpx.Client) -> None:
    response = client.get(gexp("absolute", 257))
    assert response.status_code == 413
    message = "The expressions have 257 queries as arguments; at most 256 are allowed. Send several requests"
    assert response.json()["error"]["message"] == message


def test_the_query_that_each_result_repeats_is_counted(api: Api) -> None:
    others = "|".join(f"web{number:04}" for number in range(1000, 1500))
    braces = f"{{host=*}}{{host=not_literal_or({others})}}"
    target = f"/api/query?start=1356998400&end=1357009200&m=sum:0all-sum:sys.cpu.user{braces}"
    with limited(api, shown=30) as client:
        assert len(client.get(target).json()) == 4
        response = client.get(f"{target}&show_query")
        assert response.status_code == 413
        assert "more than 30 points in its answer, the budget" in response.json()["error"]["message"]


def test_results_without_points_are_counted(api: Api) -> None:
    target = "/api/query?start=1356998401&end=1356998402&m=sum:sys.cpu.user{host=*}"
    with limited(api, shown=100) as client:
        assert [result["dps"] for result in client.get(target).json()] == [{}] * 4
    with limited(api, shown=15) as client:
        assert client.get(target).status_code == 413


@pytest.mark.parametrize("path", ["/index.html", "/api", "/api/put", "/api/query/exp", "/s", "/api/../etc"])
def test_what_is_no_endpoint_is_a_404_as_a_tsd_s(client: httpx.Client, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 404
    assert response.json()["error"]["message"] == "Endpoint not found"


def test_the_last_points_within_some_hours(client: httpx.Client) -> None:
    hours = str(int(time.time() - 1357000200) // 3600 + 1)
    query = {"timeseries": "lonely.point{host=web03,dc=dal}", "back_scan": hours}
    point = {"timestamp": 1357000200000, "value": "42", "tsuid": "000005000001000006000003000007"}
    assert client.get("/api/query/last", params=query).json() == [point]
    names = {"metric": "lonely.point", "tags": {"host": "web03", "dc": "dal"}}
    by_tsuid = {"tsuids": point["tsuid"], "back_scan": hours, "resolve": "true"}
    assert client.get("/api/query/last", params=by_tsuid).json() == [point | names]
    body = {"queries": [names], "resolveNames": True, "backScan": int(hours)}
    assert client.post("/api/query/last", json=body).json() == [point | names]
    assert client.get("/api/query/last", params=query | {"back_scan": "1"}).json() == []


def test_the_last_points_beside_a_metadata_row_without_a_name(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    """Its UIDs were deleted: it is left out, and ends no request."""
    store = Store.create(bigtable, prefix)
    flags = [*store.flags, "--meta"]
    assert timebeam("tables", "create", *flags).code == 0
    file = tmp_path / "a.txt"
    file.write_text("put sys.load 1357000200 42 host=a\n")
    os.utime(file, (1357000200, 1357000200))
    options = ["--format=opentsdb-text", "--auto-create-metrics", "--meta=track", "--input", file]
    assert ingest(tmp_path, *store.flags, *options).letters == []
    store.set_cell(f"{prefix}tsdb-meta", bytes.fromhex("000909000909000909"), "name", b"ts_ctr", bytes(8))
    api = Api(store.target, store.layout)
    response = respond(api, request_of("GET", "/api/query/last?timeseries=sys.load", b""))
    assert (response.status, [point["value"] for point in response.body]) == (200, ["42"])
    assert any("000909000909000909" in line for line in api.skipped)


def test_a_query_of_histograms_is_not_answered_with_points(client: httpx.Client) -> None:
    times = "start=1356998400&end=1357009200"
    response = client.get(f"/api/query?{times}&m=sum:percentiles[50,99.9]:lonely.point")
    assert (response.status_code, response.json()) == (200, [])


def test_a_query_of_tsuids(client: httpx.Client) -> None:
    tsuid = "000005000001000006000003000007"
    times = "start=1356998400&end=1357009200"
    by_tsuid = client.get(f"/api/query?{times}&tsuid=sum:{tsuid}").json()
    assert by_tsuid == client.get(f"/api/query?{times}&m=sum:lonely.point").json()
    other = "000003000001000001"
    several = client.get(f"/api/query?{times}&tsuid=sum:{tsuid},{other}")
    assert several.status_code == 400
    assert "did not share the same metric" in several.json()["error"]["message"]
    unknown = client.get(f"/api/query?{times}&tsuid=sum:0000ff000001000006000003000007")
    assert unknown.status_code == 400
    for text in ("ZZ", "ZZ" * 15, "0"):
        wrong = client.get(f"/api/query?{times}&tsuid=sum:{text}")
        assert wrong.status_code == 400
        assert wrong.json()["error"]["message"] == f"TSUID {text} is not hexadecimal"


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_nothing_can_be_written(client: httpx.Client, method: str) -> None:
    for path in ("/api/query", "/api/suggest", "/api/uid/uidmeta", "/api/search/lookup", "/api/version"):
        assert client.request(method, path).status_code == 405


def test_health_readiness_and_metrics(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "timebeam.serve"), running(api, LIMITS) as client:
        client.get(QUERY)
        client.get("/api/nothing")
        assert (client.get("/healthz").text, client.get("/readyz").text) == ("ok\n", "ready\n")
        text = client.get("/metrics").text
        assert client.get("/").status_code == 200
    lines = [record.getMessage().split()[1:4] for record in caplog.records if record.name == "timebeam.serve"]
    paths = {
        "/api/query": 200,
        "/api/nothing": 404,
        "/healthz": 200,
        "/readyz": 200,
        "/metrics": 200,
        "/": 200,
    }
    assert lines == [["GET", path, str(status)] for path, status in paths.items()]
    assert 'timebeam_requests_total{endpoint="/api/query",status="200"} 1\n' in text
    assert 'timebeam_requests_total{endpoint="other",status="404"} 1\n' in text
    assert "timebeam_queries_running 0\n" in text


def test_a_failure_of_bigtable_is_an_honest_answer_without_a_trace(api: Api) -> None:
    missing = Api(api.target, OpenTsdb(OpenTsdbOptions(table_prefix="served_missing_")))
    with running(missing, LIMITS) as client:
        response = client.get(QUERY)
        assert response.status_code == 503
        assert response.json() == {"error": {"code": 503, "message": "Bigtable: NotFound"}}
        assert client.get("/readyz").status_code == 503


def test_braces_and_pipes_may_be_unencoded_on_the_wire(api: Api) -> None:
    target = "/api/query?start=1356998400&end=1357009200&m=sum:1h-avg:sys.cpu.user{host=web01|web02}"
    with running(api, LIMITS) as client:
        address = client.base_url.host, client.base_url.port or 0
        with socket.create_connection(address) as connection:
            connection.sendall(
                f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
            )
            answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert [result["tags"]["host"] for result in json.loads(body)] == ["web01", "web02"]


class WatchedMeter(Meter):
    """A meter that knows how often it was checked since a row was last read."""

    checks = 0

    def add_row(self, row: Row) -> None:
        super().add_row(row)
        self.checks = 0

    def check(self) -> None:
        self.checks += 1
        super().check()


def test_the_budget_is_checked_while_series_are_downsampled_and_added_up(api: Api) -> None:
    asked = checked(
        uri_query(request_of("GET", QUERY.replace("host=web02", "dc=*").replace("nan", "none"))), 0
    )
    (sub_query,) = asked.queries
    meter = WatchedMeter(BUDGET)
    target = dataclasses.replace(api.target, stop=meter)
    results = evaluate(target, api.store, asked.question(sub_query), None, 0).results
    series = sum(len(result.members) for result in results)
    assert series > len(results)
    assert meter.checks >= 2 * series


def test_a_request_whose_client_has_gone_reads_no_more() -> None:
    meter = Meter(BUDGET)
    meter.add_points(1)
    meter.set()
    with pytest.raises(AbandonedError):
        meter.add_points(1)


def test_the_gate_lets_some_in_has_others_wait_in_order_and_turns_the_rest_away() -> None:
    async def play() -> None:
        gate, order = Gate(1, 2), []

        async def enter(name: str) -> None:
            await gate.enter()
            order.append(name)

        await enter("a")
        tasks = [asyncio.create_task(enter(name)) for name in "bc"]
        await asyncio.sleep(0)
        assert (gate.running, gate.queued, order) == (1, 2, ["a"])
        with pytest.raises(ApiError) as rejected:
            await gate.enter()
        assert (rejected.value.status, rejected.value.headers) == (503, {"Retry-After": "5"})
        for task in tasks:
            gate.leave()
            await task
        assert (order, gate.queued) == (["a", "b", "c"], 0)

    asyncio.run(play())
