"""Series of remote write 1.0 as a Prometheus sends them: labels, then one sample; its value is left out if 0.

    0a <length> <labels> 12 10 09 <value, 8 bytes> 10 <time in ms, 6 bytes>
    0a <length> <labels> 12 07                     10 <time in ms, 6 bytes>

Such series are told by their ends, many at a time, so that nobody looks into labels that are known.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from timebeam.schema.bits.arrays import Bools, Int64s, byte_view
from timebeam.schema.bits.protobuf import BYTES
from timebeam.schema.bits.protobuf_columns import Fields, fixed64, without_continuation_bits

SERIES_1 = 1 << 3 | BYTES

_WITH_VALUE, _WITHOUT = 18, 9
_WITH_VALUE_HEAD, _WITHOUT_HEAD = 0x091012, 0x100712
_TIME_FIELD = 0x10
_TIME, _TIME_MASK = 0x0080808080801000, -0x7F7F7F7F7F7F0100  # from the byte before the field of the time on
_BYTES_A_MARK = 8  # with more of them than usual, they take more memory than they save time


class PlainSeries(NamedTuple):
    """Series that end with one sample: their fields, and int64[n] the bytes of each sample."""

    fields: Fields
    sizes: Int64s

    def take(self, chosen: Bools | Int64s) -> PlainSeries:
        """Some of the series."""
        return PlainSeries(self.fields.take(chosen), self.sizes[chosen])

    def label_keys(self, text: bytes) -> list[bytes]:
        """The bytes before the sample of each series, which are its labels if they are whole fields."""
        ends = (self.fields.ends - self.sizes).tolist()
        return [text[start:end] for start, end in zip(self.fields.firsts.tolist(), ends, strict=True)]

    def samples(self, text: bytes) -> tuple[Int64s, Int64s]:
        """(bits of the values, times in ms) int64[n]."""
        ends = self.fields.ends
        bits = np.where(self.sizes == _WITH_VALUE, _words(text, ends - 15), 0)
        time = _words(text, ends - 8).view(np.uint64) >> np.uint64(16)  # without the two bytes before it
        return bits, without_continuation_bits(time).view(np.int64)


def plain_requests(text: bytes, starts: Int64s, ends: Int64s) -> PlainSeries | None:
    """The series of m requests, as `scan` gives them, if all of their fields are series with one sample.

    Args:
      text: the bytes, with or without `PADDING`.
      starts, ends: int64[m], ascending spans of the requests.

    Returns:
      None if there may be anything else.
    """
    is_mark = byte_view(text) == _TIME_FIELD
    if np.count_nonzero(is_mark) * _BYTES_A_MARK > len(text):
        return None
    marks = np.flatnonzero(is_mark)
    first, last = np.searchsorted(marks, [_WITHOUT - 7, len(text) - 6])
    if first == last:
        return None
    field_ends, sizes = _samples(text, marks[first:last] + 7)
    lasts = np.searchsorted(field_ends, ends)
    if not len(ends) or lasts[-1] + 1 != len(field_ends) or not np.array_equal(field_ends[lasts], ends):
        return None
    field_starts = np.append(starts[:1], field_ends[:-1])
    field_starts[lasts[:-1] + 1] = starts[1:]
    lengths = field_ends - field_starts - 2
    is_long = lengths > 127
    lengths -= is_long
    if (lengths < sizes).any():
        return None
    header = np.where(is_long, lengths & 127 | 128 | lengths >> 7 << 8, lengths) << 8 | SERIES_1
    #                          (1)           (2)     (3)                         (4)
    # (1) The varint of a length of two bytes: its lowest seven bits,
    # (2) the bit that says that another byte follows,
    # (3) and the upper bits in that byte.
    # (4) The tag is the byte before it, the lowest in a number that is read with the lowest byte first.
    mask = np.where(is_long, 0xFFFFFF, 0xFFFF)
    if not ((fixed64(text, field_starts) & mask == header) & (lengths < 1 << 14)).all():
        return None
    message = np.repeat(np.arange(len(ends)), np.diff(lasts, prepend=-1))
    tags = np.full(len(field_ends), SERIES_1)
    return PlainSeries(Fields(message, tags, field_starts, field_starts + 2 + is_long, field_ends), sizes)


def plain_series(text: bytes, series: Fields) -> tuple[PlainSeries, Int64s]:
    """Those of n series that end with a sample, if whole fields are before it, and their numbers."""
    ends, sizes = _samples(text, series.ends)
    numbers = np.searchsorted(series.ends, ends)
    has_room = series.ends[numbers] - series.firsts[numbers] >= sizes
    numbers = numbers[has_room]
    return PlainSeries(series.take(numbers), sizes[has_room]), numbers


def _samples(text: bytes, ends: Int64s) -> tuple[Int64s, Int64s]:
    """(ends, sizes) of the samples that end at some of n ascending positions."""
    ends = ends[_words(text, ends - 8) & _TIME_MASK == _TIME]
    has_value = _words(text, ends - _WITH_VALUE) & 0xFFFFFF == _WITH_VALUE_HEAD
    #           (1)                                (2)
    # (1) The first three bytes of a sample of 18: its tag and length, and the tag of its first field,
    # (2) which is the value, a double of eight bytes.
    sizes = np.where(has_value, _WITH_VALUE, _WITHOUT)
    if not has_value.all():
        good = has_value | (_words(text, ends - _WITHOUT) & 0xFFFFFF == _WITHOUT_HEAD)
        ends, sizes = ends[good], sizes[good]
    return ends, sizes


def _words(text: bytes, positions: Int64s) -> Int64s:
    """As `fixed64`; what is before the text is the same as its first bytes."""
    return fixed64(text, np.maximum(positions, 0))
