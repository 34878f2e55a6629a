"""/api/annotation and /api/uid/tsmeta: what an ingest stored, in the form of a TSD."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.support.commands import ingest, timebeam
from tests.support.points import BASE_S, FIRST_MS
from tests.support.stored import Store
from timebeam.pipelines.serve.api import Api
from timebeam.pipelines.serve.route_requests import request_of, respond

A, B = "000001000001000001", "000001000001000002"
NOTES = [
    {"startTime": BASE_S, "description": "deploy", "custom": {"by": "me"}},
    {"startTime": BASE_S + 5, "endTime": BASE_S + 9, "tsuid": A, "notes": "slow"},
]


@pytest.fixture(scope="module", params=[0, 1])
def api(
    request: pytest.FixtureRequest, bigtable: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Api:
    folder = tmp_path_factory.mktemp("metadata")
    store = Store.create(bigtable, f"metadata_{request.param}_", salt_width=request.param)
    assert timebeam("tables", "create", *store.flags, "--meta").code == 0
    points, notes = folder / "points.txt", folder / "notes.json"
    lines = [f"put sys.load {BASE_S + second} {second} host={host}\n" for host in "ab" for second in (0, 9)]
    points.write_text("".join(lines))
    notes.write_text("".join(json.dumps(note) + "\n" for note in NOTES))
    for path, flags in (
        (points, ("--format=opentsdb-text", "--auto-create-metrics", "--meta=full")),
        (notes, ("--format=opentsdb-annotations",)),
    ):
        os.utime(path, (FIRST_MS / 1000, FIRST_MS / 1000))
        assert ingest(folder, *store.flags, *flags, "--input", path).letters == []
    return Api(store.target, store.layout)


def answer(api: Api, path: str) -> tuple[int, Any]:
    response = respond(api, request_of("GET", path))
    return response.status, json.loads(json.dumps(response.body))


def test_an_annotation(api: Api) -> None:
    of_all = {"tsuid": "", "description": "deploy", "notes": "", "custom": {"by": "me"}}
    of_a = {"tsuid": A, "description": "", "notes": "slow"}
    assert answer(api, f"/api/annotation?start_time={BASE_S}") == (
        200,
        of_all | {"startTime": BASE_S, "endTime": 0},
    )
    for start in (BASE_S + 5, (BASE_S + 5) * 1000):
        assert answer(api, f"/api/annotation?start_time={start}&tsuid={A.lower()}") == (
            200,
            of_a | {"startTime": BASE_S + 5, "endTime": BASE_S + 9},
        )


@pytest.mark.parametrize(
    ("parameters", "status", "message"),
    [
        ("", 400, "Missing start time"),
        (f"?start_time={BASE_S + 1}", 404, "Unable to locate annotation in storage"),
        (f"?start_time={BASE_S + 5}&tsuid={B}", 404, "Unable to locate annotation in storage"),
        (f"?start_time={BASE_S + 5}&tsuid=xy", 400, "TSUID xy is not hexadecimal"),
        ("?start_time=tomorrow", 400, "Invalid time: tomorrow"),
    ],
)
def test_an_annotation_that_is_not_there(api: Api, parameters: str, status: int, message: str) -> None:
    code, body = answer(api, f"/api/annotation{parameters}")
    assert code == status
    assert message in body["error"]["message"]


def uid(kind: str, number: int, name: str, created: int) -> dict[str, Any]:
    empty = {"description": "", "notes": "", "custom": None, "displayName": ""}
    return {"uid": f"{number:06X}", "type": kind, "name": name, "created": created, **empty}


def test_metadata_of_a_series(api: Api) -> None:
    status, body = answer(api, f"/api/uid/tsmeta?tsuid={B}")
    created = body["created"]
    assert status == 200
    assert body == {
        "tsuid": B,
        "metric": uid("METRIC", 1, "sys.load", created),
        "tags": [uid("TAGK", 1, "host", created), uid("TAGV", 2, "b", created)],
        "displayName": "",
        "description": "",
        "notes": "",
        "created": created,
        "custom": None,
        "units": "",
        "dataType": "",
        "retention": 0,
        "max": "NaN",
        "min": "NaN",
        "lastReceived": FIRST_MS // 1000,
        "totalDatapoints": body["totalDatapoints"],
    }
    assert answer(api, "/api/uid/tsmeta?m=sys.load{host=b}") == (200, [body])
    status, both = answer(api, "/api/uid/tsmeta?m=sys.load")
    assert [item["tsuid"] for item in both] == [A, B]


@pytest.mark.parametrize(
    ("parameters", "status", "message"),
    [
        ("", 400, "Missing parameter <code>m</code>"),
        ("?tsuid=000001000001000009", 404, "Could not find Timeseries meta data"),
        ("?tsuid=0001", 400, "TSUID 0001 of 2 bytes"),
        ("?m=sys.load{host=c}", 404, "Unable to find one of the UIDs"),
        ("?m=sys.load{host=*}", 400, "Tags must be key=value"),
        ("?m=sys.load{host", 400, "Unable to parse query"),
    ],
)
def test_metadata_that_is_not_there(api: Api, parameters: str, status: int, message: str) -> None:
    code, body = answer(api, f"/api/uid/tsmeta{parameters}")
    assert code == status
    assert message in body["error"]["message"]


def test_corrupt_metadata_of_a_name_is_said(bigtable: tuple[str, str]) -> None:
    store = Store.create(bigtable, "corrupt_meta_")
    store.set_uid("metrics", "name", b"\0\0\1", b"sys.load")
    store.set_cell(store.layout.options.uid_table, b"\0\0\1", "name", b"metric_meta", b"{corrupt")
    code, body = answer(Api(store.target, store.layout), "/api/uid/uidmeta?uid=000001&type=metric")
    assert code == 400
    assert body["error"]["message"].startswith("The metadata of UID 000001 is corrupt: not JSON")
