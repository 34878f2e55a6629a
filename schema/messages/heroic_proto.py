"""Message format `heroic-proto`: Spotify100Proto, a raw Snappy block of a protobuf `Batch`.

    message Batch  { repeated Metric metric = 1; }
    message Metric { string key = 1; int64 time = 2; double value = 3; map<string, string> tags = 4;
                     map<string, string> resource = 5; Value distribution_type_value = 6; }
    message Value  { oneof value { double double_value = 1; bytes distribution_value = 2; } }

Source: spotify_100.proto of spotify/heroic 9a021a7a (format notes, section 7). A reader of its own, since a
generated one refuses a whole batch for one bad metric, and does not tell where a metric stands. Payloads
of refusals are metrics as they stand in the batch, that is, batches of one metric, not compressed.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from schema.lru import LruCache
from schema.messages.base import Framing
from schema.messages.heroic_format import Gatherer, HeroicFormat
from schema.messages.heroic_rules import Value, check_number, check_time, series_of
from schema.points import Reason, RefusedError, Series

LARGEST_BATCH = 64 << 20
"""Bytes of a batch, not compressed; a larger one is refused."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_METRIC = 1 << 3 | _BYTES
_KEY, _TIME, _VALUE = 1 << 3 | _BYTES, 2 << 3 | _VARINT, 3 << 3 | _FIXED64
_TAG, _RESOURCE, _TYPED_VALUE = 4 << 3 | _BYTES, 5 << 3 | _BYTES, 6 << 3 | _BYTES
_OF_SERIES = frozenset((_KEY, _TAG, _RESOURCE))
_DOUBLE, _DISTRIBUTION = 1 << 3 | _FIXED64, 2 << 3 | _BYTES
_ENTRY_KEY, _ENTRY_VALUE = 1 << 3 | _BYTES, 2 << 3 | _BYTES

_64_BITS = (1 << 64) - 1
_read_double = struct.Struct("<d").unpack_from


class DamagedError(ValueError):
    """The bytes are no protobuf."""


class HeroicProto(HeroicFormat):
    """A batch of points for Heroic's consumers."""

    name = "heroic-proto"
    example = bytes.fromhex(
        "32480a300a0673797374656d108090a7f0ea251900050164454022090a04686f7374120161220b0a04776861741203637075"
    )
    framing = Framing.NONE

    def __init__(self, remembered: int = 200_000) -> None:
        """A format that keeps so many series in memory."""
        self._series: LruCache[bytes, Series] = LruCache(remembered)

    def plain(self, text: bytes) -> bytes:
        """The batch in a raw Snappy block.

        Raises:
          RefusedError: CORRUPT_MESSAGE.
        """
        try:
            size, _ = _varint(text, 0)
            if size > LARGEST_BATCH:
                raise DamagedError(f"{size} bytes; at most {LARGEST_BATCH} are read")
            batch: bytes = pa.decompress(text, size, codec="snappy", asbytes=True)
        except (DamagedError, IndexError, OSError) as error:
            raise RefusedError(Reason.CORRUPT_MESSAGE, f"no raw Snappy block: {error}") from error
        return batch

    def read(self, text: bytes, start: int, end: int, points: Gatherer) -> None:
        """See `HeroicFormat.read`."""
        known: dict[bytes, int] = {}
        at = start
        while at < end:
            start = at
            try:
                field, at = _varint(text, at)
                first, at = _end(text, field, at, end)
            except (DamagedError, IndexError) as error:
                why = f"damaged batch: {error}; its metrics before are stored"
                points.refuse(RefusedError(Reason.CORRUPT_MESSAGE, why), start, end)
                return
            if field != _METRIC:
                continue
            try:
                series, time, value = _metric(text, first, at)
                check_time(time)
                number = known.get(series)
                if number is None:
                    number = known[series] = points.number_of(self._series_of(series))
                points.add(number, time, value, start, at)
            except RefusedError as error:
                points.refuse(error, start, at)

    def _series_of(self, fields: bytes) -> Series:
        """See `_series`; remembered."""
        series = self._series.get(fields)
        if series is None:
            series = self._series[fields] = _series(fields)
        return series


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(the unsigned number that begins at a place, where it ends).

    Raises:
      DamagedError: it has more than 10 bytes.
      IndexError: it does not end in the bytes.
    """
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    number = shift = 0
    while byte > 0x7F:
        number |= (byte & 0x7F) << shift
        shift += 7
        if shift > 63:
            raise DamagedError("a number of more than 64 bits")
        at += 1
        byte = data[at]
    return number | byte << shift, at + 1


def _end(text: bytes, field: int, at: int, limit: int) -> tuple[int, int]:
    """(where the content of a field begins, where it ends), the field's number and type being read.

    Raises:
      DamagedError: it ends behind `limit`, or no field has such a type.
    """
    wire_type = field & 7
    if wire_type == _BYTES:
        size, at = _varint(text, at)
        end = at + size
    elif wire_type == _FIXED64:
        end = at + 8
    elif wire_type == _FIXED32:
        end = at + 4
    elif wire_type == _VARINT:
        _, end = _varint(text, at)
    else:
        raise DamagedError(f"a field of type {wire_type}")
    if end > limit or field < 8:
        raise DamagedError("a field ends behind it" if field >= 8 else "a field of number 0")
    return at, end


def _metric(text: bytes, at: int, end: int) -> tuple[bytes, int, Value]:
    """(key, tags and resources as they are encoded, time in ms, value) of a metric.

    Raises:
      RefusedError: CORRUPT_MESSAGE, EMPTY_VALUE, BAD_NUMBER.
    """
    series: list[bytes] = []
    time, value = 0, 0.0
    typed: Value | None = None
    has_typed = False
    try:
        while at < end:
            start = at
            field = text[at]
            at += 1
            if field > 0x7F:
                field, at = _varint(text, start)
            if field in _OF_SERIES:
                size = text[at]
                at += 1
                if size > 0x7F:
                    size, at = _varint(text, at - 1)
                at += size
                series.append(text[start:at])
            elif field == _VALUE:
                (value,) = _read_double(text, at)
                at += 8
            elif field == _TIME:
                time, at = _varint(text, at)
            else:
                first, at = _end(text, field, at, end)
                if field == _TYPED_VALUE:
                    has_typed = True
                    typed = _typed_value(text, first, at, typed)
    except (DamagedError, IndexError, struct.error) as error:
        raise RefusedError(Reason.CORRUPT_MESSAGE, f"damaged metric: {error}") from error
    if at != end:
        raise RefusedError(Reason.CORRUPT_MESSAGE, "damaged metric: its fields do not end where it ends")
    if has_typed:
        if typed is None:
            raise RefusedError(Reason.EMPTY_VALUE, "Empty value: neither a double nor a distribution is set")
        found: Value = typed
    else:
        found = value
    if not isinstance(found, bytes):
        check_number(found)
    time &= _64_BITS
    return b"".join(series), time - (time >> 63 << 64), found


def _typed_value(text: bytes, at: int, end: int, before: Value | None) -> Value | None:
    """What a `Value` message sets, else what an earlier one set."""
    found = before
    while at < end:
        field, at = _varint(text, at)
        first, at = _end(text, field, at, end)
        if field == _DOUBLE:
            (found,) = _read_double(text, first)
        elif field == _DISTRIBUTION:
            found = text[first:at]
    if at != end:
        raise DamagedError("a value's fields do not end where it ends")
    return found


def _series(fields: bytes) -> Series:
    """The series of a metric's key, tags and resources as they are encoded.

    Raises:
      RefusedError: CORRUPT_MESSAGE, BAD_ENCODING, DUPLICATE_TAG.
    """
    metric = b""
    maps: dict[int, list[tuple[str, str]]] = {_TAG: [], _RESOURCE: []}
    at = 0
    try:
        while at < len(fields):
            field, at = _varint(fields, at)
            first, at = _end(fields, field, at, len(fields))
            if field == _KEY:
                metric = fields[first:at]
            else:
                maps[field].append(_entry(fields[first:at]))
        return series_of(metric.decode(), maps[_TAG], maps[_RESOURCE])
    except UnicodeDecodeError as error:
        raise RefusedError(Reason.BAD_ENCODING, f"a text that is not UTF-8: {error.object[:40]!r}") from error
    except (DamagedError, IndexError) as error:
        raise RefusedError(Reason.CORRUPT_MESSAGE, f"damaged metric: {error}") from error


def _entry(entry: bytes) -> tuple[str, str]:
    """A tag or resource; a name or value that is absent is empty."""
    key = value = b""
    at = 0
    while at < len(entry):
        field, at = _varint(entry, at)
        first, at = _end(entry, field, at, len(entry))
        if field == _ENTRY_KEY:
            key = entry[first:at]
        elif field == _ENTRY_VALUE:
            value = entry[first:at]
    return key.decode(), value.decode()
