"""The requests of Grafana's OpenTSDB data source, versions 2.1 to 2.4, and what its decoder takes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.plain.plain_tsd import Dps, PlainQuery, Tags, evaluate
from tests.support.servers.golden_api import FILE, differences, load, normal
from tests.support.stored import Store
from timebeam.pipelines.serve.api import Api
from timebeam.pipelines.serve.route_requests import request_of, respond

RANGE = {"start": 1356998400, "end": 1357009200}
TARGET: dict[str, Any] = {"metric": "sys.cpu.user", "aggregator": "sum", "downsample": "30m-avg"}
EVERY = {"web01", "web02", "web03", "Web04"}
FILLS = ("none", "nan", "null", "zero")
RATE = {"counter": True, "counterMax": 1000, "resetValue": 500, "dropResets": True}


@pytest.fixture(scope="module")
def api(bigtable: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Api:
    store = Store.create(bigtable, "grafana_")
    load(store, tmp_path_factory.mktemp("grafana"))
    return Api(store.target, store.layout)


def get(api: Api, path: str) -> Any:
    response = respond(api, request_of("GET", f"/grafana{path}"))
    assert response.status == 200, response.body
    return json.loads(json.dumps(response.body))


def post(api: Api, query: dict[str, Any], parameters: str = "", status: int = 200) -> Any:
    body = json.dumps({**RANGE, "queries": [query]}).encode()
    response = respond(api, request_of("POST", f"/grafana/api/query{parameters}", body))
    assert response.status == status, response.body
    return json.loads(json.dumps(response.body))


def decoded(results: Any) -> list[dict[Any, float]]:
    """The points as the data source decodes them: text among the values is an error there, and null a 0."""
    for result in results:
        assert isinstance(result["metric"], str)
        assert all(isinstance(value, str) for value in result["tags"].values())
        assert all(isinstance(key, str) for key in result["aggregateTags"])
        pairs = result["dps"].items() if isinstance(result["dps"], dict) else result["dps"]
        assert all(type(value) in (int, float) for _, value in pairs)
    return [dict(result["dps"]) for result in results]


def test_the_health_check_and_suggestions(api: Api) -> None:
    assert get(api, "/api/suggest?type=metrics&q=cpu") == []
    assert get(api, "/api/suggest?type=metrics&q=sys&max=1000") == ["sys.cpu.user"]
    assert "host" in get(api, "/api/suggest?type=tagk&q=&max=1000")
    assert "web01" in get(api, "/api/suggest?type=tagv&q=web&max=1000")


def test_aggregators_and_filters(api: Api) -> None:
    assert {"sum", "avg", "p99", "none"} <= set(get(api, "/api/aggregators"))
    assert {"literal_or", "wildcard", "regexp"} <= get(api, "/api/config/filters").keys()


@pytest.mark.parametrize(
    ("target", "hosts"),
    [
        ("m=sys.cpu.user&limit=1000", EVERY),
        ("m=sys.cpu.user&limit=0", EVERY),
        ("m=sys.cpu.user%7Bhost%3D*%7D&limit=1000", EVERY),
        ("m=sys.cpu.user%7Bhost%3D*,dc%3Ddal%7D&limit=0", {"web03", "Web04"}),
    ],
)
def test_variables_of_tags(api: Api, target: str, hosts: set[str]) -> None:
    results = get(api, f"/api/search/lookup?{target}")["results"]
    assert {result["tags"]["host"] for result in results} == hosts


def stored() -> list[tuple[Tags, Dps]]:
    """The series of the metric, from the lines that the data set was written with."""
    points: dict[tuple[tuple[str, str], ...], dict[int, float]] = {}
    for line in FILE["data"]["telnet"]:
        _, metric, time_s, value, *pairs = line.split()
        if metric == TARGET["metric"]:
            tags = sorted((key, text) for key, _, text in (pair.partition("=") for pair in pairs))
            points.setdefault(tuple(tags), {})[int(time_s) * 1000] = float(value)
    return [(dict(tags), sorted(values.items())) for tags, values in points.items()]


@pytest.mark.parametrize(
    ("more", "plain", "hosts"),
    [
        ({}, {}, EVERY),
        (
            {"rate": True, "rateOptions": RATE},
            {
                "is_rate": True,
                "is_counter": True,
                "counter_max": 1000,
                "reset_value": 500,
                "drops_resets": True,
            },
            EVERY,
        ),
        ({"tags": {"host": "*"}}, {"group_by": ["host"]}, EVERY),
        (
            {"filters": [{"type": "wildcard", "tagk": "host", "filter": "web*", "groupBy": True}]},
            {"group_by": ["host"]},
            EVERY - {"Web04"},
        ),
        (
            {"filters": [{"type": "literal_or", "tagk": "host", "filter": "web01|web02", "groupBy": False}]},
            {},
            {"web01", "web02"},
        ),
        ({"tags": {"host": "web01", "dc": "lax"}, "explicitTags": True}, None, set()),
        (
            {"tags": {"host": "web02", "dc": "lax", "cpu": "0"}, "explicitTags": True},
            {"group_by": ["host", "dc", "cpu"]},
            {"web02"},
        ),
        *(
            ({"downsample": f"5m-avg-{fill}"}, {"downsample": (5, "m", "avg", fill, None)}, EVERY)
            for fill in FILLS
        ),
    ],
)
def test_a_panel_query_has_the_values_of_a_plain_evaluation(
    api: Api, more: dict[str, Any], plain: dict[str, Any] | None, hosts: set[str]
) -> None:
    of_2_3 = post(api, TARGET | more)
    of_2_4 = post(api, TARGET | more, "?arrays=true")
    assert decoded(of_2_3) == [
        {str(time): value for time, value in points.items()} for points in decoded(of_2_4)
    ]
    start_ms, end_ms = RANGE["start"] * 1000, RANGE["end"] * 1000
    half_hours = {"downsample": (30, "m", "avg", "none", None)}
    series = [(tags, points) for tags, points in stored() if tags["host"] in hosts]
    results = [] if plain is None else evaluate(PlainQuery(start_ms, end_ms, **half_hours | plain), series)
    expected = [
        {"metric": TARGET["metric"], "tags": tags, "aggregateTags": keys}
        | {"dps": {str(time_ms // 1000): value for time_ms, value in points if value == value}}
        for tags, keys, points in results
    ]
    answer = [{key: result[key] for key in ("metric", "tags", "aggregateTags", "dps")} for result in of_2_3]
    assert differences(normal(answer), normal(expected)) == []


def test_annotations_have_a_description_and_a_start(api: Api) -> None:
    (result,) = post(api, {**TARGET, "tags": {"host": "web01"}})
    assert [(note["description"], note["startTime"]) for note in result["annotations"]] == [
        ("disk full", 1356999000)
    ]


def test_an_unknown_metric_is_an_error_with_a_message(api: Api) -> None:
    body = post(api, {**TARGET, "metric": "no.such"}, status=400)
    assert "no.such" in body["error"]["message"]
