"""Values of cells, encoded and read many at a time (docs/spec/kairosdb.md §4).

| type | bytes |
|---|---|
| kairos_long | zig-zag, then LEB128: 7 bits per byte, lowest first, bit 7 set in all but the last |
| kairos_double | big-endian double |
| kairos_string | length in 2 bytes, then Java's modified UTF-8: NUL as c080, above U+FFFF two surrogates |

Sources: Util.packLong, LongDataPointFactoryImpl, DoubleDataPointFactoryImpl, StringDataPoint of KairosDB
1.3.0; java.io.DataOutputStream.writeUTF.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from timebeam.schema.bits.arrays import Bools, Int64s

STRING_BYTES = 65_535
"""The longest string, in bytes of modified UTF-8."""

_LONGEST_LONG = 10
_SEVEN_BITS = np.uint64(7)
_LIMITS = np.array([1 << (7 * k) for k in range(1, _LONGEST_LONG)], np.uint64)
"""A number of at least the k-th limit takes more than k + 1 bytes."""
_ABOVE_FFFF = re.compile("[\U00010000-\U0010ffff]")


def long_bytes(values: Int64s) -> tuple[bytes, Int64s]:
    """(the encoded integers concatenated, int64[n] bytes of each).

    >>> content, sizes = long_bytes(np.array([0, -1, 63, -127, 42]))
    >>> content.hex(" "), sizes.tolist()
    ('00 01 7e fd 01 54', [1, 1, 1, 2, 1])
    """
    zigzag = ((values << 1) ^ (values >> 63)).view(np.uint64)
    #          (1)            (2)
    # (1) Room for the sign in the last bit.
    # (2) All bits are turned if it is negative: 0, -1, 1, -2 become 0, 1, 2, 3.
    sizes = np.searchsorted(_LIMITS, zigzag, "right") + 1
    starts = np.cumsum(sizes) - sizes
    out = np.empty(int(sizes.sum()), np.uint8)
    pending = np.arange(len(values))
    for k in range(_LONGEST_LONG):
        pending = pending[sizes[pending] > k]
        if len(pending) == 0:
            break
        continuation = (sizes[pending] > k + 1).astype(np.uint8) << np.uint8(7)
        out[starts[pending] + k] = (zigzag[pending] & np.uint64(0x7F)).astype(np.uint8) | continuation
        zigzag[pending] >>= _SEVEN_BITS
    return out.tobytes(), sizes


def read_longs(values: Sequence[bytes]) -> tuple[Int64s, Bools]:
    """(integers int64[n], bool[n] whether a value is exactly one integer)."""
    sizes = np.fromiter(map(len, values), np.int64, len(values))
    starts = np.cumsum(sizes) - sizes
    raw = np.frombuffer(b"".join(values) + b"\0", np.uint8)
    zigzag = np.zeros(len(values), np.uint64)
    is_good = (sizes > 0) & (sizes <= _LONGEST_LONG)
    pending = np.flatnonzero(is_good)
    for k in range(_LONGEST_LONG):
        pending = pending[sizes[pending] > k]
        if len(pending) == 0:
            break
        byte = raw[starts[pending] + k]
        is_good[pending] &= (byte >= 0x80) == (sizes[pending] > k + 1)
        zigzag[pending] |= (byte & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * k)
    longest = np.flatnonzero(sizes == _LONGEST_LONG)
    is_good[longest] &= raw[starts[longest] + _LONGEST_LONG - 1] <= 1  # the 64th bit
    return (zigzag >> np.uint64(1)).view(np.int64) ^ -(zigzag & np.uint64(1)).view(np.int64), is_good
    #       (1)                                      (2)
    # (1) The bits of the number.
    # (2) The last bit is the sign: 0 turns no bit, and -1 all of them.


def read_doubles(values: Sequence[bytes]) -> tuple[Int64s, Bools]:
    """(bits of the doubles int64[n], bool[n] whether a value is a double)."""
    good = np.fromiter((len(value) == 8 for value in values), np.bool_, len(values))
    if not good.all():
        values = [value if fits else bytes(8) for value, fits in zip(values, good.tolist(), strict=True)]
    return np.frombuffer(b"".join(values), ">i8").astype(np.int64), good


def modified_utf8(text: bytes) -> bytes:
    """A string in Java's modified UTF-8, from UTF-8."""
    if text and max(text) >= 0xF0:
        text = _ABOVE_FFFF.sub(_surrogates, text.decode()).encode("utf-8", "surrogatepass")
    return text.replace(b"\0", b"\xc0\x80")


def _surrogates(match: re.Match[str]) -> str:
    """The two surrogates of a character above U+FFFF."""
    number = ord(match[0]) - 0x10000
    return chr(0xD800 + (number >> 10)) + chr(0xDC00 + (number & 0x3FF))


def string_bytes(text: bytes) -> bytes:
    """A string as cell value, of at most `STRING_BYTES` in modified UTF-8."""
    modified = modified_utf8(text)
    return len(modified).to_bytes(2, "big") + modified


def read_string(value: bytes) -> bytes:
    """The string of a cell value, in UTF-8.

    Raises:
      ValueError: it is not a string, or holds half a surrogate pair, which UTF-8 cannot encode.
    """
    if len(value) < 2 or int.from_bytes(value[:2], "big") != len(value) - 2:
        raise ValueError(f"a string of {len(value)} bytes whose stored length differs")
    modified = value[2:]
    if not modified or (max(modified) < 0x80 and 0 not in modified):
        return modified
    if 0 in modified or max(modified) >= 0xF0:
        raise ValueError("a string that is not Java's modified UTF-8")
    try:
        text = modified.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
        return text.encode("utf-16-be", "surrogatepass").decode("utf-16-be").encode()
    except UnicodeDecodeError:
        raise ValueError("a string that is not Java's modified UTF-8") from None


def untyped_number(value: bytes, *, flagged: bool) -> int | float:
    """The value of a cell in a row without type, written by KairosDB before 0.9.4.

    >>> untyped_number(bytes.fromhex("ff"), flagged=False)
    255
    >>> untyped_number(bytes.fromhex("013fc00000"), flagged=True)
    1.5

    Args:
      flagged: whether the last bit of the column is set.

    Raises:
      ValueError: it is not such a value.
    """
    if not flagged and len(value) <= 8:  # without its leading zero bytes
        return int.from_bytes(value.rjust(8, b"\0"), "big", signed=True)
    if flagged and len(value) in (5, 9) and (value[0] == 1) == (len(value) == 5):
        form: npt.DTypeLike = ">f4" if len(value) == 5 else ">f8"
        return float(np.frombuffer(value, form, offset=1)[0])
    raise ValueError(f"{len(value)} bytes that are not a value of a row without type")
