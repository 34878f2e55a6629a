"""A drained stream goes on: a second job takes the messages that the first one left, to the same rows.

A running stream cannot be updated across a release that changes what is pickled between steps
(CHANGELOG.md); tests/states reads what older versions left in tables.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from tests.support.processes.streams import PATIENCE_SECONDS, start, wait_for
from tests.support.pubsub_server import PubSubServer
from tests.support.stored import Store
from tests.support.workload import as_messages, check_equal, random_points


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    return Store.create(bigtable, prefix)


def test_a_second_job_takes_what_a_drained_one_left(store: Store, tmp_path: Path) -> None:
    """The first job is stopped in its work; rows of its points get further ones, and corrections."""
    points = random_points(random.Random(33), series=20, hours=5, a_row=20, corrections=0.02, most=5)
    messages = as_messages(points)
    half = len(messages) // 2
    with PubSubServer(lease_seconds=2, batch=100).running() as server:
        server.add(messages[:half])
        first = start(store, tmp_path / "first", server)
        wait_for(server, 0, first)
        server.add(messages[half:])
        assert first.pid is not None
        os.kill(first.pid, signal.SIGTERM)
        first.join(PATIENCE_SECONDS)
        assert first.exitcode == 0
        assert server.left > 0
        server.end_leases()
        second = start(store, tmp_path / "second", server, "--stop-when-idle=3")
        second.join(PATIENCE_SECONDS)
        assert second.exitcode == 0
        assert server.left == 0
    check_equal(store, points, "points", corrected_in_place=True)
