"""Commands that rewrite what they read, two and three at once, with kills: none may undo another.

    python -m tests.system.pairs --seeds 1-500
    python -m tests.system.pairs --until 1795350000
    python -m tests.system.pairs --matrix

A seed draws the tables, the commands, and when one is held, frozen or killed. The matrix takes each ordered
pair, holds the first before each of its changes in turn, runs the second, and lets the first go on.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import random
import sys
import time
import traceback
from collections.abc import Iterator, Sequence

from tests.support.fault_proxy import AFTER, BEFORE
from tests.system.disagreement import DisagreementError
from tests.system.histories import Failure, Result, parse_seeds, run_all
from tests.system.pair_race import Race, run
from tests.system.race_gates import Gate
from tests.system.race_jobs import MERGES, runnable
from tests.system.race_tables import Kind
from timebeam.pipelines.local.emulator import HOST_VARIABLE

SALTED = Kind("opentsdb-salted")
ARCHIVED = Kind(archive=True, is_archived=True)
KINDS = (
    Kind(),
    SALTED,
    Kind(archive=True),
    ARCHIVED,
    Kind("opentsdb-salted", archive=True, is_archived=True),
    Kind("heroic", archive=True, is_archived=True),
    Kind("kairosdb-milliseconds", archive=True, is_archived=True),
)
_MOST_CHANGES = 12
_LOSES_A_NAME = frozenset(
    {
        *(("merge", "merge-back"), ("merge", "merge-on"), ("merge-back", "merge")),
        *(("merge-back", "merge-on"), ("merge-on", "merge-back")),
    }
)
"""Merges of which a killed one cannot be run again after the other, which takes away one of its names."""
_OF_EACH_SORT = (
    *("compact", "delete-early", "delete-late", "expire", "archive", "merge", "merge-too", "merge-back"),
    *("copy", "delete-other"),
)


def race_of(seed: int) -> Race:
    """The race of a seed."""
    chance = random.Random(seed)
    kind = chance.choice(KINDS)._replace(step_ms=chance.choice((1000, 1000, 3000)))
    names = list(runnable(kind.has))
    number = chance.choice((2, 2, 2, 3))
    jobs = next(
        jobs for _ in itertools.count() if _is_decided(jobs := tuple(chance.choices(names, k=number)))
    )
    how = chance.choice(("hold", "hold-kill", "freeze", "kill", "kill", "together"))
    if any((jobs[0], other) in _LOSES_A_NAME for other in jobs[1:]):
        how = "hold"
    nth, when = min(int(chance.expovariate(0.6)) + 1, _MOST_CHANGES), chance.choice((BEFORE, AFTER))
    race = Race(kind, jobs, None, is_split=chance.random() < 0.5, delays=chance.randrange(1, 10**6))
    if how == "together":
        return race
    if how == "kill":
        return dataclasses.replace(race, gate=Gate("kill", nth, when), waits=False)
    gate = Gate(how.partition("-")[0], nth, when)
    return dataclasses.replace(race, gate=gate, is_killed=how == "hold-kill", delays=0)


def _is_decided(jobs: Sequence[str]) -> bool:
    """Whether it is known what each order of jobs leaves."""
    merges = sum(name in MERGES for name in jobs)
    loses_a = {"merge-back", "merge-on"} & set(jobs)
    return (
        merges < 3
        and not ("copy" in jobs and merges)
        and not ("ingest-append" in jobs and loses_a)
        and not {"ingest", "ingest-append"} >= set(jobs)
    )


def matrix() -> list[tuple[Kind, str, str]]:
    """Ordered pairs of jobs of each sort, and the tables that they run on."""
    pairs = itertools.product(_OF_EACH_SORT, repeat=2)
    return [
        (ARCHIVED if "archive" in pair else Kind(), *pair)
        for pair in pairs
        if not ({"copy", "archive"} & set(pair) and set(pair) & MERGES)
    ]


def _run_seed(seed: int) -> Result:
    return _timed(seed, [race_of(seed)])


def _run_pair(number: int) -> Result:
    """Runs a pair of the matrix, held before each change."""
    kind, *pair = matrix()[number]
    return _timed(number, (Race(kind, tuple(pair), Gate("hold", nth)) for nth in range(1, _MOST_CHANGES)))


def _timed(number: int, races: Iterator[Race] | Sequence[Race]) -> Result:
    """Runs races until one fails or does not reach its gate."""
    started, failure = time.monotonic(), None
    for race in races:
        try:
            if not run(race, os.environ[HOST_VARIABLE], ("local", f"local-{os.getpid()}")):
                break
        except DisagreementError as error:
            failure = Failure(f"{race}: {error.kind}", str(error))
            break
        except Exception as error:
            failure = Failure(f"{race}: {type(error).__name__}", traceback.format_exc())
            break
    return Result(number, time.monotonic() - started, failure)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs races; exit code 1 if one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.pairs", description=__doc__)
    parser.add_argument("--seeds", default="1-20", help="1-200, or 3,7,20-30")
    parser.add_argument("--until", type=float, help="those of 1, 2, ... until then (s since 1970)")
    parser.add_argument("--matrix", action="store_true", help="all ordered pairs, in place of seeds")
    parser.add_argument("--workers", type=int, default=2, help="processes, each with an emulator")
    options = parser.parse_args(argv)
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    if options.matrix:
        count, failed = run_all(_run_pair, iter(range(len(matrix()))), options.workers)
    elif options.until is not None:
        count, failed = run_all(_run_seed, itertools.count(1), options.workers, options.until)
    else:
        count, failed = run_all(_run_seed, iter(parse_seeds(options.seeds)), options.workers)
    print(f"{count:,} races, {len(failed):,} failed: {[result.seed for result in failed]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
