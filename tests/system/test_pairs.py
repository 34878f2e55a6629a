"""Commands that rewrite what they read, at once: one is held between its read and its write, others run.

`make test-long` and `python -m tests.system.pairs` run random ones; `--matrix` runs all pairs.
"""

from __future__ import annotations

import pytest

from tests.support.budget import long_after
from tests.support.fault_proxy import AFTER
from tests.system.pair_race import Race, run
from tests.system.pairs import ARCHIVED, race_of
from tests.system.race_gates import Gate
from tests.system.race_tables import Kind

SHORT = Kind(step_ms=3000)
"""Its long columns have more than 8,000 bytes, too."""
SHORT_ARCHIVED = ARCHIVED._replace(step_ms=3000)
FIRST = Gate("hold", 1)

RACES = {
    "compact, delete": Race(SHORT, ("compact", "delete-late"), FIRST),
    "two deletes": Race(SHORT, ("delete-early", "delete-late"), FIRST),
    "delete, merge": Race(SHORT, ("delete-early", "merge"), FIRST, is_split=True),
    "merge, compact": Race(SHORT, ("merge", "compact"), FIRST),
    "archive, delete": Race(SHORT_ARCHIVED, ("archive", "delete-late"), FIRST),
    "compact, delete, killed": Race(SHORT, ("compact", "expire"), FIRST, is_killed=True),
    "two merges": Race(SHORT, ("merge", "merge-back"), FIRST),
    "compact frozen, expire": Race(SHORT, ("compact", "expire"), Gate("freeze", 1)),
    "copy, delete": Race(SHORT, ("copy", "delete-other"), FIRST),
    "compact, archive, delete": Race(SHORT_ARCHIVED, ("compact", "archive", "delete-late"), FIRST),
    "delete killed, compact": Race(SHORT, ("delete-early", "compact"), Gate("kill", 1, AFTER), waits=False),
}
"""By what they are of; each gate is one that the first of the commands gets to."""


@pytest.mark.parametrize("name", long_after(4, RACES))
def test_no_command_undoes_another(emulator: str, bigtable: tuple[str, str], name: str) -> None:
    assert run(RACES[name], emulator, bigtable)


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 9)])
def test_random_races(emulator: str, bigtable: tuple[str, str], seed: int) -> None:
    run(race_of(seed), emulator, bigtable)


def test_a_race_is_a_function_of_its_seed() -> None:
    races = [race_of(seed) for seed in range(200)]
    assert races == [race_of(seed) for seed in range(200)]
    assert {len(race.jobs) for race in races} == {2, 3}
    assert len({job for race in races for job in race.jobs}) == 18
