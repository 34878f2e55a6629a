"""Format `opentsdb-json`: what it reads, and what it refuses and why."""

from __future__ import annotations

import pytest

from schema.messages import Message, OpenTsdbJson, Parsed
from schema.points import Reason, Series

SERIES = Series.of("sys.cpu", {"host": "web01"})


def parse(text: bytes) -> Parsed:
    return OpenTsdbJson().parse(Message(text, 5, "sub", 100))


def line(metric: str = '"sys.cpu"', time: str = "1356998400", value: str = "5", tags: str = '{"host":"web01"}') -> bytes:
    """One object with these texts as its members."""
    return f'{{"metric":{metric},"timestamp":{time},"value":{value},"tags":{tags}}}'.encode()


def test_the_example() -> None:
    (point,) = parse(OpenTsdbJson.example.encode()).batch.points()
    assert point == (SERIES, 1_356_998_400_000, 42.5)


@pytest.mark.parametrize(
    ("time", "time_ms", "in_ms"),
    [
        ("1", 1_000, False),
        ("4294967295", 4_294_967_295_000, False),
        ("4294967296", 4_294_967_296, True),
        ("1356998400250", 1_356_998_400_250, True),
        ("4294967295999", 4_294_967_295_999, True),
        ('"1356998400"', 1_356_998_400_000, False),
        ('"+1356998400"', 1_356_998_400_000, False),
        ('"0001356998400"', 1_356_998_400_000, False),
    ],
)
def test_times(time: str, time_ms: int, in_ms: bool) -> None:
    batch = parse(line(time=time)).batch
    assert (batch.times_ms.tolist(), batch.in_ms.tolist()) == ([time_ms], [in_ms])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("-0", 0),
        ("9223372036854775807", (1 << 63) - 1),
        ('"-9223372036854775808"', -(1 << 63)),
        ('"+7"', 7),
        ('"007"', 7),
        ("0.1", 0.1),
        ("-0.0", -0.0),
        ("1e3", 1000.0),
        ("1E+3", 1000.0),
        ('"1."', 1.0),
        ('".5"', 0.5),
        ("4.9e-324", 5e-324),
        ("1e-400", 0.0),
        ("1.7976931348623157e308", 1.7976931348623157e308),
        ("0.333333333333333333333333333333", 1 / 3),
    ],
)
def test_values(text: str, value: float) -> None:
    ((_, _, found),) = parse(line(value=text)).batch.points()
    assert (type(found), repr(found)) == (type(value), repr(value))


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ('{"b":"2","a":"1"}', {"a": "1", "b": "2"}),
        ('{"a":5,"b":1.50,"c":true,"d":false}', {"a": "5", "b": "1.50", "c": "true", "d": "false"}),
        ('{"a":"1","a":"1"}', {"a": "1"}),
        ('{"gr\\u00f6\\u00dfe":"z\u00fcrich"}', {"größe": "zürich"}),
        ('{"a":""}', {"a": ""}),
    ],
)
def test_tags(tags: str, expected: dict[str, str]) -> None:
    assert parse(line(tags=tags)).batch.series == (Series.of("sys.cpu", expected),)


REFUSED = [
    (line(metric='""'), Reason.BAD_METRIC, "Metric name was empty"),
    (line(metric="null"), Reason.BAD_METRIC, "Metric name was empty"),
    (line(metric="5"), Reason.BAD_METRIC, "must be a text"),
    (line(metric='["a"]'), Reason.BAD_METRIC, "must be a text"),
    (line(time="0"), Reason.BAD_TIMESTAMP, "above 0"),
    (line(time="-5"), Reason.BAD_TIMESTAMP, "above 0"),
    (line(time="null"), Reason.BAD_TIMESTAMP, "integer above 0"),
    (line(time="1356998400.5"), Reason.BAD_TIMESTAMP, "as an integer"),
    (line(time="1356998400.250"), Reason.BAD_TIMESTAMP, "as an integer"),
    (line(time="1e9"), Reason.BAD_TIMESTAMP, "as an integer"),
    (line(time="4294967296000"), Reason.TIMESTAMP_OUT_OF_RANGE, "4294967295999"),
    (line(time="1" * 50), Reason.TIMESTAMP_OUT_OF_RANGE, "..."),
    (line(value="null"), Reason.EMPTY_VALUE, "Empty value"),
    (line(value='""'), Reason.EMPTY_VALUE, "Empty value"),
    (line(value="true"), Reason.BAD_NUMBER, "neither number nor text"),
    (line(value='{"a":1}'), Reason.BAD_NUMBER, "neither number nor text"),
    (line(value='" 5"'), Reason.BAD_NUMBER, "' 5'"),
    (line(value='"1.5f"'), Reason.BAD_NUMBER, "1.5f"),
    (line(value='"0x10"'), Reason.BAD_NUMBER, "0x10"),
    (line(value="NaN"), Reason.BAD_NUMBER, "NaN"),
    (line(value="-Infinity"), Reason.BAD_NUMBER, "-Infinity"),
    (line(value='"\u0665"'), Reason.BAD_NUMBER, "\u0665"),
    (line(value="9223372036854775808"), Reason.NUMBER_OUT_OF_RANGE, "64 bits"),
    (line(value="1e400"), Reason.NUMBER_OUT_OF_RANGE, "Infinite"),
    (line(tags="{}"), Reason.NO_TAGS, "Missing tags"),
    (line(tags="null"), Reason.NO_TAGS, "Missing tags"),
    (line(tags="[]"), Reason.BAD_TAG, "JSON object"),
    (line(tags='"host=a"'), Reason.BAD_TAG, "JSON object"),
    (line(tags='{"host":null}'), Reason.BAD_TAG, "key [host]"),
    (line(tags='{"host":["a"]}'), Reason.BAD_TAG, "key [host]"),
    (line(tags='{"host":"a","host":"b"}'), Reason.DUPLICATE_TAG, "host=b beside host=a"),
    (b"{}", Reason.BAD_METRIC, "Metric name was empty"),
    (b"5", Reason.BAD_SYNTAX, "must be a JSON object"),
    (b"null", Reason.BAD_SYNTAX, "must be a JSON object"),
    (b"hello", Reason.BAD_SYNTAX, "not JSON"),
    (b'{"metric":"a"', Reason.BAD_SYNTAX, "not JSON"),
    (b'{"metric":"a","metric":"b"}', Reason.BAD_SYNTAX, "'metric' stands twice"),
    (b'{"metric":"a","\\u006detric":"a"}', Reason.BAD_SYNTAX, "'metric' stands twice"),
    (b"[" * 100_000, Reason.BAD_SYNTAX, "not JSON"),
    (line(metric='"\udcff"').decode("utf-8", "replace").encode() if False else b'{"metric":"\xff"}', Reason.BAD_ENCODING, "byte 11"),
]
