"""Series of remote write 1.0 as a Prometheus sends them: labels, then one sample; its value is left out if 0.

    0a <length> <labels> 12 10 09 <value, 8 bytes> 10 <time in ms, 6 bytes>
    0a <length> <labels> 12 07                     10 <time in ms, 6 bytes>

Such series are told by their ends, many at a time, so that nobody looks into labels that are known.
"""

from __future__ import annotations

import numpy as np

from timebeam.schema.common.protobuf import BYTES
from timebeam.schema.common.wire_fields import Fields, byte_view, fixed64, varints
from timebeam.schema.points import Int64s

SERIES_1 = 1 << 3 | BYTES

_WITH_VALUE, _WITHOUT = 18, 9
_WITH_VALUE_HEAD, _WITHOUT_HEAD = 0x091012, 0x100712
_TIME_FIELD = 0x10
_TIME, _TIME_MASK = 0x0080808080801000, -0x7F7F7F7F7F7F0100  # from the byte before the field of the time on
_BYTES_A_MARK = 8  # with more of them than usual, they take more memory than they save time


def plain_requests(text: bytes, starts: Int64s, ends: Int64s) -> Fields | None:
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
    field_ends = marks[(marks >= 2) & (marks <= len(text) - 7)] + 7
    if not len(field_ends):
        return None
    field_ends = field_ends[_sizes(text, field_ends, field_ends) > 0]
    lasts = np.searchsorted(field_ends, ends)
    if not len(ends) or lasts[-1] + 1 != len(field_ends) or not np.array_equal(field_ends[lasts], ends):
        return None
    field_starts = np.append(starts[:1], field_ends[:-1])
    field_starts[lasts[:-1] + 1] = starts[1:]
    lengths = field_ends - field_starts - 2
    if (lengths < _WITHOUT).any():
        return None
    is_long = lengths > 127
    lengths -= is_long
    header = np.where(is_long, lengths & 127 | 128 | lengths >> 7 << 8, lengths) << 8 | SERIES_1
    mask = np.where(is_long, 0xFFFFFF, 0xFFFF)
    if not ((fixed64(text, field_starts) & mask == header) & (lengths < 1 << 14)).all():
        return None
    message = np.repeat(np.arange(len(ends)), np.diff(lasts, prepend=-1))
    tags = np.full(len(field_ends), SERIES_1)
    return Fields(message, tags, field_starts, field_starts + 2 + is_long, field_ends)


def sample_sizes(text: bytes, series: Fields) -> Int64s:
    """int64[n]: the bytes of the sample that each series ends with; 0 if it does not.

    It does only if what is before the sample are whole fields.
    """
    return _sizes(text, series.ends, series.ends - series.firsts)


def _sizes(text: bytes, ends: Int64s, room: Int64s) -> Int64s:
    """As `sample_sizes`, of the samples that end at some positions and have at most so much room."""
    has_time = fixed64(text, np.maximum(ends - 8, 0)) & _TIME_MASK == _TIME
    with_value, without = (
        has_time & (fixed64(text, np.maximum(ends - size, 0)) & 0xFFFFFF == head) & (room >= size)
        for size, head in ((_WITH_VALUE, _WITH_VALUE_HEAD), (_WITHOUT, _WITHOUT_HEAD))
    )
    return np.where(with_value, _WITH_VALUE, np.where(without, _WITHOUT, 0))


def label_keys(text: bytes, series: Fields, sizes: Int64s) -> list[bytes]:
    """The bytes before the sample that each series ends with; `sizes` are those of the samples."""
    ends = (series.ends - sizes).tolist()
    return [text[start:end] for start, end in zip(series.firsts.tolist(), ends, strict=True)]


def last_samples(text: bytes, series: Fields, sizes: Int64s) -> tuple[Int64s, Int64s]:
    """(bits of the values, times in ms) int64[n] of the samples that series end with."""
    bits = np.where(sizes == _WITH_VALUE, fixed64(text, np.maximum(series.ends - 15, 0)), 0)
    return bits, varints(text, series.ends - 8, series.ends) >> 14
