"""Selects the rows of a query: names to UIDs, key ranges, and the series of each row.

The service reads each row of a range, so rows without the wanted tags are left out where that is possible.
A TSUID has one key for each base time, since the tags give its salt. Otherwise the rows of a base time that
have one value of a tag are adjacent if they also have the same tags before it: rows that were read show which
tags come before it. Format: docs/spec/opentsdb.md §1.1; docs/spec/archive.md §1.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from timebeam.schema.core.point_fragments import Name
from timebeam.schema.core.points import SeriesKey
from timebeam.schema.core.rows import KeyRange, Row
from timebeam.schema.core.selection import (
    ArchiveRead,
    ColumnRange,
    Finding,
    Reader,
    Scan,
    Selected,
    Selection,
    UnknownNameError,
    prefix_range,
    row_findings,
)
from timebeam.schema.stores.opentsdb import keys
from timebeam.schema.stores.opentsdb.options import BASE_BYTES, OpenTsdbOptions
from timebeam.schema.stores.opentsdb.uids.uid_table import SeriesResolver, look_up_shown, names_from

if TYPE_CHECKING:
    from timebeam.schema.stores.opentsdb.layout import OpenTsdb


_ROWS_AT_ONCE = 2000
_BYTES_AT_ONCE = 2 << 20
"""Rows whose names are looked up together: their number, or their bytes, roughly."""


KeyedRow = tuple[Row, bytes, ArchiveRead | None]
"""A row of the data table or the archive, the key of a data row of its series, and `Selected.archived`."""


def scan(
    options: OpenTsdbOptions, table: str, wanted: Wanted, bases_s: Sequence[int], leading: LeadingTags
) -> Scan:
    """The rows of series that begin at some times; other rows may match too.

    Args:
      wanted: of all metrics, it reads the whole table.
      bases_s: the base times, ascending, in s.
      leading: the known tags before filtered ones, by which rows with other values are left out.
    """
    if not wanted.metrics:
        # After the rows of global annotations, whose metric is zero.
        first = (1).to_bytes(options.salt_width + options.uid_width_metric, "big")
        ranges: Sequence[KeyRange] = ((first, b""),)
    else:
        ranges = key_ranges(options, wanted, [(b"", bases_s)], leading)
    return Scan(table, ranges, keys.key_pattern(wanted.tags))


def select(
    layout: OpenTsdb,
    table: str,
    selection: Selection,
    reader: Reader,
    columns: ColumnRange | None = None,
    bases_s: Sequence[int] | None = None,
) -> Iterator[Selected | Finding]:
    """As `Store.select`, of one table.

    A UID without a name is shown in hex; for all metrics, it is a finding.

    Args:
      table: the data table, or another one with its row keys.
      columns: the columns to read; None for all.
      bases_s: the base times of the rows, ascending, in s; None for the hours of the selection.

    Raises:
      UnknownNameError: a name has no UID.
      AmbiguousNameError: see `Selection`.
    """
    period = selection.start_ms, selection.end_ms
    wanted, names = resolve(layout, selection, reader)
    bases_s = keys.bases(*period) if bases_s is None else bases_s
    rows = scan(layout.options, table, wanted, bases_s, layout.leading)
    in_period = data_rows(layout.options, dataclasses.replace(rows, columns=columns), period, reader)
    yield from with_series(layout, in_period, wanted, names)


def select_metrics(
    layout: OpenTsdb, metrics: Sequence[bytes], period: tuple[int, int], reader: Reader
) -> Iterator[Selected | Finding]:
    """Like `select`, of the data table and the archive, for metrics by their UIDs, in the order of row keys.

    Args:
      metrics: at least one.
      period: first and last time, in ms, both inclusive.
    """
    if layout.options.archive:
        return layout.archive_view.select(metrics, period, reader)
    wanted, names = resolve(layout, metrics, reader)
    rows = scan(layout.options, layout.data_table, wanted, keys.bases(*period), layout.leading)
    return with_series(layout, data_rows(layout.options, rows, period, reader), wanted, names)


def resolve(
    layout: OpenTsdb, selection: Selection | Sequence[bytes], reader: Reader
) -> tuple[Wanted, SeriesResolver]:
    """(what a selection, or the UIDs of metrics, means in UIDs; what finds the series of its rows)."""
    reject_ambiguous = None
    if isinstance(selection, Selection):
        wanted, reject_ambiguous = _wanted(layout, selection, reader), selection.reject_ambiguous
    else:
        wanted = Wanted(selection)
    is_all = not wanted.metrics
    names = SeriesResolver(layout.options, reader, reject_lost=is_all, reject_ambiguous=reject_ambiguous)
    return wanted, names


def data_rows(
    options: OpenTsdbOptions, rows: Scan, period: tuple[int, int], reader: Reader
) -> Iterator[KeyedRow]:
    """The rows of a scan of the data table with points of a period, in ms, both ends inclusive."""
    first_s, last_s = period[0] // 1000 - keys.SPAN_S, period[1] // 1000
    base_at = options.salt_width + options.uid_width_metric
    tags_at = base_at + BASE_BYTES
    for row in reader.scan(rows):
        key = row.key
        if len(key) < tags_at or first_s < int.from_bytes(key[base_at:tags_at], "big") <= last_s:
            yield row, key, None


def with_series(
    layout: OpenTsdb, rows: Iterable[KeyedRow], wanted: Wanted, names: SeriesResolver
) -> Iterator[Selected | Finding]:
    """The selected rows, with their series.

    `leading` takes the tags in front of the first key with values.
    """
    options, filters = layout.options, wanted.filters
    batch: list[KeyedRow] = []
    size = 0
    passes_of: dict[bytes, bool] = {}
    salt_end, base_at = options.salt_width, options.salt_width + options.uid_width_metric
    tags_at = base_at + BASE_BYTES
    for row, key, archived in rows:
        tsuid = key[salt_end:base_at] + key[tags_at:]
        passes = passes_of.get(tsuid)
        if passes is None:  # keys are parsed once for each series
            try:
                keys.check_length(options, key)
            except ValueError as error:
                yield from row_findings(row, archived, str(error))
                continue
            passes = passes_of[tsuid] = wanted.takes(options, tsuid)
            if passes and filters:
                layout.leading.add(key[salt_end:base_at], filters[0][0], tag_pairs(options, tsuid))
        if passes:
            batch.append((row, tsuid, archived))
            size += len(row.cells) * len(row.cells[0].value) if row.cells else 0
        if len(batch) >= _ROWS_AT_ONCE or size >= _BYTES_AT_ONCE:
            yield from names.selected(batch)
            batch, size = [], 0
    yield from names.selected(batch)


def _wanted(layout: OpenTsdb, selection: Selection, reader: Reader) -> Wanted:
    """What a selection means in UIDs."""
    names = [] if selection.metric is None else [Name("metrics", selection.metric)]
    names += [Name("tagk", key) for key in selection.tags]
    names += [Name("tagv", value) for values in selection.tags.values() for value in values]
    uid_of = look_up_shown(layout.options, names, reader)
    for name in names:
        if name not in uid_of:
            raise _unknown(layout.options, name, reader)
    metrics = [] if selection.metric is None else [uid_of[Name("metrics", selection.metric)]]
    tags = {
        uid_of[Name("tagk", key)]: {uid_of[Name("tagv", value)] for value in values}
        for key, values in selection.tags.items()
    }
    if selection.tsuids is not None:
        return of_tsuids(layout.options, selection.tsuids)
    wanted = Wanted(metrics, tags, selection.explicit_tags)
    return wanted if selection.metric is None else wanted.with_tsuids()


def _unknown(options: OpenTsdbOptions, name: Name, reader: Reader) -> UnknownNameError:
    def beginning(start: str) -> Iterator[str]:
        return (stored_name for stored_name, _ in names_from(options, name.kind, start, reader))

    return UnknownNameError(f"No such name for '{name.kind}': '{name.text}'", name.text, beginning)


MOST_RANGES = 2000
"""Most key ranges of a scan that leaves out rows.

A node of the service is said to do 17,000 point reads/s, or to scan 220 MB/s: a range takes as long as 13 KB
of rows, so this many take about 120 ms.
"""

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
