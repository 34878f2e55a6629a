"""`make demo-machine`: accepted equals stored, and however it ends it leaves no process behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from timebeam.pipelines.local.pubsub import PUBSUB_VARIABLE, find

pytestmark = [
    pytest.mark.long,
    pytest.mark.emulator,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

SCRIPT = Path(__file__).parents[2] / "examples" / "demo_machine.py"
MARK = "DEMO_OF_A_TEST"


def demo(mark: str, **environment: str) -> subprocess.Popen[str]:
    """A demonstration of four seconds; all its processes have the mark in their environment."""
    return subprocess.Popen(
        [sys.executable, SCRIPT, "--seconds=4"],
        env={**os.environ, MARK: mark, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def processes(mark: str) -> list[str]:
    """The commands of all processes with a mark."""
    commands = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}\0".encode() in (folder / "environ").read_bytes():
                commands.append((folder / "cmdline").read_text().replace("\0", " "))
    return commands


def assert_gone(mark: str) -> None:
    """The kernel takes a moment to end the children of a killed process."""
    deadline = time.monotonic() + 20
    while left := processes(mark):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def test_accepted_is_stored_and_no_process_is_left() -> None:
    """One test, since demonstrations share a folder."""
    if find() is None and PUBSUB_VARIABLE not in os.environ:
        pytest.skip("no Pub/Sub emulator: gcloud components install pubsub-emulator")
    mark = uuid.uuid4().hex
    with demo(mark) as process:
        output = process.communicate()[0]
    assert process.returncode == 0, output
    counts = re.search(r"Of ([\d,]+) points accepted, ([\d,]+) are stored", output)
    assert counts, output
    assert counts[1] == counts[2]
    assert int(counts[1]) >= 4 * 3
    assert_gone(mark)
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGKILL, -9)):
        mark = uuid.uuid4().hex
        with demo(mark) as process:
            assert process.stdout
            assert any("points accepted" in line for line in process.stdout)
            assert len(processes(mark)) >= 5
            process.send_signal(number)
            rest = process.stdout.read()
        assert process.returncode == code, rest
        assert "Traceback" not in rest
        assert_gone(mark)


def test_a_pubsub_that_does_not_answer() -> None:
    mark = uuid.uuid4().hex
    with demo(mark, **{PUBSUB_VARIABLE: "127.0.0.1:1"}) as process:
        output = process.communicate()[0]
    assert process.returncode == 1
    assert f"Pub/Sub does not answer ({PUBSUB_VARIABLE}=127.0.0.1:1)" in output
    assert "Traceback" not in output
    assert_gone(mark)
