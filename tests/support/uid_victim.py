"""A process that assigns UIDs, to be killed half-way."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from multiprocessing.process import BaseProcess

from timebeam.schema.layouts import Layout, Name
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.ingest.uids import UidPolicy, UidTable


def start(target: Target, layout: Layout, policy: UidPolicy, names: Sequence[Name]) -> BaseProcess:
    """The running process; it ends with this one at the latest."""
    context = multiprocessing.get_context("spawn")
    victim = context.Process(target=_assign, args=(target, layout, policy, names), daemon=True)
    victim.start()
    return victim


def _assign(target: Target, layout: Layout, policy: UidPolicy, names: Sequence[Name]) -> None:
    UidTable(target, layout, policy).resolve(names)
