"""Runs random histories against the emulator, and shrinks those that fail.

    python -m tests.system.histories --seeds 1-200
    python -m tests.system.histories --until 1795350000
    python -m tests.system.histories --seed 123
    python -m tests.system.histories --history .histories/123.json

A history that fails is made smaller and kept as a file, with the command that runs it again.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import itertools
import logging
import math
import multiprocessing
import os
import secrets
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.house.quick_graphs import quick_graphs
from tests.system.disagreement import DisagreementError
from tests.system.draw import history_of
from tests.system.shrink import shrink
from tests.system.steps import History, from_json, to_json
from tests.system.world import World
from timebeam.pipelines.local.emulator import HOST_VARIABLE, Emulator

_KEPT = Path(".histories")
_NUMBERS = itertools.count(1)


class Failure(NamedTuple):
    """Why a history failed: what is compared between two runs, and the whole story."""

    kind: str
    text: str


def run(history: History, emulator: str, place: tuple[str, str]) -> Failure | None:
    """Runs one history in tables of its own; why it failed, if it did."""
    prefix = f"h{next(_NUMBERS)}_{secrets.token_hex(3)}_"
    with tempfile.TemporaryDirectory(prefix="history-") as folder:
        try:
            World(history, emulator, place, prefix, Path(folder)).run()
        except DisagreementError as error:
            return Failure(error.kind, f"{error} ({error.step or 'at the end'})")
        except Exception as error:
            return Failure(type(error).__name__, traceback.format_exc())
    return None


class Result(NamedTuple):
    """What became of the history of a seed."""

    seed: int
    seconds: float
    failure: Failure | None


def _run_seed(seed: int) -> Result:
    """Runs the history of a seed in this worker's emulator."""
    started = time.monotonic()
    failure = run(history_of(seed), os.environ[HOST_VARIABLE], ("local", f"local-{os.getpid()}"))
    return Result(seed, time.monotonic() - started, failure)


def start_worker() -> None:
    """Starts an emulator for as long as this process lives."""
    logging.disable(logging.WARNING)
    resources = contextlib.ExitStack()
    resources.enter_context(resources.enter_context(Emulator()).environment())
    resources.enter_context(quick_graphs())
    start_worker.resources = resources  # type: ignore[attr-defined]


def run_all(
    run_seed: Callable[[int], Result], seeds: Iterator[int], workers: int, until: float = math.inf
) -> tuple[int, list[Result]]:
    """Runs the histories of seeds side by side; none begins after `until` (s since 1970), but the first.

    Args:
      run_seed: runs one in a worker's emulator.

    Returns:
      How many ran, and the results of those that failed.
    """
    count, failed = 0, []
    context = multiprocessing.get_context("spawn")  # gRPC does not survive a fork
    with concurrent.futures.ProcessPoolExecutor(workers, context, start_worker) as pool:
        waiting = {pool.submit(run_seed, seed) for seed in itertools.islice(seeds, workers)}
        while waiting:
            done, waiting = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
            for result in (future.result() for future in done):
                if time.time() < until:
                    waiting |= {pool.submit(run_seed, seed) for seed in itertools.islice(seeds, 1)}
                count += 1
                _print(result)
                failed += [result] if result.failure else []
    return count, failed


def _print(result: Result) -> None:
    """A line for a history, and the story of one that failed."""
    kind = result.failure.kind if result.failure else "ok"
    print(f"seed {result.seed}: {kind}, {result.seconds:.1f} s", flush=True)
    if result.failure:
        print(result.failure.text, flush=True)


def _shrink(history: History, failure: Failure, runs: int) -> None:
    """Makes a history smaller, keeps it as a file and prints how to run it again."""
    place = ("local", "local-shrink")
    emulator = os.environ[HOST_VARIABLE]

    def fails(smaller: History) -> bool:
        again = run(smaller, emulator, place)
        return again is not None and again.kind == failure.kind

    smaller = shrink(history, fails, runs)
    last = run(smaller, emulator, place) or failure
    _KEPT.mkdir(exist_ok=True)
    path = _KEPT / f"{history.seed}.json"
    path.write_text(to_json(smaller))
    print(f"\nseed {history.seed} fails: {last.text}\n\n{smaller.setup}")
    for step in smaller.steps:
        print(f"  {step}")
    print(f"\nagain, all of it:  make test-long SEEDS={history.seed}")
    print(f"again, made small: python -m tests.system.histories --history {path}")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs histories; exit code 1 if one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.histories", description=__doc__)
    parser.add_argument("--seed", type=int, help="run the history of this seed")
    parser.add_argument("--seeds", help="run those of several: 1-200, or 3,7,20-30")
    parser.add_argument("--until", type=float, help="run those of 1, 2, ... until then (s since 1970)")
    parser.add_argument("--history", type=Path, help="run a history that was kept as a file")
    parser.add_argument("--workers", type=int, default=2, help="processes, each with an emulator")
    parser.add_argument("--shrink_runs", type=int, default=80, help="runs to make a failing history smaller")
    options = parser.parse_args(argv)
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # of workers: else each proxy that goes is a line
    if options.history:
        return _main_one(from_json(options.history.read_bytes()), 0)
    if options.seed is not None:
        return _main_one(history_of(options.seed), options.shrink_runs)
    if options.until is not None:
        count, failed = run_all(_run_seed, itertools.count(1), options.workers, options.until)
    else:
        seeds = parse_seeds(options.seeds or "1-20")
        if len(seeds) == 1:
            return _main_one(history_of(seeds[0]), options.shrink_runs)
        count, failed = run_all(_run_seed, iter(seeds), options.workers)
    print(f"{count:,} histories, {len(failed):,} failed: {[result.seed for result in failed]}")
    for result in failed:
        print(f"make it small: python -m tests.system.histories --seed {result.seed}")
    return 1 if failed else 0


def _main_one(history: History, shrink_runs: int) -> int:
    """Runs one history, and makes it smaller if it fails."""
    start_worker()
    failure = run(history, os.environ[HOST_VARIABLE], ("local", "local-one"))
    if failure is None:
        print(f"seed {history.seed}: ok, {len(history.steps)} steps")
        return 0
    print(f"seed {history.seed}: {failure.text}", flush=True)
    if shrink_runs:
        _shrink(history, failure, shrink_runs)
    return 1


def parse_seeds(text: str) -> list[int]:
    """The numbers of a text such as 3,7,20-30."""
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        seeds += range(int(first), int(last or first) + 1)
    return seeds


if __name__ == "__main__":
    sys.exit(main())
