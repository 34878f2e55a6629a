"""Types of the arrays in which points are held, and what the 64 bits of a value mean."""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


class Kind(enum.IntEnum):
    """The meaning of the 64 bits of a value.

    For values from TEXT on the bits are an index into `PointBatch.payloads`. TEXT is UTF-8, as KairosDB
    stores; OPAQUE is bytes that only their producer understands, as Heroic's distributions; HISTOGRAM is
    `HistogramBytes`.
    """

    INTEGER = 0
    FLOAT = 1
    TEXT = 2
    OPAQUE = 3
    HISTOGRAM = 4
