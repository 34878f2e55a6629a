"""Messages more than once, in any order, corrections and poison among them: every layout ends up equal.

What must be there is worked out from the points that were sent; what is there is read by the layout.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.any_store import VARIANTS, AnyStore
from tests.support.budget import long_after
from tests.support.commands import timebeam
from tests.support.inputs.poison import POISON_JSON
from tests.support.model import Point, content
from tests.support.pubsub_server import SUBSCRIPTION, Published, PubSubServer
from tests.support.workload import as_messages, random_points

DOUBLES_ONLY = tuple(variant for variant in VARIANTS if variant.startswith("heroic"))
NAMES_OF_ANY_LETTERS = b'{"metric":"sys.m0","timestamp":1767225600,"value":1,"tags":{"host":"web=001"}}'
"""Poison to OpenTSDB's layout alone."""


def is_storable(point: Point, variant: str) -> bool:
    """Whether the layout can hold the value as it is."""
    return (
        variant not in DOUBLES_ONLY
        or isinstance(point.value, float)
        or int(float(point.value)) == point.value
    )


def stream(
    store: AnyStore, folder: Path, messages: Sequence[Published], seed: int, *flags: str
) -> list[dict]:
    """Streams messages, each up to five times in any order; the dead letters."""
    with PubSubServer(messages, deliveries=5, seed=seed, batch=300).running() as server:
        ran = timebeam(
            *("ingest", *store.flags, *store.auto_create, "--format=opentsdb-json", "--stop-when-idle=0.3"),
            *(
                "--flush-seconds=0.3",
                f"--input-subscription={SUBSCRIPTION}",
                "--dead-letters",
                folder / "dead",
            ),
            *flags,
        )
        assert (ran.code, server.left) == (0, 0), ran.err
    return [json.loads(line) for path in folder.glob("dead*") for line in path.read_text().splitlines()]


def check(store: AnyStore, points: Sequence[Point], variant: str) -> None:
    """Asserts that the tables hold the points that the layout can hold, and are sound."""
    kept = [point for point in points if is_storable(point, variant)]
    if variant in DOUBLES_ONLY:
        kept = [point._replace(value=float(point.value)) for point in kept]
    assert store.content() == content(kept)
    ran = timebeam("check", *store.flags)
    assert (ran.code, ran.err) == (0, ""), ran.out


@pytest.mark.parametrize(
    ("variant", "writer"), long_after(4, zip(VARIANTS, ["beam", "direct"] * 4, strict=True))
)
def test_redelivery_corrections_and_poison(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, variant: str, writer: str
) -> None:
    store = AnyStore.create(bigtable, prefix, variant)
    rng = random.Random(11)
    points = random_points(rng, series=15, hours=6, a_row=6, corrections=0.1, most=5)
    messages = as_messages(points)
    poison = dict(POISON_JSON)
    if store.layout.uids is None:
        del poison[NAMES_OF_ANY_LETTERS]
    bad = sorted(poison)
    for number, line in enumerate(bad * 3):
        at = rng.randrange(len(messages))
        if number % 2:
            messages.append(Published(line, messages[at].publish_ms))
        else:
            messages[at] = messages[at]._replace(data=messages[at].data + b"\n" + line)
    letters = stream(store, tmp_path, messages, 5, f"--bigtable-writer={writer}")
    check(store, points, variant)
    rejected = {(letter["payload"].encode(), letter["reason"]) for letter in letters}
    unstorable = {
        (line, "value-not-storable") for message, line in _lines(points) if not is_storable(message, variant)
    }
    assert rejected == {(line, reason.value) for line, reason in poison.items()} | unstorable
    assert bool(unstorable) == (variant in DOUBLES_ONLY)


def _lines(points: Sequence[Point]) -> list[tuple[Point, bytes]]:
    """Points and their lines."""
    lines = [line for message in as_messages(points) for line in message.data.splitlines()]
    return list(zip(points, lines, strict=True))


@pytest.mark.parametrize("variant", ["opentsdb", "heroic", "kairosdb-legacy"])
def test_any_order_gives_the_same_cells(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, variant: str
) -> None:
    """Index tables too; but for UIDs, which are given in the order in which names come."""
    points = random_points(random.Random(3), series=8, hours=3, a_row=5, corrections=0.2, most=3)
    found = []
    for seed in (1, 2):
        store = AnyStore.create(bigtable, f"{prefix}{seed}-", variant)
        messages = as_messages(points)
        random.Random(seed).shuffle(messages)
        stream(store, tmp_path, messages, seed)
        if store.layout.uids is not None:
            found.append(store.content())
        else:
            found.append(
                {cell._replace(table=cell.table.removeprefix(f"{prefix}{seed}-")) for cell in store.cells()}
            )
    assert found[0] == found[1]
