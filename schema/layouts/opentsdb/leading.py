"""Key ranges that leave out rows without the tags of a filter, since the service reads each row of a range.

A row key begins with metric and base time, then come the tags, sorted by tag key. So the rows of an hour that
have one value of a tag are adjacent if they also have the same tags before it. Rows that were read show which
tags come before it.
Format: docs/spec/opentsdb.md §1.1.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence

from timebeam.schema.layouts.opentsdb.keys import BASE_BYTES
from timebeam.schema.layouts.reading import prefix_range

MOST_RANGES = 2000
"""Most key ranges of a scan that leaves out rows; each costs the service a seek, and time to send."""

_MOST_LEADS, _MOST_LISTS = 64, 1000


class LeadingTags:
    """The tags before a tag key, in the rows of a metric that were read.

    They are a hint where to cut key ranges. The number of rows that the service reads depends on them; the
    rows that a query selects do not.
    """

    def __init__(self) -> None:
        self._leads: dict[tuple[bytes, bytes], frozenset[bytes]] = {}

    def of(self, metric: bytes, key: bytes) -> Collection[bytes]:
        """The known lists of tags before a tag key, as UIDs in row keys; always with the empty list."""
        return self._leads.get((metric, key)) or frozenset((b"",))

    def add(self, metric: bytes, key: bytes, tags: Sequence[tuple[bytes, bytes]]) -> None:
        """Adds the tags of a row that come before a tag key, unless too many lists are known."""
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
    """Cuts rows with other values of the tags out of ranges, unless that gives more than `MOST_RANGES`.

    Args:
      ranges: one for each metric and salt, ascending.
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
        in_order = sorted(leads, key=lambda lead: lead + filters[0][0])  # the order of the rows
        for base, lead in itertools.product(bases, in_order):
            for hole_start, hole_end in _holes(head + base + lead, filters):
                if start < hole_start:
                    cut.append((start, hole_start))
                start = hole_end
        if start < end:
            cut.append((start, end))
    return cut


def literal_filters(tags: Mapping[bytes, Collection[bytes]]) -> Sequence[tuple[bytes, Sequence[bytes]]]:
    """(tag key, its values) of each tag key with values, in the order of row keys."""
    return sorted((key, sorted(values)) for key, values in tags.items() if values)


def _holes(prefix: bytes, filters: Sequence[tuple[bytes, Sequence[bytes]]]) -> Iterator[tuple[bytes, bytes]]:
    """The ranges of row keys with a prefix in which no row has the tags of the filters; ascending.

    Tags are sorted by key: a filter's key comes neither after another of its values nor after a greater key.

    Args:
      prefix: the start of row keys, up to a tag whose key is less than those of the filters.
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
