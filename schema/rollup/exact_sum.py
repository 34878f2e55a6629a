"""Sums independent of the order of their terms, so that a repeated rollup writes the same cells.

A number is split into digits of 28 bits on a grid for all numbers: place p has the weight 2**(28 p). A sum
keeps four places from `top`, the place of its largest term, and sums each digit separately in 64 bits,
without carry:

| place | top | top - 1 | top - 2 | top - 3 |
|---|---|---|---|---|
| holds | at least one bit of the largest term | 28 bits | 28 bits | 28 bits |

So a sum is a function of the set of its terms. Sums of integers are exact. For floats, the dropped part of a
term is less than 2**-84 of the largest term; the rest is exact and rounded once, at the end (to even). If no
two terms differ in size by more than 2**31, the result equals math.fsum.

The method is that of reproducible summation (Demmel and Nguyen 2013, Ahrens, Demmel and Nguyen
2020), with integers instead of floats as digits. A sum may have 2**34 terms.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from timebeam.schema.bits.arrays import Bools, Floats, Int64s

_BITS = 28
_PLACES = 4
_MASK = (1 << _BITS) - 1
_FEW = 12
_LOWEST_TOP = -36
"""Below it, scaling a float to its place would overflow; three more places cover all floats."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sums:
    """m sums.

    Attributes:
      tops: int64[m], the highest place of each sum; `_LOWEST_TOP` for sums of zeros.
      digits: int64[4, m], from the highest place down, not carried.
    """

    tops: Int64s
    digits: Int64s

    def take(self, indices: Int64s | slice) -> Sums:
        """A selection."""
        if isinstance(indices, slice):
            return Sums(self.tops[indices], self.digits[:, indices])
        return Sums(self.tops[indices], self.digits.take(indices, axis=1))

    def added(self, firsts: Int64s) -> Sums:
        """The sums of groups of adjacent sums.

        Args:
          firsts: int64[k], the start of each group, ascending from 0.
        """
        sizes = np.diff(firsts, append=len(self.tops))
        tops = reduced(np.maximum, self.tops, firsts, sizes)
        aligned = _aligned(self, np.repeat(tops, sizes))
        return Sums(tops, reduced(np.add, aligned.digits, firsts, sizes))

    def floats(self) -> Floats:
        """float64[m]: the sums, rounded once; infinite if out of range.

        The first 62 bits from the highest set bit, and a bit for whether any lower bit is set, make an
        integer, which the processor rounds by IEEE 754.
        """
        negative, (first, second, third, fourth) = _carried(self)
        # The number is high + low / 2**56: where the first digit is large, the last one is only a bit of low.
        is_large = first >= 1 << 33
        high = np.where(is_large, first, first << _BITS | second)
        low = np.where(is_large, second << _BITS | third | (fourth != 0), third << _BITS | fourth)
        is_low = high == 0
        high, low = np.where(is_low, low, high), np.where(is_low, 0, low)
        width = np.frexp(high.astype(np.float64))[1].astype(np.int64)  # one more where rounding made it so
        shift = np.clip(62 - width, 0, 2 * _BITS)
        rest = 2 * _BITS - shift
        bits = high << shift | low >> rest | ((low & ((np.int64(1) << rest) - 1)) != 0)
        #      (1)             (2)           (3)
        # (1) The highest set bit moves to bit 61 (or 60), where a float64 rounds the last ones.
        # (2) The upper bits of the 56 of `low` fill the bits that became free.
        # (3) Whether any of its other bits, `rest`, is set: it decides which way a tie is rounded.
        place = self.tops - 1 + is_large - 2 * is_low
        with np.errstate(over="ignore"):
            sums: Floats = np.ldexp(bits.astype(np.float64), _BITS * place - shift)
        return np.where(negative, -sums, sums)

    def integers(self) -> tuple[Int64s, Bools]:
        """(sums int64[m], bool[m] whether each fits 64 bits; else the sum is 0), for sums of integers."""
        negative, digits = _carried(_aligned(self, np.full(len(self.tops), 2, np.int64)))
        fits = digits[0] < 1 << 7
        sizes = (digits[0] << (2 * _BITS)) | (digits[1] << _BITS) | digits[2]
        smallest = negative & (digits[0] == 1 << 7) & (sizes == -(2**63))
        #                     (1)                     (2)
        # (1) The first digit has the bits from 56 on: 2**63 is bit 7 of it,
        # (2) and all other bits are 0. As an int64 it is its own negative.
        integers = np.where(fits, np.where(negative, -sizes, sizes), 0)
        return np.where(smallest, -(2**63), integers), fits | smallest


def reduced(reduce: np.ufunc, column: Int64s | Floats, firsts: Int64s, sizes: Int64s) -> Any:
    """The reduction of groups of adjacent numbers of the last axis.

    For a few numbers `reduceat` takes most of its time between groups, so groups of one small size, as
    of an interval in the next longer one, are reduced number by number.

    Args:
      firsts, sizes: int64[k], the start and the length of each group.
    """
    size = int(sizes[0])
    if size > _FEW or (sizes != size).any():
        return reduce.reduceat(column, firsts, axis=-1)
    reduction = column[..., ::size].copy()
    for place in range(1, size):
        reduce(reduction, column[..., place::size], out=reduction)
    return reduction


def concatenate(sums: list[Sums]) -> Sums:
    """All sums, in order."""
    return Sums(
        np.concatenate([term.tops for term in sums]), np.concatenate([term.digits for term in sums], axis=1)
    )


def sums_of_integers(values: Int64s, firsts: Int64s) -> Sums:
    """The sums of groups of adjacent integers int64[n]; see `Sums.added`.

    >>> sums_of_integers(np.array([2**62, 2**62, 2**62, -(2**62)]), np.array([0])).floats().tolist()
    [9.223372036854776e+18]
    """
    sizes = np.abs(values).view(np.uint64)  # also for -2**63, whose bits are those of 2**63
    largest = np.maximum.reduceat(sizes, firsts)
    tops = np.full(len(firsts), 2, np.int64)
    tops[largest < 1 << (2 * _BITS)] = 1
    tops[largest <= _MASK] = 0
    tops[largest == 0] = _LOWEST_TOP
    digits = np.zeros((_PLACES, len(firsts)), np.int64)
    if int(largest.max()) <= _MASK:
        digits[0] = np.add.reduceat(values, firsts)
        return Sums(tops, digits)
    signs = values >> 63  # -1 or 0: (x ^ s) - s is -x or x
    for place in range(3):
        digits_here = ((sizes >> np.uint64(_BITS * place)) & np.uint64(_MASK)).view(np.int64)
        #               (1)                                  (2)
        # (1) The digit moves to the end,
        # (2) without those above it: 28 bits of the absolute value.
        digits[2 - place] = np.add.reduceat((digits_here ^ signs) - signs, firsts)
    return _aligned(Sums(np.full(len(firsts), 2, np.int64), digits), tops)


def sums_of_floats(values: Floats, largest: Floats, firsts: Int64s) -> Sums:
    """The sums of groups of adjacent finite floats float64[n]; see `Sums.added`.

    Args:
      values: at most 2**25.
      largest: float64[m], the largest absolute value in each group.
    """
    exponents = np.frexp(largest)[1].astype(np.int64) - 1  # 2**exponent <= largest
    tops = np.where(largest == 0, _LOWEST_TOP, np.maximum(exponents // _BITS, _LOWEST_TOP))
    scales = np.ldexp(1.0, -_BITS * tops)
    is_one_scale = bool((tops == tops[0]).all())  # as for most numbers of one metric
    counts = np.diff(firsts, append=len(values))
    remainder = values * (scales[0] if is_one_scale else np.repeat(scales, counts))
    whole = np.empty_like(remainder)
    digits = np.zeros((_PLACES, len(firsts)), np.int64)
    for place in range(_PLACES):
        np.trunc(remainder, out=whole)
        digits[place] = np.add.reduceat(whole, firsts)  # exact: below 2**53
        if place == _PLACES - 1:
            break
        remainder -= whole
        if not remainder.any():
            break
        remainder *= 1 << _BITS
    return Sums(tops, digits)


def _aligned(sums: Sums, tops: Int64s) -> Sums:
    """The same sums with other highest places: digits below the lowest place are dropped.

    If the new place is lower, the digits above it must be zero.
    """
    steps = np.clip(tops - sums.tops, -_PLACES, _PLACES)
    if not steps.any():
        return sums
    digits = np.zeros_like(sums.digits)
    for step in range(int(steps.min()), int(steps.max()) + 1):
        is_moved = steps == step
        for place in range(max(0, step), min(_PLACES, _PLACES + step)):
            np.copyto(digits[place], sums.digits[place - step], where=is_moved)
    return Sums(tops, digits)


def _carried(sums: Sums) -> tuple[Bools, Int64s]:
    """(negative bool[m], digits int64[4, m]): sign and absolute value, carried.

    Every digit is from 0 to 2**28 - 1, except the first one, which has the rest.
    """
    digits = sums.digits.copy()
    _carry(digits)
    negative = digits[0] < 0
    if negative.any():
        digits[:, negative] = -digits[:, negative]
        _carry(digits)
    return negative, digits


def _carry(digits: Int64s) -> None:
    for place in range(_PLACES - 1, 0, -1):
        digits[place - 1] += digits[place] >> _BITS  # rounded down, also if it is negative,
        digits[place] &= _MASK  # so what stays is from 0 to 2**28 - 1
