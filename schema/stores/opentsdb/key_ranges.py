"""Key ranges of the rows that a query reads, in every table whose row keys hold metric, base time and tags.

The service reads each row of a range, so rows without the wanted tags are left out where that is possible.
A TSUID has one key for each base time, since the tags give its salt. Otherwise the rows of a base time that
have one value of a tag are adjacent if they also have the same tags before it: rows that were read show which
tags come before it.
Format: docs/spec/opentsdb.md §1.1; docs/spec/archive.md §1.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from timebeam.schema.core.points import SeriesKey
from timebeam.schema.core.selection import prefix_range
from timebeam.schema.stores.opentsdb import keys
from timebeam.schema.stores.opentsdb.keys import BASE_BYTES, OpenTsdbOptions

MOST_RANGES = 2000
"""Most key ranges of a scan that leaves out rows.

A node of the service is said to do 17,000 point reads/s, or to scan 220 MB/s: a range takes as long as 13 KB
of rows, so this many take about 120 ms.
"""

KeyRange = tuple[bytes, bytes]

_MOST_LEADS, _MOST_LISTS = 64, 1000


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """The series that a query reads, by UIDs.

    Attributes:
      metrics: empty for all.
      tags: for the UID of each tag key that a series must have, the UIDs of its values; empty for any.
      explicit_tags: whether a series may have no other tag keys.
      tsuids: the only series; None for all that have the tags.
    """

    metrics: Sequence[bytes]
    tags: Mapping[bytes, Collection[bytes]] = dataclasses.field(default_factory=dict)
    explicit_tags: bool = False
    tsuids: frozenset[bytes] | None = None

    def with_tsuids(self) -> Wanted:
        """The same, with the TSUIDs where the tags say all of them: no other keys, and each with values."""
        if not (self.explicit_tags and self.tags and all(self.tags.values())):
            return self
        if math.prod(map(len, self.tags.values())) * len(self.metrics) > MOST_RANGES:
            return self
        pairs = ([key + value for value in values] for key, values in sorted(self.tags.items()))
        tsuids = frozenset(b"".join(parts) for parts in itertools.product(self.metrics, *pairs))
        return dataclasses.replace(self, tsuids=tsuids)

    @property
    def filters(self) -> Sequence[tuple[bytes, Sequence[bytes]]]:
        """(tag key, its values) of each tag key with values, in the order of row keys."""
        return sorted((key, sorted(values)) for key, values in self.tags.items() if values)

    def takes(self, options: OpenTsdbOptions, tsuid: bytes) -> bool:
        """Whether a series of a metric is wanted."""
        if self.tsuids is not None and tsuid not in self.tsuids:
            return False
        if not self.tags:
            return not self.explicit_tags
        tags = tag_pairs(options, tsuid)
        value_of = dict(tags)
        return (not self.explicit_tags or len(tags) == len(self.tags)) and all(
            key in value_of and (not values or value_of[key] in values) for key, values in self.tags.items()
        )


def of_tsuids(options: OpenTsdbOptions, tsuids: frozenset[bytes]) -> Wanted:
    """The series of some TSUIDs; the tags are those that all of them have."""
    tags_of = [dict(tag_pairs(options, tsuid)) for tsuid in tsuids]
    common_keys = set.intersection(*map(set, tags_of)) if tags_of else set()
    tags = {key: {tags[key] for tags in tags_of} for key in common_keys}
    metrics = sorted({tsuid[: options.uid_width_metric] for tsuid in tsuids})
    return Wanted(metrics, tags, tsuids=tsuids)


def key_of_tsuid(options: OpenTsdbOptions, tsuid: bytes) -> SeriesKey:
    """The parts of the row keys of the series with this TSUID.

    >>> key = key_of_tsuid(OpenTsdbOptions(salt_width=1), bytes.fromhex("000002000001000003000002000004"))
    >>> key.head.hex(), key.tail.hex()
    ('0d000002', '000001000003000002000004')
    """
    metric, tags = tsuid[: options.uid_width_metric], tsuid[options.uid_width_metric :]
    return SeriesKey(keys.salt(options, metric, tags) + metric, tags)


def tag_pairs(options: OpenTsdbOptions, tsuid: bytes) -> Sequence[tuple[bytes, bytes]]:
    """The UIDs of the tags of a TSUID."""
    _, *uids = keys.tsuid_pairs(options, tsuid)
    return [(key, value) for (_, key), (_, value) in zip(uids[::2], uids[1::2], strict=True)]


class LeadingTags:
    """The tags before a tag key, in the rows of a metric that were read.

    They are a hint where to cut key ranges. The number of rows that the service reads depends on them; the
    rows that a query selects do not.
    """

    def __init__(self) -> None:
        self._leads: dict[tuple[bytes, bytes], frozenset[bytes]] = {}

    def of(self, metric: bytes, key: bytes) -> Collection[bytes]:
        """The known lists of tags before a tag key, as UIDs in row keys; the empty list if none is known."""
        return self._leads.get((metric, key)) or frozenset((b"",))

    def add(self, metric: bytes, key: bytes, tags: Iterable[tuple[bytes, bytes]]) -> None:
        """Adds the tags of a row that come before a tag key, unless too many lists are known."""
        leads = self._leads.get((metric, key), frozenset())
        lead = b"".join(tag_key + value for tag_key, value in tags if tag_key < key)
        if lead in leads or len(leads) >= _MOST_LEADS:
            return
        if len(self._leads) >= _MOST_LISTS:
            self._leads = {}
        self._leads[metric, key] = frozenset((*leads, lead))


def key_ranges(
    options: OpenTsdbOptions,
    wanted: Wanted,
    bases_by_code: Iterable[tuple[bytes, Sequence[int]]],
    leading: LeadingTags,
) -> Sequence[KeyRange]:
    """The ranges [start, end) of the keys of wanted rows and, where ranges would be too many, of other rows.

    Args:
      wanted: of at least one metric.
      bases_by_code: (bytes between metric and base time, the base times of rows in s, ascending).

    Returns:
      Ascending, disjoint, at most `MOST_RANGES`; or one per metric, salt bucket and code if these are more.
    """
    bases_of = {code: bases for code, bases in bases_by_code if bases}
    if wanted.tsuids is not None and len(wanted.tsuids) * sum(map(len, bases_of.values())) <= MOST_RANGES:
        row_keys = [
            series.head + code + base.to_bytes(BASE_BYTES, "big") + series.tail
            for series in (key_of_tsuid(options, tsuid) for tsuid in wanted.tsuids)
            for code, bases in bases_of.items()
            for base in bases
        ]
        return [(key, key + b"\0") for key in sorted(row_keys)]
    heads = sorted(
        (head + code, metric, code)
        for metric in set(wanted.metrics)
        for head in keys.heads(options, metric)
        for code in bases_of
    )
    most = MOST_RANGES // max(1, len(heads))
    holes_of = {metric: _holes_of(wanted, metric, leading) for metric in set(wanted.metrics)}
    ranges: list[KeyRange] = []
    for head, metric, code in heads:
        holes, bases = holes_of[metric], bases_of[code]
        ranges += _cut(head, bases, holes if len(holes) * len(bases) < most else ())
    return ranges


_Hole = tuple[bytes, bytes | None]
"""Keys from one up to another, exclusive, as the bytes after a base time; None: up to the next base time."""


def _holes_of(wanted: Wanted, metric: bytes, leading: LeadingTags) -> Sequence[_Hole]:
    """The keys of a base time that no wanted row has; ascending."""
    filters = wanted.filters
    if not filters:
        return ()
    first = filters[0][0]
    leads = sorted(leading.of(metric, first), key=lambda lead: lead + first)  # the order of the rows
    holes: list[_Hole] = []
    for start, end in (hole for lead in leads for hole in _holes(lead, filters)):
        if holes and holes[-1][1] == start:
            start, _ = holes.pop()
        if start != end:
            holes.append((start, end))
    return holes


def _holes(lead: bytes, filters: Sequence[tuple[bytes, Sequence[bytes]]]) -> Iterator[_Hole]:
    """The keys that begin with some tags and in which no row has the tags of the filters; ascending.

    Tags are sorted by key, so no tag of a filter comes after a greater key or another value of its key.

    Args:
      lead: tags whose keys are less than those of the filters.
    """
    (key, values), others = filters[0], filters[1:]
    start: bytes | None = lead + key
    for value in values:
        head = lead + key + value
        assert start is not None
        yield start, head
        if others:
            yield from _holes(head, others)
        start = prefix_range(head)[1] or None
    if start is not None:
        yield start, (prefix_range(lead)[1] or None)


def _cut(head: bytes, bases: Sequence[int], holes: Sequence[_Hole]) -> Iterator[KeyRange]:
    """The keys from the first base time to the last one, without those in the holes of each base time.

    Rows between these base times are left in, since another program may begin rows at other times.
    """
    start = head + bases[0].to_bytes(BASE_BYTES, "big")
    for base in bases if holes else ():
        prefix = head + base.to_bytes(BASE_BYTES, "big")
        for hole_start, hole_end in holes:
            if start < prefix + hole_start:
                yield start, prefix + hole_start
            start = prefix_range(prefix)[1] if hole_end is None else prefix + hole_end
    end = prefix_range(head + bases[-1].to_bytes(BASE_BYTES, "big"))[1]
    if start != end:
        yield start, end
