"""Dead letters in parts, replayed from a subscription, in any order and any batches."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.testing import test_stream

from tests.support.commands import timebeam
from tests.support.processes.streams import letters as letters_in
from tests.support.processes.streams import line, values
from tests.support.pubsub_server import SUBSCRIPTION, Published, PubSubServer
from tests.support.stored import Store
from timebeam.pipelines.local.letters import LetterSubscription
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.formats import Message
from timebeam.transforms.dead_letters.letter import from_json, letters
from timebeam.transforms.dead_letters.replay import OpenLetters
from timebeam.transforms.flow.steps import REJECTED, register_coders

SIZE = 600


def parts(*numbers: int) -> list[Published]:
    """The letters of a payload that holds these points."""
    payload = b"\n".join(map(line, numbers))
    rejected = Rejected(payload, Reason.UNKNOWN_NAME, "why", Stage.PARSE, "topic", 0, 5, points=len(numbers))
    made = [Published(text.encode(), 1000 + n) for n, text in enumerate(letters(rejected, 7, SIZE))]
    assert len(made) > 1
    return made


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    return Store.create(bigtable, prefix)


def replay(store: Store, folder: Path, server: PubSubServer) -> None:
    ran = timebeam(
        *("replay", SUBSCRIPTION, *store.flags, "--format=opentsdb-json", "--auto-create-metrics"),
        *(f"--dead-letters={folder / 'dead'}", "--flush-seconds=0", "--stop-when-idle=1", "--summary=json"),
    )
    assert (ran.code, server.left) == (0, 0), ran.err
    assert json.loads(ran.out)["rejected"] == {}  # parts but the first stand for no points


@pytest.mark.parametrize("seed", [1, 2])
def test_parts_in_different_batches(store: Store, tmp_path: Path, seed: int) -> None:
    """Each pull brings one message, which is a batch; some are delivered twice."""
    sent = [*parts(*range(20)), *parts(*range(20, 40)), *parts(*range(40, 60))]
    random.Random(seed).shuffle(sent)
    with PubSubServer(sent, batch=1, deliveries=seed).running() as server:
        replay(store, tmp_path, server)
    assert values(store) == dict.fromkeys(range(60), 1.5)


def test_parts_without_the_others_stay_letters(store: Store, tmp_path: Path) -> None:
    first, *others = parts(*range(20))
    with PubSubServer([*others, *parts(*range(20, 40))], batch=1).running() as server:
        replay(store, tmp_path, server)
    assert values(store) == dict.fromkeys(range(20, 40), 1.5)
    left = letters_in(tmp_path)
    assert {letter["message"] for letter in left} == {
        f"part of a payload in {len(others) + 1} parts, without 1: replay all of them together"
    }
    again = [Published(json.dumps(letter).encode(), 2000) for letter in left]
    with PubSubServer([first, *again], batch=1).running() as server:
        replay(store, tmp_path, server)
    assert values(store) == dict.fromkeys(range(40), 1.5)


@pytest.fixture
def taking() -> Iterator[tuple[PubSubServer, LetterSubscription]]:
    with PubSubServer(batch=1).running() as server:
        subscription = LetterSubscription(SUBSCRIPTION, max_messages=1000, max_bytes=6000)
        yield server, subscription
        subscription.close()


def test_parts_are_acknowledged_when_the_whole_is_stored(
    taking: tuple[PubSubServer, LetterSubscription],
) -> None:
    server, subscription = taking
    *early, last = parts(*range(10))
    plain = Published(b"no letter", 2000)
    server.add([*early, plain])
    subscription.start()
    (portion,) = subscription.take(1, 1, 0.0)
    assert [message.text for message in portion.messages] == [plain.data]
    subscription.acknowledge([portion])
    assert server.left == len(early)
    server.add([last])
    (whole,) = subscription.take(1, 1, 0.0)
    assert from_json(whole.messages[0].text).rejected.payload == b"\n".join(map(line, range(10)))
    assert server.left == len(early) + 1
    subscription.acknowledge([whole])
    assert server.left == 0


def test_parts_that_fill_the_memory_wait_no_more(taking: tuple[PubSubServer, LetterSubscription]) -> None:
    """Those that have waited longest are taken as they are; what has come last can still be joined."""
    server, subscription = taking
    *of_one, _ = parts(*range(20))
    server.add([*of_one, *parts(*range(20, 30))])
    subscription.start()
    taken = []
    while len(taken) < len(of_one) + 1:
        taken += [message for portion in subscription.take(1, 1, 0.0) for message in portion.messages]
    assert [message.text for message in taken[:-1]] == [published.data for published in of_one]
    assert from_json(taken[-1].text).rejected.part is None


def test_a_part_that_says_to_be_another_one_keeps_its_bytes(store: Store, tmp_path: Path) -> None:
    sent = parts(*range(20))
    other = json.loads(sent[0].data) | {"payload_base64": "AAAA"}
    with PubSubServer([Published(json.dumps(other).encode(), 5), *sent], batch=1).running() as server:
        ran = timebeam(
            *("replay", SUBSCRIPTION, *store.flags, "--format=opentsdb-json", "--stop-when-idle=1"),
            *(f"--dead-letters={tmp_path / 'dead'}", "--flush-seconds=0"),
        )
        assert server.left == 0, ran.err
    left = letters_in(tmp_path)
    assert {letter["payload_base64"] for letter in left} >= {"AAAA"}


SEEN: list[object] = []
"""Of a pipeline in this process; the runner drops what comes at the end of time before a `GroupByKey`."""


def see(found: object) -> None:
    """Notes a message, or the rejection of a letter."""
    if isinstance(found, Rejected):
        SEEN.append((found.message, found.part))
    elif isinstance(found, Message):
        SEEN.append((found.text, found.arrival_ms))


def test_parts_that_come_an_hour_apart_on_dataflow(store: Store) -> None:
    """The graph that Dataflow runs; at its end, as if it is drained, parts without the others are letters."""
    register_coders()
    *early, last = [Message(each.data, 9000 + n) for n, each in enumerate(parts(*range(10)))]
    _, *alone = [Message(each.data, 9500) for each in parts(*range(10, 20))]
    stream = test_stream.TestStream(coder=beam.coders.registry.get_coder(Message)).advance_watermark_to(0)
    for message in (last, *alone, *early):
        stream = stream.add_elements([message]).advance_processing_time(3600)
    opening = OpenLetters(store.target, store.layout, endless=True)
    options = PipelineOptions(["--streaming"])
    SEEN.clear()
    with beam.Pipeline(runner=BundleBasedDirectRunner(), options=options) as pipeline:
        opened = pipeline | stream.advance_watermark_to_infinity() | opening
        opened["main"] | "Whole" >> beam.Map(see)
        opened[REJECTED] | "Left" >> beam.Map(see)
    why = f"part of a payload in {len(alone) + 1} parts, without 1: replay all of them together"
    assert SEEN[0] == (b"\n".join(map(line, range(10))), 5)
    assert SEEN[1:] == [(why, from_json(message.text).rejected.part) for message in alone]
