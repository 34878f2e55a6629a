"""kill -9 of a local stream, again and again: nothing is lost, nothing is there twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.pubsub_server import SUBSCRIPTION, PubSubServer
from tests.support.stored import Store
from tests.support.streams import PATIENCE_SECONDS, wait_for_leases
from tests.support.workload import as_messages, check_equal, random_points


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    return Store.create(bigtable, prefix)


@pytest.mark.parametrize(
    ("kills", "series"), [(2, 40), pytest.param(10, 400, marks=pytest.mark.long)], ids=["two", "ten"]
)
def test_kills_during_a_stream(store: Store, tmp_path: Path, kills: int, series: int) -> None:
    """Each life gets a part of the messages and is killed at a random moment of its work; what it held comes
    again when its lease ends: after two seconds, or after thirty if it lived to renew it. The last life
    begins when no dead one holds any more, and ends by itself with nothing left.

    Ten kills are during 200,000 points, two during 20,000."""
    seed = int(os.environ.get("TIMEBEAM_SEED", "20261121"))
    print(f"TIMEBEAM_SEED={seed}")
    rng = random.Random(seed)
    points = random_points(rng, series=series, hours=25, a_row=20, corrections=0.01, most=30)
    assert len(points) >= 500 * series
    messages = as_messages(points)
    rng.shuffle(messages)
    part = -(-len(messages) // (kills + 1))
    with PubSubServer(lease_seconds=2, batch=200).running() as server:
        for life in range(kills + 1):
            server.add(messages[part * life : part * (life + 1)])
            last = life == kills
            if last:
                wait_for_leases(server)
            process = start(store, tmp_path, server, *(["--stop_when_idle=3"] if last else []))
            if last:
                assert process.wait(PATIENCE_SECONDS) == 0
                continue
            wait_for(server, part * life, process)
            time.sleep(rng.random() * 0.8)
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert server.left == 0
    check_equal(store, points, "points", corrected_in_place=True)


def start(store: Store, folder: Path, server: PubSubServer, *flags: str) -> subprocess.Popen[bytes]:
    """A stream in a process of its own."""
    return subprocess.Popen(
        [
            *(
                sys.executable,
                "-m",
                "timebeam.pipelines.cli",
                "ingest",
                *store.flags,
                "--format=opentsdb-json",
            ),
            *("--auto_create_metrics", "--bigtable_writer=direct", f"--input_subscription={SUBSCRIPTION}"),
            *(f"--dead_letters={folder / 'dead'}", "--flush_seconds=0.1", *flags),
        ],
        stdout=subprocess.DEVNULL,
        stderr=(folder / "stderr").open("ab"),
        env=os.environ | {"PUBSUB_EMULATOR_HOST": server.host},
    )


def wait_for(server: PubSubServer, count: int, process: subprocess.Popen[bytes]) -> None:
    """Until more than `count` messages are acknowledged; a process that ended before is a failure."""
    until = time.monotonic() + PATIENCE_SECONDS
    while len(server.acknowledged) <= count:
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)
