"""Row keys of the archive: [salt] metric UID, span code, base time, tag UID pairs (docs/spec/archive.md §1).

A span is the time of one row. Spans are nested: each divides the next one, and all divide a block. The rows
of a series in one block have one span, so they never overlap.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from timebeam.schema.layouts.opentsdb import keys as data_keys
from timebeam.schema.layouts.opentsdb.keys import BASE_BYTES, SPAN_S, OpenTsdbOptions

SPANS_S = {1: 3_600, 2: 14_400, 3: 86_400, 4: 432_000, 5: 2_592_000}
"""Seconds of the spans, by code."""

BLOCK_CODE = 5
BLOCK_S = SPANS_S[BLOCK_CODE]
"""The longest span, 30 days: for each block, a series has one span."""

CODE_BYTES = 1

_ROW_POINTS = 20_000
"""Points of a row that a span is chosen for."""


class ArchiveKey(NamedTuple):
    """The fields of a row key; the base time in seconds.

    Attributes:
      data: the key of the data row with the same salt, series and base time.
    """

    data: bytes
    code: int
    base_s: int

    @property
    def end_s(self) -> int:
        """The end of the row's span."""
        return self.base_s + SPANS_S[self.code]


def span_for(points: int, hours: int) -> int:
    """The code of the longest span in which a series of this rate has at most 20,000 points; else an hour.

    Args:
      points: of the series, in this number of hours.
    """
    fitting = [code for code, span_s in SPANS_S.items() if points * span_s <= _ROW_POINTS * hours * SPAN_S]
    return max(fitting, default=min(SPANS_S))


def archive_key(options: OpenTsdbOptions, data_key: bytes, code: int) -> bytes:
    """The key of the archive row, with this span, that holds the points of a data row."""
    base_at = options.salt_width + options.uid_width_metric
    base_s = data_keys.base_s_of(options, data_key)
    base = (base_s - base_s % SPANS_S[code]).to_bytes(BASE_BYTES, "big")
    return data_key[:base_at] + bytes((code,)) + base + data_key[base_at + BASE_BYTES :]


def parse_key(options: OpenTsdbOptions, key: bytes) -> ArchiveKey:
    """Splits a row key of the archive.

    Raises:
      ValueError: its length, its span code or its base time cannot be that of an archive row.
    """
    code_at = options.salt_width + options.uid_width_metric
    data_key = key[:code_at] + key[code_at + CODE_BYTES :]
    try:
        data_keys.check_length(options, data_key)
    except ValueError:
        raise ValueError(
            f"archive row key {key.hex()} of {len(key)} bytes is not salt, metric, span code, base time and "
            "tag pairs"
        ) from None
    code, base_s = key[code_at], data_keys.base_s_of(options, data_key)
    if code not in SPANS_S:
        raise ValueError(f"archive row key {key.hex()} has the span code {code}: no span has it")
    if base_s % SPANS_S[code]:
        raise ValueError(f"archive row key {key.hex()} has the base time {base_s}, no multiple of its span")
    return ArchiveKey(data_key, code, base_s)


def ranges(
    options: OpenTsdbOptions, metric: bytes, start_ms: int, end_ms: int
) -> Iterator[tuple[bytes, bytes]]:
    """The key ranges [start, end) of a metric's archive rows with times from start_ms to end_ms, inclusive.

    One range for each salt bucket and span; none if there are no such times.
    """
    first_s, last_s = max(0, start_ms // 1000), min(end_ms // 1000, 0xFFFFFFFF)
    if first_s > last_s:
        return
    buckets = range(options.salt_buckets) if options.salt_width else range(1)
    for bucket in buckets:
        head = bucket.to_bytes(options.salt_width, "big") + metric
        for code, span_s in SPANS_S.items():
            first, end = first_s - first_s % span_s, last_s - last_s % span_s + 1
            start_key = head + bytes((code,)) + first.to_bytes(BASE_BYTES, "big")
            if end > 0xFFFFFFFF:
                yield start_key, head + bytes((code + 1,))
            else:
                yield start_key, head + bytes((code,)) + end.to_bytes(BASE_BYTES, "big")
