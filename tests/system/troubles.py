"""A command of `timebeam` under a trouble: in this process, or in one that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import grpc

from tests.support.commands import Ran, timebeam
from tests.support.fault_proxy import (
    AFTER,
    BEFORE,
    COMPARE_AND_SET,
    INCREMENT,
    MUTATE_ROWS,
    READ_ROWS,
    AnyFault,
    BadEntries,
    Break,
    Call,
    Do,
    Fault,
    FaultProxy,
    Plan,
    either,
    faulty,
    nth,
    share,
    some_keys,
)
from tests.system.steps import Trouble
from timebeam.pipelines.local.emulator import HOST_VARIABLE

_CHANGING = (MUTATE_ROWS, INCREMENT, COMPARE_AND_SET)
_ROOT = Path(__file__).resolve().parents[2]
_LONGEST_SECONDS = 300
"""A command that takes so long hangs, even on a machine that is busy with other things."""


def run(emulator: str, arguments: Sequence[str], trouble: Trouble | None) -> tuple[Ran, bool]:
    """(what the command left, whether it was stopped or refused something by the trouble)."""
    if trouble is None:
        return timebeam(*arguments), False
    if trouble.kind == "kill":
        return _killed(emulator, arguments, trouble)
    with faulty(emulator, _plan(trouble)) as proxy:
        ran = timebeam(*arguments)
    return ran, bool(proxy.faults) and trouble.kind != "pass"


def _plan(trouble: Trouble) -> Plan:
    """The faults of a trouble within this process."""
    if trouble.kind == "abort":
        return _from_the_nth_on(trouble.nth, Fault(grpc.StatusCode.PERMISSION_DENIED))
    if trouble.kind == "refuse":
        bad = BadEntries(grpc.StatusCode.INVALID_ARGUMENT, some_keys(0.4, trouble.seed))
        return lambda call: bad if call.method == MUTATE_ROWS else None
    away = grpc.StatusCode.UNAVAILABLE
    return either(
        nth(MUTATE_ROWS, (1,), Fault(away, AFTER if trouble.seed % 2 else BEFORE)),
        share(MUTATE_ROWS, 0.2, trouble.seed, Fault(away, AFTER)),
        share(INCREMENT, 0.2, trouble.seed, Fault(away, AFTER)),
        share(COMPARE_AND_SET, 0.1, trouble.seed, Fault(away, AFTER)),
        share(READ_ROWS, 0.2, trouble.seed, Break(1)),
    )


def _from_the_nth_on(number: int, fault: AnyFault) -> Plan:
    """All calls that change a table fail, from the one of this number on."""
    lock, seen = threading.Lock(), [0]

    def plan(call: Call) -> AnyFault | None:
        if call.method not in _CHANGING:
            return None
        with lock:
            seen[0] += 1
            return fault if seen[0] >= number else None

    return plan


def _killed(emulator: str, arguments: Sequence[str], trouble: Trouble) -> tuple[Ran, bool]:
    """Runs a command in a child that dies by SIGKILL when it makes its nth changing call.

    The call is carried out or not, by the seed; the child does not learn of it.
    """
    child: list[subprocess.Popen[bytes]] = []
    started = threading.Event()

    def kill() -> None:
        started.wait()
        child[0].kill()
        child[0].wait()

    plan = _from_the_nth_on(trouble.nth, Do(kill, AFTER if trouble.seed % 2 else BEFORE))
    with FaultProxy(emulator, plan) as proxy:
        child.append(
            subprocess.Popen(
                [sys.executable, "-m", "timebeam", *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=os.environ | {HOST_VARIABLE: proxy.host},
                cwd=_ROOT,
            )
        )
        started.set()
        try:
            out, err = child[0].communicate(timeout=_LONGEST_SECONDS)
        finally:
            child[0].kill()
        return Ran(child[0].returncode, out.decode(), err.decode()), bool(proxy.faults)
