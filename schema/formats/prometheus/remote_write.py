"""Message format `prometheus-remote-write`: versions 1.0 and 2.0, packed by Snappy, zstd, gzip or not at all.

    message WriteRequest { repeated TimeSeries timeseries = 1; repeated MetricMetadata metadata = 3; }
    message TimeSeries   { repeated Label labels = 1; repeated Sample samples = 2;
                           repeated Exemplar exemplars = 3; repeated Histogram histograms = 4; }
    message Label        { string name = 1; string value = 2; }
    message Sample       { double value = 1; int64 timestamp = 2; }

    message Request      { repeated string symbols = 4; repeated TimeSeries timeseries = 5; }
    message TimeSeries   { repeated uint32 labels_refs = 1; repeated Sample samples = 2;
                           repeated Histogram histograms = 3; repeated Exemplar exemplars = 4;
                           Metadata metadata = 5; }

Source: prometheus.io/docs/specs/prw; prompb/types.proto and prompb/io/prometheus/write/v2/types.proto of
Prometheus 3. Read as the wrong version a message is empty: its fields tell the version.

In files each request is behind its length, packed or not.

A series of version 1.0 is a message of one series, so it is the payload of rejections. The series of version
2.0 refer to the symbols of their message, so the payload is the whole message, with a list of the series that
are rejected.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Hashable

import numpy as np

from timebeam.schema.bits.arrays import Int64s, Kind
from timebeam.schema.bits.compression import compression, snappy, unpack
from timebeam.schema.bits.lru_cache import LruCache
from timebeam.schema.bits.memory_limit import charge_fields, charge_series
from timebeam.schema.bits.protobuf import BYTES, FIXED64, VARINT, ProtoError, field_contents
from timebeam.schema.bits.protobuf_columns import (
    CorruptMessagesError,
    Fields,
    field_bytes,
    fixed64,
    packed_varints,
    scan,
    varints,
)
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.points import FIRST_MILLISECOND, LAST_MILLISECOND, Series, add_tag
from timebeam.schema.core.rejections import Spans
from timebeam.schema.formats.base import Framing
from timebeam.schema.formats.cached_series import Outcome, SampleGatherer, Samples, bounded_key
from timebeam.schema.formats.options import DEFAULTS, FormatOptions
from timebeam.schema.formats.prometheus.native_histogram import read_histogram
from timebeam.schema.formats.prometheus.plain_series import SERIES_1, plain_requests, plain_series
from timebeam.schema.formats.whole_format import WholeFormat

STALE = 0x7FF0000000000002
"""The bits of the value that says that a series has ended."""

_QUICK_BYTES = 1 << 20
"""The longest request that `good_points` reads, unpacked."""

_METADATA_1 = 3 << 3 | BYTES
_SYMBOL_2, _SERIES_2 = 4 << 3 | BYTES, 5 << 3 | BYTES
_VERSION = np.zeros(256, np.int64)
_VERSION[[SERIES_1, _METADATA_1]], _VERSION[[_SYMBOL_2, _SERIES_2]] = 1, 2

_LABEL, _SAMPLE = 1 << 3 | BYTES, 2 << 3 | BYTES
_HISTOGRAM = {1: 4 << 3 | BYTES, 2: 3 << 3 | BYTES}
_EXEMPLAR = {1: 3 << 3 | BYTES, 2: 4 << 3 | BYTES}
_METADATA_2 = 5 << 3 | BYTES
_VALUE, _TIME = 1 << 3 | FIXED64, 2 << 3 | VARINT


class RemoteWrite(WholeFormat):
    """Requests of Prometheus' remote write.

    >>> from timebeam.schema.formats.base import Message
    >>> batch = RemoteWrite().parse(Message(RemoteWrite.example, arrival_ms=0)).batch
    >>> str(batch.series[0]), batch.times_ms.tolist(), batch.value(0)
    ('memory{host=web01}', [1356998400000], 42.5)
    """

    name = "prometheus-remote-write"
    escapes_names = True
    skips_nan = True  # as stale markers: summaries without observations have NaN in each scrape
    framing = Framing.PROTOBUF
    example = bytes.fromhex(
        "37d80a350a120a085f5f6e616d655f5f12066d656d6f72790a0d0a04686f73741205776562303112100900000000004045"
        "401080b0a19bbf27"
    )

    def __init__(self, options: FormatOptions = DEFAULTS) -> None:
        super().__init__(options)
        self._symbols: LruCache[Hashable, int] = LruCache(options.remembered)
        self._new_symbol = itertools.count(1)

    def plain(self, text: bytes) -> bytes:
        """See `WholeFormat.plain`: its encoding is told by the content."""
        if encoding := compression(text):
            return unpack(encoding, text)
        try:
            return snappy(text)
        except (ProtoError, IndexError, OSError):
            return text  # a payload of a rejection, or corrupt

    def good_points(self, text: bytes) -> int | None:
        """See `MessageFormat.good_points`: of requests of version 1.0 with one sample of known series."""
        try:
            request = snappy(text, _QUICK_BYTES)
        except (ProtoError, IndexError, OSError):
            return None
        series = plain_requests(request, np.zeros(1, np.int64), np.full(1, len(request)))
        if series is None or set(map(type, self._series.known(series.label_keys(request)))) != {Series}:
            return None
        bits, times_ms = series.samples(request)
        in_range = (times_ms >= FIRST_MILLISECOND) & (times_ms <= LAST_MILLISECOND)
        return len(bits) if (in_range & np.isfinite(bits.view(np.float64))).all() else None

    def samples(self, padded: bytes, starts: Int64s, ends: Int64s, skipped: Counter[str]) -> Samples:
        plain = plain_requests(padded, starts, ends)
        top = scan(padded, starts, ends) if plain is None else plain.fields
        has = np.zeros((3, len(starts)), np.bool_)
        has[np.where(top.tags < 256, _VERSION[top.tags & 0xFF], 0), top.message] = True
        foreign = (has[1] == has[2]) & (ends > starts)
        if foreign.any():
            why = "neither a request of remote write 1.0 or 2.0, nor a Snappy block of one"
            raise CorruptMessagesError(starts[foreign], why)
        skipped["metadata"] += int(np.count_nonzero(top.tags == _METADATA_1))
        groups = []
        if has[1].any():
            groups.append(self._version_1(padded, top.of(SERIES_1), skipped))
        if has[2].any():
            groups.append(self._version_2(padded, top, starts, skipped))
        return dataclasses.replace(Samples.join(groups), wholes=(starts[has[2]], ends[has[2]]))

    def _version_1(self, padded: bytes, series: Fields, skipped: Counter[str]) -> Samples:
        """The samples of series of version 1.0; those of known labels and one sample are not scanned."""
        plain, numbers = plain_series(padded, series)
        outcomes = self._series.known(plain.label_keys(padded))
        is_known = np.array([outcome is not None for outcome in outcomes], np.bool_)
        known = plain.take(is_known)
        bits, times_ms = known.samples(padded)
        spans = known.fields.starts, known.fields.ends
        is_other = np.ones(len(series), np.bool_)
        is_other[numbers[is_known]] = False
        groups = [
            _samples(list(filter(None, outcomes)), np.arange(len(bits)), times_ms, bits, spans, skipped)
        ]
        if is_other.any():
            groups.append(self._scanned(padded, series.take(is_other), skipped))
        return Samples.join(groups)

    def _scanned(self, padded: bytes, series: Fields, skipped: Counter[str]) -> Samples:
        """The samples of series of version 1.0, after a look at each of their fields."""
        fields = scan(padded, series.firsts, series.ends, run_tag=_LABEL)
        keys = field_bytes(padded, fields.of(_LABEL), len(series))
        outcomes = self._series.outcomes(keys, lambda number: _encoded_series(keys[number]))
        return self._read(padded, fields, 1, outcomes, (series.starts, series.ends), skipped)

    def _version_2(self, padded: bytes, top: Fields, starts: Int64s, skipped: Counter[str]) -> Samples:
        """The samples of series of version 2.0."""
        series, symbols = top.of(_SERIES_2), top.of(_SYMBOL_2)
        fields = scan(padded, series.firsts, series.ends)
        refs = fields.of(_LABEL)
        unpacked = fields.message[fields.tags == (1 << 3 | VARINT)]
        if len(unpacked):  # no sender of version 2.0 does so
            raise CorruptMessagesError(starts[series.message[unpacked]], "labels_refs that are not packed")
        values, ref_counts, corrupt = packed_varints(padded, refs)
        if corrupt.any():
            raise CorruptMessagesError(starts[series.message[refs.message[corrupt]]], "corrupt labels_refs")
        owners = np.repeat(refs.message, ref_counts)
        counts = np.bincount(owners, minlength=len(series))
        symbol_counts = np.bincount(symbols.message, minlength=len(starts))
        of_message = series.message[owners]
        wrong = np.zeros(len(series), np.bool_)
        wrong[owners[(values < 0) | (values >= symbol_counts[of_message])]] = True
        values += (np.cumsum(symbol_counts) - symbol_counts)[of_message]
        wrong |= counts % 2 == 1
        texts = [padded[a:b] for a, b in zip(symbols.firsts.tolist(), symbols.ends.tolist(), strict=True)]
        texts = texts or [b""]  # the refs of wrong series become 0
        numbers = np.array([self._symbol_number(text) for text in texts], np.int64)
        values[wrong[owners]] = 0
        raw = numbers[values].tobytes().decode("latin-1")  # a string: keys of version 1.0 are any bytes
        bounds = np.concatenate([[0], np.cumsum(counts)]).tolist()
        keys = [raw[start * 8 : end * 8] for start, end in itertools.pairwise(bounds)]

        def labels(number: int) -> Outcome:
            names = [texts[ref] for ref in values[bounds[number] : bounds[number + 1]].tolist()]
            return _series(list(zip(names[::2], names[1::2], strict=False)))

        outcomes = self._series.outcomes(keys, labels)
        for number in np.flatnonzero(wrong).tolist():
            why = "labels_refs of a series: an odd number of them, or one of no symbol"
            outcomes[number] = RejectedError(Reason.BAD_TAG, why)
        skipped["metadata"] += int(np.count_nonzero(fields.tags == _METADATA_2))
        return self._read(padded, fields, 2, outcomes, (series.starts, series.ends), skipped)

    def _symbol_number(self, text: bytes) -> int:
        """A number that this symbol alone has in this process."""
        key = bounded_key(text)
        number = self._symbols.get(key)
        if number is None:
            number = self._symbols[key] = next(self._new_symbol)
        return number

    def _read(
        self,
        padded: bytes,
        fields: Fields,
        version: int,
        outcomes: list[Outcome],
        spans: Spans,
        skipped: Counter[str],
    ) -> Samples:
        """The samples, and the series of histograms, in the fields of series."""
        skipped["exemplars"] += int(np.count_nonzero(fields.tags == _EXEMPLAR[version]))
        samples = fields.of(_SAMPLE)
        content = scan(padded, samples.firsts, samples.ends)
        n = len(samples)
        bits, times_ms = np.zeros(n, np.int64), np.zeros(n, np.int64)
        values, times = content.of(_VALUE), content.of(_TIME)
        bits[values.message] = fixed64(padded, values.firsts)
        times_ms[times.message] = varints(padded, times.firsts, times.ends)
        read = _samples(outcomes, samples.message, times_ms, bits, spans, skipped)
        histograms = fields.of(_HISTOGRAM[version])
        if not len(histograms):
            return read
        return Samples.join([read, self._histograms(padded, histograms, outcomes, spans, skipped)])

    def _histograms(
        self, padded: bytes, histograms: Fields, outcomes: list[Outcome], spans: Spans, skipped: Counter[str]
    ) -> Samples:
        """The points of native histograms."""
        gatherer = SampleGatherer(self._series)
        corrupt: list[int] = []
        count = stale = 0
        for series, first, end in zip(
            histograms.message.tolist(), histograms.firsts.tolist(), histograms.ends.tolist(), strict=True
        ):
            span = int(spans[0][series]), int(spans[1][series])
            try:
                histogram = read_histogram(padded[first:end])
                if histogram.is_stale:
                    stale += 1
                else:
                    gatherer.add(outcomes[series], histogram.time_ms, histogram.points(), span)
                    count += 1
            except ProtoError:
                corrupt.append(span[0])
            except RejectedError as error:
                gatherer.reject(error, span)
        if corrupt:
            raise CorruptMessagesError(np.array(corrupt, np.int64), "a corrupt histogram")
        samples = gatherer.finish()
        skipped["stale_markers"] += stale
        taken = len(samples.index) if self.skips_nan else int(np.count_nonzero(samples.are_finite()))
        earlier, points = self._histogram_counts  # versions 1.0 and 2.0 may be read together
        self._histogram_counts = earlier + count + stale, points + taken + stale
        return samples


def _samples(
    outcomes: list[Outcome],
    series: Int64s,
    times_ms: Int64s,
    bits: Int64s,
    spans: Spans,
    skipped: Counter[str],
) -> Samples:
    """Samples without those that are stale markers; `series` int64[n] are the numbers of their series."""
    stale = bits == STALE
    if stale.any():
        skipped["stale_markers"] += int(np.count_nonzero(stale))
        series, times_ms, bits = series[~stale], times_ms[~stale], bits[~stale]
    kinds = np.full(len(series), Kind.FLOAT, np.uint8)
    return Samples(outcomes, series, times_ms, kinds, bits, spans[0][series], spans[1][series])


def _encoded_series(encoded: bytes) -> Outcome:
    """The series of encoded labels."""
    charge_fields(len(encoded))
    try:
        labels = [dict(field_contents(label)) for _, label in field_contents(encoded)]
        return _series([(each.get(1 << 3 | BYTES, b""), each.get(2 << 3 | BYTES, b"")) for each in labels])
    except ProtoError as error:
        return RejectedError(Reason.CORRUPT_MESSAGE, f"a corrupt label: {error}")


def _series(labels: list[tuple[bytes, bytes]]) -> Outcome:
    """The series of labels. A label without a value is none, as for Prometheus."""
    charge_series(sum(len(name) + len(value) for name, value in labels), len(labels))
    metric = ""
    tags: dict[str, str] = {}
    try:
        for name, value in labels:
            if name == b"__name__":
                if metric and metric.encode() != value:
                    return RejectedError(Reason.DUPLICATE_TAG, f"duplicate label __name__: {metric[:200]}")
                metric = value.decode()
            elif value:
                add_tag(tags, name.decode(), value.decode())
    except UnicodeDecodeError as error:
        return RejectedError(Reason.BAD_ENCODING, f"a label that is not UTF-8: {error.object[:40]!r}")
    except RejectedError as error:
        return error
    if not metric:
        return RejectedError(
            Reason.BAD_METRIC, f"no label __name__, which is the metric, in {str(tags)[:200]}"
        )
    return Series.of(metric, tags)
