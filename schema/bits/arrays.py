"""Types of the arrays in which points are held, what the 64 bits of a value mean, and numbers in columns."""

from __future__ import annotations

import dataclasses
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


@dataclasses.dataclass(frozen=True, slots=True)
class Mixed:
    """n numbers, some of them integers and some floats, each as it was stored.

    Attributes:
      bits: int64[n], an integer, or the bits of a float64.
      is_float: bool[n].
    """

    bits: Int64s
    is_float: Bools

    def __len__(self) -> int:
        return len(self.bits)

    def __getitem__(self, which: slice | Bools) -> Values:
        return numbers(self.bits[which], self.is_float[which])

    @property
    def floats(self) -> Floats:
        """float64[n]."""
        return np.where(self.is_float, self.bits.view(np.float64), self.bits.astype(np.float64))

    def tolist(self) -> list[int | float]:
        """As Python's numbers."""
        integers, floats = self.bits.tolist(), self.bits.view(np.float64).tolist()
        return [
            floating if is_float else integer
            for integer, floating, is_float in zip(integers, floats, self.is_float.tolist(), strict=True)
        ]


Values = Int64s | Floats | Mixed
"""n numbers: int64[n] if all are integers, float64[n] if all are floats, else `Mixed`."""


def numbers(bits: Int64s, is_float: Bools) -> Values:
    """Numbers from their bits; see `Mixed`."""
    if not is_float.any():
        return bits
    bits = np.ascontiguousarray(bits)
    return bits.view(np.float64) if is_float.all() else Mixed(bits, is_float)


def to_floats(values: Values) -> Floats:
    """float64[n]; integers beyond 2**53 are rounded."""
    if isinstance(values, Mixed):
        return values.floats
    return values.astype(np.float64, copy=False)
