"""Times and durations of queries: docs/spec/opentsdb.md §8.1, and ISO 8601."""

import pytest

from timebeam.schema.common.times import parse_duration, parse_time

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
def test_another_duration_is_refused_with_the_units(text):
    with pytest.raises(ValueError, match="ms s m h d w n"):
        parse_duration(text)


def test_a_duration_of_zero_is_refused():
    with pytest.raises(ValueError, match="zero"):
        parse_duration("0m")


def test_a_duration_beyond_64_bits_is_refused():
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
def test_another_time_is_refused_with_the_forms(text):
    with pytest.raises(ValueError, match=r"is not a time.*1h-ago or now"):
        parse_time(text, NOW)


@pytest.mark.parametrize("text", ["1969-12-31", "100y-ago", "2287/01/01", "1970-01-01T00:00:00+01:00"])
def test_a_time_that_cannot_be_stored_is_refused(text):
    with pytest.raises(ValueError, match="between 1970 and 2286"):
        parse_time(text, NOW)
