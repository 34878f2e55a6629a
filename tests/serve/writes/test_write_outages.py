"""Pub/Sub slow or away, and memory that is full: 503, and never an answer before the publish is confirmed."""

from __future__ import annotations

import concurrent.futures
import time

import grpc
import httpx
import pytest
from google.auth.exceptions import DefaultCredentialsError

from tests.support.pubsub_server import PubSubServer
from tests.support.servers.front_door import front_door
from timebeam.pipelines.serve.writes import publisher
from timebeam.pipelines.serve.writes.front_door import Tokens, WriteLimits

BODY = [{"metric": "sys.cpu", "timestamp": 1356998400, "value": 1, "tags": {"host": "a"}}]
SHORT = WriteLimits(publish_seconds=0.5)


@pytest.mark.parametrize("fault", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED])
def test_a_pubsub_that_is_away(fault: grpc.StatusCode) -> None:
    with front_door(SHORT) as (client, server):
        server.fault = fault
        response = client.post("/api/put", json=BODY)
        assert (response.status_code, response.headers["retry-after"]) == (503, "5")
        assert fault.name in response.json()["error"]["message"]
        assert client.get("/readyz").text == f"cannot publish: {fault.name}\n"
        server.fault = None
        until = time.monotonic() + 60
        while client.post("/api/put", json=BODY).status_code != 204:
            assert time.monotonic() < until
        assert client.get("/readyz").status_code == 200
        assert len(server.published) >= 1


def test_a_short_outage_is_not_seen() -> None:
    with front_door() as (client, server), concurrent.futures.ThreadPoolExecutor() as pool:
        server.fault = grpc.StatusCode.UNAVAILABLE
        answer = pool.submit(client.post, "/api/put", json=BODY)
        time.sleep(0.3)
        server.fault = None
        assert answer.result().status_code == 204
        assert len(server.published) == 1


def test_a_topic_that_does_not_exist_is_told_at_once() -> None:
    with front_door(pubsub=PubSubServer(topics=())) as (client, _):
        response = client.post("/write", content="m,host=a v=1 1356998400000000000")
        assert (response.status_code, response.headers["retry-after"]) == (503, "5")
        assert "NOT_FOUND" in response.json()["error"]


def test_any_error_of_a_publish_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of credentials, which is no error of gRPC: whoever waited for it waited until the time limit."""

    def fail() -> None:
        raise DefaultCredentialsError("none")

    monkeypatch.setattr(publisher, "async_publisher", fail)
    with front_door(WriteLimits(publish_seconds=60)) as (client, server):
        for _ in range(2):
            response = client.post("/api/put", json=BODY, timeout=20)
            assert (response.status_code, response.headers["retry-after"]) == (503, "5")
            assert "DefaultCredentialsError" in response.json()["error"]["message"]
        assert client.get("/readyz").text == "cannot publish: DefaultCredentialsError\n"
        monkeypatch.undo()
        assert client.post("/api/put", json=BODY).status_code == 204
        assert len(server.published) == 1


def test_an_answer_comes_after_the_publish() -> None:
    with front_door() as (client, server):
        server.publish_seconds = 0.7
        began = time.monotonic()
        assert client.post("/api/put", json=BODY).status_code == 204
        assert time.monotonic() - began >= 0.7
        assert len(server.published) == 1


def test_no_more_bodies_are_held_than_memory_is_set_aside() -> None:
    """Five bodies of 1 MB while Pub/Sub is slow, and room for two."""
    with front_door(WriteLimits(held_bytes=2_500_000)) as (client, server):
        server.publish_seconds = 1.5
        content = "m,host=a v=1 1356998400000000000\n" * 30_000

        def post(_: int) -> httpx.Response:
            return client.post("/write", content=content)

        with concurrent.futures.ThreadPoolExecutor(5) as pool:
            responses = list(pool.map(post, range(5)))
        assert sorted({response.status_code for response in responses}) == [204, 503]
        rejected = [response for response in responses if response.status_code == 503]
        assert {response.headers["retry-after"] for response in rejected} == {"5"}
        assert len(server.published) == 5 - len(rejected)
        assert "timebeam_held_bytes 0\n" in client.get("/metrics").text


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        ("Bearer secret-1", 204),
        ("bearer  secret-2", 204),
        ("Token secret-2", 204),
        ("Basic dXNlcjpzZWNyZXQtMQ==", 204),
        ("Basic dXNlcjpzZWNyZXQ=", 401),
        ("Basic !", 401),
        ("Bearer secret", 401),
        ("Bearer", 401),
        ("secret-1", 401),
        ("Digest secret-1", 401),
        ("ApiKey secret-2", 401),
        ("Basic secret-1", 401),
        ("Basic c2VjcmV0LTE=", 401),  # secret-1, without a name before it
        ("Bearer OnNlY3JldC0x", 401),  # :secret-1, as Basic has it
        ("Bearer s\xe9", 401),
        ("", 401),
    ],
)
def test_tokens_of_writers(authorization: str, status: int) -> None:
    tokens = Tokens.parse("# of collectors\nsecret-1\n\n  secret-2\n")
    with front_door(tokens=tokens) as (client, server):
        headers = {"Authorization": authorization.encode("latin-1")} if authorization else {}
        response = client.post("/api/put", json=BODY, headers=headers)
        assert response.status_code == status
        assert len(server.published) == (status == 204)
        if status == 401:
            assert response.headers["www-authenticate"] == "Bearer"


def test_a_file_without_tokens_is_wrong() -> None:
    with pytest.raises(ValueError, match="no token"):
        Tokens.parse("# nothing\n\n")
