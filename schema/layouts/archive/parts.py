"""Cells of the archive: up to 20,000 points of a row in compressed columns (docs/spec/archive.md §3).

| bytes | content |
|---|---|
| 1, 1 | version 1; codec 1, pcodec |
| 1 | unit of the times: seconds 0, milliseconds 1, both 2 |
| 1 | kind of the values: integers 0, floats 1, both 2 |
| 4 | CRC-32 of the row key, the qualifier, and all bytes of the cell but these four |
| 4, 4, 4 | number of points n; first and last time, in ms since the base time of the row |
| 8 | newest arrival of the points, in ms since 1970 |
| 4, 4, 4 | bytes of the times, the arrivals, the integers |
| ceil(n / 8) each | if both: bits of the points in milliseconds; bits of the floats |
| rest | the times, the arrivals unless all are the newest one, the integers, the floats: pcodec |

All numbers are big-endian. The first point has the highest bit of a byte.
"""

from __future__ import annotations

import itertools
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

_HEADER = struct.Struct(">BBBBIIIIqIII")
_BEFORE_CHECKSUM, _AFTER_CHECKSUM = 4, 8
_BOTH = 2


class ArchiveError(ValueError):
    """A cell of the archive that cannot be read."""


class CodecMissingError(RuntimeError):
    """The package that compresses columns is not installed."""


class PartPlace(NamedTuple):
    """Where a cell is: its row's key, its qualifier, and the row's base time and span in ms."""

    key: bytes
    qualifier: bytes
    base_ms: int
    span_ms: int


class PartHeader(NamedTuple):
    """The first 40 bytes of a cell; see the table of this module."""

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
    arrival_bytes: int
    integer_bytes: int


class PartPoints(NamedTuple):
    """n points of a cell, strictly ascending in time; the columns are those of `PointBatch`.

    The kinds are INTEGER and FLOAT.
    """

    times_ms: Int64s
    in_ms: Bools
    kinds: Bytes
    bits: Int64s
    arrivals_ms: Int64s

    @classmethod
    def empty(cls, n: int) -> PartPoints:
        """Columns of n points, to be filled."""
        times_ms, bits, arrivals_ms = (np.empty(n, np.int64) for _ in range(3))
        return cls(times_ms, np.empty(n, np.bool_), np.empty(n, np.uint8), bits, arrivals_ms)

    def cut(self, start: int, end: int) -> PartPoints:
        """Views of the points [start, end)."""
        points = slice(start, end)
        return PartPoints(
            self.times_ms[points],
            self.in_ms[points],
            self.kinds[points],
            self.bits[points],
            self.arrivals_ms[points],
        )


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
    n, offsets_ms = len(points.times_ms), points.times_ms - place.base_ms
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
    newest_ms = int(points.arrivals_ms.max())
    numbers = offsets_ms if unit else offsets_ms // 1000
    times = _compressed(numbers.astype(np.uint32))
    arrivals = b"" if (points.arrivals_ms == newest_ms).all() else _compressed(points.arrivals_ms)
    integers = _compressed(points.bits[~is_float]) if kind != 1 else b""
    content = b"".join(
        (
            np.packbits(points.in_ms).tobytes() if unit == _BOTH else b"",
            np.packbits(is_float).tobytes() if kind == _BOTH else b"",
            times,
            arrivals,
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
        newest_ms,
        len(times),
        len(arrivals),
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


def decode_part(place: PartPlace, header: PartHeader, value: bytes, points: PartPoints) -> None:
    """Fills columns with the points of a cell.

    Args:
      header: that of the value.
      points: as many as the header says.

    Raises:
      ArchiveError: the cell is damaged; the columns may have been written.
    """
    if _checksum(place, value) != header.checksum:
        raise ArchiveError("damaged: the bytes do not have the checksum of the header")
    n, position = header.points, _HEADER.size
    for code, flags in ((header.unit, points.in_ms), (header.kind, points.kinds.view(np.bool_))):
        flags[:] = code == 1
        if code == _BOTH:
            bitmap = np.frombuffer(value[position : position + -(-n // 8)], np.uint8)
            if len(bitmap) != -(-n // 8):
                raise ArchiveError("damaged: the bits of the points end early")
            flags[:] = np.unpackbits(bitmap, count=n).view(np.bool_)
            position += len(bitmap)
    lengths = header.time_bytes, header.arrival_bytes, header.integer_bytes
    _, arrivals_at, integers_at, floats_at = itertools.accumulate(lengths, initial=position)
    numbers = np.empty(n, np.uint32)
    _decompress(value[position:arrivals_at], numbers)
    unit_ms = 1 if header.unit else 1000
    first_ms, last_ms = int(numbers[0]) * unit_ms, int(numbers[-1]) * unit_ms
    is_ascending = (numbers[1:] > numbers[:-1]).all() and last_ms < place.span_ms
    if not is_ascending or (first_ms, last_ms) != (header.first_ms, header.last_ms):
        raise ArchiveError("damaged: the times are not those of the header, or not ascending")
    np.multiply(numbers, unit_ms, out=points.times_ms, dtype=np.int64)
    points.times_ms[:] += place.base_ms
    if header.arrival_bytes:
        _decompress(value[arrivals_at:integers_at], points.arrivals_ms)
        if points.arrivals_ms.max() != header.newest_ms:
            raise ArchiveError("damaged: the newest arrival is not that of the header")
    else:
        points.arrivals_ms[:] = header.newest_ms
    _fill_values(value[integers_at:floats_at], value[floats_at:], header.kind, points)


def _fill_values(integers: bytes, floats: bytes, kind: int, points: PartPoints) -> None:
    """Fills the column of values of a cell."""
    bits = points.bits
    if kind == 0 and not floats:
        _decompress(integers, bits)
    elif kind == 1 and not integers:
        _decompress(floats, bits.view(np.float64))
    elif kind == _BOTH:
        is_float = points.kinds.view(np.bool_)
        float_values = np.empty(np.count_nonzero(is_float), np.float64)
        integer_values = np.empty(len(bits) - len(float_values), np.int64)
        _decompress(integers, integer_values)
        _decompress(floats, float_values)
        bits[is_float], bits[~is_float] = float_values.view(np.int64), integer_values
    else:
        raise ArchiveError("damaged: values of another kind than in the header")


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
