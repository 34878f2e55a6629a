"""The row key and qualifier that Heroic writes, byte for byte (docs/spec/heroic.md §3 and §4).

    string(key) count(tags) {string(name) string(value)}* base:int64
    [1 0 length(payload) payload]           payload = count(resources) {plain(name) plain(value)}*

    string(s) = length in UTF-8 bytes, length in UTF-16 code units, UTF-8 bytes
    plain(s)  = length in UTF-8 bytes, UTF-8 bytes

The qualifier is the offset from the base, 4 bytes, unsigned. Source: MetricsRowKeySerializer and
CustomStringSerializer of spotify/heroic 9a021a7a, with eu.toolchain.serializer 1.4.5.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from timebeam.schema.layouts.heroic.keys import KeyForm, KeyParts, Offsets, Range, check_base, sorted_pairs
from timebeam.schema.layouts.writing import SeriesKey
from timebeam.schema.points import Int64s, Series

_SUFFIX = b"\x01\x00"  # one suffix, which is of type 0: resources
_BASE_BYTES = 8


def length_bytes(number: int) -> bytes:
    """A length or count as Heroic writes it: 7 bits a byte, lowest first; each further byte counts from 1.

    This is not LEB128: 128 is `80 00`.
    """
    out = bytearray()
    while number > 0x7F:
        out.append(0x80 | (number & 0x7F))
        number = (number >> 7) - 1
    out.append(number)
    return bytes(out)


def read_length(data: bytes, at: int) -> tuple[int, int]:
    """(the length or count that begins at a place, where it ends).

    Raises:
      ValueError: the bytes end inside it.
    """
    number = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        number += ((byte & 0x7F) + (shift > 0)) << shift
        if byte < 0x80:
            return number, at
        shift += 7
    raise ValueError("it ends inside a length")


class WireKeys(KeyForm):
    """Keys and qualifiers of the tables that Heroic reads and writes."""

    qualifier_bytes = 4

    def series_key(self, series: Series) -> SeriesKey:
        """See `KeyForm.series_key`."""
        head = [_string(series.metric), length_bytes(len(series.tags))]
        for pair in sorted_pairs(series.tags):
            head += map(_string, pair)
        if not series.resources:
            return SeriesKey(b"".join(head), b"")
        payload = length_bytes(len(series.resources)) + b"".join(
            _plain(text) for pair in sorted_pairs(series.resources) for text in pair
        )
        return SeriesKey(b"".join(head), _SUFFIX + length_bytes(len(payload)) + payload)

    def base_text(self, base_ms: int) -> bytes:
        """See `KeyForm.base_text`."""
        return base_ms.to_bytes(_BASE_BYTES, "big", signed=True)

    def parse(self, key: bytes) -> KeyParts:
        """See `KeyForm.parse`."""
        try:
            metric, at = _read_string(key, 0)
            count, at = read_length(key, at)
            texts: list[str] = []
            while len(texts) < 2 * count:
                text, at = _read_string(key, at)
                texts.append(text)
            head, base, tail = key[:at], key[at : at + _BASE_BYTES], key[at + _BASE_BYTES :]
            if len(base) < _BASE_BYTES:
                raise ValueError("it ends inside the base")
            resources = _read_resources(tail) if tail else {}
        except UnicodeDecodeError as error:
            raise ValueError(f"row key {key[:80].hex()}: a text that is not UTF-8") from error
        except ValueError as error:
            raise ValueError(f"row key {key[:80].hex()} is none of Heroic's: {error}") from error
        base_ms = int.from_bytes(base, "big", signed=True)
        check_base(base_ms)
        series = Series.of(metric, dict(zip(texts[::2], texts[1::2], strict=True)), resources)
        if self.series_key(series) != (head, tail):
            raise ValueError(f"row key {key[:80].hex()}: Heroic writes this series with other bytes")
        return KeyParts(series, base_ms, head, tail, is_whole=True)

    def ranges(self, head: bytes, first_ms: int, last_ms: int) -> Iterator[Range]:
        """See `KeyForm.ranges`; one range, since no other series has a key that begins with `head`."""
        yield head + self.base_text(first_ms), head + self.base_text(last_ms + 1)

    def qualifiers(self, offsets: Offsets) -> bytes:
        """See `KeyForm.qualifiers`."""
        return offsets.astype(">u4").tobytes()

    def offsets(self, qualifiers: bytes) -> Int64s:
        """See `KeyForm.offsets`."""
        return np.frombuffer(qualifiers, ">u4").astype(np.int64)


def _string(text: str) -> bytes:
    """A text with both of its lengths."""
    raw = text.encode()
    units = len(raw) if len(raw) == len(text) else len(text.encode("utf-16-be")) // 2
    return length_bytes(len(raw)) + length_bytes(units) + raw


def _plain(text: str) -> bytes:
    """A text with its one length."""
    raw = text.encode()
    return length_bytes(len(raw)) + raw


def _read_string(data: bytes, at: int) -> tuple[str, int]:
    """(a text with two lengths, where it ends); whether the second one is right shows in `parse`."""
    size, at = read_length(data, at)
    _, at = read_length(data, at)
    return _read_text(data, at, size)


def _read_text(data: bytes, at: int, size: int) -> tuple[str, int]:
    if size > len(data) - at:
        raise ValueError("it ends inside a text")
    return data[at : at + size].decode(), at + size


def _read_resources(tail: bytes) -> dict[str, str]:
    """The resources in what stands behind the base."""
    if not tail.startswith(_SUFFIX):
        raise ValueError("what stands behind the base are no resources")
    size, at = read_length(tail, len(_SUFFIX))
    if size != len(tail) - at:
        raise ValueError(f"{len(tail) - at} bytes of resources where their length says {size}")
    count, at = read_length(tail, at)
    texts: list[str] = []
    while len(texts) < 2 * count:
        size, at = read_length(tail, at)
        text, at = _read_text(tail, at, size)
        texts.append(text)
    return dict(zip(texts[::2], texts[1::2], strict=True))
