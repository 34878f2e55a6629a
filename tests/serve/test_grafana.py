"""The requests of Grafana's OpenTSDB data source, versions 2.1 to 2.4, and what its decoder takes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.servers.golden_api import load
from tests.support.stored import Store
from timebeam.pipelines.serve.api import Api
from timebeam.pipelines.serve.endpoints import request_of, respond

RANGE = {"start": 1356998400, "end": 1357009200}
TARGET: dict[str, Any] = {"metric": "sys.cpu.user", "aggregator": "sum", "downsample": "30m-avg"}
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
        ("m=sys.cpu.user&limit=1000", {"web01", "web02", "web03", "Web04"}),
        ("m=sys.cpu.user&limit=0", {"web01", "web02", "web03", "Web04"}),
        ("m=sys.cpu.user%7Bhost%3D*%7D&limit=1000", {"web01", "web02", "web03", "Web04"}),
        ("m=sys.cpu.user%7Bhost%3D*,dc%3Ddal%7D&limit=0", {"web03", "Web04"}),
    ],
)
def test_variables_of_tags(api: Api, target: str, hosts: set[str]) -> None:
    results = get(api, f"/api/search/lookup?{target}")["results"]
    assert {result["tags"]["host"] for result in results} == hosts


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"rate": True, "rateOptions": RATE},
        {"tags": {"host": "*"}},
        {"filters": [{"type": "wildcard", "tagk": "host", "filter": "web*", "groupBy": True}]},
        {"filters": [{"type": "literal_or", "tagk": "host", "filter": "web01|web02", "groupBy": False}]},
        {"tags": {"host": "web01", "dc": "lax"}, "explicitTags": True},
        *({"downsample": f"5m-avg-{fill}"} for fill in ("none", "nan", "null", "zero")),
    ],
)
def test_a_panel_query_is_the_same_as_map_and_as_arrays(api: Api, more: dict[str, Any]) -> None:
    of_2_3 = post(api, TARGET | more)
    of_2_4 = post(api, TARGET | more, "?arrays=true")
    assert decoded(of_2_3) == [
        {str(time): value for time, value in points.items()} for points in decoded(of_2_4)
    ]


def test_annotations_have_a_description_and_a_start(api: Api) -> None:
    (result,) = post(api, {**TARGET, "tags": {"host": "web01"}})
    assert [(note["description"], note["startTime"]) for note in result["annotations"]] == [
        ("disk full", 1356999000)
    ]


def test_an_unknown_metric_is_an_error_with_a_message(api: Api) -> None:
    body = post(api, {**TARGET, "metric": "no.such"}, status=400)
    assert "no.such" in body["error"]["message"]
