"""Times as texts in row keys, by patterns as those of strftime.

Format: docs/spec/bigtable-patterns.md §5.

A pattern has the placeholders `%Y %m %d %H %M %S` as in strftime, `%L` for milliseconds (3 digits) and
`%f` for microseconds (6). Their order must be from large to small, from the year on, so that strings sort
by time.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from timebeam.schema.bits.arrays import Int64s
from timebeam.schema.bits.times import DAY_MS, HOUR_MS, UTC, Span, first_time, local_ms

# Where the digits are in YYYY-MM-DDThh:mm:ss.ffffff; the length of what a placeholder leaves open.
_DIGITS = {
    "Y": (0, 4),
    "m": (5, 7),
    "d": (8, 10),
    "H": (11, 13),
    "M": (14, 16),
    "S": (17, 19),
    "L": (20, 23),
    "f": (20, 26),
}
_LENGTHS = {
    "Y": Span(12 * 31 * DAY_MS, 12),
    "m": Span(31 * DAY_MS, 1),
    "d": Span(DAY_MS),
    "H": Span(HOUR_MS),
    "M": Span(60_000),
    "S": Span(1000),
    "L": Span(1),
    "f": Span(1),
}
"""How long the times are that a pattern whose last placeholder this is gives one text."""
_ORDER = ("Y", "m", "d", "H", "M", "S")
_PIECE = re.compile(r"%(.)|([^%]+)")


def placeholders(pattern: str) -> Iterator[tuple[str, str]]:
    """(placeholder letter, "") or ("", literal text), in order.

    Raises:
      ValueError: a placeholder is unknown.
    """
    for match in _PIECE.finditer(pattern):
        if match[1] is not None and match[1] not in _DIGITS:
            raise ValueError(f"unknown placeholder %{match[1]}: known are %Y %m %d %H %M %S %L %f")
        yield match[1] or "", match[2] or ""
    if pattern.endswith("%") and not pattern.endswith("%%"):
        raise ValueError("a lone % at the end")


def check_pattern(pattern: str, zone: str) -> int:
    """The width of the texts of a pattern, in bytes.

    Raises:
      ValueError: a placeholder is unknown, or the strings would not sort by time.
    """
    found = letters(pattern)
    expected = list(_ORDER[: len(found)])
    if len(found) == len(_ORDER) + 1 and found[-1] in ("L", "f"):
        expected.append(found[-1])
    if not found or found != expected:
        raise ValueError(
            f"{pattern!r} does not sort by time: its placeholders must be %Y%m%d%H%M%S%L, or a start of it"
        )
    if len(found) > 3 and zone != UTC:
        raise ValueError(
            f'{pattern!r} in {zone} does not sort by time where clocks go back an hour: use tz = "UTC"'
        )
    return sum(
        _DIGITS[letter][1] - _DIGITS[letter][0] if letter else len(text.encode())
        for letter, text in placeholders(pattern)
    )


def render_pattern(times_us: Int64s, pattern: str, zone: str) -> pa.Array:
    """binary[n]: the texts of times in microseconds since 1970, up to the year 9999.

    >>> render_pattern(np.array([1425213901001_000]), "%Y%m%d%H%M%S%L", "UTC").to_pylist()  # in us
    [b'20150301124501001']
    """
    if zone != UTC:
        times_us = local_ms(times_us // 1000, zone) * 1000 + times_us % 1000
    digits = np.datetime_as_string(times_us.astype("datetime64[us]"), unit="us").astype("S26")
    table = digits.view(np.uint8).reshape(len(times_us), 26)
    texts = []
    for letter, text in placeholders(pattern):
        if letter:
            start, end = _DIGITS[letter]
            texts.append(table[:, start:end])
        else:
            literal = np.frombuffer(text.encode(), np.uint8)
            texts.append(np.broadcast_to(literal, (len(times_us), len(literal))))
    return fixed(np.concatenate(texts, axis=1))


def fixed(table: np.ndarray[tuple[int, int], np.dtype[np.uint8]]) -> pa.Array:
    """binary[n] from the bytes uint8[n, width]."""
    n, width = table.shape
    offsets = pa.py_buffer(np.arange(0, (n + 1) * width, width, dtype=np.int32))
    return pa.Array.from_buffers(pa.binary(), n, [None, offsets, pa.py_buffer(np.ascontiguousarray(table))])


def parse_pattern(text: bytes, pattern: str, zone: str) -> int:
    """The first microsecond since 1970 that has this text.

    Raises:
      ValueError: it is not a text of the pattern.
    """
    numbers = {"Y": 1970, "m": 1, "d": 1, "H": 0, "M": 0, "S": 0, "L": 0, "f": 0}
    offset = 0
    for letter, literal in placeholders(pattern):
        width = _DIGITS[letter][1] - _DIGITS[letter][0] if letter else len(literal.encode())
        piece = text[offset : offset + width]
        offset += width
        if not (piece.isdigit() and len(piece) == width if letter else piece == literal.encode()):
            raise ValueError(f"{text!r} is not a time of the form {pattern}")
        if letter:
            numbers[letter] = int(piece)
    if offset != len(text):
        raise ValueError(f"{text!r} is not a time of the form {pattern}")
    year, month, day, hour, minute, second = (numbers[letter] for letter in _ORDER)
    moment = datetime.datetime(year, month, day, hour, minute, second, tzinfo=datetime.UTC)
    local = int(moment.timestamp()) * 1000 + numbers["L"]
    return int(first_time(np.array([local], np.int64), zone)[0]) * 1000 + numbers["f"]


def letters(pattern: str) -> list[str]:
    """The letters of the placeholders, in order."""
    return [letter for letter, _ in placeholders(pattern) if letter]


def precision(pattern: str) -> Span:
    """How long the times are that the pattern gives one text."""
    return _LENGTHS[letters(pattern)[-1]]
