"""Key ranges without rows that cannot have the tags of a filter: the service reads each row of a range.

A row key begins with metric and base time, and its tags are in the order of their keys: the rows of an hour
with a value of a tag lie together for each list of tags in front of it, which rows that were read tell.
Format: docs/spec/opentsdb.md §1.1.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence

from timebeam.schema.layouts.opentsdb.keys import BASE_BYTES
from timebeam.schema.layouts.reading import prefix_range

MOST_RANGES = 2000
"""Key ranges of a scan that leaves out rows; each costs the service a seek, and more of them time to send."""

_MOST_LEADS, _MOST_LISTS = 64, 1000


class LeadingTags:
    """Tags in front of a tag key, in the rows of a metric that were read.

    They are a hint where to cut key ranges: how many rows the service reads depends on it, never which rows
    a query selects.
    """

    def __init__(self) -> None:
        self._leads: dict[tuple[bytes, bytes], frozenset[bytes]] = {}

    def of(self, metric: bytes, key: bytes) -> Collection[bytes]:
        """What is known to be in front of a tag key: tag UIDs, as in row keys. No tags are always known."""
        return self._leads.get((metric, key)) or frozenset((b"",))

    def add(self, metric: bytes, key: bytes, tags: Sequence[tuple[bytes, bytes]]) -> None:
        """Adds those of the tags of a row that are in front of a tag key, up to a bound."""
        leads = self.of(metric, key)
        lead = b"".join(tag_key + value for tag_key, value in tags if tag_key < key)
        if lead in leads or len(leads) >= _MOST_LEADS:
            return
        if len(self._leads) >= _MOST_LISTS:
            self._leads = {}
        self._leads[metric, key] = frozenset((*leads, lead))


def cut_ranges(
    ranges: Sequence[tuple[bytes, bytes]],
    bases: Sequence[bytes],
    tags: Mapping[bytes, Collection[bytes]],
    leading: LeadingTags,
    salt_width: int,
) -> Sequence[tuple[bytes, bytes]]:
    """Ranges without rows whose value of a tag is another one; as they are if they would become too many.

    Args:
      ranges: each of a metric and a salt, ascending.
      bases: the base times in the ranges, ascending.
    """
    filters = literal_filters(tags)
    count = len(ranges) * len(bases) * functools.reduce(lambda n, tag: 1 + len(tag[1]) * n, filters[::-1], 1)
    if not filters or count > MOST_RANGES:
        return ranges
    cut: list[tuple[bytes, bytes]] = []
    for start, end in ranges:
        head = start[:-BASE_BYTES]
        leads = leading.of(head[salt_width:], filters[0][0])
        if count * len(leads) > MOST_RANGES:
            leads = (b"",)
        in_order = sorted(leads, key=lambda lead: lead + filters[0][0])  # of the rows
        for base, lead in itertools.product(bases, in_order):
            for hole_start, hole_end in _holes(head + base + lead, filters):
                if start < hole_start:
                    cut.append((start, hole_start))
                start = hole_end
        if start < end:
            cut.append((start, end))
    return cut


def literal_filters(tags: Mapping[bytes, Collection[bytes]]) -> Sequence[tuple[bytes, Sequence[bytes]]]:
    """The tag keys of which values are given, each with these, in the order of row keys."""
    return sorted((key, sorted(values)) for key, values in tags.items() if values)


def _holes(prefix: bytes, filters: Sequence[tuple[bytes, Sequence[bytes]]]) -> Iterator[tuple[bytes, bytes]]:
    """The ranges of row keys with a prefix that no row with the tags has; ascending.

    Tags are in the order of their keys: what follows a value of a key, or a greater key, is not that key.

    Args:
      prefix: of row keys, up to a tag whose key is less than those of the filters.
    """
    (key, values), others = filters[0], filters[1:]
    start = prefix + key
    for value in values:
        head = prefix + key + value
        yield start, head
        if others:
            yield from _holes(head, others)
        start = prefix_range(head)[1]
    yield start, prefix_range(prefix)[1]
