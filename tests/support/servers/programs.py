"""Programs of others beside a test: started at a free port, ready when they answer, ended with the test."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest

_SECONDS = 60


def program(name: str, package: str) -> str:
    """The path of a program; skips the test if Debian's package is not installed."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"no program {name}: apt-get install {package}")
    return path


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@contextlib.contextmanager
def running_program(command: Sequence[str], port: int, ready: str, folder: Path) -> Iterator[httpx.Client]:
    """A client of a program that runs meanwhile; `ready` is the path that it answers when it is ready."""
    log = folder / "log"
    with log.open("w") as output, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)
        try:
            deadline = time.monotonic() + _SECONDS
            while not _answers(client, ready):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            yield client
        finally:
            process.terminate()
            process.wait(_SECONDS)


def _answers(client: httpx.Client, path: str) -> bool:
    try:
        return client.get(path).status_code == 200
    except httpx.TransportError:
        return False
