"""Cells of the archive: up to 20,000 points of a row in compressed columns (docs/spec/archive.md §3).

| bytes | content |
|---|---|
| 1, 1 | version 1; codec 1, pcodec |
| 1 | unit of the times: seconds 0, milliseconds 1, both 2 |
| 1 | kind of the values: integers 0, floats 1, both 2 |
| 4 | CRC-32 of the row key, the qualifier, and all bytes of the cell but these four |
| 4, 4, 4 | number of points n; first and last time, in ms since the base time of the row |
| 8 | newest arrival of the points, in ms since 1970 |
| 4, 4 | bytes of the times; bytes of the integers |
| ceil(n / 8) each | if both: bits of the points in milliseconds; bits of the floats |
| rest | the times, the integers, the floats: pcodec |

All numbers are big-endian. The first point has the highest bit of a byte.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, NamedTuple

import numpy as np

from timebeam.schema.points import Bools, Bytes, Int64s, Kind

POINTS = 20_000
"""The most points of a cell."""
CELL_BYTES = 1 << 20
"""The most bytes of a cell."""

VERSION, PCODEC = 1, 1

_HEADER = struct.Struct(">BBBBIIIIqII")
_BEFORE_CHECKSUM, _AFTER_CHECKSUM = 4, 8
_BOTH = 2


class ArchiveError(ValueError):
    """A cell of the archive that cannot be read."""


class CodecMissingError(RuntimeError):
    """The package that compresses columns is not installed."""


class PartPlace(NamedTuple):
    """Where a cell is: its row's key, its qualifier, and the row's span in ms."""

    key: bytes
    qualifier: bytes
    span_ms: int


class PartHeader(NamedTuple):
    """The first 36 bytes of a cell; see the table of this module."""

    version: int
    codec: int
    unit: int
    kind: int
    checksum: int
    points: int
    first_ms: int
    last_ms: int
    newest_ms: int
    time_bytes: int
    integer_bytes: int


class PartPoints(NamedTuple):
    """n points of a cell, strictly ascending in time.

    Attributes:
      offsets_ms: int64[n], since the base time of the row.
      in_ms, kinds, bits: as in `PointBatch`; the kinds are INTEGER and FLOAT.
      newest_ms: the newest arrival of the points.
    """

    offsets_ms: Int64s
    in_ms: Bools
    kinds: Bytes
    bits: Int64s
    newest_ms: int


def codec() -> Any:
    """The compressor of columns.

    Raises:
      CodecMissingError: it is not installed.
    """
    try:
        from pcodec import standalone
    except ImportError as error:
        raise CodecMissingError("the archive needs pcodec: pip install 'timebeam[archive]'") from error
    return standalone


def encode_part(place: PartPlace, points: PartPoints) -> bytes:
    """The value of the cell with up to `POINTS` points.

    Raises:
      ValueError: the points are none, too many, not ascending, beyond the span, or not numbers.
    """
    n, offsets_ms = len(points.offsets_ms), points.offsets_ms
    if not 0 < n <= POINTS:
        raise ValueError(f"a cell of the archive has 1 to {POINTS:,} points, not {n:,}")
    if not (offsets_ms[1:] > offsets_ms[:-1]).all() or offsets_ms[0] < 0 or offsets_ms[-1] >= place.span_ms:
        raise ValueError("the points of a cell ascend in time, within the span of the row")
    if points.kinds.max() > Kind.FLOAT:
        raise ValueError("the archive holds numbers, no text or opaque values")
    if (~points.in_ms & (offsets_ms % 1000 != 0)).any():
        raise ValueError("a time in seconds is a whole second")
    is_float = points.kinds == Kind.FLOAT
    unit, kind = _both(points.in_ms), _both(is_float)
    numbers = offsets_ms if unit else offsets_ms // 1000
    times = _compressed(numbers.astype(np.uint32))
    integers = _compressed(points.bits[~is_float]) if kind != 1 else b""
    content = b"".join(
        (
            np.packbits(points.in_ms).tobytes() if unit == _BOTH else b"",
            np.packbits(is_float).tobytes() if kind == _BOTH else b"",
            times,
            integers,
            _compressed(points.bits[is_float].view(np.float64)) if kind else b"",
        )
    )
    header = PartHeader(
        VERSION,
        PCODEC,
        unit,
        kind,
        0,
        n,
        int(offsets_ms[0]),
        int(offsets_ms[-1]),
        points.newest_ms,
        len(times),
        len(integers),
    )
    cell = _HEADER.pack(*header) + content
    return _HEADER.pack(*header._replace(checksum=_checksum(place, cell))) + content


def header_of(value: bytes) -> PartHeader:
    """The header of a cell, which may be wrong: only `decode_part` compares the checksum.

    Raises:
      ArchiveError: another version, another codec, or numbers that no cell has.
    """
    if len(value) < _HEADER.size:
        raise ArchiveError(f"{len(value)} bytes, where the header has {_HEADER.size}")
    if len(value) > CELL_BYTES:
        raise ArchiveError(f"{len(value):,} bytes, where a cell has at most {CELL_BYTES:,}")
    header = PartHeader(*_HEADER.unpack_from(value))
    if (header.version, header.codec) != (VERSION, PCODEC):
        raise ArchiveError(
            f"version {header.version} with codec {header.codec}: this timebeam reads version {VERSION} with "
            f"codec {PCODEC}; a newer one wrote this cell: upgrade timebeam"
        )
    if not 0 < header.points <= POINTS or header.unit > _BOTH or header.kind > _BOTH:
        raise ArchiveError(
            f"damaged header: {header.points:,} points, unit {header.unit}, kind {header.kind}"
        )
    return header


def decode_part(place: PartPlace, value: bytes) -> PartPoints:
    """The points of a cell.

    Raises:
      ArchiveError: the cell is damaged, or a newer timebeam wrote it.
    """
    header = header_of(value)
    if _checksum(place, value) != header.checksum:
        raise ArchiveError("damaged: the bytes do not have the checksum of the header")
    n, position = header.points, _HEADER.size
    in_ms = np.full(n, header.unit == 1)
    is_float = np.full(n, header.kind == 1)
    for code, flags in ((header.unit, in_ms), (header.kind, is_float)):
        if code == _BOTH:
            bitmap = np.frombuffer(value[position : position + -(-n // 8)], np.uint8)
            if len(bitmap) != -(-n // 8):
                raise ArchiveError("damaged: the bits of the points end early")
            flags[:] = np.unpackbits(bitmap, count=n).view(np.bool_)
            position += len(bitmap)
    integers_at = position + header.time_bytes
    floats_at = integers_at + header.integer_bytes
    numbers = np.empty(n, np.uint32)
    _decompress(value[position:integers_at], numbers)
    offsets_ms = numbers.astype(np.int64)
    if not header.unit:
        offsets_ms *= 1000
    bits = _values(value[integers_at:floats_at], value[floats_at:], header.kind, is_float)
    is_ascending = (numbers[1:] > numbers[:-1]).all() and offsets_ms[-1] < place.span_ms
    if not is_ascending or (offsets_ms[0], offsets_ms[-1]) != (header.first_ms, header.last_ms):
        raise ArchiveError("damaged: the times are not those of the header, or not ascending")
    return PartPoints(offsets_ms, in_ms, is_float.view(np.uint8), bits, header.newest_ms)


def _values(integers: bytes, floats: bytes, kind: int, is_float: Bools) -> Int64s:
    """int64[n]: the values of a cell, as in `PointBatch.bits`."""
    bits = np.empty(len(is_float), np.int64)
    if kind == 0 and not floats:
        _decompress(integers, bits)
    elif kind == 1 and not integers:
        _decompress(floats, bits.view(np.float64))
    elif kind == _BOTH:
        float_values = np.empty(np.count_nonzero(is_float), np.float64)
        integer_values = np.empty(len(is_float) - len(float_values), np.int64)
        _decompress(integers, integer_values)
        _decompress(floats, float_values)
        bits[is_float], bits[~is_float] = float_values.view(np.int64), integer_values
    else:
        raise ArchiveError("damaged: values of another kind than in the header")
    return bits


def _both(flags: Bools) -> int:
    """0 if no flag is set, 1 if all are, else 2."""
    return 1 if flags.all() else _BOTH if flags.any() else 0


def _checksum(place: PartPlace, value: bytes) -> int:
    checksum = zlib.crc32(place.key + place.qualifier + value[:_BEFORE_CHECKSUM])
    return zlib.crc32(memoryview(value)[_AFTER_CHECKSUM:], checksum)


def _compressed(numbers: Any) -> bytes:
    from pcodec import ChunkConfig

    compressed: bytes = codec().simple_compress(np.ascontiguousarray(numbers), ChunkConfig())
    return compressed


def _decompress(compressed: bytes, numbers: Any) -> None:
    """Fills an array with exactly as many numbers, so that no cell unpacks to more than it says."""
    try:
        progress = codec().simple_decompress_into(compressed, numbers)
    except CodecMissingError:
        raise
    except BaseException as error:  # a panic of the Rust code is no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise ArchiveError(f"damaged: pcodec cannot read a column: {error}") from error
    if progress.n_processed != len(numbers) or not progress.finished:
        raise ArchiveError("damaged: a column has another number of values than the header says")
