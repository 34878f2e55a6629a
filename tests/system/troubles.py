"""A command of `timebeam` under a trouble: in this process, or in one that is killed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import grpc

from tests.support.commands import Ran, timebeam
from tests.support.fault_proxy import (
    AFTER,
    BEFORE,
    COMPARE_AND_SET,
    INCREMENT,
    MUTATE_ROWS,
    READ_ROWS,
    BadEntries,
    Break,
    Fault,
    Plan,
    either,
    faulty,
    nth,
    share,
    some_keys,
)
from tests.support.processes.killed import changing_from, run_and_kill
from tests.system.steps import Trouble


def run(
    emulator: str,
    arguments: Sequence[str],
    trouble: Trouble | None,
    before: Callable[[], None] | None = None,
) -> tuple[Ran, bool]:
    """(what the command left, whether it was stopped or rejected something by the trouble)."""
    if trouble is None:
        return timebeam(*arguments), False
    if trouble.kind == "kill":
        return run_and_kill(emulator, arguments, trouble.nth, AFTER if trouble.seed % 2 else BEFORE, before)
    with faulty(emulator, _plan(trouble)) as proxy:
        ran = timebeam(*arguments)
    return ran, bool(proxy.faults) and trouble.kind != "pass"


def _plan(trouble: Trouble) -> Plan:
    """The faults of a trouble within this process."""
    if trouble.kind == "abort":
        return changing_from(trouble.nth, Fault(grpc.StatusCode.PERMISSION_DENIED))
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
