"""A command of a race in a process of its own, whose calls are watched, held, delayed, or end it.

It speaks to Bigtable through a proxy of its own. Counted are the calls that change its tables or read them;
those of leases pass freely, so that a holder can renew while it is held.
"""

from __future__ import annotations

import functools
import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

from tests.support.commands import Ran
from tests.support.fault_proxy import AFTER, BEFORE, READ_ROWS, AnyFault, Call, Do, FaultProxy
from tests.support.processes.children import start_command
from tests.support.processes.killed import CHANGING
from tests.system.race_tables import settle_at_once
from timebeam.pipelines.local.emulator import HOST_VARIABLE
from timebeam.transforms.bigtable import read_ranges
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.care import range_leases

LEASE_SECONDS = 3.0
"""For which a range stays leased by a process that was killed."""

_LONGEST_SECONDS = 120
_QUIET_SECONDS = 8.0
"""A command that makes no call for so long waits for something."""
_NAMES = ("timebeam", "uid")
"""The ends of names of tables that hold no points."""
_POLLS = 8
"""As one does that has made so many calls for leases, and no other: four are made between two chunks."""


class Gate(NamedTuple):
    """What happens at one of the calls of a command.

    Attributes:
      what: `hold` (it waits, with all changes after it), `kill` (before or after it is carried out) or
        `freeze` (the process is stopped once the call, which reads, is carried out).
      nth: the number of the call, from 1, among those that change tables, or for `freeze` read points.
    """

    what: str
    nth: int
    when: str = BEFORE


def prepare_child(is_split: bool) -> None:
    """Makes jobs take cells of any age, leases short, and perhaps each row a split of its table."""
    settle_at_once()
    range_leases.LEASE_SECONDS = LEASE_SECONDS
    if is_split:
        read_ranges.sampled = _sampled


def _sampled(target: Target, table: str) -> list[tuple[bytes, int]]:
    """What SampleRowKeys says of a table of large rows."""
    return [*((key, 1) for key in read_ranges.scan_keys(target, table)), (b"", 1)]


class Child:
    """A running command.

    Args:
      is_split: whether each row is a split of its table.
      delays: the seed of random delays of changes; 0 for none.
    """

    def __init__(
        self,
        emulator: str,
        arguments: Sequence[str],
        output: Path,
        gate: Gate | None,
        *,
        is_split: bool,
        delays: int = 0,
    ) -> None:
        self._gate, self._delays, self._output = gate, delays, output
        self._lock = threading.Lock()
        self._changes = self._reads = self._polls = 0
        self._last_s: float | None = None
        self.reached, self._released = threading.Event(), threading.Event()
        self._started = threading.Event()
        self._proxy = FaultProxy(emulator, self._plan)
        self.process: BaseProcess = start_command(
            arguments, output, {HOST_VARIABLE: self._proxy.host}, functools.partial(prepare_child, is_split)
        )
        self._started.set()
        self.is_killed = False

    @property
    def changes(self) -> int:
        """How many changes of tables it has asked for."""
        return self._changes

    def await_gate(self) -> bool:
        """Waits until its gate is reached or it ends; whether it is reached."""
        end_s = time.monotonic() + _LONGEST_SECONDS
        while not self.reached.wait(0.02) and self.process.is_alive():
            assert time.monotonic() < end_s, f"it neither ends nor gets there: {self._text('err')}"
        return self.reached.is_set()

    def await_end(self, *, or_lease: bool) -> None:
        """Waits until it ends, or waits itself for what others have leased."""
        end_s = time.monotonic() + _LONGEST_SECONDS
        while self.process.is_alive() and time.monotonic() < end_s:
            if or_lease and self._polls >= _POLLS:
                return
            if or_lease and self._last_s is not None and time.monotonic() > self._last_s + _QUIET_SECONDS:
                return
            time.sleep(0.02)

    def release(self) -> None:
        """Opens its gate."""
        self._released.set()
        if self._gate is not None and self._gate.what == "freeze" and self.reached.is_set():
            os.kill(self.process.pid or 0, signal.SIGCONT)

    def kill(self) -> None:
        """Ends it at its gate."""
        self._kill()
        self._released.set()

    def end(self) -> Ran:
        """Waits for its end."""
        self.process.join(_LONGEST_SECONDS)
        code = self.process.exitcode
        self.process.kill()
        self._released.set()
        self._proxy.stop()
        assert code is not None, f"the command hangs: {self._text('err')}"
        return Ran(code, self._text("out"), self._text("err"))

    def _text(self, name: str) -> str:
        path = self._output / name
        return path.read_text() if path.exists() else ""

    def _plan(self, call: Call) -> AnyFault | None:
        with self._lock:
            if _is_of_leases(call):
                self._polls += 1
                return None
            self._last_s, self._polls = time.monotonic(), 0
            is_change = call.method in CHANGING
            self._changes += is_change
            is_read = call.method == READ_ROWS and not _table(call).endswith(_NAMES)
            self._reads += is_read
            gate = self._gate
            if gate is not None and gate.what == "freeze":
                if is_read and self._reads == gate.nth:
                    return Do(self._freeze, AFTER)
            elif gate is not None and is_change:
                if gate.what == "hold" and self._changes >= gate.nth:
                    return Do(self._hold, gate.when)
                if gate.what == "kill" and self._changes == gate.nth:
                    return Do(self._kill, gate.when)
            if self._delays and is_change:
                chance = random.Random(f"{self._delays}/{self._changes}")
                if chance.random() < 0.5:
                    return Do(lambda: time.sleep(chance.uniform(0, 0.5)), BEFORE)
        return None

    def _hold(self) -> None:
        self.reached.set()
        self._released.wait(_LONGEST_SECONDS)

    def _freeze(self) -> None:
        self._started.wait()
        os.kill(self.process.pid or 0, signal.SIGSTOP)
        self.reached.set()

    def _kill(self) -> None:
        self._started.wait()
        self.is_killed = True
        self.process.kill()
        self.process.join()
        self.reached.set()


def _is_of_leases(call: Call) -> bool:
    """Whether a call reads or changes the row of leases, in the table of settings."""
    return _table(call).endswith("timebeam") and b"leases" in call.request


def _table(call: Call) -> str:
    """The name of a call's table: field 1 of each request that names one."""
    request = call.request
    if request[:1] != b"\x0a":
        return ""
    size, at, shift = 0, 1, 0
    while True:
        size |= (request[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if request[at - 1] < 128:
            return request[at : at + size].decode(errors="replace").rpartition("/")[2]
