"""Times and durations of queries: docs/spec/opentsdb.md §8.1, and ISO 8601."""

import pytest

from timebeam.schema.bits.times import ends_before, parse_duration, parse_time

NEW_YEAR_2013 = 1356998400000
NOW = NEW_YEAR_2013 + 12345


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500ms", 500),
        ("1s", 1_000),
        ("15m", 900_000),
        ("1h", 3_600_000),
        ("1d", 86_400_000),
        ("2w", 1_209_600_000),
        ("1n", 2_592_000_000),
        ("1y", 31_536_000_000),
        ("1H", 3_600_000),
        (" 10m ", 600_000),
    ],
)
def test_a_duration_is_a_number_and_a_unit(text, expected):
    assert parse_duration(text) == expected


@pytest.mark.parametrize("text", ["", "5", "m", "-5m", "1.5h", "5 m", "5x", "1dc", "٣m"])
def test_another_duration_is_rejected_with_the_units(text):
    with pytest.raises(ValueError, match="ms s m h d w n"):
        parse_duration(text)


def test_a_duration_of_zero_is_rejected():
    with pytest.raises(ValueError, match="zero"):
        parse_duration("0m")


def test_a_duration_beyond_64_bits_is_rejected():
    assert parse_duration("9223372036854775807ms") == 2**63 - 1
    with pytest.raises(ValueError, match="too long"):
        parse_duration("9223372036854775808ms")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1356998400", NEW_YEAR_2013),
        ("9999999999", 9_999_999_999_000),
        ("10000000000", 10_000_000_000),  # 11 digits are ms
        ("1356998400000", NEW_YEAR_2013),
        ("1356998400.123", NEW_YEAR_2013 + 123),
        ("1356998400.5", NEW_YEAR_2013 + 500),
        ("123ms", 123),
        ("1356998400000ms", NEW_YEAR_2013),
        ("2013/01/01", NEW_YEAR_2013),
        ("2013/01/01-00:01", NEW_YEAR_2013 + 60_000),
        ("2013/01/01 00:01:02", NEW_YEAR_2013 + 62_000),
        ("2013/01/01-00:01:02", NEW_YEAR_2013 + 62_000),
        ("2013-01-01", NEW_YEAR_2013),
        ("2013-01-01T00:01", NEW_YEAR_2013 + 60_000),
        ("2013-01-01 00:01:02", NEW_YEAR_2013 + 62_000),
        ("2013-01-01T00:01:02Z", NEW_YEAR_2013 + 62_000),
        ("2013-01-01t00:01:02.345678z", NEW_YEAR_2013 + 62_345),
        ("2013-01-01T02:00:00+02:00", NEW_YEAR_2013),
        ("2013-01-01T02:00:00 +0200", NEW_YEAR_2013),
        ("2012-12-31T18:30:00-05:30", NEW_YEAR_2013),
        ("2012-12-31T19:00-05", NEW_YEAR_2013),
        ("2012-02-29", 1330473600000),
        ("now", NOW),
        ("NOW", NOW),
        ("10s-ago", NOW - 10_000),
        ("1h-ago", NOW - 3_600_000),
        (" 1356998400 ", NEW_YEAR_2013),
    ],
)
def test_a_time_in_each_of_its_forms(text, expected):
    assert parse_time(text, NOW) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tomorrow",
        "-1",
        "+1356998400",
        "1356998400.1234",
        "135699840.123",
        "1356998400000000",  # microseconds
        "2013-01",
        "2013-1-1",
        "2013-02-29",
        "2013-01-01T24:00:00",
        "2013-01-01T00:00:00+24:00",
        "2013/13/01",
        "2013/01/01T00:00",
        "2013/01/01-00:00Z",
        "01/01/2013",
        "ago",
        "-ago",
        "5-ago",
    ],
)
def test_another_time_is_rejected_with_the_forms(text):
    with pytest.raises(ValueError, match=r"is not a time.*1h-ago or now"):
        parse_time(text, NOW)


@pytest.mark.parametrize("text", ["1969-12-31", "100y-ago", "2287/01/01", "1970-01-01T00:00:00+01:00"])
def test_a_time_that_cannot_be_stored_is_rejected(text):
    with pytest.raises(ValueError, match="between 1970 and 2286"):
        parse_time(text, NOW)


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("2013-01-01", "America/New_York", NEW_YEAR_2013 + 5 * 3_600_000),
        ("2013/01/01-00:30", "America/New_York", NEW_YEAR_2013 + 11 * 1_800_000),
        ("2013-07-01", "America/New_York", 1372651200000),  # daylight saving time
        ("2013-01-01T00:00:00Z", "America/New_York", NEW_YEAR_2013),
        ("2013-01-01T01:00:00+01:00", "America/New_York", NEW_YEAR_2013),
        ("2013-01-01T00:00:00.250", "Asia/Kathmandu", NEW_YEAR_2013 - 5 * 3_600_000 - 45 * 60_000 + 250),
        ("1356998400", "America/New_York", NEW_YEAR_2013),
        ("now", "America/New_York", NOW),
        ("2018-11-04", "America/Sao_Paulo", 1541300400000),  # clocks skip this midnight, and show 01:00
        ("2024-10-27T02:30:00", "Europe/Berlin", 1729989000000),  # the first of two
    ],
)
def test_days_and_clocks_without_an_offset_are_those_of_the_zone(text, zone, expected):
    assert parse_time(text, NOW, zone) == expected


def test_the_first_and_the_last_day_of_the_calendar_are_no_crash():
    for text in ("0001-01-01", "9999-12-31T23:59:59"):
        for zone in ("UTC", "Asia/Tokyo", "America/Los_Angeles"):
            with pytest.raises(ValueError, match="not between 1970 and 2286"):
                parse_time(text, NOW, zone)


def test_a_range_that_ends_too_early_is_named_by_times():
    assert ends_before(NEW_YEAR_2013, NEW_YEAR_2013 - 1) == (
        "the range ends, at 2012-12-31T23:59:59.999Z, before it starts, at 2013-01-01T00:00:00Z"
    )
    assert ends_before(NEW_YEAR_2013, NEW_YEAR_2013) == (
        "the range is empty: it starts and ends at 2013-01-01T00:00:00Z"
    )
