"""Histograms as series: cumulated `_bucket` series with a tag `le`, `_count`, `_sum`, `_min` and `_max`.

As Prometheus names them. Exponential buckets become explicit ones, with the bounds of their scale: bucket i
of scale s holds the values from 2**(i * 2**-s), exclusive, to 2**((i + 1) * 2**-s), inclusive.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from timebeam.schema.bits.reasons import Reason, RefusedError
from timebeam.schema.core.simple_histogram import Histogram

SPARSE_BUCKETS = 10_000
"""Most buckets of one histogram."""


class SeriesPoint(NamedTuple):
    """A value of a series that is made of another one, as the buckets of a histogram.

    Attributes:
      suffix: of the metric.
      tag: a key and a value that the series has in addition; None for none.
    """

    suffix: str
    tag: tuple[str, str] | None
    value: int | float | Histogram


class Bucket(NamedTuple):
    """The number of values up to `bound`, and above the next smaller bound."""

    bound: float
    number: float


def bound_text(bound: float) -> str:
    """A bound as a tag value: the shortest decimal digits, without an exponent."""
    if math.isinf(bound):
        return "+Inf" if bound > 0 else "-Inf"
    return np.format_float_positional(bound, trim="-")


def exponential_bound(scale: int, index: int) -> float:
    """The upper bound of the bucket before the one with this index: 2**(index * 2**-scale).

    Raises:
      RefusedError: the bound of an unknown scale.
    """
    if not -10 <= scale <= 20:
        raise RefusedError(Reason.VALUE_NOT_STORABLE, f"exponential histogram of scale {scale}: -10 to 20")
    exponent = math.ldexp(index, -scale)
    if exponent >= 1024:
        return math.inf
    whole = math.floor(exponent)
    return math.ldexp(2.0 ** (exponent - whole), whole)


def sparse(
    scale: int, positive: Mapping[int, float], negative: Mapping[int, float], zero: float, threshold: float
) -> list[Bucket]:
    """The buckets of an exponential histogram by ascending bound.

    Args:
      positive, negative: counts by index: bucket i ends, in absolute value, at 2**((i + 1) * 2**-scale).
      zero, threshold: the count of values whose absolute value is at most the threshold.

    Raises:
      RefusedError: too many buckets, or a wrong scale.
    """
    if len(positive) + len(negative) > SPARSE_BUCKETS:
        raise RefusedError(
            Reason.VALUE_NOT_STORABLE, f"a histogram of more than {SPARSE_BUCKETS} buckets in use"
        )
    buckets = [
        Bucket(-exponential_bound(scale, index), negative[index]) for index in sorted(negative, reverse=True)
    ]
    if zero:
        buckets.append(Bucket(threshold, zero))
    return buckets + [
        Bucket(exponential_bound(scale, index + 1), positive[index]) for index in sorted(positive)
    ]


def cumulated(buckets: Iterable[Bucket], count: float) -> Iterator[SeriesPoint]:
    """The number of values up to each bound, of buckets by ascending bound; the last one is +Inf.

    >>> for name, (key, bound), number in cumulated([Bucket(0.5, 2), Bucket(1.0, 3)], count=6):
    ...     print(name, key, bound, number)
    _bucket le 0.5 2
    _bucket le 1 5
    _bucket le +Inf 6
    """
    total: float = 0
    for bound, number in buckets:
        total += number
        if bound < math.inf:
            yield SeriesPoint("_bucket", ("le", bound_text(bound)), total)
    yield SeriesPoint("_bucket", ("le", "+Inf"), count)


def explicit_histogram(bounds: Sequence[float], counts: Sequence[int]) -> Histogram:
    """A histogram with explicit bounds as OpenTSDB's: the first and last buckets are underflow and overflow.

    Raises:
      RefusedError: as `explicit`, or bounds are the same as 32-bit floats.
    """
    explicit(bounds, counts)
    with np.errstate(over="ignore"):
        narrow = [float(np.float32(bound)) for bound in bounds]
    buckets = dict(zip(itertools.pairwise(narrow), counts[1:-1], strict=True)) if bounds else {}
    if any(not low < high for low, high in buckets):
        why = "a histogram with bounds that are the same as 32-bit floats, which OpenTSDB stores"
        raise RefusedError(Reason.VALUE_NOT_STORABLE, why)
    return Histogram(buckets, counts[0] if bounds else 0, counts[-1] if counts else 0)


def explicit(bounds: Sequence[float], counts: Sequence[float]) -> list[Bucket]:
    """The buckets of a histogram with explicit bounds; the last count has no bound.

    Raises:
      RefusedError: the bounds do not ascend, or are not one less than the counts.
    """
    if counts and len(counts) != len(bounds) + 1:
        why = f"a histogram of {len(counts)} buckets with {len(bounds)} bounds: one less is needed"
        raise RefusedError(Reason.VALUE_NOT_STORABLE, why)
    if any(not low < high for low, high in itertools.pairwise(bounds)):
        raise RefusedError(Reason.VALUE_NOT_STORABLE, "a histogram with bounds that do not ascend")
    return [Bucket(*pair) for pair in zip(bounds, counts, strict=False)]
