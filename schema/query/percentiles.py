"""Percentiles of sorted columns, as Apache Commons Math estimates them for OpenTSDB.

stat/descriptive/rank/Percentile of commons-math 3.4, estimation types LEGACY, R_3 and R_7. An estimate lies
between two neighbours of the sorted values, counted from 1: at `position`, which may be a fraction.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import numpy as np

from timebeam.schema.points import Floats, Int64s


class Estimation(enum.Enum):
    """How the position follows from the percentile and the number of values."""

    LEGACY = enum.auto()
    R3 = enum.auto()
    R7 = enum.auto()


class Neighbours(NamedTuple):
    """Where the estimates lie.

    Attributes:
      lower, upper: int64[n], indexes into the sorted values, from 0.
      fraction: float64[n], how far from the lower to the upper.
    """

    lower: Int64s
    upper: Int64s
    fraction: Floats


def neighbours(percent: float, counts: Int64s, estimation: Estimation) -> Neighbours:
    """The neighbours of a percentile among `counts` sorted values each; of none they are those of one."""
    share = percent / 100
    sizes = np.maximum(counts, 1).astype(np.float64)
    match estimation:
        case Estimation.LEGACY:
            positions = sizes if share == 1 else share * (sizes + 1)
        case Estimation.R3:
            positions = np.where(share <= 0.5 / sizes, 0.0, np.rint(sizes * share))
        case Estimation.R7:
            positions = sizes if share == 1 else 1 + (sizes - 1) * share
    floors = np.floor(positions)
    is_inside = (positions >= 1) & (positions < sizes)
    lower = np.clip(floors - 1, 0, sizes - 1).astype(np.int64)
    lower = np.where(positions >= sizes, sizes.astype(np.int64) - 1, lower)
    return Neighbours(lower, lower + is_inside, np.where(is_inside, positions - floors, 0.0))


def between(lower: Floats, upper: Floats, fraction: Floats) -> Floats:
    """The estimates, from the values of the neighbours."""
    rise = np.where(fraction > 0, upper - lower, 0.0)
    estimates: Floats = lower + fraction * rise
    return estimates
