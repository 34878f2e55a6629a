"""/api/put beside a real TSD's answers, and the bodies of the other protocols."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.support.servers.front_door import Door, front_door

GOLDEN_FOLDER = Path(__file__).parents[2] / "golden" / "opentsdb"
GOLDEN = json.loads((GOLDEN_FOLDER / "puts.json").read_text("utf-8"))
PUTS = [
    (f"{case['name']}-{number}", step)
    for case in GOLDEN["cases"]
    for number, step in enumerate(case["steps"])
    if "http" in step and step["http"][1].startswith("/api/put")
]

REJECTED_HERE = {"http_bad_value_1.5f-0", "time_max_ms_int-0"}
"""Java's own numbers, and times after 2106, which a TSD stores wrongly (docs/spec/opentsdb.md §9)."""

GOOD = {"metric": "sys.cpu", "timestamp": 1356998400, "value": 1.5, "tags": {"host": "a"}}
BAD = GOOD | {"value": "x"}


def same_error(error: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Our words go on where a TSD's end; a TSD's own numbers out of 64 bits are no numbers."""
    text, words = error["error"], expected["error"]
    same_words = text.startswith(words) or words[:13] in text or "needs more than 64 bits" in text
    return same_words and error["datapoint"] == expected["datapoint"]


@pytest.mark.parametrize(("name", "step"), PUTS, ids=[name for name, _ in PUTS])
def test_a_put_is_answered_as_a_tsd_does(door: Door, name: str, step: dict[str, Any]) -> None:
    client, server = door
    method, url, points = step["http"]
    body = points if isinstance(points, str) else json.dumps(points)
    response = client.request(method, url, content=body)
    if name in REJECTED_HERE:
        assert (response.status_code, response.json()["failed"], server.published) == (400, 1, [])
        return
    assert response.status_code == step["status"], response.text
    answer, expected = response.json(), step["answer"]
    errors, expected_errors = answer.pop("errors", []), dict(expected).pop("errors", [])
    assert answer == {name: value for name, value in expected.items() if name != "errors"}
    assert len(errors) == len(expected_errors)
    assert all(map(same_error, errors, expected_errors)), (errors, expected_errors)
    assert len(server.published) == (answer["success"] > 0)


def test_puts_without_flags(door: Door) -> None:
    client, server = door
    good = client.post("/api/put", json=[GOOD])
    assert (good.status_code, good.content) == (204, b"")
    mixed = client.post("/api/put", json=[GOOD, BAD])
    assert mixed.status_code == 400
    assert mixed.json()["error"]["message"] == "One or more data points had errors"
    assert [json.loads(message.data) for message in server.published] == [[GOOD], [GOOD, BAD]]
    assert {message.attributes["format"] for message in server.published} == {"opentsdb-json"}


def test_a_body_with_more_than_a_thousand_bad_points_is_published_unread(door: Door) -> None:
    """Good points may follow, and only the stream reads them."""
    client, server = door
    points = [BAD] * 1_001 + [GOOD]
    answer = client.post("/api/put?details", json=points)
    body = answer.json()
    assert (answer.status_code, body["success"], body["failed"], len(body["errors"])) == (
        400,
        0,
        1_000,
        1_000,
    )
    assert body["errors"][0]["error"].endswith("; after 1,000 rejections the rest was not read")
    assert [json.loads(message.data) for message in server.published] == [points]
    not_json = client.post("/api/put", content=b"x\n" * 1_001)
    assert (not_json.status_code, len(server.published)) == (400, 1)
    lines = b"m f=x 1356998400000000000\n" * 1_001
    answer = client.post("/write", content=lines)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("partial write: ")
    assert server.published[-1].data == lines


def test_summaries_and_timeouts(door: Door) -> None:
    client, _ = door
    assert client.post("/api/put?summary", json=[GOOD, BAD]).json() == {"success": 1, "failed": 1}
    answer = client.post("/api/put?sync&sync_timeout=500&details", json=GOOD)
    assert answer.json() == {"success": 1, "failed": 0, "timeouts": 0, "errors": []}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "Missing request content"),
        (b"x", "The JSON must start as an object or an array"),
        (b"[]", "No datapoints found in content"),
        (json.dumps([GOOD]).encode()[:-1], "Unable to parse the given JSON"),
        (b'[{"metric":"a"},5]', "Unable to parse the given JSON"),
        (b"\xff\xfe{}", "The JSON must start as an object or an array"),
    ],
)
def test_a_body_that_is_no_json_is_not_published(door: Door, body: bytes, message: str) -> None:
    client, server = door
    response = client.post("/api/put?details", content=body)
    assert (response.status_code, response.json()["error"]["message"]) == (400, message)
    assert server.published == []


@pytest.mark.parametrize("timestamp", ['"\\ud800"', "[" * 300 + "]" * 300], ids=["surrogate", "nested"])
def test_a_rejected_point_that_no_json_can_show(door: Door, timestamp: str) -> None:
    client, server = door
    bad = json.dumps(GOOD | {"timestamp": "T"}).replace('"T"', timestamp)
    response = client.post("/api/put?details", content=f"[{json.dumps(GOOD)},{bad}]")
    answer = response.json()
    assert (response.status_code, answer["success"], answer["failed"]) == (400, 1, 1)
    assert [error["datapoint"] for error in answer["errors"]] == [None]
    assert len(server.published) == 1


def test_other_methods_are_not_allowed(door: Door) -> None:
    response = door[0].get("/api/put")
    assert (response.status_code, response.json()["error"]["message"]) == (405, "Method not allowed")


def test_a_server_without_tables_answers_nothing_else(door: Door) -> None:
    client, _ = door
    assert client.get("/api/version").json()["version"] == "2.4.1"
    assert client.get("/api/aggregators").json()["error"]["message"] == "Endpoint not found"
    assert client.get("/").status_code == 404
    assert (client.get("/healthz").status_code, client.get("/readyz").text) == (200, "ready\n")


@pytest.mark.parametrize(("encoding", "compress"), [("gzip", gzip.compress), ("zstd", zstandard.compress)])
def test_compressed_bodies_are_published_as_they_are(door: Door, encoding: str, compress: Any) -> None:
    client, server = door
    body = compress(json.dumps([GOOD, BAD]).encode())
    response = client.post("/api/put?summary", content=body, headers={"Content-Encoding": encoding})
    assert response.json() == {"success": 1, "failed": 1}
    (message,) = server.published
    assert (message.data, message.attributes["content-encoding"]) == (body, encoding)


LINE = "cpu,host=a user=1.5,system=2i"


@pytest.mark.parametrize("path", ["/write?db=x", "/api/v2/write?org=o&bucket=b"])
def test_influx_lines(door: Door, path: str) -> None:
    client, server = door
    assert client.post(path, content=f"{LINE} 1356998400000000000\n").status_code == 204
    assert client.post(path + "&precision=s", content=f"{LINE} 1356998400\n").status_code == 204
    assert client.post(path + "&precision=h", content=f"{LINE} 1356998\n").status_code == 400
    assert [message.attributes for message in server.published] == [
        {"format": "influx"},
        {"format": "influx", "influx_precision": "s"},
    ]
    mixed = client.post(path + "&precision=s", content=f"{LINE} 1356998400\ncpu user= 1\n")
    assert mixed.status_code == 400
    assert "partial write: " in mixed.text
    assert " dropped=1" in mixed.text
    assert len(server.published) == 3
    error = mixed.json()
    assert error["error"] if path.startswith("/write") else error["code"] == "invalid"


@pytest.mark.parametrize("path", ["/write?db=x", "/api/v2/write?org=o&bucket=b"])
def test_influx_fields_that_are_no_numbers_fail_no_body(door: Door, path: str) -> None:
    """Telegraf takes a 400 for the loss of all metrics of the body."""
    client, server = door
    booleans = client.post(path, content=f"{LINE},up=true,down=F 1356998400000000000\n")
    assert (booleans.status_code, booleans.headers.get("x-timebeam-rejected")) == (204, None)
    strings = (
        f'{LINE},state="ok",name="x" 1356998400000000000\nm big=99999999999999999999i 1356998400000000000\n'
    )
    mixed = client.post(path, content=strings)
    assert (mixed.status_code, mixed.headers["x-timebeam-rejected"]) == (204, "2")
    nothing_else = client.post(path, content='m state="ok" 1356998400000000000\n')
    assert (nothing_else.status_code, nothing_else.headers["x-timebeam-rejected"]) == (204, "1")
    assert len(server.published) == 3  # dead letters come from the stream
    for worse in ("m state= 1356998400000000000\n", "m state\n"):
        assert client.post(path, content=strings + worse).status_code == 400


def test_influx_lines_without_a_time(door: Door) -> None:
    lines = f'{LINE}\nlog text="first\nsecond",n=1\n'
    answer = door[0].post("/write", content=lines)
    assert (answer.status_code, "--influx-no-time publish" in answer.text) == (400, True)
    with front_door(formats={"influx_no_time": "publish"}) as (client, server):
        answer = client.post("/write", content=lines)
        assert (answer.status_code, answer.headers["x-timebeam-rejected"]) == (204, "1")
        assert [message.data.decode() for message in server.published] == [lines]
        published = 'timebeam_written_points_total{endpoint="/write",outcome="published"} 3\n'
        assert published in client.get("/metrics").text


def test_kairosdb_bodies(door: Door) -> None:
    client, server = door
    good = {"name": "m", "tags": {"host": "a"}, "datapoints": [[1356998400000, 1], [1356998401000, 2]]}
    assert client.post("/api/v1/datapoints", json=[good]).status_code == 204
    packed = gzip.compress(json.dumps(good).encode())
    response = client.post("/api/v1/datapoints", content=packed, headers={"Content-Type": "application/gzip"})
    assert response.status_code == 204
    mixed = client.post("/api/v1/datapoints", json=[good, good | {"tags": {}}])
    assert mixed.status_code == 400
    assert "tags count must be greater than or equal to 1" in mixed.json()["errors"][0]
    assert client.post("/api/v1/datapoints", content=b"").json() == {
        "errors": ["Invalid json. No content due to end of input."]
    }
    assert [message.attributes for message in server.published] == [
        {"format": "kairosdb-json"},
        {"format": "kairosdb-json", "content-encoding": "gzip"},
        {"format": "kairosdb-json"},
    ]


def test_heroic_writes(door: Door) -> None:
    client, server = door
    series = {"key": "system", "tags": {"host": "a"}, "resource": {}}
    write = {"series": series, "data": {"type": "points", "data": [[1356998400000, 1.5]]}}
    assert client.post("/heroic/write", json=write).json() == {"errors": [], "times": []}
    wrong = client.post("/heroic/write", content=b"{")
    assert (wrong.status_code, wrong.json()["type"]) == (400, "json-parse-error")
    assert [message.attributes for message in server.published] == [{"format": "heroic-json"}]


def test_counts_of_bodies_that_are_parsed_together(door: Door) -> None:
    """Each of a hundred bodies that come at once is told its own counts."""
    import concurrent.futures

    client, server = door

    def counts(number: int) -> tuple[int, int]:
        body = [GOOD] * (number % 7 + 1) + [BAD] * (number % 3)
        answer = client.post("/api/put?summary", json=body).json()
        return answer["success"], answer["failed"]

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(counts, range(100)))
    assert answers == [(number % 7 + 1, number % 3) for number in range(100)]
    assert len(server.published) == 100


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_influxdbs_clients_find_the_server_healthy(door: Door, method: str) -> None:
    client, _ = door
    ping = client.request(method, "/ping")
    assert (ping.status_code, ping.content) == (204, b"")
    version = ping.headers["x-influxdb-version"]
    verbose, health = client.get("/ping?verbose=true"), client.get("/health")
    assert (verbose.status_code, verbose.json()) == (200, {"version": version})
    assert (health.status_code, health.json()["name"], health.json()["status"]) == (200, "influxdb", "pass")
    assert client.request(method, "/health").status_code == 200


def test_what_is_counted(door: Door) -> None:
    client, _ = door
    client.post("/api/put", json=[GOOD, BAD])
    metrics = client.get("/metrics").text
    assert 'timebeam_writes_total{endpoint="/api/put",status="400"}' in metrics
    assert 'timebeam_written_points_total{endpoint="/api/put",outcome="published"}' in metrics
    assert "timebeam_held_bytes 0\n" in metrics


def test_histograms_are_answered_as_points_are(door: Door) -> None:
    """The body of the golden vector, whose answer a TSD gave."""
    client, server = door
    golden = json.loads(
        (Path(__file__).parents[2] / "golden" / "opentsdb" / "histogram.json").read_text("utf-8")
    )
    for case in golden["cases"]:
        (step,) = case["steps"]
        method, url, points = step["http"]
        response = client.request(method, url, json=points)
        assert (response.status_code, response.json()) == (step["status"], step["answer"])
    assert {message.attributes["format"] for message in server.published} == {"opentsdb-histogram"}
    bad = [points[0], points[0] | {"buckets": {}}]
    response = client.post("/api/histogram?details", json=bad)
    assert (response.status_code, response.json()["success"], response.json()["failed"]) == (400, 1, 1)
    assert client.post("/api/histogram", json=points).status_code == 204
    assert client.get("/api/histogram").status_code == 405
