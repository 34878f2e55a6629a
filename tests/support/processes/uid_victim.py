"""A process that assigns UIDs, to be killed half-way."""

from __future__ import annotations

import os
from collections.abc import Sequence
from multiprocessing.process import BaseProcess

from tests.support.processes import children
from timebeam.schema.core.contract import Store
from timebeam.schema.core.point_fragments import Name
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.opentsdb.assign_uids import UidPolicy, UidTable


def start(target: Target, layout: Store, policy: UidPolicy, names: Sequence[Name]) -> BaseProcess:
    """The running process; it ends with this one at the latest."""
    return children.start(_assign, dict(os.environ), target, layout, policy, names)


def _assign(
    environment: dict[str, str], target: Target, layout: Store, policy: UidPolicy, names: Sequence[Name]
) -> None:
    os.environ.update(environment)
    UidTable(target, layout, policy).resolve(names)
