"""kill -9 of the server and of the stream behind it: what is answered with 2xx is stored, once."""

from __future__ import annotations

import os
import random
import threading
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import httpx
import pytest

from tests.support.processes.children import start_command
from tests.support.processes.streams import PATIENCE_SECONDS, point, values
from tests.support.pubsub_server import SUBSCRIPTION, TOPIC, PubSubServer
from tests.support.servers.programs import free_port
from tests.support.stored import Store

POINTS = 20
"""Of a body."""

KILLS = 6
"""Of the server; the stream is killed with every other one."""


class Producer:
    """Sends bodies one after the other, each until it is answered with 2xx."""

    def __init__(self, url: str, first: int, step: int) -> None:
        """The numbers of its bodies are `first`, and then each so many further."""
        self._client = httpx.Client(base_url=url, timeout=20)
        self._number, self._step = first, step
        self.answered: list[int] = []
        self.failures = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            body = [point(self._number * POINTS + index, float(self._number)) for index in range(POINTS)]
            while not self._is_answered(body):
                self.failures += 1
                time.sleep(0.05)
            self.answered.append(self._number)
            self._number += self._step

    def _is_answered(self, body: object) -> bool:
        try:
            return self._client.post("/api/put", json=body).is_success
        except httpx.TransportError:
            return False

    def stop(self) -> None:
        """Returns when the last body is answered."""
        self._stop.set()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()
        self._client.close()


@pytest.mark.long
def test_answered_equals_stored(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    store = Store.create(bigtable, prefix)
    seed = int(os.environ.get("TIMEBEAM_SEED", "20261122"))
    print(f"TIMEBEAM_SEED={seed}")
    chance = random.Random(seed)
    port = free_port()
    with PubSubServer(lease_seconds=2, batch=200, delivers=True).running() as pubsub:
        server = start_server(tmp_path / "server", pubsub, port)
        stream = start_stream(store, tmp_path / "stream", pubsub)
        producers = [Producer(f"http://127.0.0.1:{port}", first, 3) for first in range(3)]
        try:
            for life in range(KILLS):
                wait_for_more(producers)
                time.sleep(chance.random() * 0.5)
                server.kill()
                server.join()
                server = start_server(tmp_path / f"server{life}", pubsub, port)
                if life % 2:
                    stream.kill()
                    stream.join()
                    stream = start_stream(store, tmp_path / f"stream{life}", pubsub)
            wait_for_more(producers)
        finally:
            for producer in producers:
                producer.stop()
            server.terminate()
            server.join()
            stream.kill()
            stream.join()
        pubsub.end_leases()
        last = start_stream(store, tmp_path / "last", pubsub, "--stop-when-idle=3")
        last.join(PATIENCE_SECONDS)
        assert last.exitcode == 0
        assert pubsub.left == 0
    answered = {number for producer in producers for number in producer.answered}
    assert sum(producer.failures for producer in producers) >= KILLS
    assert values(store) == {
        number * POINTS + index: float(number) for number in answered for index in range(POINTS)
    }


def start_server(output: Path, pubsub: PubSubServer, port: int) -> BaseProcess:
    command = ["serve", "--write-only", f"--topic={TOPIC}", f"--port={port}"]
    return start_command(command, output, {"PUBSUB_EMULATOR_HOST": pubsub.host})


def start_stream(store: Store, output: Path, pubsub: PubSubServer, *flags: str) -> BaseProcess:
    command = [
        *("ingest", *store.flags, "--format=opentsdb-json", "--auto-create-metrics", "--flush-seconds=0.1"),
        *(f"--input-subscription={SUBSCRIPTION}", f"--dead-letters={output.parent / 'dead'}", *flags),
    ]
    return start_command(command, output, {"PUBSUB_EMULATOR_HOST": pubsub.host})


def wait_for_more(producers: list[Producer]) -> None:
    """Until each producer has had five more answers."""
    goals = [len(producer.answered) + 5 for producer in producers]
    until = time.monotonic() + PATIENCE_SECONDS
    while any(len(producer.answered) < goal for producer, goal in zip(producers, goals, strict=True)):
        assert time.monotonic() < until
        time.sleep(0.02)
