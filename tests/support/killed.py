"""A command of `timebeam` in a process of its own, which SIGKILL ends when it makes its nth changing call."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.commands import Ran
from tests.support.fault_proxy import (
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
from timebeam.pipelines.local.emulator import HOST_VARIABLE

CHANGING = (MUTATE_ROWS, INCREMENT, COMPARE_AND_SET)
"""Calls that change a table."""

_ROOT = Path(__file__).resolve().parents[2]
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
    emulator: str, arguments: Sequence[str | Path], nth: int, when: str = BEFORE, program: str = "timebeam"
) -> Killed:
    """Runs a command and kills it before or after its nth changing call is carried out.

    The command never gets the answer to that call.

    Args:
      program: the module that is run with the arguments.
    """
    child: list[subprocess.Popen[str]] = []
    started = threading.Event()

    def kill() -> None:
        started.wait()
        child[0].kill()
        child[0].wait()

    with FaultProxy(emulator, changing_from(nth, Do(kill, when))) as proxy:
        child.append(
            subprocess.Popen(
                [sys.executable, "-m", program, *map(str, arguments)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | {HOST_VARIABLE: proxy.host},
                cwd=_ROOT,
            )
        )
        started.set()
        try:
            out, err = child[0].communicate(timeout=_LONGEST_SECONDS)
        finally:
            child[0].kill()
        return Killed(Ran(child[0].returncode, out, err), bool(proxy.faults))
