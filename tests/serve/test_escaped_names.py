"""Tables with escaped names: commands and the API take and show names as they are, and never as stored."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.commands import ingest, timebeam
from tests.support.points import BASE_S
from tests.support.servers import remote_read
from tests.support.servers.remote_read import EQ, RE
from tests.support.stored import Store
from timebeam.pipelines.serve.api import Api
from timebeam.pipelines.serve.route_requests import request_of, respond
from timebeam.schema.stores.opentsdb.options import Names

METRICS = ["job:load_1", "node.load_1", "node_load", "температура"]
TAGS = {"mount point": "/a b", "host_id": "web_1"}
TSUID = "000001000001000001000002000002"


@pytest.fixture(scope="module")
def store(bigtable: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("escaped")
    store = Store.create(bigtable, "escaped_names_", names=Names.ESCAPE)
    assert timebeam("tables", "create", *store.flags, "--meta", "--trees").code == 0
    points = folder / "points.json"
    bodies = [
        {"metric": metric, "timestamp": BASE_S + second, "value": number, "tags": TAGS}
        for number, metric in enumerate(METRICS)
        for second in (0, 9)
    ]
    points.write_text("".join(json.dumps(body) + "\n" for body in bodies))
    os.utime(points, (BASE_S + 10, BASE_S + 10))
    flags = ("--format=opentsdb-json", "--auto-create-metrics", "--meta=full")
    assert ingest(folder, *store.flags, *flags, "--input", points).letters == []
    return store


@pytest.fixture
def api(store: Store) -> Api:
    return Api(store.target, store.layout)


def answer(api: Api, path: str) -> Any:
    response = respond(api, request_of("GET", path))
    assert response.status == 200, response.body
    return json.loads(json.dumps(response.body))


def test_metadata(api: Api) -> None:
    series = quote("job:load_1{mount point=/a b,host_id=web_1}")
    (of_names,) = answer(api, f"/api/uid/tsmeta?m={series}")
    of_tsuid = answer(api, f"/api/uid/tsmeta?tsuid={of_names['tsuid']}")
    assert of_names == of_tsuid
    assert of_names["metric"]["name"] == "job:load_1"
    tags = [of_names["tags"][position]["name"] for position in range(4)]
    assert dict(zip(tags[::2], tags[1::2], strict=True)) == TAGS
    assert answer(api, "/api/uid/uidmeta?type=metric&uid=000001")["name"] in METRICS


def test_series(api: Api) -> None:
    assert sorted(answer(api, "/api/suggest?type=metrics")) == sorted(METRICS)
    assert answer(api, "/api/suggest?type=metrics&q=node_") == ["node_load"]
    found = answer(api, f"/api/search/lookup?m={quote('job:load_1{host_id=*}')}")["results"]
    assert [(one["metric"], one["tags"]) for one in found] == [("job:load_1", TAGS)]
    (last,) = answer(api, f"/api/query/last?resolve=true&tsuids={found[0]['tsuid']}")
    assert (last["metric"], last["tags"]) == ("job:load_1", TAGS)
    (last,) = answer(api, f"/api/query/last?resolve=true&timeseries={quote('node_load{host_id=web_1}')}")
    assert (last["metric"], last["tags"]) == ("node_load", TAGS)


def test_queries(api: Api) -> None:
    times = f"start={BASE_S}&end={BASE_S + 60}"
    path = f"/api/query?{times}&show_query=true&show_tsuids=true&m=sum:{quote('node_load{host_id=web_1}')}"
    (result,) = answer(api, path)
    assert (result["metric"], result["tags"]) == ("node_load", TAGS)
    assert "host_id" in json.dumps(result["query"])
    assert result["query"]["filterTagKs"]
    (of_tsuid,) = answer(api, f"/api/query?{times}&tsuid=sum:{result['tsuids'][0]}")
    assert (of_tsuid["metric"], of_tsuid["tags"]) == ("node_load", TAGS)


@pytest.mark.parametrize(
    ("matcher", "metrics"),
    [
        ((EQ, "__name__", "job:load_1"), {"job:load_1"}),
        ((EQ, "__name__", "U__job_3a_load__1"), {"U__job_3a_load__1"}),
        ((EQ, "__name__", "node:load_1"), {"node:load_1"}),
        ((EQ, "__name__", "node.load_1"), {"node.load_1"}),
        ((RE, "__name__", "(job|node).*load.*"), {"job:load_1", "node:load_1", "node_load"}),
    ],
)
def test_remote_read(api: Api, matcher: tuple[int, str, str], metrics: set[str]) -> None:
    body = remote_read.request(BASE_S * 1000, BASE_S * 1000 + 60_000, matcher)
    response = respond(api, request_of("POST", "/api/v1/read", body))
    assert response.status == 200, response.body
    series = remote_read.answer(response.body)
    assert {labels["__name__"] for labels, _ in series} == metrics
    assert {labels["host_id"] for labels, _ in series} == {"web_1"}


def test_commands(store: Store) -> None:
    ran = timebeam("series", "темп*", *store.flags, "--output=json")
    assert ran.code == 0, ran.err
    assert [(one["metric"], one["tags"]) for one in json.loads(ran.out)] == [("температура", TAGS)]
    ran = timebeam("suggest", "metrics", "темп", *store.flags, "--output=json")
    assert json.loads(ran.out) == ["температура"]
    assert timebeam("check", *store.flags).code == 0


def test_trees(store: Store, tmp_path: Path) -> None:
    rules = [
        {"type": "TAGK", "level": 0, "order": 0, "field": "host_id"},
        {"type": "METRIC", "level": 1, "order": 0, "separator": ":"},
    ]
    path = tmp_path / "tree.json"
    path.write_text(json.dumps({"name": "hosts", "enabled": True, "rules": rules}))
    assert timebeam("trees", "create", path, *store.flags).code == 0
    words = ["job:load_1", "mount point=/a b", "host_id=web_1"]
    ran = timebeam("trees", "test", *words[::2], "--definition", path, *store.flags)
    assert ran.code == 0, ran.err
    assert "web_1" in ran.out
    ran = timebeam("trees", "sync", *store.flags)
    assert ran.code == 0, ran.err
    shown = timebeam("trees", "show", *store.flags).out
    for text in ("web_1", "job", "load_1", "node.load_1", "температура", "{host_id=web_1,mount point=/a b}"):
        assert text in shown.replace("mount point=/a b,host_id=web_1", "host_id=web_1,mount point=/a b")


def test_half_a_surrogate_pair_is_an_unknown_name(store: Store) -> None:
    ran = timebeam("query", "a\udcff", *store.flags, "--start=1d-ago")
    assert (ran.code, "No such name" in ran.err) == (1, True)
