"""Format `opentsdb-text`: what it reads, and what it rejects and why."""

from __future__ import annotations

import pytest

from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.points import Series
from timebeam.schema.formats import FORMATS, Message, Parsed, format_class, message_format
from timebeam.schema.formats.opentsdb.put_points import OpenTsdbText

SERIES = Series.of("sys.cpu", {"host": "web01"})


def parse(text: bytes) -> Parsed:
    return OpenTsdbText().parse(Message(text, 5, "gs://b/f", 100))


def test_the_example() -> None:
    assert list(parse(OpenTsdbText.example).batch.points()) == [(SERIES, 1_356_998_400_000, 42.5)]


@pytest.mark.parametrize(
    ("line", "time_ms", "in_ms", "value"),
    [
        ("put sys.cpu 1356998400 5 host=web01", 1_356_998_400_000, False, 5),
        ("sys.cpu 1356998400 5 host=web01", 1_356_998_400_000, False, 5),
        ("sys.cpu 1356998400 5 host=web01\r", 1_356_998_400_000, False, 5),
        ("put sys.cpu 1356998400 5   host=web01 ", 1_356_998_400_000, False, 5),
        ("put sys.cpu 1356998400 5 host=web01 host=web01", 1_356_998_400_000, False, 5),
        ("put sys.cpu 1 23456789 host=web01", 1_000, False, 23_456_789),
        ("put sys.cpu 1356998400250 -5 host=web01", 1_356_998_400_250, True, -5),
        ("put sys.cpu 1356998400.250 5 host=web01", 1_356_998_400_250, True, 5),
        ("put sys.cpu +1356998400 +5 host=web01", 1_356_998_400_000, False, 5),
        ("put sys.cpu 0001356998400 007 host=web01", 1_356_998_400_000, False, 7),
        ("put sys.cpu 4294967295 5. host=web01", 4_294_967_295_000, False, 5.0),
        ("put sys.cpu 4294967296 .5 host=web01", 4_294_967_296, True, 0.5),
        ("put sys.cpu 1356998400 -1E-5 host=web01", 1_356_998_400_000, False, -1e-5),
    ],
)
def test_lines(line: str, time_ms: int, in_ms: bool, value: float) -> None:
    parsed = parse(line.encode())
    assert [(type(found), found) for _, _, found in parsed.batch.points()] == [(type(value), value)]
    assert parsed.batch.series == (SERIES,)
    assert (parsed.batch.times_ms.tolist(), parsed.batch.in_ms.tolist()) == ([time_ms], [in_ms])
    assert parsed.batch.arrivals_ms.tolist() == [5]


REJECTED = [
    (b"put", Reason.BAD_SYNTAX, "need least 4, got 0"),
    (b"put sys.cpu 1356998400", Reason.BAD_SYNTAX, "need least 4, got 2"),
    (b"stats", Reason.BAD_SYNTAX, "need least 4, got 1"),
    (b"put sys.cpu 1356998400 5", Reason.NO_TAGS, "need least 4, got 3"),
    (b"put sys.cpu 1356998400 5 ", Reason.NO_TAGS, "at least one"),
    (b"put  1356998400 5 host=a", Reason.BAD_METRIC, "empty metric name"),
    (b" sys.cpu 1356998400 5 host=a", Reason.BAD_METRIC, "empty metric name"),
    (b"put sys.cpu  1356998400 5 host=a", Reason.BAD_TIMESTAMP, "as an integer"),
    (b"put sys.cpu 0 5 host=a", Reason.BAD_TIMESTAMP, "above 0"),
    (b"put sys.cpu -1 5 host=a", Reason.BAD_TIMESTAMP, "above 0"),
    (b"put sys.cpu 1356998400.5 5 host=a", Reason.BAD_TIMESTAMP, "as an integer"),
    (b"put sys.cpu 1356998400.2500 5 host=a", Reason.BAD_TIMESTAMP, "as an integer"),
    (b"sys.cpu 1356998400.250 5 host=a", Reason.BAD_TIMESTAMP, "as an integer"),
    (b"put sys.cpu 0x50e22700 5 host=a", Reason.BAD_TIMESTAMP, "as an integer"),
    (b"put sys.cpu 4294967296000 5 host=a", Reason.TIMESTAMP_OUT_OF_RANGE, "4294967295999"),
    (b"put sys.cpu 1356998400  host=a", Reason.EMPTY_VALUE, "Empty value"),
    (b"put sys.cpu 1356998400 NaN host=a", Reason.BAD_NUMBER, "NaN"),
    (b"put sys.cpu 1356998400 0x10 host=a", Reason.BAD_NUMBER, "0x10"),
    (b"put sys.cpu 1356998400 host=a dc=b", Reason.BAD_NUMBER, "host=a"),
    (b"put sys.cpu 1356998400 " + b"x" * 500 + b" host=a", Reason.BAD_NUMBER, "xxx..."),
    (b"put sys.cpu 1356998400 9223372036854775808 host=a", Reason.NUMBER_OUT_OF_RANGE, "64 bits"),
    (b"put sys.cpu 1356998400 -1e400 host=a", Reason.NUMBER_OUT_OF_RANGE, "Infinite"),
    (b"put sys.cpu 1356998400 5 host", Reason.BAD_TAG, "invalid tag: host"),
    (b"put sys.cpu 1356998400 5 =a", Reason.BAD_TAG, "invalid tag: =a"),
    (b"put sys.cpu 1356998400 5 host=", Reason.BAD_TAG, "invalid tag: host="),
    (b"put sys.cpu 1356998400 5 host=a=b", Reason.BAD_TAG, "invalid tag: host=a=b"),
    (b"put sys.cpu 1356998400 5 host=a host=b", Reason.DUPLICATE_TAG, "host=a and host=b"),
    (b"put sys.cpu 1356998400 5 host=\xff", Reason.BAD_ENCODING, "byte 30"),
]


@pytest.mark.parametrize(("line", "reason", "why"), REJECTED)
def test_rejected(line: bytes, reason: Reason, why: str) -> None:
    good = b"put sys.cpu 1356998400 5 host=web01\n"
    for text, at in ((line, 100), (good + line + b"\n" + good, 100 + len(good))):
        parsed = parse(text)
        assert len(parsed.batch) == text.count(good)
        (rejected,) = parsed.rejected
        assert (rejected.payload, rejected.reason, rejected.source, rejected.offset) == (
            line,
            reason,
            "gs://b/f",
            at,
        )
        assert why in rejected.message
        assert len(rejected.message) < 200


def test_names_are_read_as_utf8() -> None:
    assert parse("put größe 1356998400 5 host=東京".encode()).batch.series == (
        Series.of("größe", {"host": "東京"}),
    )


def test_formats_by_name() -> None:
    assert isinstance(message_format("opentsdb-text"), OpenTsdbText)
    assert [format_class(name).name for name in FORMATS] == list(FORMATS)
    for name in FORMATS:
        parsed = message_format(name).parse(Message(format_class(name).example, 1))
        assert (len(parsed.batch) + len(parsed.annotations), parsed.rejected) == (1, [])
    with pytest.raises(ValueError, match=r"unknown message format 'csv': choose one of .*opentsdb-json"):
        message_format("csv")
