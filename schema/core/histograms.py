"""Histograms: SimpleHistogram, the only codec that TSDs include, and the series that others make of them.

SimpleHistogram: docs/spec/opentsdb.md §4.2, core/SimpleHistogram of OpenTSDB 2.4.1. The first byte of a value
is the id that tsd.core.histograms.config gives to the codec; the codec defines the rest:

| bytes | SimpleHistogram |
|---|---|
| 2 | number of buckets, signed |
| 4, 4, 1 to 9 | for each bucket: low and high bound as float32, count |
| 1 to 9, 1 to 9 | counts of values below and above all buckets |

Counts are Kryo's positive longs: 7 bits per byte, lowest first, with the high bit set if more follow; a
ninth byte has 8 bits.

Series of a histogram, as Prometheus names them: cumulated METRIC_bucket series with a tag `le`, METRIC_count,
METRIC_sum, METRIC_min and METRIC_max. Exponential buckets become explicit ones, with the bounds of their
scale: bucket i of scale s holds the values from 2**(i * 2**-s), exclusive, to 2**((i + 1) * 2**-s),
inclusive.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.points import HistogramBytes

Bounds = tuple[float, float]

MOST_BUCKETS = (1 << 15) - 1

_COUNT = struct.Struct(">h")
_BOUNDS = struct.Struct(">ff")


class NotASimpleHistogramError(ValueError):
    """The bytes belong to another codec, or are corrupt."""


@dataclasses.dataclass(frozen=True, slots=True)
class Histogram:
    """The number of values in each bucket.

    Attributes:
      buckets: counts by bounds, ascending.
      underflow, overflow: number of values below and above all buckets.
    """

    buckets: Mapping[Bounds, int]
    underflow: int
    overflow: int

    def percentile(self, percent: float) -> float:
        """The middle of the bucket that reaches this percentage of the counted values.

        Computed as by a TSD, in float32; without underflow and overflow. NaN without values.
        """
        total = sum(self.buckets.values())
        running = 0
        for (low, high), count in self.buckets.items():
            running += count
            if total and running * 100 / total >= percent:
                return float((np.float32(low) + np.float32(high)) / np.float32(2))
        return math.nan


def decode(value: bytes) -> Histogram:
    """The SimpleHistogram of a cell, for any id of its codec.

    >>> histogram = decode(bytes.fromhex("2a0002000000003fe000000c3fe0000040600000100201"))
    >>> dict(histogram.buckets), histogram.underflow, histogram.overflow
    ({(0.0, 1.75): 12, (1.75, 3.5): 16}, 2, 1)
    >>> histogram.percentile(50)
    2.625

    Raises:
      NotASimpleHistogramError: it does not hold one.
    """
    try:
        (number,) = _COUNT.unpack_from(value, 1)
        buckets: dict[Bounds, int] = {}
        offset = 1 + _COUNT.size
        for _ in range(number):
            low, high = _BOUNDS.unpack_from(value, offset)
            count, offset = _long(value, offset + _BOUNDS.size)
            if (low, high) in buckets or math.isnan(low) or math.isnan(high):
                raise NotASimpleHistogramError(f"duplicate or invalid bucket from {low} to {high}")
            buckets[low, high] = count
        underflow, offset = _long(value, offset)
        overflow, offset = _long(value, offset)
    except (struct.error, IndexError) as error:
        raise NotASimpleHistogramError("it ends too early") from error
    if number < 0 or offset != len(value):
        raise NotASimpleHistogramError(f"{number} buckets do not have {len(value)} bytes")
    return Histogram(dict(sorted(buckets.items())), underflow, overflow)


def encode(histogram: Histogram, codec: int) -> HistogramBytes:
    """A SimpleHistogram as it is stored, its buckets in the order of their bounds.

    Args:
      codec: the id of the codec.

    Raises:
      RejectedError: it has more buckets than 16 bits can count, or counts of more than 64 bits.
    """
    if len(histogram.buckets) > MOST_BUCKETS:
        why = f"a histogram of {len(histogram.buckets)} buckets; OpenTSDB stores {MOST_BUCKETS}"
        raise RejectedError(Reason.VALUE_NOT_STORABLE, why)
    counts = (*histogram.buckets.values(), histogram.underflow, histogram.overflow)
    if not all(-(1 << 63) <= count < 1 << 63 for count in counts):
        raise RejectedError(Reason.NUMBER_OUT_OF_RANGE, "a count of a histogram needs more than 64 bits")
    pieces = [bytes([codec]), _COUNT.pack(len(histogram.buckets))]
    for bounds, count in sorted(histogram.buckets.items()):
        pieces += (_BOUNDS.pack(*bounds), _encoded_long(count))
    pieces += (_encoded_long(histogram.underflow), _encoded_long(histogram.overflow))
    return HistogramBytes(b"".join(pieces))


def _encoded_long(number: int) -> bytes:
    """The bytes that `_long` reads, of an integer of 64 bits with a sign."""
    number &= (1 << 64) - 1
    encoded = bytearray()
    while number > 0x7F and len(encoded) < 8:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*encoded, number))


def merged(histograms: Iterable[Histogram]) -> Histogram:
    """The sum of histograms, bucket by bucket."""
    buckets: dict[Bounds, int] = {}
    underflow = overflow = 0
    for histogram in histograms:
        for bounds, count in histogram.buckets.items():
            buckets[bounds] = buckets.get(bounds, 0) + count
        underflow += histogram.underflow
        overflow += histogram.overflow
    return Histogram(dict(sorted(buckets.items())), underflow, overflow)


def _long(value: bytes, offset: int) -> tuple[int, int]:
    """(a positive long, where it ends); raises IndexError if the bytes end inside it."""
    number = 0
    for place in range(8):
        number |= (value[offset + place] & 0x7F) << (7 * place)
        if value[offset + place] < 0x80:
            return number, offset + place + 1
    number |= value[offset + 8] << 56
    return number - (1 << 64) if number >> 63 else number, offset + 9


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
      RejectedError: the bound of an unknown scale.
    """
    if not -10 <= scale <= 20:
        raise RejectedError(Reason.VALUE_NOT_STORABLE, f"exponential histogram of scale {scale}: -10 to 20")
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
      RejectedError: too many buckets, or a wrong scale.
    """
    if len(positive) + len(negative) > SPARSE_BUCKETS:
        raise RejectedError(
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
      RejectedError: as `explicit`, or bounds are the same as 32-bit floats.
    """
    explicit(bounds, counts)
    with np.errstate(over="ignore"):
        narrow = [float(np.float32(bound)) for bound in bounds]
    buckets = dict(zip(itertools.pairwise(narrow), counts[1:-1], strict=True)) if bounds else {}
    if any(not low < high for low, high in buckets):
        why = "a histogram with bounds that are the same as 32-bit floats, which OpenTSDB stores"
        raise RejectedError(Reason.VALUE_NOT_STORABLE, why)
    return Histogram(buckets, counts[0] if bounds else 0, counts[-1] if counts else 0)


def explicit(bounds: Sequence[float], counts: Sequence[float]) -> list[Bucket]:
    """The buckets of a histogram with explicit bounds; the last count has no bound.

    Raises:
      RejectedError: the bounds do not ascend, or are not one less than the counts.
    """
    if counts and len(counts) != len(bounds) + 1:
        why = f"a histogram of {len(counts)} buckets with {len(bounds)} bounds: one less is needed"
        raise RejectedError(Reason.VALUE_NOT_STORABLE, why)
    if any(not low < high for low, high in itertools.pairwise(bounds)):
        raise RejectedError(Reason.VALUE_NOT_STORABLE, "a histogram with bounds that do not ascend")
    return [Bucket(*pair) for pair in zip(bounds, counts, strict=False)]
