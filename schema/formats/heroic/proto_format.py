"""Message format `heroic-proto`: Spotify100Proto, a raw Snappy block of a protobuf `Batch`.

    message Batch  { repeated Metric metric = 1; }
    message Metric { string key = 1; int64 time = 2; double value = 3; map<string, string> tags = 4;
                     map<string, string> resource = 5; Value distribution_type_value = 6; }
    message Value  { oneof value { double double_value = 1; bytes distribution_value = 2; } }

Source: spotify_100.proto of spotify/heroic 9a021a7a (docs/spec/heroic.md §7). A generated reader would reject
a whole batch for one bad metric and not tell the position of a metric, so this module reads the bytes
itself. The payload of a rejection is the metric as in the batch, which is an uncompressed batch of one
metric: it is read too, so that a dead letter can be replayed.
"""

from __future__ import annotations

import math
import struct

from timebeam.schema.bits.compression import snappy
from timebeam.schema.bits.lru_cache import CACHED_BYTES, LruCache
from timebeam.schema.bits.memory_limit import charge_fields, charge_series
from timebeam.schema.bits.protobuf import BYTES, FIXED64, VARINT, ProtoError, end_of, varint
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.points import Series
from timebeam.schema.formats.base import NOT_FINITE, Framing
from timebeam.schema.formats.heroic.heroic_points import (
    HeroicFormat,
    HeroicGatherer,
    HeroicValue,
    check_number,
    check_time,
    series_of,
)
from timebeam.schema.formats.options import DEFAULTS, FormatOptions

_METRIC = 1 << 3 | BYTES
_KEY, _TIME, _VALUE = 1 << 3 | BYTES, 2 << 3 | VARINT, 3 << 3 | FIXED64
_TAG, _RESOURCE, _TYPED_VALUE = 4 << 3 | BYTES, 5 << 3 | BYTES, 6 << 3 | BYTES
_OF_SERIES = frozenset((_KEY, _TAG, _RESOURCE))
_DOUBLE, _DISTRIBUTION = 1 << 3 | FIXED64, 2 << 3 | BYTES
_ENTRY_KEY, _ENTRY_VALUE = 1 << 3 | BYTES, 2 << 3 | BYTES

_64_BITS = (1 << 64) - 1
_read_double = struct.Struct("<d").unpack_from


class HeroicProto(HeroicFormat):
    """Batches of points for Heroic's consumers.

    >>> from timebeam.schema.formats.base import Message
    >>> batch = HeroicProto().parse(Message(HeroicProto.example, arrival_ms=0)).batch
    >>> str(batch.series[0]), batch.times_ms.tolist(), batch.value(0)
    ('system{host=a,what=cpu}', [1300000000000], 42.0)
    """

    name = "heroic-proto"
    example = bytes.fromhex(
        "32480a300a0673797374656d108090a7f0ea251900050164454022090a04686f7374120161220b0a04776861741203637075"
    )
    framing = Framing.NONE
    separator = b""

    def __init__(self, options: FormatOptions = DEFAULTS) -> None:
        super().__init__(options)
        self._series: LruCache[bytes, Series] = LruCache(options.remembered)

    def plain(self, text: bytes) -> bytes:
        """The batch in a raw Snappy block, or an uncompressed batch of one metric.

        Raises:
          RejectedError: CORRUPT_MESSAGE.
        """
        if _is_one_metric(text):
            return text
        try:
            return snappy(text)
        except (ProtoError, IndexError, OSError) as error:
            raise RejectedError(Reason.CORRUPT_MESSAGE, f"no raw Snappy block: {error}") from error

    def read(self, text: bytes, start: int, end: int, points: HeroicGatherer) -> None:
        numbers: dict[bytes, int] = {}
        position = start
        while position < end:
            start = position
            try:
                field, position = varint(text, position)
                first, position = end_of(text, field, position, end)
            except (ProtoError, IndexError) as error:
                why = f"corrupt batch: {error}; its metrics before are stored"
                points.reject(RejectedError(Reason.CORRUPT_MESSAGE, why), start, end)
                return
            if field != _METRIC:
                continue
            charge_fields(position - first)
            try:
                series, time, value = _metric(text, first, position)
                if not isinstance(value, bytes):
                    if self.skips_nan and not math.isfinite(value):
                        points.skipped[NOT_FINITE] += 1
                        continue
                    check_number(value)
                check_time(time)
                number = numbers.get(series)
                if number is None:
                    number = numbers[series] = points.number_of(self._series_of(series))
                points.add(number, time, value, start, position)
            except RejectedError as error:
                points.reject(error, start, position)

    def _series_of(self, fields: bytes) -> Series:
        """See `_series`; cached."""
        series = self._series.get(fields)
        if series is None:
            series = _series(fields)
            charge_series(len(fields), len(series.tags) + len(series.resources))
            if len(fields) <= CACHED_BYTES:
                self._series[fields] = series
        return series


def _is_one_metric(text: bytes) -> bool:
    """Whether bytes are one field with a metric: no Snappy block that a compressor makes is.

    A block that begins like the field is of a batch of 10 bytes, too short for a time of today.
    """
    try:
        field, position = varint(text, 0)
        return field == _METRIC and end_of(text, field, position, len(text))[1] == len(text)
    except (ProtoError, IndexError):
        return False


def _metric(text: bytes, position: int, end: int) -> tuple[bytes, int, HeroicValue]:
    """(encoded key, tags and resources, time in ms, value) of a metric.

    Raises:
      RejectedError: CORRUPT_MESSAGE, EMPTY_VALUE.
    """
    series: list[bytes] = []
    time, value = 0, 0.0
    typed: HeroicValue | None = None
    has_typed = False
    try:
        while position < end:
            start = position
            field = text[position]
            position += 1
            if field > 0x7F:
                field, position = varint(text, start)
            if field in _OF_SERIES:
                size = text[position]
                position += 1
                if size > 0x7F:
                    size, position = varint(text, position - 1)
                position += size
                series.append(text[start:position])
            elif field == _VALUE:
                (value,) = _read_double(text, position)
                position += 8
            elif field == _TIME:
                time, position = varint(text, position)
            else:
                first, position = end_of(text, field, position, end)
                if field == _TYPED_VALUE:
                    has_typed = True
                    typed = _typed_value(text, first, position, typed)
    except (ProtoError, IndexError, struct.error) as error:
        raise RejectedError(Reason.CORRUPT_MESSAGE, f"corrupt metric: {error}") from error
    if position != end:
        raise RejectedError(Reason.CORRUPT_MESSAGE, "corrupt metric: its fields do not end where it ends")
    if has_typed:
        if typed is None:
            raise RejectedError(Reason.EMPTY_VALUE, "Empty value: neither a double nor a distribution is set")
        metric_value: HeroicValue = typed
    else:
        metric_value = value
    time &= _64_BITS
    return b"".join(series), time - (time >> 63 << 64), metric_value


def _typed_value(text: bytes, position: int, end: int, before: HeroicValue | None) -> HeroicValue | None:
    """The value that a `Value` message sets; else `before`."""
    value = before
    while position < end:
        field, position = varint(text, position)
        first, position = end_of(text, field, position, end)
        if field == _DOUBLE:
            (value,) = _read_double(text, first)
        elif field == _DISTRIBUTION:
            value = text[first:position]
    if position != end:
        raise ProtoError("a value's fields do not end where it ends")
    return value


def _series(fields: bytes) -> Series:
    """The series of an encoded key, tags and resources.

    Raises:
      RejectedError: CORRUPT_MESSAGE, BAD_ENCODING, DUPLICATE_TAG.
    """
    metric = b""
    maps: dict[int, list[tuple[str, str]]] = {_TAG: [], _RESOURCE: []}
    position = 0
    try:
        while position < len(fields):
            field, position = varint(fields, position)
            first, position = end_of(fields, field, position, len(fields))
            if field == _KEY:
                metric = fields[first:position]
            else:
                maps[field].append(_entry(fields[first:position]))
        return series_of(metric.decode(), maps[_TAG], maps[_RESOURCE])
    except UnicodeDecodeError as error:
        raise RejectedError(
            Reason.BAD_ENCODING, f"a string that is not UTF-8: {error.object[:40]!r}"
        ) from error
    except (ProtoError, IndexError) as error:
        raise RejectedError(Reason.CORRUPT_MESSAGE, f"corrupt metric: {error}") from error


def _entry(entry: bytes) -> tuple[str, str]:
    """A tag or resource; a missing name or value is empty."""
    key = value = b""
    position = 0
    while position < len(entry):
        field, position = varint(entry, position)
        first, position = end_of(entry, field, position, len(entry))
        if field == _ENTRY_KEY:
            key = entry[first:position]
        elif field == _ENTRY_VALUE:
            value = entry[first:position]
    return key.decode(), value.decode()
