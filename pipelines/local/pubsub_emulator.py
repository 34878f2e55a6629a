"""Google's Pub/Sub emulator as a child process, if the machine has the gcloud SDK and Java."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator

from timebeam.pipelines.local.emulator import EmulatorError, sdk_roots
from timebeam.pipelines.local.process import child
from timebeam.pipelines.local.pubsub import EMULATOR_VARIABLE

START_SECONDS = 60.0

_NONE = f"""\
No Pub/Sub emulator was found. Any one of these helps:
  - gcloud components install pubsub-emulator, and java 11 or newer on PATH
  - set {EMULATOR_VARIABLE}=localhost:PORT to an emulator that is already running"""


def find() -> list[str] | None:
    """The command that runs the emulator, without its port; None if there is none."""
    java = shutil.which("java")
    for root in sdk_roots():
        jars = sorted(root.glob("platform/pubsub-emulator/lib/cloud-pubsub-emulator-*-all.jar"))
        if java and jars:
            return [os.path.realpath(java), "-jar", str(jars[-1]), "--host=127.0.0.1"]
    return None


@contextlib.contextmanager
def pubsub_emulator() -> Iterator[str]:
    """An emulator for the time of the block: \"host:port\". One that the variable names is used as it is.

    The variable is set as long.

    Raises:
      EmulatorError: there is none, or it does not answer.
    """
    running = os.environ.get(EMULATOR_VARIABLE)
    if running:
        yield running
        return
    command = find()
    if command is None:
        raise EmulatorError(_NONE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryFile() as log, child([*command, f"--port={port}"], log) as process:
        deadline = time.monotonic() + START_SECONDS
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                log.seek(0)
                raise EmulatorError(f"the Pub/Sub emulator did not start:\n{log.read().decode()[-2000:]}")
            time.sleep(0.05)
        os.environ[EMULATOR_VARIABLE] = f"127.0.0.1:{port}"
        try:
            yield os.environ[EMULATOR_VARIABLE]
        finally:
            del os.environ[EMULATOR_VARIABLE]


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return bool(connection.recv(1))
    return False
