"""What goes wrong between a pull and its acknowledgement."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from google.api_core import exceptions

from tests.support.commands import timebeam
from tests.support.processes.children import start_command
from tests.support.processes.streams import letters, line, stream, values
from tests.support.pubsub_server import SUBSCRIPTION, Published, PubSubServer
from tests.support.stored import Store
from timebeam.pipelines.local.micro_batches import Repeated
from timebeam.pipelines.local.subscription import Subscription
from timebeam.schema.formats import Message
from timebeam.transforms.input.parse import ParseMessagesFn


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    return Store.create(bigtable, prefix)


MESSAGES = [Published(line(number), 1000 + number) for number in range(40)]


def failing_on(monkeypatch: pytest.MonkeyPatch, *bad: int) -> None:
    """Makes the program itself fail on some messages."""
    process = ParseMessagesFn.process
    lines = {line(number) for number in bad}

    def fail(self: ParseMessagesFn, messages: Sequence[Message]) -> Any:
        if any(message.text in lines for message in messages):
            raise ZeroDivisionError("a bug")
        return process(self, messages)

    monkeypatch.setattr(ParseMessagesFn, "process", fail)


def test_messages_that_the_program_fails_on_are_found(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_on(monkeypatch, 7, 23)
    with PubSubServer(MESSAGES).running() as server:
        summary = stream(store, tmp_path)
        assert server.left == 0
    assert sorted(values(store)) == [number for number in range(40) if number not in (7, 23)]
    assert summary["rejected"] == {"internal-error": 2}
    found = {letter["message_id"]: letter for letter in letters(tmp_path)}
    assert set(found) == {"7", "23"}
    assert found["7"]["payload"].encode() == line(7)
    assert "ZeroDivisionError: a bug" in found["7"]["message"]


def test_a_program_that_fails_on_everything_ends(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is acknowledged, so that nothing is lost."""
    failing_on(monkeypatch, *range(40))
    with PubSubServer(MESSAGES).running() as server, pytest.raises(ZeroDivisionError):
        stream(store, tmp_path)
    assert server.left == 40
    assert values(store) == {}


def test_errors_that_pass_are_waited_out(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run, times = Repeated.run, []

    def fail(self: Repeated, messages: Sequence[Message]) -> None:
        times.append(len(messages))
        if len(times) < 3:
            run(self, messages[: len(messages) // 2])
            raise exceptions.Aborted("try again")
        run(self, messages)

    monkeypatch.setattr(Repeated, "run", fail)
    with PubSubServer(MESSAGES).running() as server, caplog.at_level(logging.WARNING):
        stream(store, tmp_path)
        assert server.left == 0
    assert sorted(values(store)) == list(range(40))
    assert times == [40, 40, 40]
    assert "try again; retrying in 2 s" in caplog.text


def test_a_table_that_goes_ends_the_stream_and_loses_nothing(store: Store, tmp_path: Path) -> None:
    """Its creation is told; once it is back, the messages come again."""
    from google.cloud import bigtable

    client = bigtable.Client(project=store.target.project, admin=True)
    with PubSubServer(MESSAGES[:20]).running() as server:
        stream(store, tmp_path)
        client.instance(store.target.instance).table(store.layout.data_table).delete()
        server.add(MESSAGES[20:])
        ran = timebeam(
            *("ingest", *store.flags, "--format=opentsdb-json", f"--input-subscription={SUBSCRIPTION}"),
            *("--stop-when-idle=0.5", "--dead-letters", tmp_path / "dead"),
        )
        assert ran.code == 1
        assert "Create what is missing with: timebeam tables create" in ran.err
        assert server.left == 20
        place = (store.target.project, store.target.instance)
        Store.create(place, store.layout.options.table_prefix)
        stream(store, tmp_path)
        assert server.left == 0
    assert sorted(values(store)) == list(range(20, 40))


def test_signals_stop_when_what_was_pulled_is_stored(store: Store, tmp_path: Path) -> None:
    with PubSubServer(MESSAGES).running() as server:
        command = [
            *(
                "ingest",
                *store.flags,
                "--format=opentsdb-json",
                "--auto-create-metrics",
                "--packing=compacted",
            ),
            *(f"--input-subscription={SUBSCRIPTION}", "--flush-seconds=60"),
            *(f"--dead-letters={tmp_path / 'dead'}", "--summary=json"),
        ]
        output = tmp_path / "output"
        process = start_command(command, output, {"PUBSUB_EMULATOR_HOST": server.host})
        until = time.monotonic() + 300
        while server.waiting and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.5)
        assert server.left == 40  # pulled, and waiting for others
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
        process.join(300)
        err = (output / "err").read_text()
        assert process.exitcode == 0, err
        assert server.left == 0
    assert json.loads((output / "out").read_text())["points_stored"] == 40
    assert "stopping after the pulled messages are stored" in err
    assert sorted(values(store)) == list(range(40))


def test_leases_are_kept_while_a_batch_is_stored(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that takes longer than the lease: no message is delivered twice."""
    run, seen = Repeated.run, []

    def slow(self: Repeated, messages: Sequence[Message]) -> None:
        seen.extend(messages)
        time.sleep(8)
        run(self, messages)

    monkeypatch.setattr(Repeated, "run", slow)
    with PubSubServer(MESSAGES, lease_seconds=6).running() as server:
        stream(store, tmp_path)
        assert server.left == 0
    assert len(seen) == 40


def test_what_may_be_held_is_bounded() -> None:
    messages = [Published(b"x" * 100, 1) for _ in range(500)]
    with PubSubServer(messages, batch=50).running() as server:
        subscription = Subscription(SUBSCRIPTION, max_messages=120, max_bytes=1 << 20)
        subscription.start()
        until = time.monotonic() + 30
        while 500 - server.waiting < 120 and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(1)  # enough for more, if it pulled more
        held = 500 - server.waiting
        assert 120 <= held <= 170
        taken = subscription.take(10_000, 1 << 30, 0.0)
        assert sum(len(portion.messages) for portion in taken) == held
        subscription.acknowledge(taken)
        while 500 - server.waiting <= held and time.monotonic() < until:
            time.sleep(0.05)
        assert 500 - server.waiting > held
        subscription.close()
        assert server.waiting == 500 - held  # all others were given back


def test_a_failed_run_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from timebeam.transforms.flow import metrics
    from timebeam.transforms.input.parse import single

    def build(root: Any, read: Any) -> None:
        import apache_beam as beam

        def touch(message: Message) -> None:
            metrics.count("points_read")
            if message.text == b"bad":
                raise ValueError("a bad message")

        single(root | read) | beam.Map(touch)

    graph = Repeated(build)
    metrics.totals.clear()
    graph.run([Message(b"good", 1)])
    with pytest.raises(ValueError, match="a bad message"):
        graph.run([Message(b"good", 1), Message(b"bad", 1)])
    assert metrics.totals["points_read"] == 1
