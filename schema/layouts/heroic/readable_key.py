"""The row key of layout `heroic-readable`: text, for people who read tables with `cbt`.

Format: docs/spec/heroic.md §8.

    metric,tagk=tagv,...,base[,resource]*         1297080123392: the base, decimal

A resource is its value, in the order of the names, which stand in the series table only; or
`name=value`, which makes keys decode by themselves. `,` `=` `\\` have a backslash before them, control
characters are `\\x1f`. The qualifier is the offset from the base, decimal, on 10 digits.
"""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from collections.abc import Iterator

import numpy as np

from timebeam.schema.layouts.heroic.keys import (
    PERIOD_MS,
    KeyForm,
    KeyParts,
    Offsets,
    Range,
    check_base,
    sorted_pairs,
)
from timebeam.schema.layouts.writing import SeriesKey
from timebeam.schema.points import Int64s, Series

_PART = re.compile(r"((?:[^,=\\]|\\.)*)(?:=((?:[^,=\\]|\\.)*))?(,|\Z)")
_PLAIN = re.compile(r"[^,=\\\x00-\x1f\x7f-\x9f]*")
_ESCAPE = re.compile(r"\\(x[0-9a-f]{2}|.)")
_DIGITS = 10 ** np.arange(9, -1, -1, dtype=np.int64)


@dataclasses.dataclass(frozen=True, slots=True)
class ReadableKeys(KeyForm):
    """Keys and qualifiers that are text.

    Attributes:
      names: write resources as `name=value`; both forms are read.
    """

    names: bool = False

    qualifier_bytes = 10

    def series_key(self, series: Series) -> SeriesKey:
        """See `KeyForm.series_key`."""
        tags = [f"{_escaped(key)}={_escaped(value)}" for key, value in sorted_pairs(series.tags)]
        head = ",".join([_escaped(series.metric), *tags, ""])
        tail = "".join(
            f",{_escaped(name)}={_escaped(value)}" if self.names else f",{_escaped(value)}"
            for name, value in sorted_pairs(series.resources)
        )
        return SeriesKey(head.encode(), tail.encode())

    def nameless_key(self, series: Series) -> SeriesKey:
        """See `KeyForm.nameless_key`."""
        return ReadableKeys().series_key(series)

    def base_text(self, base_ms: int) -> bytes:
        """See `KeyForm.base_text`."""
        return b"%d" % base_ms

    def parse(self, key: bytes) -> KeyParts:
        """See `KeyForm.parse`."""
        try:
            text = key.decode()
            (metric, no_value), *parts = _parts(text)
            numbers = [i for i, (_, value) in enumerate(parts) if value is None]
            if no_value is not None or not numbers:
                raise ValueError("it is not metric, tags and base")
            tags, (base, _), behind = parts[: numbers[0]], parts[numbers[0]], parts[numbers[0] + 1 :]
            if not base.isascii() or not base.isdigit():
                raise ValueError(f"the base {base[:40]!r} is no number")
        except UnicodeDecodeError as error:
            raise ValueError(f"row key {key[:80].hex()} is not UTF-8") from error
        except ValueError as error:
            raise ValueError(f"row key {key[:80]!r} is none of this layout's: {error}") from error
        base_ms = int(base)
        check_base(base_ms)
        named = {name: value for name, value in behind if value is not None}
        series = Series.of(metric, {name: value or "" for name, value in tags}, named)
        values = ReadableKeys(names=bool(named)).series_key(series)
        tail = values.tail if named else "".join("," + _escaped(value) for value, _ in behind).encode()
        if values.head + self.base_text(base_ms) + tail != key:
            raise ValueError(f"row key {key[:80]!r}: this layout writes it with other bytes")
        return KeyParts(series, base_ms, values.head, tail, is_whole=len(named) == len(behind))

    def ranges(self, head: bytes, first_ms: int, last_ms: int) -> Iterator[Range]:
        """See `KeyForm.ranges`; two for each base, since decimals are not in the order of time.

        The row without resources, and those that go on with a comma. A bare prefix would take in
        4294967296 and 42949672960 alike.
        """
        for base_ms in range(first_ms, last_ms + 1, PERIOD_MS):
            key = head + self.base_text(base_ms)
            yield key, key + b"\x00"
            yield key + b",", key + b"-"

    def qualifiers(self, offsets: Offsets) -> bytes:
        """See `KeyForm.qualifiers`."""
        digits = offsets.astype(np.int64)[:, None] // _DIGITS % 10
        return (digits + ord("0")).astype(np.uint8).tobytes()

    def offsets(self, qualifiers: bytes) -> Int64s:
        """See `KeyForm.offsets`."""
        digits = np.frombuffer(qualifiers, np.uint8).reshape(-1, 10) - np.uint8(ord("0"))
        offsets = digits.astype(np.int64) @ _DIGITS
        return np.where((digits < 10).all(axis=1) & (offsets < PERIOD_MS), offsets, -1)


def _escaped(text: str) -> str:
    """A text as a part of a key."""
    if _PLAIN.fullmatch(text):
        return text
    return "".join(
        f"\\x{ord(letter):02x}"
        if unicodedata.category(letter) == "Cc"
        else "\\" + letter
        if letter in ",=\\"
        else letter
        for letter in text
    )


def _parts(text: str) -> list[tuple[str, str | None]]:
    """The parts of a key between its commas: (text before the `=`, text behind it or None).

    Raises:
      ValueError: a stray backslash or a second `=`.
    """
    found: list[tuple[str, str | None]] = []
    at, mark = 0, ","
    while mark:
        part = _PART.match(text, at)
        if part is None:
            raise ValueError(f"an = or backslash too many in {text[at : at + 40]!r}")
        name, value, mark = part.groups()
        found.append((_plain(name), None if value is None else _plain(value)))
        at = part.end()
    return found


def _plain(text: str) -> str:
    """A part of a key as the text that was escaped."""
    if "\\" not in text:
        return text
    return _ESCAPE.sub(
        lambda found: chr(int(found[1][1:], 16)) if found[1][0] == "x" and len(found[1]) == 3 else found[1],
        text,
    )
