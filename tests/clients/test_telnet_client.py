"""Debian's telnet at the front door: lines that end as its own do, and what it shows of the answers."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from tests.support.any_store import AnyStore
from tests.support.commands import timebeam
from tests.support.pubsub_server import SUBSCRIPTION, PubSubServer
from tests.support.servers.front_door import front_door
from tests.support.servers.programs import free_port, program
from timebeam.pipelines.serve.writes.telnet import TelnetAddress

pytestmark = pytest.mark.clients

POINTS = 500


@pytest.mark.parametrize("variant", ["opentsdb", "kairosdb-milliseconds"])
def test_lines_of_a_telnet_client(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, variant: str
) -> None:
    client = program("telnet", "telnet")
    store = AnyStore.create(bigtable, prefix, variant)
    pubsub = PubSubServer(delivers=True)
    address = TelnetAddress("127.0.0.1", free_port())
    with front_door(pubsub=pubsub, telnet=address):
        process = subprocess.Popen(
            [client, address.host, str(address.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdin is not None
        process.stdin.write("version\nput sys.cpu 1356998400 x host=a\n")
        for number in range(POINTS):
            process.stdin.write(f"put sys.cpu {1356998400 + number} {number} host=a\n")
            if number % 100 == 0:
                process.stdin.flush()
                time.sleep(0.05)
        process.stdin.write("exit\n")
        process.stdin.flush()
        process.wait(60)  # the server closes: at the end of its input telnet would drop what it has not sent
        assert process.stdout is not None
        shown = process.stdout.read()
        assert "net.opentsdb.tools 2.4.1 built at revision" in shown
        assert "put: invalid value: Unable to parse value to a number: 'x'" in shown
        assert "Connection closed by foreign host." in shown
        ran = timebeam(
            *("ingest", *store.flags, *store.auto_create, "--format=opentsdb-text"),
            *(f"--input-subscription={SUBSCRIPTION}", "--stop-when-idle=1", "--flush-seconds=0.3"),
            *("--dead-letters", str(tmp_path / "dead")),
        )
    assert (ran.code, pubsub.left) == (0, 0), ran.err
    assert {(series, time_ms): value for (series, time_ms), (_, value) in store.content().items()} == {
        (("sys.cpu", (("host", "a"),)), 1000 * (1356998400 + number)): number for number in range(POINTS)
    }
