"""A plain reader of archive rows, from docs/spec/archive.md alone: a loop per point."""

from __future__ import annotations

import struct
import zlib

from pcodec import standalone

PlainPoint = tuple[int, bool, bool, int, int]
"""(time in ms, given in ms?, a float?, the 64 bits of the value, newest arrival of its cell)."""

SPANS = {1: 3600, 2: 14_400, 3: 86_400, 4: 432_000, 5: 2_592_000}


def points_of(key: bytes, base_at: int, cells: list[tuple[bytes, bytes]]) -> list[PlainPoint]:
    """The points of a row.

    Args:
      base_at: the position of the base time in the key.
      cells: (qualifier, value) of family `t`, in order.
    """
    base_ms = int.from_bytes(key[base_at : base_at + 4], "big") * 1000
    assert base_ms % (SPANS[key[base_at - 1]] * 1000) == 0
    points: list[PlainPoint] = []
    for qualifier, value in cells:
        version, codec, unit, kind = value[:4]
        assert (version, codec) == (1, 1)
        checksum, n, first, last, newest, time_bytes, integer_bytes = struct.unpack(">IIIIqII", value[4:36])
        assert checksum == zlib.crc32(key + qualifier + value[:4] + value[8:])
        rest = value[36:]
        flags = []
        for code in (unit, kind):
            if code == 2:
                size = (n + 7) // 8
                flags.append([bool(rest[i // 8] >> (7 - i % 8) & 1) for i in range(n)])
                rest = rest[size:]
            else:
                flags.append([code == 1] * n)
        in_ms, is_float = flags
        times = _numbers(rest[:time_bytes], "uint32")
        integers = iter(_numbers(rest[time_bytes : time_bytes + integer_bytes], "int64"))
        floats = iter(_numbers(rest[time_bytes + integer_bytes :], "float64"))
        offsets = [int(time) * (1000 if unit == 0 else 1) for time in times]
        assert (offsets[0], offsets[-1], len(offsets)) == (first, last, n)
        for i in range(n):
            number = next(floats) if is_float[i] else next(integers)
            (bits,) = struct.unpack("<q", number.tobytes())
            points.append((base_ms + offsets[i], in_ms[i], is_float[i], bits, newest))
        assert next(integers, None) is None
        assert next(floats, None) is None
    return points


def _numbers(compressed: bytes, dtype: str) -> list:
    if not compressed:
        return []
    numbers = standalone.simple_decompress(compressed)
    assert numbers.dtype == dtype
    return list(numbers)
