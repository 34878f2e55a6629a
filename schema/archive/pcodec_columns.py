"""Columns of numbers in cells of the archive: pcodec, and floats as decimals (docs/spec/archive.md §3)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from timebeam.schema.bits.arrays import Floats, Int64s

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
        raise ArchiveError(f"damaged: pcodec cannot read a column: {error}") from error
    if progress.n_processed != len(numbers) or not progress.finished:
        raise ArchiveError("damaged: a column has another number of values than the header says")


def decompress_floats(column: bytes, decimals: DecimalForm | None, floats: Floats) -> None:
    """Like `decompress`, for floats."""
    if decimals is None:
        decompress(column, floats)
        return
    numerators = np.empty(len(floats), np.int64)
    decompress(column, numerators)
    decimals.fill(floats, numerators)
