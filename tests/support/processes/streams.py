"""Local streams, and what they leave."""

from __future__ import annotations

import json
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.support.commands import code_of, timebeam, unless_given
from tests.support.processes.children import start_command
from tests.support.pubsub_server import SUBSCRIPTION, PubSubServer
from tests.support.stored import Store

T = 1_767_225_600


def point(number: int, value: float = 1.5, metric: str = "m") -> dict[str, Any]:
    return {"metric": metric, "timestamp": T + number, "value": value, "tags": {"host": "a"}}


def line(number: int, value: float = 1.5) -> bytes:
    return json.dumps(point(number, value)).encode()


def stream(store: Store, folder: Path, *flags: str | Path) -> dict[str, Any]:
    """Runs until nothing comes any more; the summary."""
    ran = timebeam(
        *("ingest", *store.flags, "--summary=json", "--flush-seconds=0.2"),
        *unless_given(flags, "--auto-create-metrics", f"--dead-letters={folder / 'dead'}"),
        *unless_given(flags, "--format=opentsdb-json", "--stop-when-idle=0.5"),
        *(
            []
            if "--input-topic" in str(flags)
            else unless_given(flags, f"--input-subscription={SUBSCRIPTION}")
        ),
        *flags,
    )
    summary = json.loads(ran.out)
    assert ran.code == code_of(summary), ran.err
    return summary


def letters(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("dead*.jsonl"))
    return [json.loads(text) for path in files for text in path.read_text("utf-8").splitlines()]


def values(store: Store) -> dict[int, float | int]:
    """Value by seconds after T, of all series."""
    return {
        time_ms // 1000 - T: value for points in store.points().values() for time_ms, value in points.items()
    }


PATIENCE_SECONDS = 300
"""For a machine that is busy with other things; nothing here takes so long by itself."""


def start(store: Store, output: Path, server: PubSubServer, *flags: str) -> BaseProcess:
    """A stream in a process of its own."""
    command = [
        *(
            "ingest",
            *store.flags,
            "--format=opentsdb-json",
            "--auto-create-metrics",
            "--bigtable-writer=direct",
        ),
        *(f"--input-subscription={SUBSCRIPTION}", f"--dead-letters={output.parent / 'dead'}"),
        *("--flush-seconds=0.1", *flags),
    ]
    return start_command(command, output, {"PUBSUB_EMULATOR_HOST": server.host})


def wait_for(server: PubSubServer, count: int, process: BaseProcess) -> None:
    """Until more than `count` messages are acknowledged; a process that ended before is a failure."""
    until = time.monotonic() + PATIENCE_SECONDS
    while len(server.acknowledged) <= count:
        assert process.is_alive()
        assert time.monotonic() < until
        time.sleep(0.02)
