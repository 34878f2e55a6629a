"""Row keys of the data table: [salt] metric UID, base time, tag UID pairs.

Format: docs/spec/opentsdb.md §1.1 and §1.2.

Sources: core/RowKey, core/Tags.resolveAllInternal, uid/UniqueId.getTSUIDFromKey (OpenTSDB 2.4.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from timebeam.schema.layouts.opentsdb.options import OpenTsdbOptions
from timebeam.schema.layouts.writing import SeriesKey
from timebeam.schema.points import Int64s

SPAN_S = 3600
"""Seconds in one row."""

BASE_BYTES = 4
"""Bytes of the base time in a row key."""


class OpenTsdbRowKey(NamedTuple):
    """The fields of a row key; the base time in seconds."""

    salt: bytes
    metric: bytes
    base_s: int
    tags: tuple[tuple[bytes, bytes], ...]

    @property
    def tsuid(self) -> bytes:
        """Metric and tag UIDs: the identity of the series."""
        return self.metric + b"".join(key + value for key, value in self.tags)


def salt(options: OpenTsdbOptions, metric: bytes, tags: bytes) -> bytes:
    """The salt of a series: the bucket of java.util.Arrays.hashCode of its UIDs.

    Java's remainder takes the sign of the dividend, so the bucket is |h rem buckets|. The row of
    global annotations (metric UID zero) keeps zero bytes.
    """
    if options.salt_width == 0:
        return b""
    if not any(metric):
        return bytes(options.salt_width)
    h = 1
    for byte in metric + tags:
        h = (31 * h + (byte - 256 if byte > 127 else byte)) & 0xFFFFFFFF
    signed = h - (1 << 32) if h >> 31 else h
    return (abs(signed) % options.salt_buckets).to_bytes(options.salt_width, "big")


def series_key(options: OpenTsdbOptions, metric: bytes, tags: Sequence[tuple[bytes, bytes]]) -> SeriesKey:
    """The key of a series from the UIDs of its metric and tags; tags are sorted by their UID bytes."""
    tail = b"".join(sorted(key + value for key, value in tags))
    return SeriesKey(salt(options, metric, tail) + metric, tail)


def row_key(series: SeriesKey, base_s: int) -> bytes:
    """The key of the row of a series that begins at `base_s` (seconds, a multiple of 3600)."""
    return series.head + base_s.to_bytes(BASE_BYTES, "big") + series.tail


def row_keys(series: Sequence[SeriesKey], bases_s: Int64s) -> list[bytes]:
    """Like `row_key` for many series; `bases_s` int64[n], in seconds."""
    bases = bases_s.astype(">u4").tobytes()
    starts = range(0, len(bases), BASE_BYTES)
    return [
        key.head + bases[start : start + BASE_BYTES] + key.tail
        for key, start in zip(series, starts, strict=True)
    ]


def parse_key(options: OpenTsdbOptions, key: bytes) -> OpenTsdbRowKey:
    """Splits a row key of the data table into its fields.

    Raises:
      ValueError: its length cannot be that of a data row.
    """
    metric_at = options.salt_width
    base_at = metric_at + options.uid_width_metric
    tags_at = base_at + BASE_BYTES
    pair = options.uid_width_tagk + options.uid_width_tagv
    if len(key) <= tags_at or (len(key) - tags_at) % pair:
        raise ValueError(
            f"row key {key.hex()} of {len(key)} bytes is not salt, metric, base time and tag pairs"
        )
    tags = tuple(
        (key[start : start + options.uid_width_tagk], key[start + options.uid_width_tagk : start + pair])
        for start in range(tags_at, len(key), pair)
    )
    base_s = int.from_bytes(key[base_at:tags_at], "big")
    return OpenTsdbRowKey(key[:metric_at], key[metric_at:base_at], base_s, tags)


def base_s_of(options: OpenTsdbOptions, key: bytes) -> int:
    """The base time, in seconds, in a row key that `parse_key` takes."""
    start = options.salt_width + options.uid_width_metric
    return int.from_bytes(key[start : start + BASE_BYTES], "big")


def ranges(
    options: OpenTsdbOptions, metric: bytes, start_ms: int, end_ms: int
) -> Iterator[tuple[bytes, bytes]]:
    """The key ranges [start, end) of a metric's rows with times from start_ms to end_ms, both inclusive.

    One range for each salt bucket, ascending; none if there are no such times.
    """
    first = max(0, start_ms // 1000) // SPAN_S * SPAN_S
    last = min(end_ms // 1000, 0xFFFFFFFF) // SPAN_S * SPAN_S
    if first > last:
        return
    buckets = range(options.salt_buckets) if options.salt_width else range(1)
    for bucket in buckets:
        head = bucket.to_bytes(options.salt_width, "big") + metric
        end_base = (last + 1).to_bytes(5, "big")  # the fifth byte is set beyond the last base time
        end = end_base[1:] if not end_base[0] else b"\xff" * 4096
        yield head + first.to_bytes(4, "big"), head + end


def key_pattern(options: OpenTsdbOptions, tags: Mapping[bytes, bytes | None]) -> bytes | None:
    """RE2 for the keys of rows with all of these tags; a value of None matches any value.

    `\\C` is one byte of any value; tags stand in the order of their UIDs.
    """
    if not tags:
        return None
    pair = options.uid_width_tagk + options.uid_width_tagv
    any_pairs = b"(?:\\C{%d})*" % pair
    pattern = b"^\\C{%d}" % (options.salt_width + options.uid_width_metric + BASE_BYTES) + any_pairs
    for key, value in sorted(tags.items()):
        value_pattern = b"\\C{%d}" % options.uid_width_tagv if value is None else _escape(value)
        pattern += _escape(key) + value_pattern + any_pairs
    return pattern + b"$"


def _escape(raw: bytes) -> bytes:
    return b"".join(b"\\x%02x" % byte for byte in raw)
