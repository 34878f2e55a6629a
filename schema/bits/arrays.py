"""Arrays in which points are held: types, what the 64 bits of a value mean, numbers, bytes as arrays."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from itertools import repeat

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


def byte_view(text: bytes) -> Bytes:
    """uint8[n]: a view of the bytes of a text."""
    return np.frombuffer(text, np.uint8)


def words(text: bytes, positions: Int64s) -> npt.NDArray[np.uint64]:
    """uint64[n]: the eight bytes from each position int64[n] on, the first one lowest."""
    windows = np.ndarray((len(text) - 7,), "<u8", text, 0, (1,))
    return windows[positions]


def word(eight: bytes) -> int:
    """Eight bytes as `words` gives them."""
    return int.from_bytes(eight, "little")


def used_numbers(numbers: Int32s | Int64s) -> tuple[Int64s, Int64s]:
    """(distinct numbers int64[k], ascending; int64[n] the place of each number among them) of small numbers.

    >>> used, places = used_numbers(np.array([5, 2, 5]))
    >>> used.tolist(), places.tolist()
    ([2, 5], [1, 0, 1])
    """
    used = np.flatnonzero(np.bincount(numbers))
    rank = np.zeros(int(used[-1]) + 1 if len(used) else 0, np.int64)
    rank[used] = np.arange(len(used))
    return used, rank[numbers]


def number_columns(numbers: Sequence[int | float]) -> tuple[Int64s, Bytes]:
    """(bits int64[n], kinds uint8[n]) of numbers of at most 64 bits."""
    n = len(numbers)
    is_float = np.fromiter(map(isinstance, numbers, repeat(float)), np.bool_, n)
    if not is_float.any():
        return np.array(numbers, np.int64), np.zeros(n, np.uint8)
    bits = np.array(numbers, np.float64).view(np.int64)
    integers = np.flatnonzero(~is_float)
    if len(integers):  # once more, since a double holds only 53 bits
        bits[integers] = np.fromiter(map(numbers.__getitem__, integers.tolist()), np.int64, len(integers))
    return bits, np.where(is_float, np.uint8(Kind.FLOAT), np.uint8(Kind.INTEGER))
