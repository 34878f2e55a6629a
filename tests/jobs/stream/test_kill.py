"""kill -9 of a local stream, again and again: nothing is lost, nothing is there twice."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.support.processes.streams import PATIENCE_SECONDS, start, wait_for
from tests.support.pubsub_server import PubSubServer
from tests.support.stored import Store
from tests.support.workload import as_messages, check_equal, random_points


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    return Store.create(bigtable, prefix)


@pytest.mark.parametrize(
    ("kills", "series"), [(2, 40), pytest.param(6, 200, marks=pytest.mark.long)], ids=["two", "six"]
)
def test_kills_during_a_stream(store: Store, tmp_path: Path, kills: int, series: int) -> None:
    """Each life gets a part of the messages and is killed at a random moment of its work; what it held comes
    again when its lease ends: after two seconds, or after thirty if it lived to renew it. The last life
    begins with the leases of the dead ones ended, and ends by itself with nothing left.

    Six kills are during 100,000 points, two during 20,000."""
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
                server.end_leases()
            process = start(store, tmp_path / str(life), server, *(["--stop-when-idle=3"] if last else []))
            if last:
                process.join(PATIENCE_SECONDS)
                assert process.exitcode == 0
                continue
            wait_for(server, part * life, process)
            time.sleep(rng.random() * 0.8)
            process.kill()
            process.join()
        assert server.left == 0
    check_equal(store, points, "points", corrected_in_place=True)


@pytest.mark.long
def test_six_kills_of_two_processes_that_share_a_subscription(store: Store, tmp_path: Path) -> None:
    """As on several machines: each takes what the other does not hold, and one of them is killed in turn."""
    rng = random.Random(20261123)
    points = random_points(rng, series=200, hours=25, a_row=20, corrections=0.01, most=30)
    messages = as_messages(points)
    rng.shuffle(messages)
    part = -(-len(messages) // 7)
    with PubSubServer(lease_seconds=2, batch=200).running() as server:
        processes = [start(store, tmp_path / name, server) for name in ("a", "b")]
        for kill in range(6):
            server.add(messages[part * kill : part * (kill + 1)])
            dying = processes.pop(0)
            wait_for(server, part * kill, dying)
            time.sleep(rng.random() * 0.8)
            dying.kill()
            dying.join()
            processes.append(start(store, tmp_path / str(kill), server))
        server.add(messages[part * 6 :])
        server.end_leases()
        for process in processes:
            process.kill()
            process.join()
        server.end_leases()
        last = start(store, tmp_path / "last", server, "--stop-when-idle=3")
        last.join(PATIENCE_SECONDS)
        assert last.exitcode == 0
        assert server.left == 0
    check_equal(store, points, "points", corrected_in_place=True)
