"""Row keys of the data table: [salt] metric UID, base time, tag UID pairs.

A key without salt and base time is the TSUID of a series (docs/spec/opentsdb.md §5.4).
Format: docs/spec/opentsdb.md §1.1 and §1.2.

Sources: core/RowKey, core/Tags.resolveAllInternal, uid/UniqueId.getTSUIDFromKey (OpenTSDB 2.4.1).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from timebeam.schema.bits.arrays import Int64s
from timebeam.schema.bits.regex import of_bytes
from timebeam.schema.bits.times import HOUR_S
from timebeam.schema.core.points import SeriesKey
from timebeam.schema.stores.opentsdb.options import BASE_BYTES, OpenTsdbOptions

SPAN_S = HOUR_S
"""Seconds in one row."""


UidPair = tuple[str, bytes]
"""(kind, UID)."""


class OpenTsdbRowKey(NamedTuple):
    """The fields of a row key; the base time in seconds."""

    salt: bytes
    metric: bytes
    base_s: int
    tags: tuple[tuple[bytes, bytes], ...]

    @property
    def tsuid(self) -> bytes:
        """Metric and tag UIDs: the identity of the series."""
        return self.metric + self.tail

    @property
    def tail(self) -> bytes:
        """The tag UIDs as in the key."""
        return b"".join(key + value for key, value in self.tags)

    @property
    def uids(self) -> list[UidPair]:
        """The metric, then tag keys and values in turn."""
        pairs = [("metrics", self.metric)]
        for key, value in self.tags:
            pairs += (("tagk", key), ("tagv", value))
        return pairs


def salt(options: OpenTsdbOptions, metric: bytes, tags: bytes) -> bytes:
    """The salt of a series: the bucket of java.util.Arrays.hashCode of its UIDs.

    Java's remainder takes the sign of the dividend, so the bucket is |h rem buckets|. The row of
    global annotations (metric UID zero) keeps zero bytes.

    >>> options = OpenTsdbOptions(salt_width=1, salt_buckets=20)
    >>> salt(options, bytes.fromhex("000002"), bytes.fromhex("000001000003000002000004")).hex()
    '0d'
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
    r"""The key of a series from the UIDs of its metric and tags; tags are sorted by their UID bytes.

    >>> host_a = (b"\0\0\1", b"\0\0\3")  # the UIDs of `host` and `a`
    >>> dc_b = (b"\0\0\2", b"\0\0\4")
    >>> key = series_key(OpenTsdbOptions(), b"\0\0\2", [dc_b, host_a])
    >>> key.head.hex(), key.tail.hex()
    ('000002', '000001000003000002000004')
    """
    tail = b"".join(sorted(key + value for key, value in tags))
    return SeriesKey(salt(options, metric, tail) + metric, tail)


def row_key(series: SeriesKey, base_s: int) -> bytes:
    """The key of the row of a series that begins at `base_s` (seconds, a multiple of 3600).

    >>> series = SeriesKey(bytes.fromhex("0d000002"), bytes.fromhex("000001000003000002000004"))
    >>> row_key(series, 1357002000).hex(" ", -4)  # salt and metric, base time, host=h1, dc=d1
    '0d000002 50e23510 00000100 00030000 02000004'
    """
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

    >>> key = parse_key(OpenTsdbOptions(), bytes.fromhex("00000250e22700000001000003"))
    >>> key.metric.hex(), key.base_s, [(tag.hex(), value.hex()) for tag, value in key.tags]
    ('000002', 1356998400, [('000001', '000003')])
    >>> key.tsuid.hex()
    '000002000001000003'

    Raises:
      ValueError: its length cannot be that of a data row.
    """
    check_length(options, key)
    metric_at = options.salt_width
    base_at = metric_at + options.uid_width_metric
    tags_at = base_at + BASE_BYTES
    pair = options.uid_width_tagk + options.uid_width_tagv
    tags = tuple(
        (key[start : start + options.uid_width_tagk], key[start + options.uid_width_tagk : start + pair])
        for start in range(tags_at, len(key), pair)
    )
    base_s = int.from_bytes(key[base_at:tags_at], "big")
    return OpenTsdbRowKey(key[:metric_at], key[metric_at:base_at], base_s, tags)


def check_length(options: OpenTsdbOptions, key: bytes) -> None:
    """Raises ValueError if the length of a key cannot be that of a data row."""
    tags_at = options.salt_width + options.uid_width_metric + BASE_BYTES
    if len(key) <= tags_at or (len(key) - tags_at) % (options.uid_width_tagk + options.uid_width_tagv):
        raise ValueError(
            f"row key {key.hex()} of {len(key)} bytes is not salt, metric, base time and tag pairs"
        )


def base_s_of(options: OpenTsdbOptions, key: bytes) -> int:
    """The base time, in seconds, in a row key that `parse_key` takes."""
    start = options.salt_width + options.uid_width_metric
    return int.from_bytes(key[start : start + BASE_BYTES], "big")


def bases(start_ms: int, end_ms: int) -> range:
    """The base times, in s, of the hours with times from start_ms to end_ms, both inclusive."""
    first = max(0, start_ms // 1000) // SPAN_S * SPAN_S
    last = min(end_ms // 1000, 0xFFFFFFFF) // SPAN_S * SPAN_S
    return range(first, last + 1, SPAN_S)


def heads(options: OpenTsdbOptions, metric: bytes) -> Sequence[bytes]:
    """Salt and metric, for each salt bucket, ascending."""
    buckets = range(options.salt_buckets) if options.salt_width else range(1)
    return [bucket.to_bytes(options.salt_width, "big") + metric for bucket in buckets]


def ranges(
    options: OpenTsdbOptions, metric: bytes, start_ms: int, end_ms: int
) -> Iterator[tuple[bytes, bytes]]:
    r"""The key ranges [start, end) of a metric's rows with times from start_ms to end_ms, both inclusive.

    One range for each salt bucket, ascending; none if there are no such times.

    >>> for start, end in ranges(OpenTsdbOptions(), b"\0\0\2", 1356998460_000, 1357002000_000):
    ...     print(start.hex(), end.hex())  # two hours: from 50e22700 to 50e23510
    00000250e22700 00000250e23511
    """
    base_times = bases(start_ms, end_ms)
    if not base_times:
        return
    first, last = base_times[0], base_times[-1] + 1  # the last whole hour is not the last base time
    for head in heads(options, metric):
        yield head + first.to_bytes(BASE_BYTES, "big"), head + last.to_bytes(BASE_BYTES, "big")


MOST_VALUES = 100
"""Tag values in a pattern: Bigtable takes filters of up to 20 KB."""


def key_pattern(tags: Mapping[bytes, Collection[bytes]]) -> bytes | None:
    """RE2 that the keys of rows match that have a value of each tag key; no values, or too many, allow any.

    `\\C` is one byte of any value; tags are in the order of their UIDs. A few other keys match too, since a
    tag may begin anywhere: the pattern is short, because an emulator compiles it again for each row.

    >>> print(key_pattern({b"\\0\\0\\1": [b"\\0\\0\\3", b"\\0\\0\\4"]}).decode())
    \\C*\\x00\\x00\\x01\\x00\\x00[\\x03\\x04]\\C*
    """
    if not tags:
        return None
    room = MOST_VALUES
    pattern = b"\\C*"
    for key, values in sorted(tags.items()):
        value_pattern = b""
        if 0 < len(values) <= room:
            room -= len(values)
            value_pattern = _one_of(values)
        pattern += of_bytes(key) + value_pattern + b"\\C*"
    return pattern


def _one_of(uids: Collection[bytes]) -> bytes:
    """RE2 for some UIDs; those that differ in their last byte alone share a class, which is shorter."""
    lasts: dict[bytes, bytes] = {}
    for uid in sorted(uids):
        lasts[uid[:-1]] = lasts.get(uid[:-1], b"") + uid[-1:]
    alternatives = [of_bytes(first) + b"[%s]" % of_bytes(last) for first, last in lasts.items()]
    return alternatives[0] if len(alternatives) == 1 else b"(?:%s)" % b"|".join(alternatives)


def is_of_series(options: OpenTsdbOptions, key: bytes) -> bool:
    """Whether a data row belongs to a series; the others hold global annotations."""
    return any(key[options.salt_width : options.salt_width + options.uid_width_metric])


def tsuid_of_key(options: OpenTsdbOptions, key: bytes) -> tuple[bytes, int]:
    """(TSUID, base time in seconds) of a row key of the data table (uid/UniqueId.getTSUIDFromKey).

    >>> tsuid, base_s = tsuid_of_key(OpenTsdbOptions(), bytes.fromhex("00000250e22700000001000003"))
    >>> tsuid.hex(), base_s
    ('000002000001000003', 1356998400)

    Raises:
      ValueError: its length cannot be that of a data row.
    """
    check_length(options, key)
    base_at = options.salt_width + options.uid_width_metric
    return key[options.salt_width : base_at] + key[base_at + BASE_BYTES :], base_s_of(options, key)


def tsuid_pairs(options: OpenTsdbOptions, tsuid: bytes) -> Sequence[UidPair]:
    """The UIDs of a series: the metric, then tag keys and values in turn.

    Raises:
      ValueError: the length cannot be that of a TSUID.
    """
    offset, tagk = options.uid_width_metric, options.uid_width_tagk
    pair = tagk + options.uid_width_tagv
    if len(tsuid) <= offset or (len(tsuid) - offset) % pair:
        raise ValueError(f"TSUID {tsuid.hex().upper()} of {len(tsuid)} bytes is not metric and tag pairs")
    uid_pairs: list[UidPair] = [("metrics", tsuid[:offset])]
    for start in range(offset, len(tsuid), pair):
        uid_pairs += (("tagk", tsuid[start : start + tagk]), ("tagv", tsuid[start + tagk : start + pair]))
    return uid_pairs
