"""Key ranges without rows of other series: no row that is wanted is left out, whichever tags are known."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from timebeam.schema.archive import archive_rows
from timebeam.schema.core.rows import KeyRange
from timebeam.schema.rollup.day_plan import RowSpan
from timebeam.schema.stores.opentsdb import keys
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions
from timebeam.schema.stores.opentsdb.select import MOST_RANGES, LeadingTags, Wanted, key_ranges, of_tsuids

METRIC, HOUR = b"\0\0\7", 3600
DC, HOST, RACK = b"\0\0\1", b"\0\0\2", b"\0\0\3"
UID = st.sampled_from([b"\0\0\1", b"\0\0\2", b"\0\0\3", b"\0\xff\xff", b"\1\0\0", b"\xff\xff\xff"])
TAGS = st.dictionaries(UID, UID, min_size=1, max_size=4)
FILTERS = st.dictionaries(UID, st.sets(UID, max_size=3), min_size=1, max_size=3)
STARTS_S = st.sampled_from([0, 1_709_287_200, 4_294_951_200])

Tags = dict[bytes, bytes]


def uid(number: int) -> bytes:
    return number.to_bytes(3, "big")


def tsuid_of(tags: Tags) -> bytes:
    return METRIC + b"".join(sorted(key + value for key, value in tags.items()))


def row_key(options: OpenTsdbOptions, tags: Tags, base_s: int, code: bytes = b"") -> bytes:
    series = keys.series_key(options, METRIC, list(tags.items()))
    return keys.row_key(series._replace(head=series.head + code), base_s)


def has(tags: Tags, filters: dict[bytes, set[bytes]]) -> bool:
    return all(key in tags and (not values or tags[key] in values) for key, values in filters.items())


def holds(ranges: list[KeyRange], key: bytes) -> bool:
    return any(start <= key and (not end or key < end) for start, end in ranges)


def known_tags(known: list[Tags], filters: dict[bytes, set[bytes]]) -> LeadingTags:
    leading = LeadingTags()
    first = min((key for key, values in filters.items() if values), default=b"")
    for tags in known:
        leading.add(METRIC, first, sorted(tags.items()))
    return leading


def check_apart(ranges: list[KeyRange]) -> None:
    assert all(start < end or not end for start, end in ranges)
    assert all(end and end < start for (_, end), (start, _) in itertools.pairwise(ranges))


@given(
    st.lists(TAGS, max_size=8),
    st.lists(TAGS, max_size=4),
    FILTERS,
    st.integers(0, 2),
    st.integers(0, 3),
    STARTS_S,
    st.sampled_from([0, 1800]),
)
def test_rows_with_the_tags_stay(
    rows: list[Tags],
    known: list[Tags],
    filters: dict[bytes, set[bytes]],
    salt_width: int,
    hours: int,
    start_s: int,
    off_s: int,
) -> None:
    options = OpenTsdbOptions(salt_width=salt_width, salt_buckets=3)
    bases_s = keys.bases(start_s * 1000, (start_s + hours * HOUR) * 1000)
    leading = known_tags(known, filters)
    whole = list(key_ranges(options, Wanted([METRIC]), [(b"", bases_s)], leading))
    cut = list(key_ranges(options, Wanted([METRIC], filters), [(b"", bases_s)], leading))
    check_apart(cut)
    assert all(any(start >= low and end <= high for low, high in whole) for start, end in cut)
    for tags in rows:
        for base_s in bases_s:
            key = row_key(options, tags, base_s + off_s)  # another program may not begin rows at whole hours
            if has(tags, filters) and holds(whole, key):
                assert holds(cut, key)


@given(
    st.lists(TAGS, max_size=8),
    st.lists(TAGS, max_size=4),
    FILTERS,
    st.integers(0, 1),
    st.sampled_from([0, 5, 30, 200]),
    STARTS_S,
)
def test_rows_of_the_archive_stay(
    rows: list[Tags],
    known: list[Tags],
    filters: dict[bytes, set[bytes]],
    salt_width: int,
    hours: int,
    start_s: int,
) -> None:
    options = OpenTsdbOptions(salt_width=salt_width, salt_buckets=3)
    start_ms, end_ms = start_s * 1000, min(start_s + hours * HOUR, archive_rows.LAST_S) * 1000
    archive = OpenTsdb(options, known_tags(known, filters)).archive_view
    scan = archive.archive_scan(Wanted([METRIC], filters), (start_ms, end_ms), keys_only=False)
    cut = list(scan.ranges)
    check_apart(cut)
    assert len(cut) <= MOST_RANGES
    for tags, (code, span_s) in itertools.product(rows, archive_rows.SPANS_S.items()):
        for base_s in range(start_s // span_s * span_s, end_ms // 1000 + 1, span_s):
            if has(tags, filters):
                assert holds(cut, row_key(options, tags, base_s, bytes((code,))))


@given(st.lists(TAGS, min_size=1, max_size=4), st.integers(0, 2), st.integers(0, 3), STARTS_S)
def test_a_tsuid_is_one_key_for_each_base_time(
    rows: list[Tags], salt_width: int, hours: int, start_s: int
) -> None:
    options = OpenTsdbOptions(salt_width=salt_width, salt_buckets=20)
    wanted = of_tsuids(options, frozenset(map(tsuid_of, rows)))
    bases_s = keys.bases(start_s * 1000, (start_s + hours * HOUR) * 1000)
    ranges = key_ranges(options, wanted, [(b"", bases_s)], LeadingTags())
    assert [start for start, _ in ranges] == sorted(
        {row_key(options, tags, base_s) for tags in rows for base_s in bases_s}
    )
    assert all(end == start + b"\0" for start, end in ranges)
    assert all(wanted.takes(options, tsuid_of(tags)) for tags in rows)
    assert not wanted.takes(options, METRIC + uid(9) * 2)


def test_explicit_tags_are_tsuids() -> None:
    options = OpenTsdbOptions(salt_width=1, salt_buckets=20)
    filters = {HOST: {uid(10), uid(51)}, DC: {uid(3)}}
    wanted = Wanted([METRIC], filters, explicit_tags=True).with_tsuids()
    assert wanted.tsuids == {tsuid_of({DC: uid(3), HOST: uid(host)}) for host in (10, 51)}
    day_s = range(0, 24 * HOUR, HOUR)
    assert len(key_ranges(options, wanted, [(b"", day_s)], LeadingTags())) == 48
    assert Wanted([METRIC], filters | {RACK: set()}, explicit_tags=True).with_tsuids().tsuids is None
    assert Wanted([METRIC], filters).with_tsuids().tsuids is None
    many = {key: set(map(uid, range(50))) for key in (DC, HOST)}
    assert Wanted([METRIC], many, explicit_tags=True).with_tsuids().tsuids is None


def test_too_many_tsuids_are_ranges_by_their_tags() -> None:
    options = OpenTsdbOptions()
    rows = [{DC: uid(1), HOST: uid(host)} for host in range(10, 60)]
    wanted = of_tsuids(options, frozenset(map(tsuid_of, rows)))
    hours = MOST_RANGES // len(rows)
    bases_s = range(0, hours * HOUR, HOUR)
    assert len(key_ranges(options, wanted, [(b"", bases_s)], LeadingTags())) == MOST_RANGES
    fewer = key_ranges(options, wanted, [(b"", range(0, hours * HOUR + 1, HOUR))], LeadingTags())
    assert len(fewer) < 200
    assert all(holds(list(fewer), row_key(options, tags, base_s)) for tags in rows for base_s in bases_s)


def rows_read(filters: dict[bytes, set[bytes]], leading: LeadingTags) -> set[tuple[tuple[bytes, bytes], ...]]:
    """The tags of rows in the ranges, of four data centers with 25 hosts each and three hours."""
    options, bases_s = OpenTsdbOptions(), range(0, 3 * HOUR, HOUR)
    ranges = list(key_ranges(options, Wanted([METRIC], filters), [(b"", bases_s)], leading))
    every = [{DC: uid(host % 4 + 1), HOST: uid(host), RACK: uid(9)} for host in range(10, 110)]
    return {
        tuple(tags.items())
        for tags in every
        for base_s in bases_s
        if holds(ranges, row_key(options, tags, base_s))
    }


def test_rows_of_other_values_are_left_out() -> None:
    leading = LeadingTags()
    assert len(rows_read({DC: {uid(2)}}, leading)) == 25
    assert [len(rows_read({DC: {uid(2)}, HOST: {uid(host)}}, leading)) for host in (13, 14)] == [1, 0]
    filters = {HOST: {uid(10), uid(51)}}
    assert len(rows_read(filters, leading)) == 100
    leading.add(METRIC, HOST, [(DC, uid(3)), (HOST, uid(10)), (RACK, uid(9))])
    assert len(rows_read(filters, leading)) == 1 + 75
    for number in range(1, 5):
        leading.add(METRIC, HOST, [(DC, uid(number))])
    assert len(rows_read(filters, leading)) == 2
    assert len(rows_read({HOST: set()}, leading)) == 100


def ranges_of(
    filters: dict[bytes, set[bytes]], hours: int, leading: LeadingTags, salt_width: int = 0
) -> list[KeyRange]:
    options = OpenTsdbOptions(salt_width=salt_width, salt_buckets=3)
    wanted, bases_s = Wanted([METRIC], filters), range(0, hours * HOUR, HOUR)
    return list(key_ranges(options, wanted, [(b"", bases_s)], leading))


def test_what_is_known_of_a_metric_is_known_in_each_salt_bucket() -> None:
    leading = LeadingTags()
    leading.add(METRIC, HOST, [(DC, uid(3))])
    cut = ranges_of({HOST: {uid(10)}}, 1, leading, salt_width=1)
    other = tsuid_of({DC: uid(3), HOST: uid(9)})[3:]
    assert not [salt for salt in range(3) if holds(cut, bytes((salt,)) + METRIC + bytes(4) + other)]


def test_adjacent_values_and_hours_are_one_range() -> None:
    assert len(ranges_of({HOST: {uid(10)}}, 5, LeadingTags())) == 10
    assert len(ranges_of({HOST: {uid(10), uid(11), uid(12)}}, 5, LeadingTags())) == 10
    assert len(ranges_of({HOST: {uid(10), uid(12)}}, 5, LeadingTags())) == 15
    both = ranges_of({DC: {uid(3)}, HOST: {uid(10)}}, MOST_RANGES // 3 - 1, LeadingTags())
    assert len(both) == (MOST_RANGES // 3 - 1) * 3
    leading = LeadingTags()
    leading.add(METRIC, HOST, [(DC, uid(3))])  # no row begins with the host, so there is nothing to leave out
    assert len(ranges_of({HOST: {uid(10)}}, 5, leading)) == 11


def test_ranges_are_not_cut_into_too_many() -> None:
    filters, leading = {HOST: {uid(10), uid(51)}}, LeadingTags()
    hours = MOST_RANGES // 3
    assert MOST_RANGES * 0.9 < len(ranges_of(filters, hours, leading)) <= MOST_RANGES
    assert len(ranges_of(filters, hours + 1, leading)) == 1
    assert len(ranges_of(filters, hours // 3 - 1, leading, salt_width=1)) > MOST_RANGES * 0.9
    assert len(ranges_of(filters, hours // 3, leading, salt_width=1)) == 3


class Ends(Sequence[int]):
    """Base times of which only the first and the last one may be read."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, at: Any) -> Any:
        return {0: 0, -1: HOUR * ((1 << 20) - 1)}[at]


def test_base_times_between_the_ends_are_read_only_where_rows_are_left_out() -> None:
    """A query of many years has hundreds of thousands of them."""
    options, tsuids = OpenTsdbOptions(), frozenset((tsuid_of({HOST: uid(10)}),))
    for wanted in (Wanted([METRIC]), Wanted([METRIC], {HOST: {uid(10)}}), of_tsuids(options, tsuids)):
        assert len(key_ranges(options, wanted, [(b"", Ends())], LeadingTags())) == 1


def test_rows_of_rollups_begin_by_their_span() -> None:
    for text in ("1h", "6h", "1d", "1n", "1y"):
        span, start_s, end_s = RowSpan.parse(text), 1_709_287_200, 1_772_359_200
        hours_s = np.arange(start_s, end_s + 1, 3600)
        assert list(span.bases_between(start_s, end_s)) == sorted(set(span.bases(hours_s).tolist()))


def test_the_known_tags_are_bounded() -> None:
    leading = LeadingTags()
    for number in range(1000):
        leading.add(METRIC, HOST, [(DC, uid(number))])
    assert len(leading.of(METRIC, HOST)) < 100
    for number in range(2000):
        leading.add(uid(number), HOST, [(DC, uid(1))])
    assert len(leading._leads) <= 1000
