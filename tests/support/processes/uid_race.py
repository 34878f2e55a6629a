"""Several processes that assign UIDs to the same names at once."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.synchronize import Barrier

from tests.support.processes.children import CONTEXT
from timebeam.schema.bits.reasons import RejectedError
from timebeam.schema.core.point_fragments import Name
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.opentsdb.assign_uids import UidPolicy, UidTable

_barrier: Barrier | None = None


def race(
    processes: int, batch: int, target: Target, layout: OpenTsdb, policy: UidPolicy, names: Sequence[Name]
) -> list[tuple[dict[Name, bytes | RejectedError], int]]:
    """(UIDs or rejections, number of UIDs assigned) of each of the processes.

    Each process asks for all names, in an order of its own and `batch` at a time.
    """
    barrier = CONTEXT.Barrier(processes)
    with ProcessPoolExecutor(processes, CONTEXT, _keep, (barrier, dict(os.environ))) as pool:
        runs = [
            pool.submit(_assign, batch, target, layout, policy, list(names), seed)
            for seed in range(processes)
        ]
        return [run.result() for run in runs]


def _keep(barrier: Barrier, environment: dict[str, str]) -> None:
    global _barrier
    _barrier = barrier
    os.environ.update(environment)


def _assign(
    batch: int, target: Target, layout: OpenTsdb, policy: UidPolicy, names: list[Name], seed: int
) -> tuple[dict[Name, bytes | RejectedError], int]:
    """One process's part."""
    random.Random(seed).shuffle(names)
    table = UidTable(target, layout, policy)
    table.look_up(names[:1])  # the connection is up before the race begins
    assert _barrier is not None
    _barrier.wait()
    found: dict[Name, bytes | RejectedError] = {}
    total = 0
    for at in range(0, len(names), batch):
        resolved, assigned = table.resolve(names[at : at + batch])
        found.update(resolved)
        total += assigned
    return found, total
