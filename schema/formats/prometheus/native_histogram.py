"""Native histograms of remote write: sparse exponential buckets, or buckets with custom bounds.

    message Histogram  { uint64 count_int = 1; double count_float = 2; double sum = 3; sint32 schema = 4;
                         double zero_threshold = 5; uint64 zero_count_int = 6; double zero_count_float = 7;
                         repeated BucketSpan negative_spans = 8; repeated sint64 negative_deltas = 9;
                         repeated double negative_counts = 10; repeated BucketSpan positive_spans = 11;
                         repeated sint64 positive_deltas = 12; repeated double positive_counts = 13;
                         int64 timestamp = 15; repeated double custom_values = 16; }
    message BucketSpan { sint32 offset = 1; uint32 length = 2; }

Source: as in `remote_write`, and prometheus.io/docs/specs/native_histograms. Prometheus' bucket i ends at
2**(i * 2**-schema), one less than OpenTelemetry's.
"""

from __future__ import annotations

import dataclasses
import itertools
import struct
from collections.abc import Iterator, Mapping, Sequence

from timebeam.schema.bits.memory_limit import charge_fields
from timebeam.schema.bits.protobuf import (
    BYTES,
    FIXED64,
    VARINT,
    ProtoError,
    field_contents,
    fields,
    signed,
    unpacked_varints,
)
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.histograms import SPARSE_BUCKETS, SeriesPoint, cumulated, explicit, sparse

_CUSTOM = -53
_STALE = struct.pack("<Q", 0x7FF0000000000002)


@dataclasses.dataclass(frozen=True, slots=True)
class NativeHistogram:
    """A histogram: the numbers in its fields, by number, unpacked."""

    numbers: Mapping[int, Sequence[int | float]]
    spans: Mapping[int, Sequence[tuple[int, int]]]
    is_stale: bool

    @property
    def time_ms(self) -> int:
        time = int(self._last(15))
        return time - (time >> 63 << 64)

    def points(self) -> Iterator[SeriesPoint]:
        """Its count, its sum and its cumulated buckets.

        Raises:
          RejectedError: its buckets make no sense.
        """
        count = self._last(1) or self._last(2)
        yield SeriesPoint("_count", None, float(count))
        yield SeriesPoint("_sum", None, float(self._last(3)))
        schema = signed(int(self._last(4)))
        positive = self._counts(11, 12, 13)
        if schema == _CUSTOM:
            bounds = [float(bound) for bound in self.numbers.get(16, ())]
            buckets = explicit(bounds, [positive.get(index, 0.0) for index in range(len(bounds) + 1)])
        else:
            zero = float(self._last(6) or self._last(7))
            negative = self._counts(8, 9, 10)
            buckets = sparse(schema, _shifted(positive), _shifted(negative), zero, float(self._last(5)))
        yield from cumulated(buckets, float(count))

    def _last(self, number: int) -> int | float:
        """The number in a field that is not repeated."""
        return self.numbers.get(number, (0,))[-1]

    def _counts(self, spans: int, deltas: int, counts: int) -> dict[int, float]:
        """The counts of buckets by their index, from the fields of these numbers."""
        lengths = sum(length for _, length in self.spans.get(spans, ()))
        if lengths > SPARSE_BUCKETS:
            raise RejectedError(
                Reason.VALUE_NOT_STORABLE, f"a histogram of more than {SPARSE_BUCKETS} buckets"
            )
        values: Sequence[float] = [float(count) for count in self.numbers.get(counts, ())]
        if deltas in self.numbers:
            values = list(itertools.accumulate(signed(int(delta)) for delta in self.numbers[deltas]))
        if len(values) != lengths:
            why = f"a histogram with {len(values)} counts of {lengths} buckets"
            raise RejectedError(Reason.VALUE_NOT_STORABLE, why)
        indexes: list[int] = []
        index = 0
        for offset, length in self.spans.get(spans, ()):
            index += offset
            indexes += range(index, index + length)
            index += length
        return dict(zip(indexes, values, strict=True))


def read_histogram(message: bytes) -> NativeHistogram:
    """The histogram in a message.

    Raises:
      ProtoError: it is corrupt.
    """
    charge_fields(len(message))
    numbers: dict[int, list[int | float]] = {}
    spans: dict[int, list[tuple[int, int]]] = {}
    is_stale = False
    for field, content in field_contents(message):
        number, kind = field >> 3, field & 7
        values = numbers.setdefault(number, [])
        if number in (8, 11) and kind == BYTES:
            span = {key >> 3: value for key, value in fields(content) if isinstance(value, int)}
            spans.setdefault(number, []).append((signed(span.get(1, 0)), span.get(2, 0)))
        elif kind == FIXED64 or (kind == BYTES and number in (10, 13, 16)):
            if len(content) % 8:
                raise ProtoError("packed doubles are not a multiple of 8 bytes")
            values += (value for (value,) in struct.iter_unpack("<d", content))
            is_stale |= number == 3 and content == _STALE
        elif kind in (VARINT, BYTES):
            values += (value & 0xFFFFFFFFFFFFFFFF for value in unpacked_varints(content))
    return NativeHistogram({number: values for number, values in numbers.items() if values}, spans, is_stale)


def _shifted(counts: Mapping[int, float]) -> dict[int, float]:
    """Counts by OpenTelemetry's index of their bucket."""
    return {index - 1: count for index, count in counts.items()}
