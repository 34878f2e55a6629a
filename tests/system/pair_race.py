"""One race: two or three commands on the same tables at once, perhaps one of them killed and run again.

Afterwards the tables must hold what some order of the commands, one after the other, leaves.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from unittest import mock

from tests.support.any_store import AnyStore
from tests.support.commands import Ran, timebeam
from tests.support.model import Content
from tests.system.disagreement import expect
from tests.system.race_gates import Child, Gate
from tests.system.race_jobs import HOURS, JOBS, MAIN, METRICS, Contents, Stores, at_ms, undecided
from tests.system.race_tables import Kind, create
from timebeam.pipelines.store import delete

_NUMBERS = itertools.count(1)
_RUNS = 5
_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class Race:
    """Everything that a run needs.

    Attributes:
      jobs: names of `JOBS`; the gate is one of the first.
      gate: the first runs up to it; then the others run, to their ends or until they wait for a lease; then
        the first goes on. None for all at once, with delays.
      waits: whether the others start when the first is at its gate, and not with it.
      is_killed: the first is killed at its gate, in place of going on; then it is run again.
      is_split: whether each row is a split of its table, so that jobs take many leases.
      delays: the seed of the delays of changes.
    """

    kind: Kind
    jobs: tuple[str, ...]
    gate: Gate | None
    waits: bool = True
    is_killed: bool = False
    is_split: bool = False
    delays: int = 0

    def __str__(self) -> str:
        how = "all at once" if self.gate is None else f"{self.jobs[0]} {self.gate}"
        return f"{' x '.join(self.jobs)}, {how}{', then killed' if self.is_killed else ''}, {self.kind}"


def run(race: Race, emulator: str, place: tuple[str, str]) -> bool:
    """Runs a race in tables of its own; whether its gate was reached.

    Raises:
      DisagreementError: the tables, an answer or an exit code is wrong.
    """
    with tempfile.TemporaryDirectory(prefix="race-") as folder:
        prefix = f"race{next(_NUMBERS)}_{os.getpid()}_"
        stores, before = create(race.kind, place, prefix, Path(folder))
        return _Run(race, emulator, stores, before).run()


class _Run:
    def __init__(self, race: Race, emulator: str, stores: Stores, before: Contents) -> None:
        self._race, self._emulator, self._stores, self._before = race, emulator, stores, before
        self._commands: dict[str, list[str]] = {}
        self._children = 0

    def run(self) -> bool:
        """See `run` above."""
        race = self._race
        for name in race.jobs:
            self._commands[name] = self._command(name)
        first = self._start(race.jobs[0], race.gate, race.delays)
        is_held = race.gate is not None and race.waits
        is_reached = not is_held or first.await_gate()
        others = [
            self._start(name, None, race.delays and race.delays + number)
            for number, name in enumerate(race.jobs[1:], 1)
        ]
        if is_held:
            is_frozen = race.gate is not None and race.gate.what == "freeze"
            for other in others:
                other.await_end(or_lease=not is_frozen)  # what is frozen loses its lease
            if race.is_killed and is_reached:
                first.kill()
            else:
                first.release()
        for name, child in zip(race.jobs, [first, *others], strict=True):
            self._complete(name, child)
        self._check()
        return is_reached

    def _start(self, name: str, gate: Gate | None, delays: int = 0) -> Child:
        self._children += 1
        output = self._stores.folder / f"output{self._children}"
        return Child(
            *(self._emulator, self._commands[name], output, gate),
            is_split=self._race.is_split,
            delays=delays,
        )

    def _command(self, name: str) -> list[str]:
        """The arguments of a job, with a new token if it takes one; none if there is nothing to do."""
        arguments = JOBS[name].arguments(self._stores)
        if not JOBS[name].has_token:
            return arguments
        with mock.patch.object(delete, "SETTLED_MS", 0):
            ran = timebeam(*arguments)
        if _has_no_name(ran):
            return []
        expect(ran.code == 0, f"exit code of the dry run of {name}", ran)
        token = json.loads(ran.out)["token"]
        return [*arguments, "--token", token] if token else []

    def _complete(self, name: str, child: Child) -> None:
        """Waits for a job's end, and runs it until it has succeeded."""
        for _ in range(_RUNS):
            ran = child.end()
            expect("Traceback" not in ran.err, f"stack trace of {name}", ran.err)
            if ran.code == 0 or _has_no_name(ran):
                return
            if '"changed": true' in ran.out or "was used at" in ran.err:
                self._commands[name] = self._command(name)
                if not self._commands[name]:
                    return
            child = self._start(name, None)
        expect(False, f"exit code of {name}, run {_RUNS} times", ran)

    def _check(self) -> None:
        found = {name: store.content() for name, store in self._stores.by_name.items()}
        orders = list(self._serial())
        if "copy" not in self._race.jobs:  # which copies rows one by one, each before or after a deletion
            orders = [min(orders, key=lambda each: self._wrong(found, [each]))]
        for tables, content in found.items():
            self._compare(tables, content, [each.points[tables] for each in orders])
        for store in self._stores.by_name.values():
            ran = timebeam("check", *store.flags)
            expect(ran.code == 0, "corruption", ran)
        if {"uids", "no archive"} <= self._race.kind.has:
            ran = timebeam("names", "fix", *self._stores.by_name[MAIN].flags)
            expect((ran.code, ran.out) == (0, "nothing to do\n"), "names", ran)
        self._check_queries(self._stores.by_name[MAIN], found[MAIN])

    def _serial(self) -> Iterator[Contents]:
        """What each order of the commands leaves."""
        for order in itertools.permutations(self._race.jobs):
            contents = self._before.copy()
            for name in order:
                JOBS[name].changes(contents)
            yield contents

    def _wrong(self, found: Mapping[str, Content], orders: Sequence[Contents]) -> int:
        """How many points are as none of some orders leaves them."""
        return sum(
            sum(1 for _ in self._differences(content, [each.points[tables] for each in orders]))
            for tables, content in found.items()
        )

    def _differences(self, found: Content, expected: Sequence[Content]) -> Iterator[tuple[str, object]]:
        """(what is wrong, the point) of all points that are as in none of the expected contents."""
        for key in found.keys() | {key for content in expected for key in content}:
            values, value = {content.get(key) for content in expected}, found.get(key)
            if undecided(self._race.jobs, *key):
                values |= {None, *(content.get(key) for content in self._before.points.values())}
            if value not in values:
                yield "lost" if value is None else "there, but deleted" if values == {None} else "wrong", key

    def _compare(self, tables: str, found: Content, expected: Sequence[Content]) -> None:
        wrong: dict[str, list[object]] = {}
        for what, key in self._differences(found, expected):
            wrong.setdefault(what, []).append(key)
        text = ", ".join(
            f"{len(keys):,} points are {what}: {sorted(keys, key=str)[:_SHOWN]}"
            for what, keys in sorted(wrong.items())
        )
        expect(not wrong, f"points {' and '.join(sorted(wrong))}", f"{tables} tables: {text}")

    def _check_queries(self, store: AnyStore, content: Content) -> None:
        span = f"--start={at_ms(0)}", f"--end={at_ms(HOURS) - 1}"
        for metric in METRICS:
            ran = timebeam("query", metric, *store.flags, *span, "--aggregator=none", "--output=json-ms")
            if _has_no_name(ran):
                answer = {}
            else:
                expect(ran.code == 0, "exit code of query", ran)
                answer = {
                    (tuple(sorted(result["tags"].items())), int(time_ms)): value
                    for result in json.loads(ran.out)
                    for time_ms, value in result["dps"].items()
                }
            of_metric = {(series[1], time_ms) for series, time_ms in content if series[0] == metric}
            expect(
                answer.keys() == of_metric, f"query of {metric}", sorted(answer.keys() ^ of_metric)[:_SHOWN]
            )


def _has_no_name(ran: Ran) -> bool:
    """Whether a command was rejected a name that a merge has taken away."""
    return ran.code != 0 and ("o such name" in ran.err or "did you mean" in ran.err)
