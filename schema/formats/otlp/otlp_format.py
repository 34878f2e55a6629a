"""Message format `otlp`: `ExportMetricsServiceRequest` of OpenTelemetry, as protobuf or as JSON.

    ExportMetricsServiceRequest { repeated ResourceMetrics resource_metrics = 1; }
    ResourceMetrics { Resource resource = 1; repeated ScopeMetrics scope_metrics = 2; }
    Resource        { repeated KeyValue attributes = 1; }
    ScopeMetrics    { InstrumentationScope scope = 1; repeated Metric metrics = 2; }
    Metric          { string name = 1; Gauge gauge = 5; Sum sum = 7; Histogram histogram = 9;
                      ExponentialHistogram exponential_histogram = 10; Summary summary = 11; }
    Gauge, Sum, ... { repeated NumberDataPoint data_points = 1; AggregationTemporality = 2; }
    NumberDataPoint { fixed64 time_unix_nano = 3; double as_double = 4; sfixed64 as_int = 6;
                      repeated KeyValue attributes = 7; uint32 flags = 8; }

Source: opentelemetry/proto/metrics/v1/metrics.proto, 1.x. The messages of each level are scanned together. A
series is cached by its resource, scope and metric, and the bytes of its attributes. The payload of a
rejection is the `ResourceMetrics`, which is a request; it lists the data points in it that are rejected.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from timebeam.schema.bits.arrays import Int64s, Kind
from timebeam.schema.bits.lru_cache import LruCache
from timebeam.schema.bits.memory_limit import POINT_BYTES, charge, charge_fields, charge_series, text_bytes
from timebeam.schema.bits.protobuf import BYTES, FIXED64, VARINT, ProtoError, encoded_bytes, field_contents
from timebeam.schema.bits.protobuf_columns import (
    CorruptMessagesError,
    Fields,
    field_bytes,
    fixed64,
    scan,
    varints,
)
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.points import Series
from timebeam.schema.core.rejections import Spans
from timebeam.schema.formats.base import Framing, Message
from timebeam.schema.formats.cached_series import Outcome, SampleGatherer, Samples, bounded_key
from timebeam.schema.formats.options import DEFAULTS, OPENTSDB, PARTS, FormatOptions
from timebeam.schema.formats.otlp.data_points import (
    FIRST,
    KINDS,
    Levels,
    MetricKind,
    Reader,
    levels_of,
    read_attributes,
    spans_of,
)
from timebeam.schema.formats.otlp.json_requests import encoded_request
from timebeam.schema.formats.whole_format import WholeFormat

T = TypeVar("T")

DELTA_TAG = ("otel.temporality", "delta")
"""What keeps series of deltas apart from cumulative ones."""

_CHOICES = (*PARTS, OPENTSDB)

_TEMPORALITY = 2 << 3 | VARINT
_TIME, _DOUBLE, _INT = 3 << 3 | FIXED64, 4 << 3 | FIXED64, 6 << 3 | FIXED64
_DELTA = 1
_NS_PER_MS = np.uint64(1_000_000)


class Otlp(WholeFormat):
    """Requests of OTLP for metrics.

    >>> from timebeam.schema.formats.base import Message
    >>> batch = Otlp().parse(Message(Otlp.example, arrival_ms=0)).batch
    >>> str(batch.series[0]), batch.times_ms.tolist(), batch.value(0)
    ('memory{host.name=web01}', [1356998400000], 42.5)
    """

    name = "otlp"
    escapes_names = True
    framing = Framing.DELIMITED
    example = bytes.fromhex(
        "0a3a0a160a140a09686f73742e6e616d6512070a0577656230311220121e0a066d656d6f72792a140a12190000c6e8da"
        "06d512210000000000404540"
    )

    def __init__(self, options: FormatOptions = DEFAULTS) -> None:
        super().__init__(options)
        resource = options.otlp_resource
        self._resource = None if resource == "all" else frozenset(resource.split(",")) - {"none"}
        self._histogram_id = options.checked_histogram_id()
        self._parts = options.otlp_histogram.split(",")
        for part in self._parts:
            if part not in _CHOICES:
                raise ValueError(f"otlp_histogram: {part!r} is none of {', '.join(_CHOICES)}")
        self._contexts: LruCache[Hashable, int] = LruCache(options.remembered)
        self._new_context = itertools.count(1)

    def split(self, message: Message) -> Iterator[Message]:
        """See `WholeFormat.split`: lines of JSON are a request each."""
        if message.text[:1] == b"{" and b"\n" in message.text.strip():
            lines = message.text.split(b"\n")
            if all(line.startswith(b"{") and line.rstrip().endswith(b"}") for line in lines if line.strip()):
                offset = message.offset
                for line in lines:
                    if line.strip():
                        yield dataclasses.replace(message, text=line, offset=offset)
                    offset += len(line) + 1
                return
        yield message

    def plain(self, text: bytes) -> bytes:
        """See `WholeFormat.plain`: JSON as protobuf."""
        return encoded_request(text) if text.lstrip()[:1] == b"{" else text

    def samples(self, padded: bytes, starts: Int64s, ends: Int64s, skipped: Counter[str]) -> Samples:
        levels = levels_of(padded, starts, ends)
        metrics = levels.metrics
        fields = scan(padded, metrics.firsts, metrics.ends)
        names = [b""] * len(metrics)
        for metric, first, end in spans_of(fields.of(FIRST)):
            names[metric] = padded[first:end]
        groups = [self._points(padded, levels, names, kind, fields.of(kind.tag), skipped) for kind in KINDS]
        samples = Samples.join([group for group in groups if group is not None])
        return dataclasses.replace(samples, wholes=levels.wholes)

    def _points(
        self,
        padded: bytes,
        levels: Levels,
        names: Sequence[bytes],
        kind: MetricKind,
        data: Fields,
        skipped: Counter[str],
    ) -> Samples | None:
        """The samples of metrics of one kind; None if there are none."""
        if not len(data):
            return None
        content = scan(padded, data.firsts, data.ends)
        points = content.of(FIRST)
        charge(len(points) * POINT_BYTES)
        temporality = np.zeros(len(data), np.int64)
        stated = content.of(_TEMPORALITY)
        temporality[stated.message] = varints(padded, stated.firsts, stated.ends)
        contexts = self._context_numbers(levels, names, kind, data.message, temporality.tolist())
        fields = scan(padded, points.firsts, points.ends, run_tag=kind.attributes << 3 | BYTES)
        n = len(points)
        attributes = field_bytes(padded, fields.of(kind.attributes << 3 | BYTES), n)
        numbers = contexts[points.message]
        keys = list(zip(numbers.tolist(), attributes, strict=True))

        def read(number: int) -> Outcome:
            each = int(points.message[number])
            metric = int(data.message[each])
            resource, scope = levels.scopes[int(levels.metrics.message[metric])]
            is_delta = kind.has_temporality and int(temporality[each]) == _DELTA
            if kind.has_temporality and not 1 <= int(temporality[each]) <= 2:
                why = f"metric {names[metric][:200]!r} is neither cumulative nor of deltas"
                return RejectedError(Reason.VALUE_NOT_STORABLE, why)
            return self._read_series(
                levels, resource, scope, names[metric], attributes[number], is_delta=is_delta
            )

        outcomes = self._series.outcomes(keys, read)
        time_fields = fields.of(_TIME)
        times_ms = np.zeros(n, np.int64)
        times_ms[time_fields.message] = (
            fixed64(padded, time_fields.firsts).view(np.uint64) // _NS_PER_MS
        ).view(np.int64)
        spans = points.starts, points.ends
        absent = np.zeros(n, np.bool_)
        flags = fields.of(kind.flags << 3 | VARINT)
        if len(flags):
            absent[flags.message] = (varints(padded, flags.firsts, flags.ends) & 1).astype(np.bool_)
            skipped["no_recorded_values"] += int(np.count_nonzero(absent))
        if kind.read is None:
            return _numbers(padded, fields, outcomes, times_ms, absent, spans)
        recorded = np.flatnonzero(~absent)
        return self._gathered(padded, kind.read, points, recorded.tolist(), outcomes, times_ms, spans)

    def _gathered(
        self,
        padded: bytes,
        read: Reader,
        points: Fields,
        recorded: Sequence[int],
        outcomes: Sequence[Outcome],
        times_ms: Int64s,
        spans: Spans,
    ) -> Samples:
        """The samples of n histograms or summaries, of those that have the numbers `recorded`.

        Args:
          outcomes, times_ms, spans: n of each: the series, the time, and the span of the record.

        Raises:
          CorruptMessagesError: one is no message.
        """
        gatherer = SampleGatherer(self._series, self._histogram_id)
        corrupt: list[int] = []
        firsts, ends = points.firsts.tolist(), points.ends.tolist()
        for number in recorded:
            span = int(spans[0][number]), int(spans[1][number])
            try:
                values = read(padded[firsts[number] : ends[number]], self._parts)
                gatherer.add(outcomes[number], int(times_ms[number]), values, span)
            except ProtoError:
                corrupt.append(span[0])
            except RejectedError as error:
                gatherer.reject(error, span)
        if corrupt:
            raise CorruptMessagesError(np.array(corrupt, np.int64), "a corrupt histogram or summary")
        return gatherer.finish()

    def _context_numbers(
        self,
        levels: Levels,
        names: Sequence[bytes],
        kind: MetricKind,
        metrics: Int64s,
        temporality: Sequence[int],
    ) -> Int64s:
        """int64[k]: of each metric a number that its resource, scope, name and temporality alone have."""
        numbers = []
        scope_of = levels.metrics.message.tolist()
        resources = list(map(bounded_key, levels.resources))
        scopes = [bounded_key(scope) for _, scope in levels.scopes]
        for metric, state in zip(metrics.tolist(), temporality, strict=True):
            key = (
                resources[levels.scopes[scope_of[metric]][0]],
                scopes[scope_of[metric]],
                bounded_key(names[metric]),
                kind.has_temporality and state,
            )
            number = self._contexts.get(key)
            if number is None:
                number = self._contexts[key] = next(self._new_context)
            numbers.append(number)
        return np.array(numbers, np.int64)

    def _read_series(
        self, levels: Levels, resource: int, scope: bytes, name: bytes, attributes: bytes, *, is_delta: bool
    ) -> Outcome:
        """The series of a resource, by its number, a scope, a metric and encoded attributes."""
        if is_delta and self._options.otlp_delta == "reject":
            why = f"metric {name[:99]!r} has deltas: let the sender make them cumulative, or --otlp-delta tag"
            return RejectedError(Reason.VALUE_NOT_STORABLE, why)
        resources = levels.kept.get(resource)
        if resources is None:
            kept = functools.partial(self._kept_attributes, levels.resources[resource])
            resources = levels.kept[resource] = _or_rejected(kept)
        own = _or_rejected(functools.partial(self._own_names, scope, name, attributes))
        if isinstance(resources, RejectedError) or isinstance(own, RejectedError):
            return resources if isinstance(resources, RejectedError) else own  # type: ignore[return-value]
        metric, tags = own
        if not metric:
            return RejectedError(Reason.BAD_METRIC, "a metric without a name")
        if is_delta:
            tags[DELTA_TAG[0]] = DELTA_TAG[1]
        texts = text_bytes(itertools.chain(resources.items(), tags.items()))
        charge_series(len(metric) + texts, len(resources) + len(tags))
        if self._options.resources:
            return Series.of(metric, tags, resources)
        return Series.of(metric, resources | tags)

    def _own_names(self, scope: bytes, name: bytes, attributes: bytes) -> tuple[str, dict[str, str]]:
        """(metric, tags) without those of the resource; raises as `read_attributes` does."""
        tags = read_attributes(attributes)
        if self._options.otlp_scope:
            scope_name = dict(field_contents(scope)).get(FIRST, b"").decode()
            if scope_name:
                tags.setdefault("otel.scope.name", scope_name)
        return name.decode(), tags

    def _kept_attributes(self, resource: bytes) -> dict[str, str]:
        """The attributes of a resource that are kept; raises as `read_attributes` does."""
        charge_fields(len(resource))
        pairs = [encoded_bytes(1, pair) for tag, pair in field_contents(resource) if tag == FIRST]
        attributes = read_attributes(b"".join(pairs))
        return {
            key: value for key, value in attributes.items() if self._resource is None or key in self._resource
        }


def _or_rejected(read: Callable[[], T]) -> T | RejectedError:
    """What `read` returns, or why its bytes are rejected."""
    try:
        return read()
    except (ProtoError, IndexError) as error:
        return RejectedError(Reason.CORRUPT_MESSAGE, f"corrupt attributes: {error}")
    except UnicodeDecodeError as error:
        return RejectedError(Reason.BAD_ENCODING, f"a string that is not UTF-8: {error.object[:40]!r}")
    except RejectedError as error:
        return error.with_traceback(None)


def _numbers(
    padded: bytes,
    fields: Fields,
    outcomes: list[Outcome],
    times_ms: Int64s,
    absent: np.ndarray[Any, np.dtype[np.bool_]],
    spans: Spans,
) -> Samples:
    """The samples of number data points; each is one of its series."""
    values = fields.take((fields.tags == _DOUBLE) | (fields.tags == _INT))
    n = len(outcomes)
    bits, tags = np.zeros(n, np.int64), np.zeros(n, np.int64)
    bits[values.message], tags[values.message] = fixed64(padded, values.firsts), values.tags
    kinds = np.where(tags == _INT, Kind.INTEGER, Kind.FLOAT).astype(np.uint8)
    index = np.arange(n)
    empty = (tags == 0) & ~absent
    if empty.any():
        index[empty] = n
        outcomes = [*outcomes, RejectedError(Reason.EMPTY_VALUE, "a data point without a value")]
    samples = Samples(outcomes, index, times_ms, kinds, bits, *spans)
    return samples.take(np.flatnonzero(~absent)) if absent.any() else samples
