"""Format `kairosdb-text`: KairosDB's own vectors, what is refused and why, fast path against slow path."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.inputs.kairosdb_vectors import VECTORS, bits_of, of_kind, stored, without_ttl
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.formats import Message, Parsed, message_format
from timebeam.schema.formats.kairosdb.text_format import KairosDbText, split_words
from timebeam.schema.formats.linewise import LineRecord
from timebeam.schema.formats.options import FormatOptions, Ttl

REJECTED = {
    "telnet-217": (Reason.BAD_NUMBER, ""),
    "telnet-219": (Reason.VALUE_NOT_STORABLE, "ttl of 60 seconds"),
    "telnet-221": (Reason.BAD_TAG, ""),
    "telnet-222": (Reason.BAD_TAG, ""),
    "telnet-224": (Reason.BAD_TAG, ""),
    "telnet-226": (Reason.DUPLICATE_TAG, ""),
    "telnet-232": (Reason.BAD_TIMESTAMP, ""),
    "telnet-233": (Reason.BAD_NUMBER, ""),
    "telnet-235": (Reason.NUMBER_OUT_OF_RANGE, ""),
    "telnet-237": (Reason.BAD_NUMBER, ""),
}
"""Why lines are rejected; with a text where KairosDB takes them (a lifetime of their own)."""

UTF_8 = "telnet-228"
"""Names that KairosDB stores doubled, reading ISO-8859-1: here they are stored as they were sent."""


def parse(text: bytes, ttl: Ttl = Ttl.REJECT) -> Parsed:
    return KairosDbText(FormatOptions(kairosdb_ttl=ttl)).parse(Message(text, 5, "gs://b/f", 100))


@pytest.mark.parametrize("vector", of_kind("telnet"))
def test_lines_are_read_as_kairosdb_reads_them(vector: dict[str, Any]) -> None:
    parsed = parse(vector["line"].encode())
    if vector["id"] in REJECTED:
        reason, text = REJECTED[vector["id"]]
        (rejected,) = parsed.rejected
        assert (rejected.reason, len(parsed.batch)) == (reason, 0)
        assert rejected.message.startswith(text or vector["error"].split(": ", 1)[1])
        return
    expected = without_ttl(vector["stored"])
    if vector["id"] == UTF_8:
        (point,) = expected
        point["metric"] = point["metric"].encode("iso-8859-1").decode()
        point["tags"] = {k: v.encode("iso-8859-1").decode() for k, v in point["tags"].items()}
    assert (stored(parsed.batch), list(parsed.rejected)) == (expected, [])


def test_lifetimes_can_be_ignored() -> None:
    (vector,) = (vector for vector in VECTORS if vector["id"] == "telnet-219")
    parsed = parse(vector["line"].encode(), Ttl.IGNORE)
    assert (stored(parsed.batch), list(parsed.rejected)) == (without_ttl(vector["stored"]), [])
    assert message_format("kairosdb-text", {"kairosdb_ttl": "ignore"}).parse(Message(b"", 1)).rejected == []
    with pytest.raises(ValueError, match="kairosdb_ttl"):
        message_format("kairosdb-text", {"kairosdb_ttl": "x"})


SERIES = Series.of("m", {"host": "a"})


@pytest.mark.parametrize(
    ("line", "series", "time_ms", "in_ms", "value"),
    [
        ("put m 1300000000 5", Series.of("m", {"add": "tag"}), 1_300_000_000_000, False, 5),
        ("put m 1300000000 5 kairos_opt.ttl=0", Series.of("m", {"add": "tag"}), 1_300_000_000_000, False, 5),
        ("put m 3000000000 5 host=a", SERIES, 3_000_000_000, True, 5),
        ("put m 4294967296 5 host=a", SERIES, 4_294_967_296, True, 5),
        ("put m 0 5 host=a", SERIES, 0, False, 5),
        ("putm m 1300000000 5 host=a", SERIES, 1_300_000_000, True, 5),
        ("putm m 1300000000123 -5.5 host=a\r", SERIES, 1_300_000_000_123, True, -5.5),
        ("putm m 9223372036854775807 5 host=a", SERIES, (1 << 63) - 1, True, 5),
        ("puts m 1300000000 5 host=a", SERIES, 1_300_000_000, True, "5"),
        ('puts m 1300000000123 "it is up" host=a', SERIES, 1_300_000_000_123, True, "it is up"),
        ('puts m 1 "" host=a', SERIES, 1, True, ""),
        ("put m 1300000000 +1.5 host=a", SERIES, 1_300_000_000_000, False, 1.5),
        ("put m 1300000000 5. host=a", SERIES, 1_300_000_000_000, False, 5.0),
        ("put m 1300000000 007 host=a", SERIES, 1_300_000_000_000, False, 7),
    ],
)
def test_lines(line: str, series: Series, time_ms: int, in_ms: bool, value: float | str) -> None:
    parsed = parse(line.encode())
    assert parsed.rejected == []
    assert [(type(found), found) for _, _, found in parsed.batch.points()] == [(type(value), value)]
    assert (parsed.batch.series, parsed.batch.arrivals_ms.tolist()) == ((series,), [5])
    assert (parsed.batch.times_ms.tolist(), parsed.batch.in_ms.tolist()) == ([time_ms], [in_ms])


@pytest.mark.parametrize(
    ("line", "reason", "text"),
    [
        (b"version", Reason.BAD_SYNTAX, "'version' is not one of put, putm, puts"),
        (b"put m 1300000000", Reason.BAD_SYNTAX, "put needs a metric, a time and a value"),
        (b'put "" 1300000000 5 host=a', Reason.BAD_METRIC, "metricName may not be empty."),
        (b"put m 1300000000.5 5 host=a", Reason.BAD_TIMESTAMP, "Malformed:  1300000000.5"),
        (b"put m - 5 host=a", Reason.BAD_TIMESTAMP, "Missing digits:  -"),
        (b"put m -9223372036854775808 5 host=a", Reason.TIMESTAMP_OUT_OF_RANGE, "Over/underflow"),
        (b"putm m 9223372036854775808 5 host=a", Reason.TIMESTAMP_OUT_OF_RANGE, "Over/underflow"),
        (b'put m 1300000000 "" host=a', Reason.EMPTY_VALUE, "Empty value"),
        (b"put m 1300000000 1e3 host=a", Reason.BAD_NUMBER, "Malformed:  1e3"),
        (b"put m 1300000000 1.5f host=a", Reason.BAD_NUMBER, "'1.5f' is not a number"),
        (b"put m 1300000000 1.0e400 host=a", Reason.NUMBER_OUT_OF_RANGE, "Infinite"),
        (b"put m 1300000000 " + b"9" * 500 + b" host=a", Reason.NUMBER_OUT_OF_RANGE, "999..."),
        (b"put m 1300000000 5 host=", Reason.BAD_TAG, "tag[0] must be in the format 'name=value'."),
        (b"put m 1300000000 5 host==", Reason.BAD_TAG, "tag[0] must be in the format 'name=value'."),
        (b"put m 1300000000 5 host==a", Reason.BAD_TAG, "tag[0].value may not be empty."),
        (b"put m 1300000000 5 x=y host=a=b", Reason.BAD_TAG, "tag[1] has a second '='"),
        (b"put m 1300000000 5 host=a host=a", Reason.DUPLICATE_TAG, "Multiple entries with same key"),
        (b"put m 1300000000 5 h\xff=a", Reason.BAD_ENCODING, "not UTF-8 at byte 20"),
        (b"puts m 1 up kairos_opt.ttl=+5", Reason.VALUE_NOT_STORABLE, "--retention-class"),
    ],
)
def test_rejections(line: bytes, reason: Reason, text: str) -> None:
    parsed = parse(b"put m 1300000000 5 host=a\n" + line)
    (rejected,) = parsed.rejected
    assert (rejected.reason, rejected.payload, rejected.offset) == (reason, line, 126)
    assert text in rejected.message
    assert len(parsed.batch) == 1


def test_words() -> None:
    assert split_words('a "b c"  d"e f" ""\t"g') == ["a", "b c", 'd"e', 'f"', "", "g"]
    assert split_words("") == []


def check(form: KairosDbText, text: bytes) -> Parsed:
    """Asserts that both paths agree about a block of lines."""
    parsed = form.parse(Message(text, 5, "f", 100))
    points, rejected, at = [], [], 0
    for line in text.split(b"\n"):
        if line.strip():
            for record in form.records(text, at, at + len(line)):
                if isinstance(record.outcome, RejectedError):
                    rejected.append((line, record.outcome.reason, record.outcome.message, 100 + at))
                else:
                    points.append(record.outcome)
        at += len(line) + 1
    assert bits_of(parsed.batch) == bits_of(PointBatch.of(points, 5))
    assert [(one.payload, one.reason, one.message, one.offset) for one in parsed.rejected] == rejected
    return parsed


TIMES = [
    "1300000000",
    "2999999999",
    "3000000000",
    "4294967295",
    "4294967296",
    "1300000000123",
    "0",
    "-5",
    "x",
]
NUMBERS = [
    "5",
    "-7",
    "0.5",
    "1e3",
    "1.5e3",
    "1E3",
    "-0",
    "007",
    "+7",
    "+1.5",
    ".5",
    "5.",
    "NaN",
    "9" * 19,
    '"5"',
]
TAGS = ["host=a", "host=b", "x=y", '"q=a b"', "host=a=b", "kairos_opt.ttl=0", "kairos_opt.ttl=5", "h", "é=ü"]


def odd_line(r: random.Random) -> bytes:
    """A line that is plain in most of its parts."""
    command = r.choice(["put"] * 6 + ["putm"] * 6 + ["puts", " put", "version"])
    metric = r.choice(["m", "sys.cpu"] * 4 + ['"a b"', "1300000000"])
    time = r.choice(TIMES if r.random() < 0.6 else TIMES[:1])
    value = r.choice(NUMBERS if r.random() < 0.6 else NUMBERS[:3])
    words = [command, metric, time, value, *r.sample(TAGS, r.choice((0, 1, 1, 1, 2, 3)))]
    line = words[0]
    for word in words[1:]:
        line += r.choice([" "] * 30 + ["  ", "\t"]) + word
    return line.encode() + r.choice([b""] * 10 + [b"\r", b" ", b"\xff"])


@pytest.mark.parametrize("seed", range(4))
def test_fast_equals_slow(seed: int) -> None:
    r = random.Random(seed)
    warm = KairosDbText()
    points = 0
    for _ in range(80):
        text = b"\n".join(odd_line(r) for _ in range(r.choice((1, 3, 30))))
        points += len(check(warm, text).batch)
        check(KairosDbText(FormatOptions(remembered=2)), text)
    assert points > 300


@given(st.binary(max_size=100), st.sampled_from([b"put m 1300000000 5 host=a", b"putm m 1 2.5", b""]))
def test_any_bytes_are_read_or_rejected(text: bytes, before: bytes) -> None:
    check(KairosDbText(), before + text)


class Counting(KairosDbText):
    """Counts the lines that are read one by one."""

    calls = 0

    def records(self, text: bytes, start: int, end: int) -> Iterator[LineRecord]:
        self.calls += 1
        return super().records(text, start, end)


@pytest.mark.parametrize(
    ("line", "in_ms"),
    [(b"put m %d %s host=a", False), (b"putm m %d %s host=a", True), (b"put m %d123 %s host=a", True)],
)
def test_plain_lines_take_the_fast_path(line: bytes, in_ms: bool) -> None:
    form = Counting()
    values = (b"5", b"-7", b"0.25", b"-1.5", b"9" * 18)
    text = b"\n".join(line % (1_300_000_000 + i, values[i % 5]) for i in range(300))
    parsed = form.parse(Message(text, 1))
    assert (len(parsed.batch), form.calls) == (300, 1)
    assert (parsed.batch.in_ms == in_ms).all()
    check(form, text)
