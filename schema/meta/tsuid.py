"""TSUIDs: the identity of a series, metric UID and tag UID pairs (docs/spec/opentsdb.md §1.1 and §5.4)."""

from __future__ import annotations

from collections.abc import Sequence

from timebeam.schema.layouts.opentsdb.keys import OpenTsdbOptions

Pair = tuple[str, bytes]
"""(kind, UID)."""

_BASE_BYTES = 4


def is_of_series(options: OpenTsdbOptions, key: bytes) -> bool:
    """Whether a data row belongs to a series; the others hold global annotations."""
    return any(key[options.salt_width : options.salt_width + options.uid_width_metric])


def of_key(options: OpenTsdbOptions, key: bytes) -> tuple[bytes, int]:
    """(TSUID, base time in seconds) of a row key of the data table (uid/UniqueId.getTSUIDFromKey).

    Raises:
      ValueError: its length cannot be that of a data row.
    """
    base_at = options.salt_width + options.uid_width_metric
    tags_at = base_at + _BASE_BYTES
    if len(key) <= tags_at or (len(key) - tags_at) % (options.uid_width_tagk + options.uid_width_tagv):
        raise ValueError(
            f"row key {key.hex()} of {len(key)} bytes is not salt, metric, base time and tag pairs"
        )
    return key[options.salt_width : base_at] + key[tags_at:], int.from_bytes(key[base_at:tags_at], "big")


def pairs(options: OpenTsdbOptions, tsuid: bytes) -> Sequence[Pair]:
    """The UIDs of a series: the metric, then tag keys and values in turn.

    Raises:
      ValueError: the length cannot be that of a TSUID.
    """
    offset, tagk = options.uid_width_metric, options.uid_width_tagk
    pair = tagk + options.uid_width_tagv
    if len(tsuid) <= offset or (len(tsuid) - offset) % pair:
        raise ValueError(f"TSUID {tsuid.hex().upper()} of {len(tsuid)} bytes is not metric and tag pairs")
    uid_pairs: list[Pair] = [("metrics", tsuid[:offset])]
    for start in range(offset, len(tsuid), pair):
        uid_pairs += (
            ("tagk", tsuid[start : start + tagk]),
            ("tagv", tsuid[start + tagk : start + pair]),
        )
    return uid_pairs
