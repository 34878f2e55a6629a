"""A plain writer and reader of archive rows, from docs/spec/archive.md alone: a loop per point."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from pcodec import ChunkConfig, standalone

PlainPoint = tuple[int, bool, bool, int, int]
"""(time in ms, given in ms?, a float?, the 64 bits of the value, arrival in ms)."""

SPANS = {1: 3600, 2: 14_400, 3: 86_400, 4: 432_000, 5: 2_592_000}


def cell_of(
    key: bytes,
    base_at: int,
    qualifier: bytes,
    points: list[PlainPoint],
    *,
    lags: bool = False,
    decimals: tuple[int, bool] | None = None,
) -> bytes:
    """The value of a cell with points of a row; of version 1 if it has neither lags nor decimals.

    Args:
      base_at: the position of the base time in the key.
      lags: whether arrivals are stored less the times of their points.
      decimals: floats as integers: (digits behind the point, whether the floats are those of 4 bytes).
    """
    base_ms = int.from_bytes(key[base_at : base_at + 4], "big") * 1000
    offsets = [time - base_ms for time, *_ in points]
    arrivals = [arrival for *_, arrival in points]
    columns, codes = [], []
    for flags in ([point[1] for point in points], [point[2] for point in points]):
        codes.append(1 if all(flags) else 2 if any(flags) else 0)
        if codes[-1] == 2:
            bits = "".join("1" if flag else "0" for flag in flags).ljust(-(-len(points) // 8) * 8, "0")
            columns.append(int(bits, 2).to_bytes(len(bits) // 8, "big"))
    times = _compressed([offset // (1 if codes[0] else 1000) for offset in offsets], "uint32")
    same = len(set(arrivals)) == 1
    stored_arrivals = [arrival - (time if lags else 0) for time, *_, arrival in points]
    newest = b"" if same else _compressed(stored_arrivals, "int64")
    integers = [point[3] for point in points if not point[2]]
    floats = [point[3] for point in points if point[2]]
    integer_bytes = _compressed(integers, "int64") if integers else b""
    float_bytes = _compressed(floats, "int64", "float64") if floats else b""
    if decimals is not None:
        digits, is_narrow = decimals
        numbers = [struct.unpack("<d", struct.pack("<q", bits))[0] for bits in floats]
        float_bytes = _compressed([round(number * 10**digits) for number in numbers], "int64")
        codes[1] += 4 * is_narrow + 16 * (digits + 1)
    columns += [times, newest, integer_bytes, float_bytes]
    codes[0] += 16 * (lags and not same)
    head, rest = (
        bytes([2 if max(codes) > 2 else 1, 1, *codes]),
        struct.pack(
            ">IIIqIII",
            *(len(points), offsets[0], offsets[-1], max(arrivals)),
            *(len(times), len(newest), len(integer_bytes)),
        )
        + b"".join(columns),
    )
    return head + zlib.crc32(key + qualifier + head + rest).to_bytes(4, "big") + rest


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
        assert version in (1, 2)
        assert codec == 1
        has_lags, unit = divmod(unit, 16)
        digits, kind = divmod(kind, 16)
        is_narrow, kind = divmod(kind, 4)
        assert version == 2 or (has_lags, digits, is_narrow) == (0, 0, 0)
        checksum, n, first, last, newest, *lengths = struct.unpack(">IIIIqIII", value[4:40])
        assert checksum == zlib.crc32(key + qualifier + value[:4] + value[8:])
        rest = value[40:]
        flags = []
        for code in (unit, kind):
            if code == 2:
                size = (n + 7) // 8
                flags.append([bool(rest[i // 8] >> (7 - i % 8) & 1) for i in range(n)])
                rest = rest[size:]
            else:
                flags.append([code == 1] * n)
        in_ms, is_float = flags
        columns = []
        dtypes = "uint32", "int64", "int64", "int64" if digits else "float64"
        for length, dtype in zip([*lengths, None], dtypes, strict=True):
            columns.append(_numbers(rest[:length], dtype))
            rest = rest[len(rest) if length is None else length :]
        times, arrivals, integers, floats = columns
        if digits:
            floats = [np.float64(float(number) / 10.0 ** (digits - 1)) for number in floats]
        if is_narrow:
            floats = [np.float64(np.float32(number)) for number in floats]
        offsets = [int(time) * (1000 if unit == 0 else 1) for time in times]
        assert (offsets[0], offsets[-1], len(offsets)) == (first, last, n)
        arrivals = [int(arrival) for arrival in arrivals] or [newest] * n
        if has_lags:
            arrivals = [lag + base_ms + offset for lag, offset in zip(arrivals, offsets, strict=True)]
        assert (max(arrivals), len(arrivals)) == (newest, n)
        assert (len(integers), len(floats)) == (n - sum(is_float), sum(is_float))
        integers, floats = iter(integers), iter(floats)
        for i in range(n):
            number = next(floats) if is_float[i] else next(integers)
            (bits,) = struct.unpack("<q", number.tobytes())
            points.append((base_ms + offsets[i], in_ms[i], is_float[i], bits, arrivals[i]))
    return points


def _numbers(compressed: bytes, dtype: str) -> list:
    if not compressed:
        return []
    numbers = standalone.simple_decompress(compressed)
    assert numbers.dtype == dtype
    return list(numbers)


def _compressed(numbers: list[int], dtype: str, view: str = "") -> bytes:
    column = np.array(numbers, dtype)
    return bytes(standalone.simple_compress(column.view(view) if view else column, ChunkConfig()))
