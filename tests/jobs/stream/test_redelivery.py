"""Every message one to five times, in any order: what is stored is what the clean input gives."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.budget import long_after
from tests.support.commands import timebeam
from tests.support.inputs.poison import POISON_JSON
from tests.support.model import Point
from tests.support.pubsub_server import SUBSCRIPTION, Published, PubSubServer
from tests.support.stored import Store
from tests.support.workload import as_messages, check_equal, random_points
from timebeam.schema.bits.reasons import Reason

FLAGS = ("--format=opentsdb-json", "--auto-create-metrics", "--stop-when-idle=0.5", "--flush-seconds=0.3")


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    return Store.create(bigtable, prefix)


def run(store: Store, folder: Path, messages: Sequence[Published], seed: int, *flags: str) -> None:
    """Streams the messages, each up to five times, in pulls of 300."""
    with PubSubServer(messages, deliveries=5, seed=seed, batch=300).running() as server:
        ran = timebeam(
            *("ingest", *store.flags, *FLAGS, f"--input-subscription={SUBSCRIPTION}"),
            *("--dead-letters", folder / "dead", *flags),
        )
        assert ran.code == 0, ran.err
        assert server.left == 0


@pytest.mark.parametrize(
    ("packing", "writer"),
    long_after(2, [("points", "beam"), ("compacted", "direct"), ("points", "direct"), ("compacted", "beam")]),
)
def test_redelivery_and_corrections(store: Store, tmp_path: Path, packing: str, writer: str) -> None:
    points = random_points(random.Random(7), series=20, hours=6, a_row=8, corrections=0.1, most=5)
    messages = as_messages(points)
    run(store, tmp_path, messages, 9, f"--packing={packing}", f"--bigtable-writer={writer}")
    check_equal(store, points, packing, corrected_in_place=True)


def test_redelivery_of_appends(store: Store, tmp_path: Path) -> None:
    """Without corrections: of two values of one instant, an append column keeps the one appended last."""
    points = random_points(random.Random(7), series=10, hours=4, a_row=8, corrections=0, most=5)
    messages = as_messages(points)
    run(store, tmp_path, messages, 9, "--packing=append")
    check_equal(store, points, "append")


def test_poison_in_the_stream(store: Store, tmp_path: Path) -> None:
    """Records that nothing can store, in messages of their own and among good ones."""
    rng = random.Random(3)
    points: list[Point] = random_points(rng, series=10, hours=4, a_row=8, corrections=0, most=5)
    messages = as_messages(points)
    poison = sorted(POISON_JSON)
    for number, bad in enumerate(poison * 3):
        at = rng.randrange(len(messages))
        good = messages[at]
        data = bad if number % 2 else good.data + b"\n" + bad
        if number % 2:
            messages.append(Published(data, good.publish_ms))
        else:
            messages[at] = good._replace(data=data)
    with PubSubServer(messages).running() as server:
        ran = timebeam(
            *("ingest", *store.flags, *FLAGS, f"--input-subscription={SUBSCRIPTION}"),
            *("--dead-letters", tmp_path / "dead", "--summary=json"),
        )
        assert (ran.code, server.left) == (0, 0)
    check_equal(store, points, "points")
    letters = [json.loads(line) for path in tmp_path.glob("dead*") for line in path.read_text().splitlines()]
    found = sorted((letter["payload"].encode(), Reason(letter["reason"])) for letter in letters)
    assert found == sorted([*POISON_JSON.items()] * 3)
