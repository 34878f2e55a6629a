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

import numpy as np

from timebeam.schema.points import Bools, Floats, Int64s

_BITS = 28
_PLACES = 4
_MASK = (1 << _BITS) - 1
_LOWEST_TOP = -36
"""Below it, scaling a float to its place would overflow; three more places cover all floats."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sums:
    """m sums.

    Attributes:
      tops: int64[m], the highest place of each sum; `_LOWEST_TOP` for sums of zeros.
      digits: int64[m, 4], from the highest place down, not carried.
    """

    tops: Int64s
    digits: Int64s

    def take(self, indices: Int64s | slice) -> Sums:
        """A selection."""
        return Sums(self.tops[indices], self.digits[indices])

    def added(self, firsts: Int64s) -> Sums:
        """The sums of groups of adjacent sums.

        Args:
          firsts: int64[k], the start of each group, ascending from 0.
        """
        tops = np.maximum.reduceat(self.tops, firsts)
        sizes = np.diff(firsts, append=len(self.tops))
        aligned = _aligned(self, np.repeat(tops, sizes))
        return Sums(tops, np.add.reduceat(aligned.digits, firsts, axis=0))

    def floats(self) -> Floats:
        """float64[m]: the sums, rounded once; infinite if out of range."""
        negative, digits = _carried(self)
        return _rounded(digits, self.tops + 1) * np.where(negative, -1.0, 1.0)

    def integers(self) -> tuple[Int64s, Bools]:
        """(sums int64[m], bool[m] whether each fits 64 bits; else the sum is 0), for sums of integers."""
        negative, digits = _carried(_aligned(self, np.full(len(self.tops), 2, np.int64)))
        fits = (digits[:, 0] == 0) & (digits[:, 1] < 1 << 7)
        sizes = (digits[:, 1] << (2 * _BITS)) | (digits[:, 2] << _BITS) | digits[:, 3]
        smallest = negative & (digits[:, 0] == 0) & (digits[:, 1] == 1 << 7) & (sizes == -(2**63))
        integers = np.where(fits, np.where(negative, -sizes, sizes), 0)
        return np.where(smallest, -(2**63), integers), fits | smallest


NONE = Sums(np.zeros(0, np.int64), np.zeros((0, _PLACES), np.int64))


def concatenate(sums: list[Sums]) -> Sums:
    """All sums, in order."""
    return Sums(np.concatenate([term.tops for term in sums]), np.concatenate([term.digits for term in sums]))


def sums_of_integers(values: Int64s, firsts: Int64s) -> Sums:
    """The sums of groups of adjacent integers int64[n]; see `Sums.added`."""
    sizes = np.abs(values).view(np.uint64)  # also for -2**63, whose bits are those of 2**63
    largest = np.maximum.reduceat(sizes, firsts)
    tops = np.full(len(firsts), 2, np.int64)
    tops[largest < 1 << (2 * _BITS)] = 1
    tops[largest <= _MASK] = 0
    tops[largest == 0] = _LOWEST_TOP
    digits = np.zeros((len(firsts), _PLACES), np.int64)
    if int(largest.max()) <= _MASK:
        digits[:, 0] = np.add.reduceat(values, firsts)
        return Sums(tops, digits)
    signs = values >> 63  # -1 or 0: (x ^ s) - s is -x or x
    for place in range(3):
        digits_here = ((sizes >> np.uint64(_BITS * place)) & np.uint64(_MASK)).view(np.int64)
        digits[:, 2 - place] = np.add.reduceat((digits_here ^ signs) - signs, firsts)
    return _aligned(Sums(np.full(len(firsts), 2, np.int64), digits), tops)


def sums_of_floats(values: Floats, largest: Floats, firsts: Int64s) -> Sums:
    """The sums of groups of adjacent finite floats float64[n]; see `Sums.added`.

    Args:
      largest: float64[m], the largest absolute value in each group.
    """
    exponents = np.frexp(largest)[1].astype(np.int64) - 1  # 2**exponent <= largest
    tops = np.where(largest == 0, _LOWEST_TOP, np.maximum(exponents // _BITS, _LOWEST_TOP))
    counts = np.diff(firsts, append=len(values))
    remainder = values * np.repeat(np.ldexp(1.0, -_BITS * tops), counts)
    digits = np.zeros((len(firsts), _PLACES), np.int64)
    for place in range(0, _PLACES, 2):
        # Two digits are one integer of 56 bits: cut after the first digit, then after both. The sum of both
        # may wrap in 64 bits, but without the sum of the first digits it is right again.
        high = np.add.reduceat(remainder.astype(np.int64), firsts)
        remainder *= 1 << _BITS
        whole_digits = remainder.astype(np.int64)
        digits[:, place] = high
        digits[:, place + 1] = np.add.reduceat(whole_digits, firsts) - (high << _BITS)
        remainder -= whole_digits
        if not remainder.any():
            break
        remainder *= 1 << _BITS
    return Sums(tops, digits)


def _aligned(sums: Sums, tops: Int64s) -> Sums:
    """The same sums with other highest places: digits below the lowest place are dropped.

    If the new place is lower, the digits above it must be zero.
    """
    steps = tops - sums.tops
    if not steps.any():
        return sums
    source = np.arange(_PLACES) - steps[:, None]
    inside = (source >= 0) & (source < _PLACES)
    picked = np.take_along_axis(sums.digits, np.clip(source, 0, _PLACES - 1), axis=1)
    return Sums(tops, np.where(inside, picked, 0))


def _carried(sums: Sums) -> tuple[Bools, Int64s]:
    """(negative bool[m], digits int64[m, 5]): sign and absolute value, carried, with one place more on top.

    Every digit is from 0 to 2**28 - 1, except the first one, which has the rest.
    """
    digits = np.zeros((len(sums.tops), _PLACES + 1), np.int64)
    digits[:, 1:] = sums.digits
    _carry(digits)
    negative = digits[:, 0] < 0
    if negative.any():
        digits[negative] = -digits[negative]
        _carry(digits)
    return negative, digits


def _carry(digits: Int64s) -> None:
    for place in range(_PLACES, 0, -1):
        digits[:, place - 1] += digits[:, place] >> _BITS
        digits[:, place] &= _MASK


def _rounded(digits: Int64s, tops: Int64s) -> Floats:
    """float64[m]: the values of carried digits int64[m, 5], whose first digit has the place `tops`.

    The first 62 bits from the highest set bit, and a bit for whether any lower bit is set, make an integer,
    which the processor rounds by IEEE 754.
    """
    m = len(tops)
    padded = np.zeros((m, _PLACES + 5), np.int64)
    padded[:, 1 : _PLACES + 2] = digits
    # The first digit may have more than 28 bits: its higher bits get a place of their own.
    padded[:, 0] = padded[:, 1] >> _BITS
    padded[:, 1] &= _MASK
    lead = np.argmax(padded != 0, axis=1)
    picked = np.take_along_axis(padded, lead[:, None] + np.arange(4), axis=1)
    below = np.arange(padded.shape[1]) >= lead[:, None] + 4
    has_lower_bits = (np.where(below, padded, 0) != 0).any(axis=1)
    high = (picked[:, 0] << _BITS) | picked[:, 1]  # 29 to 56 bits
    low = (picked[:, 2] << _BITS) | picked[:, 3]
    width = np.frexp(high.astype(np.float64))[1].astype(np.int64)  # 57 where rounding made it so
    shift = np.where(high == 0, 0, 62 - width)
    bits = (high << shift) | (low >> (2 * _BITS - shift))
    has_lower_bits |= (low & ((np.int64(1) << (2 * _BITS - shift)) - 1)) != 0
    numbers = (bits | has_lower_bits).astype(np.float64)
    place = tops + 1 - lead - 1  # of the second picked digit
    with np.errstate(over="ignore"):
        rounded: Floats = np.ldexp(numbers, _BITS * place - shift)
    return rounded
