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

from timebeam.schema.bits.arrays import Int64s
from timebeam.schema.core.points import Series, SeriesKey
from timebeam.schema.stores.heroic.keys import HeroicRowKey, KeyForm, Offsets, Range, check_base, sorted_pairs

_SUFFIX = b"\x01\x00"  # one suffix, which is of type 0: resources
_BASE_BYTES = 8


def length_bytes(number: int) -> bytes:
    """A length or count as Heroic writes it: 7 bits per byte, lowest first; further bytes count from 1.

    This is not LEB128: 128 is `80 00`.

    >>> length_bytes(127).hex(), length_bytes(128).hex(), length_bytes(300).hex()
    ('7f', '8000', 'ac01')
    """
    out = bytearray()
    while number > 0x7F:
        out.append(0x80 | (number & 0x7F))
        number = (number >> 7) - 1
    out.append(number)
    return bytes(out)


def read_length(data: bytes, offset: int) -> tuple[int, int]:
    """(the length or count that begins at `offset`, where it ends).

    Raises:
      ValueError: the bytes end inside it.
    """
    number = shift = 0
    while offset < len(data):
        byte = data[offset]
        offset += 1
        number += ((byte & 0x7F) + (shift > 0)) << shift
        if byte < 0x80:
            return number, offset
        shift += 7
    raise ValueError("it ends inside a length")


class WireKeys(KeyForm):
    r"""Keys and qualifiers of the tables that Heroic reads and writes.

    >>> key = WireKeys().series_key(Series.of("cpu", {"host": "a"}))
    >>> key.head  # metric, count of tags, name and value; each text with both of its lengths
    b'\x03\x03cpu\x01\x04\x04host\x01\x01a'
    >>> WireKeys().row_key(key, 1297080123392).hex()
    '0303637075010404686f73740101610000012e00000000'
    """

    qualifier_bytes = 4

    def series_key(self, series: Series) -> SeriesKey:
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
        return base_ms.to_bytes(_BASE_BYTES, "big", signed=True)

    def head_bytes(self, key: bytes) -> int:
        try:
            return _read_head(key)[1]
        except UnicodeDecodeError as error:
            raise ValueError(f"row key {key[:80].hex()}: a string that is not UTF-8") from error
        except ValueError as error:
            raise ValueError(f"row key {key[:80].hex()} is not Heroic's: {error}") from error

    def parse(self, key: bytes) -> HeroicRowKey:
        try:
            (metric, *strings), offset = _read_head(key)
            head, base, tail = key[:offset], key[offset : offset + _BASE_BYTES], key[offset + _BASE_BYTES :]
            if len(base) < _BASE_BYTES:
                raise ValueError("it ends inside the base")
            resources = _read_resources(tail) if tail else {}
        except UnicodeDecodeError as error:
            raise ValueError(f"row key {key[:80].hex()}: a string that is not UTF-8") from error
        except ValueError as error:
            raise ValueError(f"row key {key[:80].hex()} is not Heroic's: {error}") from error
        base_ms = int.from_bytes(base, "big", signed=True)
        check_base(base_ms)
        series = Series.of(metric, dict(zip(strings[::2], strings[1::2], strict=True)), resources)
        if self.series_key(series) != (head, tail):
            raise ValueError(f"row key {key[:80].hex()}: Heroic writes this series with other bytes")
        return HeroicRowKey(series, base_ms, head, tail, is_whole=True)

    def ranges(self, head: bytes, first_ms: int, last_ms: int) -> Iterator[Range]:
        """See `KeyForm.ranges`; one range, since no other series has a key that begins with `head`."""
        yield head + self.base_text(first_ms), head + self.base_text(last_ms + 1)

    def qualifiers(self, offsets: Offsets) -> bytes:
        return offsets.astype(">u4").tobytes()

    def offsets(self, qualifiers: bytes) -> Int64s:
        return np.frombuffer(qualifiers, ">u4").astype(np.int64)


def _read_head(key: bytes) -> tuple[list[str], int]:
    """(the metric, then tag keys and values in turn; where they end)."""
    metric, offset = _read_string(key, 0)
    count, offset = read_length(key, offset)
    strings = [metric]
    while len(strings) < 1 + 2 * count:
        string, offset = _read_string(key, offset)
        strings.append(string)
    return strings, offset


def _string(text: str) -> bytes:
    """A string with both of its lengths."""
    raw = text.encode()
    units = len(raw) if len(raw) == len(text) else len(text.encode("utf-16-be")) // 2
    return length_bytes(len(raw)) + length_bytes(units) + raw


def _plain(text: str) -> bytes:
    """A string with its length in bytes."""
    raw = text.encode()
    return length_bytes(len(raw)) + raw


def _read_string(data: bytes, offset: int) -> tuple[str, int]:
    """(a string with two lengths, where it ends); `parse` checks the second length."""
    size, offset = read_length(data, offset)
    _, offset = read_length(data, offset)
    return _read_text(data, offset, size)


def _read_text(data: bytes, offset: int, size: int) -> tuple[str, int]:
    if size > len(data) - offset:
        raise ValueError("it ends inside a string")
    return data[offset : offset + size].decode(), offset + size


def _read_resources(tail: bytes) -> dict[str, str]:
    """The resources in the bytes after the base."""
    if not tail.startswith(_SUFFIX):
        raise ValueError("the bytes after the base are not resources")
    size, offset = read_length(tail, len(_SUFFIX))
    if size != len(tail) - offset:
        raise ValueError(f"{len(tail) - offset} bytes of resources where their length says {size}")
    count, offset = read_length(tail, offset)
    strings: list[str] = []
    while len(strings) < 2 * count:
        size, offset = read_length(tail, offset)
        string, offset = _read_text(tail, offset, size)
        strings.append(string)
    return dict(zip(strings[::2], strings[1::2], strict=True))
