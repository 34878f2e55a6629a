"""Key ranges without rows of other tag values: no row that matches is left out, whichever tags are known."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from timebeam.schema.layouts.opentsdb import keys, select
from timebeam.schema.layouts.opentsdb.keys import OpenTsdbOptions
from timebeam.schema.layouts.opentsdb.leading import MOST_RANGES, LeadingTags

METRIC, HOUR = b"\0\0\7", 3600
DC, HOST, RACK = b"\0\0\1", b"\0\0\2", b"\0\0\3"
UID = st.sampled_from([b"\0\0\1", b"\0\0\2", b"\0\0\3", b"\0\xff\xff", b"\1\0\0", b"\xff\xff\xff"])
TAGS = st.dictionaries(UID, UID, min_size=1, max_size=4)


def uid(number: int) -> bytes:
    return number.to_bytes(3, "big")


def row_key(options: OpenTsdbOptions, tags: dict[bytes, bytes], base_s: int) -> bytes:
    return keys.row_key(keys.series_key(options, METRIC, list(tags.items())), base_s)


def has(tags: dict[bytes, bytes], filters: dict[bytes, set[bytes]]) -> bool:
    return all(key in tags and (not values or tags[key] in values) for key, values in filters.items())


@given(
    st.lists(TAGS, max_size=8),
    st.lists(TAGS, max_size=4),
    st.dictionaries(UID, st.sets(UID, max_size=3), min_size=1, max_size=3),
    st.integers(0, 2),
    st.integers(0, 3),
    st.sampled_from([0, 1_709_287_200, 4_294_951_200]),
    st.sampled_from([0, 1800]),
)
def test_rows_with_the_tags_stay(
    rows: list[dict[bytes, bytes]],
    known: list[dict[bytes, bytes]],
    filters: dict[bytes, set[bytes]],
    salt_width: int,
    hours: int,
    start_s: int,
    off_s: int,
) -> None:
    options = OpenTsdbOptions(salt_width=salt_width, salt_buckets=3)
    leading, span_ms = LeadingTags(), (start_s * 1000, (start_s + hours * HOUR) * 1000)
    first = min((key for key, values in filters.items() if values), default=b"")
    for tags in known:
        leading.add(METRIC, first, sorted(tags.items()))
    whole = select.scan(options, "tsdb", [METRIC], filters, *span_ms).ranges
    cut = select.scan(options, "tsdb", [METRIC], filters, *span_ms, leading).ranges
    assert all(start < end for start, end in cut)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(cut))
    assert all(any(start >= low and end <= high for low, high in whole) for start, end in cut)
    for tags in rows:
        for base_s in range(start_s, start_s + hours * HOUR + 1, HOUR):
            key = row_key(options, tags, base_s + off_s)  # another program may not begin rows at whole hours
            if has(tags, filters) and any(start <= key < end for start, end in whole):
                assert any(start <= key < end for start, end in cut)


def rows_read(filters: dict[bytes, set[bytes]], leading: LeadingTags) -> set[tuple[tuple[bytes, bytes], ...]]:
    """The tags of rows in the ranges, of four data centers with 25 hosts each and three hours."""
    options = OpenTsdbOptions()
    ranges = select.scan(options, "tsdb", [METRIC], filters, 0, 3 * HOUR * 1000 - 1, leading).ranges
    every = [{DC: uid(host % 4 + 1), HOST: uid(host), RACK: uid(9)} for host in range(10, 110)]
    return {
        tuple(tags.items())
        for tags in every
        for base_s in range(0, 3 * HOUR, HOUR)
        if any(start <= row_key(options, tags, base_s) < end for start, end in ranges)
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


def test_what_is_known_of_a_metric_is_known_in_each_salt_bucket() -> None:
    options, leading = OpenTsdbOptions(salt_width=1, salt_buckets=3), LeadingTags()
    leading.add(METRIC, HOST, [(DC, uid(3))])
    cut = select.scan(options, "tsdb", [METRIC], {HOST: {uid(10)}}, 0, HOUR * 1000 - 1, leading).ranges
    other = keys.row_key(keys.series_key(options, METRIC, [(DC, uid(3)), (HOST, uid(9))]), 0)[1:]
    keys_of_other = [bytes((salt,)) + other for salt in range(3)]
    assert not [key for key in keys_of_other if any(start <= key < end for start, end in cut)]


def test_ranges_are_not_cut_into_too_many() -> None:
    options, leading = OpenTsdbOptions(), LeadingTags()
    hours = MOST_RANGES // 3
    filters = {HOST: {uid(10), uid(51)}}
    assert len(select.scan(options, "tsdb", [METRIC], filters, 0, hours * HOUR * 1000, leading).ranges) == 1
    cut = select.scan(options, "tsdb", [METRIC], filters, 0, hours * HOUR * 1000 - 1, leading).ranges
    assert MOST_RANGES * 0.9 < len(cut) <= MOST_RANGES
    leading.add(METRIC, HOST, [(DC, uid(3))])
    assert select.scan(options, "tsdb", [METRIC], filters, 0, hours * HOUR * 1000 - 1, leading).ranges == cut


def test_the_known_tags_are_bounded() -> None:
    leading = LeadingTags()
    for number in range(1000):
        leading.add(METRIC, HOST, [(DC, uid(number))])
    assert len(leading.of(METRIC, HOST)) < 100
    for number in range(2000):
        leading.add(uid(number), HOST, [(DC, uid(1))])
    assert len(leading._leads) <= 1000
