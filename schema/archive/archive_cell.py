"""Cells of the archive: up to 20,000 points of a row in columns, compressed by pcodec.

Format: docs/spec/archive.md §3.

| bytes | content |
|---|---|
| 1, 1 | version 2; codec 1, pcodec |
| 1 | unit of the times: seconds 0, milliseconds 1, both 2; plus 16 if the arrivals are lags |
| 1 | kind of the values: integers 0, floats 1, both 2; plus 4 and 16 (digits + 1), see `DecimalForm` |
| 4 | CRC-32 of the row key, the qualifier, and all bytes of the cell but these four |
| 4, 4, 4 | number of points n; first and last time, in ms since the base time of the row |
| 8 | newest arrival of the points, in ms since 1970 |
| 4, 4, 4 | bytes of the times, the arrivals, the integers |
| ceil(n / 8) each | if both: bits of the points in milliseconds; bits of the floats |
| rest | the times, the arrivals unless all are the newest one, the integers, the floats: pcodec |

All numbers are big-endian. The first point has the highest bit of a byte. A lag is an arrival minus the time
of its point. Version 1 has neither lags nor decimals.
"""

from __future__ import annotations

import functools
import itertools
import struct
import zlib
from typing import Any, NamedTuple

import numpy as np

from timebeam.schema.bits.arrays import Bools, Bytes, Floats, Int64s, Kind

POINTS = 20_000
"""The most points of a cell."""
CELL_BYTES = 1 << 20
"""The most bytes of a cell."""

VERSION, PCODEC = 2, 1

_HEADER = struct.Struct(">BBBBIIIIqIII")
_BEFORE_CHECKSUM, _AFTER_CHECKSUM = 4, 8
_BOTH = 2
_LAGS = 16
_NARROW, _DIGITS_SHIFT = 4, 4
_VALUE_FORMS = {0, 1, 2} | {
    kind | narrow | digits << _DIGITS_SHIFT
    for kind in (1, 2)
    for narrow in (0, _NARROW)
    for digits in range(1, 16)
}


class PartPlace(NamedTuple):
    """Where a cell is: its row's key, its qualifier, and the row's base time and span in ms."""

    key: bytes
    qualifier: bytes
    base_ms: int
    span_ms: int


class PartHeader(NamedTuple):
    """The first 40 bytes of a cell; see the table of this module.

    >>> cell = "010100014ed704ad00000028000000000005f3700000018bb80de402000000270000000000000000"
    >>> header = PartHeader(*_HEADER.unpack(bytes.fromhex(cell)))
    >>> header.points, header.first_ms, header.last_ms, header.newest_ms  # 40 points, one each 10 s
    (40, 0, 390000, 1699600000002)
    >>> header.unit, header.kind, header.decimals  # seconds, floats, stored as floats
    (0, 1, None)
    """

    version: int
    codec: int
    time_form: int
    value_form: int
    checksum: int
    points: int
    first_ms: int
    last_ms: int
    newest_ms: int
    time_bytes: int
    arrival_bytes: int
    integer_bytes: int

    @property
    def unit(self) -> int:
        """The unit of the times."""
        return self.time_form & ~_LAGS

    @property
    def kind(self) -> int:
        """The kind of the values."""
        return self.value_form & 3

    @property
    def decimals(self) -> DecimalForm | None:
        """The form of the decimals; None if the floats are stored as floats."""
        digits = (self.value_form >> _DIGITS_SHIFT) - 1
        return DecimalForm(digits, bool(self.value_form & _NARROW)) if digits >= 0 else None


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
        return PartPoints._make(column[start:end] for column in self)


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
    times = compressed((offsets_ms if unit else offsets_ms // 1000).astype(np.uint32))
    arrivals, form = b"", 0
    if not (points.arrivals_ms == newest_ms).all():
        lags_ms = points.arrivals_ms - points.times_ms
        columns = (compressed(lags_ms), _LAGS), (compressed(points.arrivals_ms), 0)
        arrivals, form = min(columns, key=lambda column: len(column[0]))
    integers = compressed(points.bits[~is_float]) if kind != 1 else b""
    floats, decimals = b"", None
    if kind:
        floats, decimals = compressed_floats(points.bits[is_float].view(np.float64))
    mixed = [flags for code, flags in ((unit, points.in_ms), (kind, is_float)) if code == _BOTH]
    bitmaps = [np.packbits(flags).tobytes() for flags in mixed]
    content = b"".join((*bitmaps, times, arrivals, integers, floats))
    value_form = kind | (0 if decimals is None else decimals.form)
    first_ms, last_ms, sizes = int(offsets_ms[0]), int(offsets_ms[-1]), map(len, (times, arrivals, integers))
    header = PartHeader(VERSION, PCODEC, unit | form, value_form, 0, n, first_ms, last_ms, newest_ms, *sizes)
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
    if not 0 < header.version <= VERSION or header.codec != PCODEC:
        raise ArchiveError(
            f"version {header.version} with codec {header.codec}: this timebeam reads versions up to "
            f"{VERSION} with codec {PCODEC}; a newer one wrote this cell: upgrade timebeam"
        )
    if header.version < VERSION and max(header.time_form, header.value_form) > _BOTH:
        raise ArchiveError("corrupt header: forms of version 2 in version 1")
    if not (0 < header.points <= POINTS and header.unit <= _BOTH and header.value_form in _VALUE_FORMS):
        raise ArchiveError(
            f"corrupt header: {header.points:,} points, form of the times {header.time_form}, of the values "
            f"{header.value_form}"
        )
    return header


def decode_part(place: PartPlace, header: PartHeader, value: bytes, points: PartPoints) -> None:
    """Fills columns with the points of a cell.

    Args:
      header: that of the value.
      points: as many as the header says.

    Raises:
      ArchiveError: the cell is corrupt; the columns may have been written.
    """
    if _checksum(place, value) != header.checksum:
        raise ArchiveError("corrupt: the bytes do not have the checksum of the header")
    n, position = header.points, _HEADER.size
    for code, flags in ((header.unit, points.in_ms), (header.kind, points.kinds.view(np.bool_))):
        flags[:] = code == 1
        if code == _BOTH:
            bitmap = np.frombuffer(value[position : position + -(-n // 8)], np.uint8)
            if len(bitmap) != -(-n // 8):
                raise ArchiveError("corrupt: the bits of the points end early")
            flags[:] = np.unpackbits(bitmap, count=n).view(np.bool_)
            position += len(bitmap)
    lengths = header.time_bytes, header.arrival_bytes, header.integer_bytes
    _, arrivals_at, integers_at, floats_at = itertools.accumulate(lengths, initial=position)
    _fill_times(value[position:arrivals_at], place, header, points.times_ms)
    if header.arrival_bytes:
        decompress(value[arrivals_at:integers_at], points.arrivals_ms)
        if header.time_form & _LAGS:
            points.arrivals_ms[:] += points.times_ms
        if points.arrivals_ms.max() != header.newest_ms:
            raise ArchiveError("corrupt: the newest arrival is not that of the header")
    else:
        points.arrivals_ms[:] = header.newest_ms
    _fill_values(value[integers_at:floats_at], value[floats_at:], header, points)


def _offsets_ms(column: bytes, n: int, unit_ms: int) -> Int64s:
    """int64[n], ascending: the times of a cell, since the base time of its row."""
    numbers = np.empty(n, np.uint32)
    decompress(column, numbers)
    if not (numbers[1:] > numbers[:-1]).all():
        raise ArchiveError("corrupt: the times do not ascend")
    return np.multiply(numbers, unit_ms, dtype=np.int64)


# Points at regular times have the same short column in row after row, which is decoded once.
_regular_offsets_ms = functools.lru_cache(8)(_offsets_ms)
_REGULAR_BYTES = 100


def _fill_times(column: bytes, place: PartPlace, header: PartHeader, times_ms: Int64s) -> None:
    decode = _regular_offsets_ms if len(column) <= _REGULAR_BYTES else _offsets_ms
    offsets_ms = decode(column, header.points, 1 if header.unit else 1000)
    if (offsets_ms[0], offsets_ms[-1]) != (header.first_ms, header.last_ms) or offsets_ms[
        -1
    ] >= place.span_ms:
        raise ArchiveError("corrupt: the times are not those of the header, or beyond the span")
    np.add(offsets_ms, place.base_ms, out=times_ms)


def _fill_values(integers: bytes, floats: bytes, header: PartHeader, points: PartPoints) -> None:
    """Fills the column of values of a cell."""
    bits, kind = points.bits, header.kind
    if kind == 0 and not floats:
        decompress(integers, bits)
    elif kind == 1 and not integers:
        decompress_floats(floats, header.decimals, bits.view(np.float64))
    elif kind == _BOTH:
        is_float = points.kinds.view(np.bool_)
        float_values = np.empty(np.count_nonzero(is_float), np.float64)
        integer_values = np.empty(len(bits) - len(float_values), np.int64)
        decompress(integers, integer_values)
        decompress_floats(floats, header.decimals, float_values)
        bits[is_float], bits[~is_float] = float_values.view(np.int64), integer_values
    else:
        raise ArchiveError("corrupt: values of another kind than in the header")


def _both(flags: Bools) -> int:
    """0 if no flag is set, 1 if all are, else 2."""
    return 1 if flags.all() else _BOTH if flags.any() else 0


def _checksum(place: PartPlace, value: bytes) -> int:
    checksum = zlib.crc32(place.key + place.qualifier + value[:_BEFORE_CHECKSUM])
    return zlib.crc32(memoryview(value)[_AFTER_CHECKSUM:], checksum)


_MOST_DIGITS, _MOST_NARROW_DIGITS = 14, 9
_MOST_NUMERATOR = 2.0**53
_SAMPLED = 64


class ArchiveError(ValueError):
    """A cell of the archive that cannot be read."""


class CodecMissingError(RuntimeError):
    """The package that compresses columns is not installed."""


class DecimalForm(NamedTuple):
    """How floats are stored as integers: each float is an integer divided by a power of ten.

    Attributes:
      digits: digits after the decimal point, 0 to 14.
      is_narrow: whether each quotient is rounded to a float of 4 bytes.
    """

    digits: int
    is_narrow: bool

    @property
    def form(self) -> int:
        """The bits of a header's form of the values that say how the floats are decimals."""
        return (self.digits + 1) << _DIGITS_SHIFT | self.is_narrow * _NARROW

    def fill(self, floats: Floats, numerators: Int64s) -> None:
        """Fills an array with the numbers of these integers."""
        np.divide(numerators, 10.0**self.digits, out=floats)
        if self.is_narrow:
            floats[:] = floats.astype(np.float32)

    def numerators(self, floats: Floats) -> Int64s | None:
        """The integers that give these floats bit for bit; None if there are none.

        >>> DecimalForm(2, False).numerators(np.array([19.25, 0.1])).tolist()
        [1925, 10]
        >>> DecimalForm(2, False).numerators(np.array([0.125])) is None  # 12.5 is no integer
        True
        """
        with np.errstate(invalid="ignore", over="ignore"):
            rounded = np.rint(floats * 10.0**self.digits)
            if not (np.abs(rounded) <= _MOST_NUMERATOR).all():
                return None
            numerators = rounded.astype(np.int64)
        self.fill(rounded, numerators)
        return numerators if (rounded.view(np.int64) == floats.view(np.int64)).all() else None


_FORMS = [
    *(DecimalForm(digits, False) for digits in range(_MOST_DIGITS + 1)),
    *(DecimalForm(digits, True) for digits in range(_MOST_NARROW_DIGITS + 1)),
]


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


def compressed(numbers: Any) -> bytes:
    """A column."""
    from pcodec import ChunkConfig

    column: bytes = codec().simple_compress(np.ascontiguousarray(numbers), ChunkConfig())
    return column


def compressed_floats(floats: Floats) -> tuple[bytes, DecimalForm | None]:
    """(the floats as they are or as decimals, whichever is shorter; the form of the decimals or None)."""
    column = compressed(floats)
    sample = floats[:: len(floats) // _SAMPLED + 1]
    for decimals in _FORMS:
        if decimals.numerators(sample) is not None:
            numerators = decimals.numerators(floats)
            if numerators is not None:
                shorter = compressed(numerators)
                return (shorter, decimals) if len(shorter) < len(column) else (column, None)
    return column, None


def decompress(column: bytes, numbers: Any) -> None:
    """Decompresses a column that fills an array exactly, so no cell unpacks to more than its header says.

    Raises:
      ArchiveError: the column is corrupt, or has numbers of another type.
    """
    try:
        progress = codec().simple_decompress_into(column, numbers)
    except CodecMissingError:
        raise
    except BaseException as error:  # a panic of the Rust code is not an Exception
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise ArchiveError(f"corrupt: pcodec cannot read a column: {error}") from error
    if progress.n_processed != len(numbers) or not progress.finished:
        raise ArchiveError("corrupt: a column has another number of values than the header says")


def decompress_floats(column: bytes, decimals: DecimalForm | None, floats: Floats) -> None:
    """Like `decompress`, for floats."""
    if decimals is None:
        decompress(column, floats)
        return
    numerators = np.empty(len(floats), np.int64)
    decompress(column, numerators)
    decimals.fill(floats, numerators)
