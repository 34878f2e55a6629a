"""Requests to a real TSD 2.4.1 with salted tables and rollups of 1h are answered as it answered them."""

from __future__ import annotations

import json

import pytest

from tests.support.plain.rolled import with_tables
from tests.support.servers.golden_api import SALTED, Case, cases_of, differences, load, normal
from tests.support.stored import Store
from timebeam.pipelines.options.place import read_config
from timebeam.pipelines.serve.api import Api
from timebeam.pipelines.serve.route_requests import respond


@pytest.fixture(scope="module")
def api(bigtable: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Api:
    folder = tmp_path_factory.mktemp("salted")
    config = folder / "rollups.json"
    config.write_text(json.dumps(SALTED["rollup_config"]))
    store = with_tables(Store.create(bigtable, "golden_salted_", salt_width=1), config)
    load(store, folder, SALTED)
    return Api(store.target, store.layout, (store.layout, read_config(str(config))))


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in cases_of(SALTED)])
def test_a_request_is_answered_as_by_a_tsd(api: Api, case: Case) -> None:
    response = respond(api, case.request())
    assert response.status == case.status, response.body
    if case.status != 200:
        assert response.body["error"]["message"].startswith(case.answer["error"]["message"])
        return
    answer = json.loads(json.dumps(response.body))
    assert differences(normal(answer), normal(case.answer)) == []
