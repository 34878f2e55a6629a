"""A Bigtable connector for Beam pipelines in Python; of timebeam it imports rows and cells, and nothing else.

`ReadRows` and `WriteRows` are PTransforms; the functions below them are in the modules of this package.
"""

from __future__ import annotations

import typing

from timebeam.schema.core.rows import Cell, Deletion, EncodedRow, KeyRange, Row
from timebeam.transforms.bigtable.target import BigtableError, Target

if typing.TYPE_CHECKING:
    from timebeam.transforms.bigtable.beam_steps import FailedRow, ReadRows, WriteRows

__all__ = [
    "BigtableCell",
    "BigtableDeletion",
    "BigtableError",
    "BigtableRow",
    "EncodedRow",
    "FailedRow",
    "KeyRange",
    "ReadRows",
    "Target",
    "WriteRows",
]

BigtableCell = Cell
BigtableDeletion = Deletion
BigtableRow = Row
"""The names of these classes for pipelines of others, in which `Row` means much else."""


def __getattr__(name: str) -> object:
    """Imports Beam when it is needed: commands without a pipeline start a second sooner."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from timebeam.transforms.bigtable import beam_steps

    return getattr(beam_steps, name)
