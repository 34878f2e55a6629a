"""Numbers in columns (integers, floats, or both mixed without loss), and their rates of change.

Rates are those of core/RateSpan and core/RateOptions of OpenTSDB 2.4.1, with counters that roll over
(docs/spec/opentsdb.md §8.4).
"""

from __future__ import annotations

import dataclasses
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from timebeam.schema.bits.arrays import Bools, Floats, Int64s


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


Number = TypeVar("Number", np.int64, np.float64)

MAX_COUNTER = 2**63 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class RateOptions:
    """How to compute rates.

    Attributes:
      is_counter: whether a value below the one before it means that a counter rolled over.
      counter_max: the largest value of the counter, where it starts again at 0.
      reset_value: a rate after a roll-over that is above this becomes 0; 0 for never.
      drops_resets: leave the rate out where a counter rolled over.
    """

    is_counter: bool = False
    counter_max: int = MAX_COUNTER
    reset_value: int = 0
    drops_resets: bool = False


def rates(times_ms: Int64s, values: Values, options: RateOptions) -> tuple[Int64s, Floats]:
    """The rate per second at each point, since the point before it.

    The first rate is the one since 0 at 1970, as a TSD computes it: it is not shown, but a TSD counts it
    where other series of the group have earlier points (`timebeam.schema.query.aggregate.Member.before`).

    >>> times_ms, counters = np.array([1000, 2000, 4000]), np.array([10, 15, 3])
    >>> rates(times_ms, counters, RateOptions())[1].tolist()
    [10.0, 5.0, -6.0]
    >>> with_max = RateOptions(is_counter=True, counter_max=20)
    >>> rates(times_ms, counters, with_max)[1].tolist()  # the last one: (20 - 15 + 3) / 2 s
    [10.0, 5.0, 4.0]

    Args:
      times_ms: int64[n], strictly increasing.

    Returns:
      int64[m] times in ms and float64[m] rates; with `drops_resets` m may be less than n.
    """
    if not len(times_ms):
        return times_ms, np.zeros(0)
    seconds = np.diff(times_ms, prepend=0) / 1000.0
    floats = to_floats(values)
    differences = np.diff(floats, prepend=0.0)
    exact, integers = _integers(values)
    differences[exact] = np.diff(integers, prepend=0)[exact].astype(np.float64)
    has_reset = differences < 0
    if not options.is_counter or not has_reset.any():
        return times_ms, differences / seconds
    if options.drops_resets:
        return times_ms[~has_reset], (differences / seconds)[~has_reset]
    rolled = float(options.counter_max) - _before(floats) + floats
    long_rolled = np.int64(options.counter_max) - _before(integers) + integers
    rolled[exact] = long_rolled[exact].astype(np.float64)
    rolled_rates = rolled / seconds
    if options.reset_value > 0:
        rolled_rates[rolled_rates > options.reset_value] = 0.0
    return times_ms, np.where(has_reset, rolled_rates, differences / seconds)


def _integers(values: Values) -> tuple[Bools, Int64s]:
    """(whether a value and the one before it are integers, the integers; 0 for floats)."""
    if isinstance(values, Mixed):
        is_integer = ~values.is_float
        return is_integer & np.append(True, is_integer[:-1]), np.where(is_integer, values.bits, 0)
    if values.dtype == np.int64:
        return np.ones(len(values), np.bool_), values.astype(np.int64, copy=False)
    return np.zeros(len(values), np.bool_), np.zeros(len(values), np.int64)


def _before(column: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """The value before each, 0 before the first."""
    return np.concatenate([np.zeros(1, column.dtype), column[:-1]])
