"""Row keys, their salt, the ranges and pattern of a scan; names, UIDs and options."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schema.stores.plain_opentsdb import java_bucket, java_hash
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.point_fragments import Name
from timebeam.schema.core.points import Series, SeriesKey
from timebeam.schema.stores.opentsdb import keys, select
from timebeam.schema.stores.opentsdb.keys import parse_key
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions
from timebeam.schema.stores.opentsdb.select import LeadingTags, Wanted
from timebeam.schema.stores.opentsdb.uids import uid_table

UID = st.binary(min_size=3, max_size=3)
SMALL_UID = st.sampled_from([b"\0\0\1", b"\0\0\2", b"\0\0\n", b"\1\0\0", b"\xff\xff\xff", b"\0\1\0"])
PAIRS = st.dictionaries(SMALL_UID, SMALL_UID, min_size=1, max_size=4)


@pytest.mark.parametrize(
    ("uids", "hashed"),
    [
        ("000001000001000001", 691019968),
        ("000001000001000001000002000004", -112887422),
        ("FFFFFF000001000001", -1019343266),
    ],
)
def test_the_plain_hash_is_that_of_the_specification(uids: str, hashed: int) -> None:
    assert java_hash(bytes.fromhex(uids)) == hashed


@given(UID, st.binary(max_size=48), st.integers(1, 300), st.integers(2, 8))
def test_the_salt_is_javas_remainder(metric: bytes, tags: bytes, buckets: int, width: int) -> None:
    options = OpenTsdbOptions(salt_width=width, salt_buckets=buckets)
    expected = 0 if metric == bytes(3) else java_bucket(metric + tags, buckets)
    assert keys.salt(options, metric, tags) == expected.to_bytes(width, "big")
    assert keys.salt(OpenTsdbOptions(), metric, tags) == b""


@given(
    UID, st.dictionaries(UID, UID, min_size=1, max_size=8), st.integers(0, (1 << 32) - 1), st.integers(0, 2)
)
def test_a_key_is_read_back(metric: bytes, tags: dict[bytes, bytes], base_s: int, salt_width: int) -> None:
    options = OpenTsdbOptions(salt_width=salt_width)
    series = keys.series_key(options, metric, list(tags.items())[::-1])
    key = keys.row_key(series, base_s)
    parts = keys.parse_key(options, key)
    assert (parts.salt + parts.metric, parts.metric, parts.base_s) == (series.head, metric, base_s)
    assert parts.tags == tuple(sorted(tags.items()))
    assert parts.tsuid == metric + b"".join(key + value for key, value in sorted(tags.items()))
    named = parse_key(options, key).uids
    assert named == [("metrics", metric)] + [
        pair for tag, value in sorted(tags.items()) for pair in (("tagk", tag), ("tagv", value))
    ]


def test_widths_of_uids_shift_everything() -> None:
    options = OpenTsdbOptions(uid_width_metric=1, uid_width_tagk=2, uid_width_tagv=4)
    key = keys.row_key(keys.series_key(options, b"\x09", [(b"bb", b"2222"), (b"aa", b"1111")]), 3600)
    assert key == b"\x09\x00\x00\x0e\x10aa1111bb2222"
    assert keys.parse_key(options, key).tags == ((b"aa", b"1111"), (b"bb", b"2222"))


@pytest.mark.parametrize("length", [0, 3, 7, 8, 12, 14, 18])
def test_a_key_of_another_length_is_none_of_ours(length: int) -> None:
    with pytest.raises(ValueError, match=f"of {length} bytes is not salt, metric, base time and tag pairs"):
        keys.parse_key(OpenTsdbOptions(), bytes(length))


def holds(ranges: list[tuple[bytes, bytes]], key: bytes) -> bool:
    return any(start <= key < end for start, end in ranges)


SECONDS = st.integers(0, (1 << 32) - 1) | st.integers(-2, 2).map(lambda n: 1_356_998_400 + n * 1800)


@given(
    st.tuples(SECONDS, SECONDS).map(sorted),
    st.lists(st.tuples(SMALL_UID, PAIRS, SECONDS), max_size=6),
    SMALL_UID,
    st.integers(0, 1),
    st.integers(0, 999),
)
def test_ranges_hold_the_rows_of_the_metric_and_time_and_no_others(
    times: list[int],
    others: list[tuple[bytes, dict[bytes, bytes], int]],
    metric: bytes,
    salt_width: int,
    ms: int,
) -> None:
    options = OpenTsdbOptions(salt_width=salt_width, salt_buckets=3)
    start, end = times
    ranges = list(keys.ranges(options, metric, start * 1000 + ms, end * 1000 + ms))
    assert ranges == sorted(ranges)
    assert len(ranges) == (3 if salt_width else 1)
    hours = {start, end, max(0, start - 3600), min(end + 3600, (1 << 32) - 1)}
    rows = [(metric, {b"\xff\xff\xff": b"\xff\xff\xff"}, second) for second in hours]
    for owner, tags, second in rows + others:
        base = second - second % 3600
        key = keys.row_key(keys.series_key(options, owner, list(tags.items())), base)
        wanted = owner == metric and start - start % 3600 <= base <= end
        assert holds(ranges, key) == wanted


@pytest.mark.parametrize(
    ("start_ms", "end_ms", "first", "last"),
    [
        (-5, 5, 0, 0),
        (-(10**15), 3_600_000, 0, 3600),
        (4_294_967_295_999, 10**18, 4_294_965_600, 4_294_965_600),
        (3_599_999, 3_600_000, 0, 3600),
    ],
)
def test_ranges_at_the_ends_of_time(start_ms: int, end_ms: int, first: int, last: int) -> None:
    ((start, end),) = keys.ranges(OpenTsdbOptions(), b"abc", start_ms, end_ms)
    assert start == b"abc" + first.to_bytes(4, "big")
    behind = b"abc" + (last + 1).to_bytes(4, "big")
    assert end == behind


@pytest.mark.parametrize(("start_ms", "end_ms"), [(10**13, 10**14), (-10, -5), (7_200_000, 3_599_999)])
def test_no_ranges_where_no_row_can_be(start_ms: int, end_ms: int) -> None:
    assert list(keys.ranges(OpenTsdbOptions(salt_width=1), b"abc", start_ms, end_ms)) == []


def matches(pattern: bytes, key: bytes) -> bool:
    """Whether RE2 over raw bytes matches: `\\C` is any byte there."""
    return re.fullmatch(pattern.replace(rb"\C", rb"[\x00-\xff]"), key) is not None


@given(
    st.dictionaries(SMALL_UID, st.sets(SMALL_UID, max_size=3), min_size=1, max_size=3),
    PAIRS,
    SMALL_UID,
    st.integers(0, 2),
    st.integers(0, 1 << 20),
)
def test_the_pattern_matches_the_rows_that_have_the_tags(
    wanted: Mapping[bytes, set[bytes]], tags: dict[bytes, bytes], metric: bytes, salt_width: int, hour: int
) -> None:
    options = OpenTsdbOptions(salt_width=salt_width)
    key = keys.row_key(keys.series_key(options, metric, list(tags.items())), hour * 3600)
    pattern = keys.key_pattern(wanted)
    assert pattern is not None
    has_tags = all(tag in tags and (not values or tags[tag] in values) for tag, values in wanted.items())
    assert matches(pattern, key) >= has_tags  # other keys may match too
    has_all = {tag: {tags[tag]} for tag in sorted(tags)[:2]}
    pattern = keys.key_pattern(has_all)
    assert pattern is not None
    assert matches(pattern, key)


def test_the_pattern_does_not_match_other_tags() -> None:
    key = keys.row_key(keys.series_key(OpenTsdbOptions(), b"mmm", [(b"abc", b"def"), (b"ghi", b"jkl")]), 3600)
    assert matches(keys.key_pattern({b"abc": (), b"ghi": {b"jkl", b"jkm", b"xyz"}}) or b"", key)
    for tags in ({b"ghi": {b"def"}}, {b"abc": {b"dee", b"deg", b"xyz"}}, {b"abd": ()}):
        assert not matches(keys.key_pattern(tags) or b"", key)


def test_a_scan_is_ranges_and_pattern() -> None:
    options = OpenTsdbOptions()
    scan = select.scan(options, "p-tsdb", Wanted([b"abc"], {b"kkk": ()}), [0], LeadingTags())
    assert (scan.table, len(scan.ranges)) == ("p-tsdb", 1)
    assert scan.key_pattern == keys.key_pattern({b"kkk": ()})
    assert select.scan(options, "p-tsdb", Wanted([b"abc"]), [0], LeadingTags()).key_pattern is None
    many = [number.to_bytes(3, "big") for number in range(keys.MOST_VALUES + 1)]
    assert keys.key_pattern({b"kkk": many}) == scan.key_pattern
    assert len(keys.key_pattern({b"kkk": many[1:]}) or b"") < 20_000 / 8


def test_a_scan_of_all_metrics_leaves_out_global_annotations_only() -> None:
    scan = select.scan(OpenTsdbOptions(salt_width=1), "tsdb", Wanted([]), [0], LeadingTags())
    assert scan.ranges == ((b"\0\0\0\1", b""),)


@pytest.mark.parametrize(
    ("metric", "tags", "reason", "why"),
    [
        ("", {"h": "a"}, Reason.BAD_METRIC, "empty string"),
        ("a b", {"h": "a"}, Reason.BAD_METRIC, "illegal character:  "),
        ("a{", {"h": "a"}, Reason.BAD_METRIC, 'Invalid metric name ("a{"): illegal character: {'),
        ("m\n", {"h": "a"}, Reason.BAD_METRIC, "illegal character"),
        ("m\u0660", {"h": "a"}, Reason.BAD_METRIC, "illegal character"),
        ("\U0001d400", {"h": "a"}, Reason.BAD_METRIC, "illegal character"),
        ("\ud800", {"h": "a"}, Reason.BAD_METRIC, "illegal character"),
        ("m", {"h=": "a"}, Reason.BAD_TAG, "tag name with value [a]"),
        ("m", {"": "a"}, Reason.BAD_TAG, "tag name with value [a]: empty string"),
        ("m", {"h": "a:b"}, Reason.BAD_TAG, "tag value with key [h]"),
        ("m", {"h": ""}, Reason.BAD_TAG, "tag value with key [h]: empty string"),
        ("m", {}, Reason.NO_TAGS, "Missing tags"),
        (
            "m",
            {f"k{i}": "v" for i in range(31)},
            Reason.TOO_MANY_TAGS,
            "Too many tags: 31 maximum allowed: 30",
        ),
        ("東京", {"h": "a"}, Reason.NAME_NOT_STORABLE, "ISO-8859-1"),
        ("m", {"h": "Ā"}, Reason.NAME_NOT_STORABLE, "ISO-8859-1"),
    ],
)
def test_series_that_cannot_be_stored(metric: str, tags: dict[str, str], reason: Reason, why: str) -> None:
    error = OpenTsdb().reject(Series.of(metric, tags))
    assert error is not None
    assert error.reason is reason
    assert why in error.message


@pytest.mark.parametrize("name", ["a", "A.b-c_d/9", "größe", "ÿ", "µ", "ª"])
def test_names_that_can_be_stored(name: str) -> None:
    assert OpenTsdb().reject(Series.of(name, {name: name})) is None
    assert uid_table.name_text(uid_table.name_bytes(name)) == name
    assert len(uid_table.name_bytes(name)) == len(name)


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({}, 30),
        ({"max_tags": None}, 30),
        ({"max_tags": 8}, 8),
        ({"max_tags": 40}, 40),
        ({"overflow_tag": "rest", "keep_tags": "k0"}, 8),
        ({"overflow_tag": "rest", "keep_tags": "k0", "max_tags": 30}, 30),
    ],
)
def test_how_many_tags_a_series_may_have(options: dict[str, object], most: int) -> None:
    """With an overflow tag as many as before: the number decides which series lose tags."""
    layout = OpenTsdb(OpenTsdbOptions.of(options))
    for count in (most, most + 1):
        series = Series.of("m", {f"k{i}": "v" for i in range(count)})
        is_whole = layout.reject(series) is None and len(layout.uids.names(series)) == 1 + 2 * count
        assert is_whole == (count == most)


def test_names_of_a_series_and_the_key_of_their_uids() -> None:
    layout = OpenTsdb()
    series = Series.of("m", {"b": "x", "a": "x"})
    metric, a, b, x = Name("metrics", "m"), Name("tagk", "a"), Name("tagk", "b"), Name("tagv", "x")
    assert layout.uids.names(series) == [metric, a, x, b, x]
    uids = {metric: b"\0\0\7", a: b"\0\0\2", b: b"\0\0\1", x: b"\0\0\3"}
    assert layout.series_key(series, uids) == SeriesKey(b"\0\0\7", b"\0\0\1\0\0\3\0\0\2\0\0\3")


def test_uids_are_ids_on_their_width() -> None:
    assert uid_table.uid_bytes(0x2A, 3) == b"\0\0\x2a"
    assert uid_table.uid_bytes(255, 1) == b"\xff"
    for number, width in ((0, 3), (-1, 3), (256, 1), (1 << 63, 8)):
        with pytest.raises(ValueError, match=f"id {number} does not fit {width} bytes"):
            uid_table.uid_bytes(number, width)
    with pytest.raises(UnicodeEncodeError):
        uid_table.name_bytes("Ā")


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("salt_width", 0, 8),
        ("uid_width_metric", 1, 8),
        ("uid_width_tagk", 1, 8),
        ("uid_width_tagv", 1, 8),
        ("max_tags", 1, 255),
    ],
)
def test_options_have_limits(name: str, low: int, high: int) -> None:
    for value in (low, high):
        assert getattr(OpenTsdbOptions(**{name: value}), name) == value
    for value in (low - 1, high + 1):
        with pytest.raises(ValueError, match=f"{name} must be from {low} to {high}, not {value}"):
            OpenTsdbOptions(**{name: value})


def test_salt_buckets_must_fit_the_salt() -> None:
    assert OpenTsdbOptions(salt_width=1, salt_buckets=256).salt_buckets == 256
    with pytest.raises(ValueError, match="257 salt_buckets do not fit a salt_width of 1"):
        OpenTsdbOptions(salt_width=1, salt_buckets=257)
    with pytest.raises(ValueError, match="salt_buckets must be from 1"):
        OpenTsdbOptions(salt_buckets=0)


@pytest.mark.parametrize(
    "day", ["2026-1-1", "0001-01-01", "1969-12-31", "2106-01-01", "9999-12-31", "20260101"]
)
def test_the_day_from_which_all_writers_mark_has_one_spelling(day: str) -> None:
    with pytest.raises(ValueError, match="a day from 1970 to 2105, such as 2026-11-20"):
        OpenTsdbOptions(marked_since=day)
    assert OpenTsdbOptions(marked_since="1970-01-02").marked_since_s == 86_400


def test_a_layout_can_be_pickled() -> None:
    layout = OpenTsdb(OpenTsdbOptions(salt_width=1))
    assert pickle.loads(pickle.dumps(layout)) == layout
