"""A message that ends the process which parses it: set aside after the second time, all others are stored."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.commands import Ran
from tests.support.processes.children import start_command
from tests.support.processes.streams import PATIENCE_SECONDS, letters, line, values
from tests.support.pubsub_server import SUBSCRIPTION, Published, PubSubServer
from tests.support.stored import Store
from timebeam.pipelines.local.trial import UnderWay
from timebeam.schema.core.rejections import Envelope
from timebeam.schema.formats import Message

KILLER = b'{"metric":"killer"}'

ABORTING = f"""
import os
from timebeam.schema.formats import linewise

read = linewise.LinewiseFormat.parse_all

def parse_all(self, messages):
    if any(message.text == {KILLER!r} for message in messages):
        os.abort()
    return read(self, messages)

linewise.LinewiseFormat.parse_all = parse_all
"""
"""A parser that dies, as of a fault in C; the `sitecustomize` of the processes that the stream starts."""


def abort_on_killer() -> None:
    exec(ABORTING, {})


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    return Store.create(bigtable, prefix)


def run(store: Store, output: Path, server: PubSubServer) -> Ran:
    """A stream in a process of its own, until nothing comes any more."""
    command = [
        *("ingest", *store.flags, "--format=opentsdb-json", "--auto-create-metrics"),
        *(f"--input-subscription={SUBSCRIPTION}", "--stop-when-idle=3"),
        *(f"--dead-letters={output.parent / 'dead'}", "--flush-seconds=1", "--summary=json"),
    ]
    path = [str(output.parent / "aborting"), str(Path.cwd()), os.environ.get("PYTHONPATH", "")]
    environment = {"PUBSUB_EMULATOR_HOST": server.host, "PYTHONPATH": os.pathsep.join(path)}
    process = start_command(command, output, environment, abort_on_killer)
    process.join(PATIENCE_SECONDS)
    assert process.exitcode is not None
    return Ran(process.exitcode, (output / "out").read_text(), (output / "err").read_text())


@pytest.mark.long
def test_a_message_that_ends_the_process_is_set_aside(store: Store, tmp_path: Path) -> None:
    (tmp_path / "aborting").mkdir()
    (tmp_path / "aborting" / "sitecustomize.py").write_text(ABORTING)
    good = [Published(line(number), 1000 + number) for number in range(50)]
    messages = [*good[:20], Published(KILLER, 2000, {"site": "lab"}), *good[20:]]
    with PubSubServer(messages, lease_seconds=2).running() as server:
        assert run(store, tmp_path / "first", server).code == -signal.SIGABRT
        server.end_leases()
        second = run(store, tmp_path / "second", server)
        assert second.code == 0, second.err
        assert server.left == 0
    assert values(store) == dict.fromkeys(range(50), 1.5)
    (letter,) = letters(tmp_path)
    assert letter["payload"].encode() == KILLER
    assert (letter["reason"], letter["message_id"]) == ("internal-error", "20")
    assert letter["attributes"] == {"site": "lab"}
    assert "SIGABRT" in letter["message"]
    summary = json.loads(second.out)
    assert (summary["points_stored"], summary["rejected"]) == (50, {"internal-error": 1})


def messages_of(*ids: str) -> Sequence[Message]:
    return [Message(b"", 1, envelope=Envelope(number, 1, {})) for number in ids]


def test_the_notes_of_dead_processes_are_taken_over(tmp_path: Path) -> None:
    note = UnderWay(["s"], tmp_path)
    with note.noting(messages_of("a", "b")):
        (path,) = tmp_path.glob("*.json")
        dead = subprocess.Popen([sys.executable, "-c", ""])
        dead.wait()
        path.rename(path.with_name(path.name.replace(str(os.getpid()), str(dead.pid))))
        assert UnderWay(["another"], tmp_path).suspects == set()
        heir = UnderWay(["s"], tmp_path)
        assert heir.suspects == {"a", "b"}
        assert heir.split(messages_of("b", "c")) == (list(messages_of("b")), list(messages_of("c")))
        with heir.noting(messages_of("b")):
            pass
        assert heir.suspects == {"a"}
        (path,) = tmp_path.glob("*.json")
        assert json.loads(path.read_text()) == ["a"]
        heir.close()
    assert not list(tmp_path.iterdir())


def test_a_note_of_a_living_process_is_its_own(tmp_path: Path) -> None:
    note = UnderWay(["s"], tmp_path)
    with note.noting(messages_of("a")):
        (path,) = tmp_path.glob("*.json")
        path.rename(path.with_name(path.name.replace(str(os.getpid()), str(os.getppid()))))
        assert UnderWay(["s"], tmp_path).suspects == set()


def test_a_note_that_cannot_be_written_does_not_end_the_stream(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    note = UnderWay(["s"], tmp_path / "file" / "folder")
    with note.noting(messages_of("a")):
        pass
    note.close()
    assert "cannot write the state" in caplog.text
