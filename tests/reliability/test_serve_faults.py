"""The server over a Bigtable with faults: an answer is right, or an error; never a part of it."""

from __future__ import annotations

import concurrent.futures
import json
import random
import time
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from tests.support.commands import ingest, timebeam
from tests.support.fault_proxy import (
    AFTER,
    BEFORE,
    READ_ROWS,
    Break,
    Do,
    Drop,
    Fault,
    Plan,
    either,
    every,
    faulty,
    nth,
    share,
)
from tests.support.points import BASE_S
from tests.support.servers.golden_api import differences, normal
from tests.support.servers.running_server import running
from tests.support.servers.tcp_cable import plugged
from tests.support.stored import Store
from timebeam.pipelines.serve.api import Api
from timebeam.pipelines.serve.web_application import ServerLimits
from timebeam.transforms.query.budget import Budget

HOSTS, HOURS, STEP_S = 8, 3, 60
LIMITS = ServerLimits(Budget(100_000, 1_000_000, 100_000, 1 << 26, 5.0), 4, 64, 1 << 20)
ERRORS = {413, 503}
"""A budget of time that is used up; Bigtable failed, or the queue is too long."""


def value(host: int, second: int) -> int:
    return (host * 7919 + second * 31) % 1000


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> Store:
    store = Store.create(bigtable, prefix, salt_width=1)
    path = tmp_path / "points.txt"
    seconds = range(0, HOURS * 3600, STEP_S)
    path.write_text(
        "".join(
            f"put sys.load {BASE_S + second} {value(host, second)} host=h{host}\n"
            for host in range(HOSTS)
            for second in seconds
        )
    )
    flags = (*store.flags, "--auto-create-metrics", "--format=opentsdb-text")
    assert ingest(tmp_path, *flags, "--input", path).letters == []
    return store


def asked(chance: random.Random) -> tuple[str, list[dict[str, Any]]]:
    """A query, and its answer by a plain sum."""
    first, last = sorted(chance.sample(range(0, HOURS * 3600, STEP_S), 2))
    hosts = sorted(chance.sample(range(HOSTS), chance.randint(2, HOSTS)))
    names = "|".join(f"h{host}" for host in hosts)
    m = f"sum:sys.load{{}}{{host=literal_or({names})}}"
    dps = {
        str(BASE_S + second): sum(value(host, second) for host in hosts)
        for second in range(first, last + 1, STEP_S)
    }
    result = {"metric": "sys.load", "tags": {}, "aggregateTags": ["host"], "dps": dps}
    return f"/api/query?start={BASE_S + first}&end={BASE_S + last}&m={m}", [result]


def ask(client: httpx.Client, seed: int) -> int:
    """The status of a random query, whose answer is right or an error in OpenTSDB's shape."""
    url, expected = asked(random.Random(seed))
    response = client.get(url)
    if response.status_code == 200:
        assert "X-Timebeam-Skipped" not in response.headers
        assert differences(normal(response.json()), normal(expected)) == []
    else:
        assert response.status_code in ERRORS, response.text
        error = response.json()["error"]
        assert (error["code"], bool(error["message"])) == (response.status_code, True)
    return response.status_code


UNAVAILABLE = Fault(grpc.StatusCode.UNAVAILABLE)
PLANS: dict[str, tuple[Plan, set[int]]] = {
    "every second read is unavailable": (every(READ_ROWS, 2, UNAVAILABLE), {200}),
    "reads break off": (share(READ_ROWS, 0.3, 1, Break(1)), {200}),
    "reads are slow": (every(READ_ROWS, 3, Do(lambda: time.sleep(0.2))), {200}),
    "all at once": (
        either(share(READ_ROWS, 0.2, 2, UNAVAILABLE), share(READ_ROWS, 0.2, 3, Break(2))),
        {200},
    ),
    "always unavailable": (every(READ_ROWS, 1, UNAVAILABLE), {413, 503}),
    "permission is denied": (every(READ_ROWS, 1, Fault(grpc.StatusCode.PERMISSION_DENIED)), {503}),
}


@pytest.mark.parametrize("name", PLANS)
def test_answers_are_right_or_errors(store: Store, emulator: str, name: str) -> None:
    plan, statuses = PLANS[name]
    with faulty(emulator, plan), running(Api(store.target, store.layout), LIMITS) as client:
        with concurrent.futures.ThreadPoolExecutor(6) as threads:
            count = 4 if statuses <= ERRORS else 12
            seen = set(threads.map(lambda seed: ask(client, seed), range(count)))
        assert seen <= statuses | ERRORS
        assert seen & statuses
        assert client.get("/healthz").status_code == 200


def test_the_server_works_again_after_an_outage(store: Store, emulator: str) -> None:
    is_out = True

    def plan(call: Any) -> Fault | None:
        return UNAVAILABLE if is_out and call.method == READ_ROWS else None

    with faulty(emulator, plan), running(Api(store.target, store.layout), LIMITS) as client:
        assert ask(client, 0) in ERRORS
        is_out = False
        assert ask(client, 0) == 200


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_answers_are_right_when_connections_are_reset(store: Store, emulator: str, when: str) -> None:
    cut = Drop(lambda: cable.cut(0.2), when)
    with (
        faulty(emulator, nth(READ_ROWS, (2, 7), cut)) as proxy,
        plugged(proxy.host) as cable,
        running(Api(store.target, store.layout), LIMITS) as client,
    ):
        statuses = {ask(client, seed) for seed in range(8)}
        assert statuses <= {200} | ERRORS
        assert ask(client, 8) == 200
        assert len(proxy.faults) == 2


def test_a_query_ends_when_its_time_is_over(store: Store, emulator: str) -> None:
    with faulty(emulator, every(READ_ROWS, 1, UNAVAILABLE)):
        ran = timebeam("query", "sys.load", *store.flags, "--start=1", "--max-seconds=1")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("timebeam query: The query needs more than 1 seconds, ")


@pytest.mark.long
def test_load(store: Store, emulator: str) -> None:
    """50 clients with 20 random queries each; one in ten is over its budget, one in ten hangs up."""
    limits = ServerLimits(Budget(100_000, 1_000_000, 100_000, 1 << 26, 60.0), 4, 64, 1 << 20)
    del emulator

    def client_of(number: int) -> list[int]:
        chance, statuses = random.Random(number), []
        with httpx.Client(base_url=server.base_url, timeout=60) as client:
            for _ in range(20):
                kind = chance.randrange(10)
                if kind == 0:
                    url, _ = asked(chance)
                    response = client.get(url.replace("m=sum:", "m=sum:1ms-avg-zero:"))
                    assert response.status_code in (413, 503), response.text
                elif kind == 1:
                    with pytest.raises(httpx.TimeoutException):
                        client.get(asked(chance)[0], timeout=0.001)
                else:
                    statuses.append(ask(client, chance.randrange(1 << 30)))
        return statuses

    with running(Api(store.target, store.layout), limits) as server:
        before = _memory()
        with concurrent.futures.ThreadPoolExecutor(50) as threads:
            statuses = [status for answers in threads.map(client_of, range(50)) for status in answers]
        lines = server.get("/metrics").text.splitlines()
    assert set(statuses) <= {200, 503}
    assert statuses.count(200) > 500
    assert "timebeam_queries_running 0" in lines
    print(json.dumps({"answers": len(statuses), "memory": [before, _memory()]}))
    assert _memory() - before < 300


def _memory() -> int:
    """MiB of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) // 1024
