"""Every request to a real TSD 2.4.1 is answered as that TSD answered it.

Not equal, and never to be: a TSD answers six malformed requests with 500, and we with 400.
"""

from __future__ import annotations

import json

import pytest

from tests.support.servers.golden_api import CASES, Case, differences, load, normal
from tests.support.stored import Store
from timebeam.pipelines.serve.api import Api
from timebeam.pipelines.serve.route_requests import respond

CLIENT_ERRORS = {
    "get filter if.octets {cpu=not_key()}",
    "get filter {host=}",
    "get filter {host=literal_or()}",
    "get filter {host=foo(web01)}",
    "get filter {host=web01",
    "no queries",
}
"""A TSD answers these with 500, as if it had failed itself; docs/use/serve.md."""


@pytest.fixture(scope="module")
def api(bigtable, tmp_path_factory: pytest.TempPathFactory) -> Api:
    store = Store.create(bigtable, "golden_api_")
    load(store, tmp_path_factory.mktemp("golden"))
    return Api(store.target, store.layout)


def test_the_lists_name_cases() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len(set(names)) == 158
    assert {case.name for case in CASES if case.status == 500} == CLIENT_ERRORS


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_request_is_answered_as_by_a_tsd(api: Api, case: Case) -> None:
    response = respond(api, case.request())
    expected = case.answer
    if case.name in CLIENT_ERRORS:
        assert response.status == 400
        assert response.body["error"]["code"] == 400
        if case.name != "no queries":  # a null pointer there
            assert response.body["error"]["message"] == expected["error"]["message"]
        return
    answer = json.loads(json.dumps(response.body))
    assert response.status == case.status, answer
    if case.name == "aggregators":  # in the order of a java.util.HashMap there
        answer, expected = sorted(answer), sorted(expected)
    assert differences(normal(answer), normal(expected)) == []
