"""A command of `timebeam` in a process of its own, which SIGKILL ends when it makes its nth changing call."""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

from tests.support.commands import Ran
from tests.support.fault_proxy import (
    AFTER,
    BEFORE,
    COMPARE_AND_SET,
    INCREMENT,
    MUTATE_ROWS,
    AnyFault,
    Call,
    Do,
    FaultProxy,
    Plan,
)
from tests.support.processes.children import start_command
from timebeam.pipelines.local.emulator import HOST_VARIABLE

CHANGING = (MUTATE_ROWS, INCREMENT, COMPARE_AND_SET)
"""Calls that change a table."""

_LONGEST_SECONDS = 300
"""A command that takes so long hangs, even on a machine that is busy with other things."""


class Killed(NamedTuple):
    """What a command left, and whether it was killed: it may have ended before its nth call."""

    ran: Ran
    killed: bool


def changing_from(number: int, fault: AnyFault) -> Plan:
    """The fault for each call that changes a table, from the one of this number on."""
    lock, seen = threading.Lock(), [0]

    def plan(call: Call) -> AnyFault | None:
        if call.method not in CHANGING:
            return None
        with lock:
            seen[0] += 1
            return fault if seen[0] >= number else None

    return plan


def run_and_kill(
    emulator: str,
    arguments: Sequence[str | Path],
    nth: int,
    when: str = BEFORE,
    before: Callable[[], None] | None = None,
) -> Killed:
    """Runs a command and kills it before or after its nth changing call is carried out.

    The command never gets the answer to that call.

    Args:
      before: what the process calls before the command.
    """
    child: list[BaseProcess] = []
    started = threading.Event()

    def kill() -> None:
        started.wait()
        child[0].kill()
        connection.wait([child[0].sentinel])  # of two threads that join, one reads no exit code

    with (
        FaultProxy(emulator, changing_from(nth, Do(kill, when))) as proxy,
        tempfile.TemporaryDirectory() as folder,
    ):
        output = Path(folder) / "output"
        child.append(start_command(arguments, output, {HOST_VARIABLE: proxy.host}, before))
        started.set()
        child[0].join(_LONGEST_SECONDS)
        code = child[0].exitcode
        child[0].kill()
        assert code is not None, f"the command hangs: {(output / 'err').read_text()}"
        ran = Ran(code, (output / "out").read_text(), (output / "err").read_text())
        return Killed(ran, bool(proxy.faults))


def run_through_kills(
    emulator: str,
    arguments: Sequence[str | Path],
    kills: int = 10,
    nth: int = 1,
    before: Callable[[], None] | None = None,
) -> Ran:
    """Runs a command to its end after it was killed so many times, before or after its nth changing call.

    Asserts that it was killed each time: the work must need more calls than they carry out.
    """
    for number in range(kills):
        killed = run_and_kill(emulator, arguments, nth, AFTER if number % 2 else BEFORE, before)
        assert killed.killed, f"the command ended before kill {number}: {killed.ran.err}"
    return run_and_kill(emulator, arguments, sys.maxsize, before=before).ran
