"""Format `influx`: what of the line protocol it reads, and what it rejects and why.

The vectors are made from InfluxData's line protocol reference and from line-protocol.ebnf.
"""

from __future__ import annotations

import pytest

from tests.support.rejections import rejected_point
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.points import Series
from timebeam.schema.core.rejections import Stage
from timebeam.schema.formats import Message, Parsed, message_format
from timebeam.schema.formats.influx.influx_format import Influx

T = 1_556_813_561_098  # ms
NS = f"{T}000000"


def parse(text: str | bytes, **options: str) -> Parsed:
    raw = text.encode() if isinstance(text, str) else text
    named = {f"influx_{name}": value for name, value in options.items()}
    return message_format("influx", named).parse(Message(raw, 5, "gs://b/f", 100))


def points(text: str, **options: str) -> list[tuple[str, int, int | float]]:
    """The points of a text of which nothing may be rejected, each series as its text."""
    parsed = parse(text, **options)
    assert not parsed.rejected
    return [(str(series), time_ms, value) for series, time_ms, value in parsed.batch.points()]


def test_the_example() -> None:
    (point,) = parse(Influx.example).batch.points()
    assert point == (Series.of("cpu.user", {"host": "web01"}), 1_356_998_400_000, 42.5)


def test_a_point_per_field() -> None:
    line = f"cpu,host=web01,cpu=cpu0 user=1.5,procs=12i,idle=98.25 {NS}\n"
    assert points(line) == [
        ("cpu.user{cpu=cpu0,host=web01}", T, 1.5),
        ("cpu.procs{cpu=cpu0,host=web01}", T, 12),
        ("cpu.idle{cpu=cpu0,host=web01}", T, 98.25),
    ]
    batch = parse(line).batch
    assert (batch.in_ms.tolist(), batch.arrivals_ms.tolist()) == ([True] * 3, [5] * 3)
    assert batch.origins is not None
    assert rejected_point(batch, 2).payload == line.rstrip("\n").encode()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.0", 1.0),
        ("1", 1.0),
        ("-0", -0.0),
        ("-1.234456e+78", -1.234456e78),
        ("1e5", 1e5),
        ("1E-5", 1e-5),
        ("1.", 1.0),
        ("1.e3", 1000.0),
        (".5", 0.5),
        ("-.5e1", -5.0),
        ("007", 7.0),
        ("4.9e-324", 5e-324),
        ("1i", 1),
        ("12485903i", 12485903),
        ("-12485903i", -12485903),
        ("-0i", 0),
        ("007i", 7),
        ("9223372036854775807i", (1 << 63) - 1),
        ("-9223372036854775808i", -(1 << 63)),
        ("0u", 0),
        ("12485903u", 12485903),
        ("9223372036854775807u", (1 << 63) - 1),
    ],
)
def test_numbers(text: str, value: float) -> None:
    (point,) = points(f"m,t=v f={text} {NS}")
    assert (type(point[2]), repr(point[2])) == (type(value), repr(value))


@pytest.mark.parametrize("text", ["t", "T", "true", "True", "TRUE", "f", "F", "false", "False", "FALSE"])
def test_booleans(text: str) -> None:
    line = f"m,t=v f={text} {NS}"
    (rejected,) = parse(line, booleans="reject").rejected
    assert (rejected.reason, rejected.payload) == (Reason.BAD_NUMBER, line.encode())
    assert "--influx-booleans number" in rejected.message
    (point,) = points(line)
    assert (type(point[2]), point[2]) == (int, int(text[0] in "tT"))


NAMES = [
    (r"my\ Measurement", "f", "my Measurement", "f"),
    (r"a\,b", r"c\,d", "a,b", "c,d"),
    (r"a=b", r"c\=d", "a=b", "c=d"),
    (r"a\=b", r"c\ d", r"a\=b", "c d"),  # a measurement needs no escape before =, so it is none
    (r"a\b", r"c\d", r"a\b", r"c\d"),
    (r"a\\b", r"c\\d", r"a\\b", r"c\\d"),  # as InfluxDB's own decoder: no escape before a backslash
    (r"a\\,b", r"c\\\=d", r"a\,b", r"c\\=d"),
    ('"m"', "'f'", '"m"', "'f'"),
    ("größe", "🍭", "größe", "🍭"),
    ("m#", "#f", "m#", "#f"),
    ("_m", "_f", "_m", "_f"),
]


@pytest.mark.parametrize(("measurement", "field", "plain_measurement", "plain_field"), NAMES)
def test_names(measurement: str, field: str, plain_measurement: str, plain_field: str) -> None:
    (point,) = parse(f"{measurement},{field}={field} {field}=1 {NS}").batch.points()
    assert point[0] == Series.of(f"{plain_measurement}.{plain_field}", {plain_field: plain_field})


@pytest.mark.parametrize(
    "line",
    [
        f"m f=1 {NS}",
        f"  m f=1 {NS}",
        f"m  f=1  {NS}  ",
        f"m f=1 {NS}\r",
        f"m f=1 {NS} \r",
        f"m f=1 0{NS}",
    ],
)
def test_blanks_and_points_without_tags(line: str) -> None:
    assert points(line) == [("m.f{}", T, 1.0)]


def test_comments_and_blank_lines_are_passed_over() -> None:
    text = f'# a comment, "with=1 {NS}\nm f=1 {NS}\n\n  \t \r\n  # f=1 {NS}\n#\n#m f=1 {NS}\nm f=2 {NS}'
    assert points(text) == [("m.f{}", T, 1.0), ("m.f{}", T, 2.0)]


def test_the_same_tag_twice_is_one_and_the_same_field_twice_is_two_points() -> None:
    assert points(f"m,a=b,a=b f=1,f=2 {NS}") == [("m.f{a=b}", T, 1.0), ("m.f{a=b}", T, 2.0)]


@pytest.mark.parametrize(
    ("precision", "text", "time_ms", "in_ms"),
    [
        ("ns", "1556813561098000000", T, True),
        ("ns", "1556813561098999999", T, True),
        ("ns", "1556813561000000000", 1_556_813_561_000, True),
        ("us", "1556813561098000", T, True),
        ("us", "1556813561098999", T, True),
        ("ms", "1556813561098", T, True),
        ("s", "1556813561", 1_556_813_561_000, False),
        ("s", "1", 1000, False),
        ("s", "4294967295", 4_294_967_295_000, False),
        ("ns", "4294967295999999999", 4_294_967_295_999, True),
        ("ms", "4294967296", 4_294_967_296, True),
        ("auto", "1", 1000, False),
        ("auto", "4294967295", 4_294_967_295_000, False),
        ("auto", "4294967296", 4_294_967_296, True),
        ("auto", "4294967295999", 4_294_967_295_999, True),
        ("auto", "4294967296000", 4_294_967_296, True),
        ("auto", "4294967295999999", 4_294_967_295_999, True),
        ("auto", "4294967296000000", 4_294_967_296, True),
        ("auto", "4294967295999999999", 4_294_967_295_999, True),
        ("auto", "1556813561000", 1_556_813_561_000, False),
        ("auto", "1556813561000999999", 1_556_813_561_000, False),
    ],
)
def test_timestamps(precision: str, text: str, time_ms: int, in_ms: bool) -> None:
    for blanks in (" ", "  "):  # a plain line, and one for the slow path
        batch = parse(f"m,t=v f=1{blanks}{text}", precision=precision).batch
        assert (batch.times_ms.tolist(), batch.in_ms.tolist()) == ([time_ms], [in_ms])


NOW = {"s": "1556813561", "ms": "1556813561098", "us": "1556813561098765", "ns": "1556813561098765432"}


@pytest.mark.parametrize("precision", NOW)
@pytest.mark.parametrize("sent", NOW)
def test_times_of_this_century_in_a_wrong_precision_never_pass(precision: str, sent: str) -> None:
    parsed = parse(f"m,t=v f=1 {NOW[sent]}", precision=precision)
    if sent == precision:
        assert not parsed.rejected
        return
    (rejected,) = parsed.rejected
    assert rejected.reason is Reason.TIMESTAMP_OUT_OF_RANGE
    assert "is --influx-precision right?" in rejected.message


def test_auto_tells_the_unit_of_each_time_of_this_century() -> None:
    text = "".join(f"m,t=v f=1 {time}\n" for time in NOW.values())
    batch = parse(text, precision="auto").batch
    assert batch.times_ms.tolist() == [1_556_813_561_000, T, T, T]
    assert batch.in_ms.tolist() == [False, True, True, True]


@pytest.mark.parametrize("time", ["0", "-1", "4294967296000000000", "9223372036854775807", "1" + "0" * 30])
def test_auto_rejects_what_is_in_no_unit_a_time(time: str) -> None:
    (rejected,) = parse(f"m,t=v f=1 {time}", precision="auto").rejected
    assert rejected.reason in (Reason.BAD_TIMESTAMP, Reason.TIMESTAMP_OUT_OF_RANGE)


REJECTED = [
    (f",t=v f=1 {NS}", Reason.BAD_METRIC, "no measurement"),
    (f"\x01m f=1 {NS}", Reason.BAD_METRIC, "no measurement"),
    ("m", Reason.BAD_SYNTAX, "no fields"),
    ("m,t=v ", Reason.BAD_SYNTAX, "no fields"),
    (f"m\tf=1 {NS}", Reason.BAD_SYNTAX, r"unexpected '\tf=1"),
    (f"m,t=v\x7f f=1 {NS}", Reason.BAD_SYNTAX, "unexpected"),
    (f"m {NS}", Reason.BAD_SYNTAX, "invalid field"),
    (f"m =1 {NS}", Reason.BAD_SYNTAX, "invalid field"),
    (f"m f=1, {NS}", Reason.BAD_SYNTAX, "invalid field"),
    (f"m f=1,,g=2 {NS}", Reason.BAD_SYNTAX, "invalid field"),
    (f"m f=1, g=2 {NS}", Reason.BAD_SYNTAX, "invalid field"),
    (f"m f\t=1 {NS}", Reason.BAD_SYNTAX, "invalid field"),
    (f"m f=1\t{NS}", Reason.BAD_SYNTAX, "after a field"),
    (f'm f="a"b {NS}', Reason.BAD_SYNTAX, "after a field"),
    (f'm f="a {NS}', Reason.BAD_SYNTAX, "string without end"),
    (f'm f="a\\" {NS}', Reason.BAD_SYNTAX, "string without end"),
    (f"m, f=1 {NS}", Reason.BAD_TAG, "invalid tag"),
    (f"m,t f=1 {NS}", Reason.BAD_TAG, "invalid tag at 't f=1"),
    (f"m,t= f=1 {NS}", Reason.BAD_TAG, "invalid tag"),
    (f"m,=v f=1 {NS}", Reason.BAD_TAG, "invalid tag"),
    (f"m,t=v,,u=w f=1 {NS}", Reason.BAD_TAG, "invalid tag"),
    (f"m,t=v=w f=1 {NS}", Reason.BAD_TAG, "invalid tag at 't=v=w"),
    (f"m,t=v,t=w f=1 {NS}", Reason.DUPLICATE_TAG, "t=v and t=w"),
    ("m,t=v f=1", Reason.BAD_TIMESTAMP, "let the sender add the time"),
    ("m,t=v f=1 ", Reason.BAD_TIMESTAMP, "no timestamp"),
    ("m,t=v f=1 0", Reason.BAD_TIMESTAMP, "above 0"),
    (f"m,t=v f=1 -{NS}", Reason.BAD_TIMESTAMP, "above 0"),
    (f"m,t=v f=1 +{NS}", Reason.BAD_TIMESTAMP, "give an integer (ns)"),
    ("m,t=v f=1 0x1234", Reason.BAD_TIMESTAMP, "give an integer (ns)"),
    ("m,t=v f=1 1.5e18", Reason.BAD_TIMESTAMP, "give an integer (ns)"),
    (f"m,t=v f=1 {NS} {NS}", Reason.BAD_TIMESTAMP, "give an integer (ns)"),
    (f"m,t=v f=1 g=2 {NS}", Reason.BAD_TIMESTAMP, "'g=2 "),
    ("m,t=v f=1 4294967295999999", Reason.TIMESTAMP_OUT_OF_RANGE, "1970-02-19"),
    ("m,t=v f=1 4294967296000000000", Reason.TIMESTAMP_OUT_OF_RANGE, "2106-02-07"),
    ("m,t=v f=1 9999999999999999999", Reason.TIMESTAMP_OUT_OF_RANGE, "2106-02-07"),
    ("m,t=v f=1 " + "9" * 5000, Reason.TIMESTAMP_OUT_OF_RANGE, "999..."),
    ("m,t=v f=1 -" + "9" * 5000, Reason.BAD_TIMESTAMP, "above 0"),
    (f"m,t=v f= {NS}", Reason.EMPTY_VALUE, "field f: no value"),
    (f"m,t=v f=NaN {NS}", Reason.BAD_NUMBER, "field f: NaN is not a number"),
    (f"m,t=v f=inf {NS}", Reason.BAD_NUMBER, "inf is not a number"),
    (f"m,t=v f=+1 {NS}", Reason.BAD_NUMBER, "+1 is not a number"),
    (f"m,t=v f=0x10 {NS}", Reason.BAD_NUMBER, "0x10 is not a number"),
    (f"m,t=v f=1_000 {NS}", Reason.BAD_NUMBER, "1_000 is not a number"),
    (f"m,t=v f=. {NS}", Reason.BAD_NUMBER, ". is not a number"),
    (f"m,t=v f=1e {NS}", Reason.BAD_NUMBER, "1e is not a number"),
    (f"m,t=v f=1.5i {NS}", Reason.BAD_NUMBER, "1.5i is not a number"),
    (f"m,t=v f=1e5i {NS}", Reason.BAD_NUMBER, "1e5i is not a number"),
    (f"m,t=v f=-1u {NS}", Reason.BAD_NUMBER, "-1u is not a number"),
    (f"m,t=v f=i {NS}", Reason.BAD_NUMBER, "i is not a number"),
    (f"m,t=v f=tRUE {NS}", Reason.BAD_NUMBER, "tRUE is not a number"),
    (f"m,t=v f=a=b {NS}", Reason.BAD_NUMBER, "a=b is not a number"),
    (f"m,t=v f=\u0665 {NS}", Reason.BAD_NUMBER, "is not a number"),
    (f'm,t=v f="5" {NS}', Reason.BAD_NUMBER, 'field f: "5" is a string'),
    (f'm,t=v f="" {NS}', Reason.BAD_NUMBER, "is a string"),
    (f'm,t=v f="a, b=\\"c\\\\" {NS}', Reason.BAD_NUMBER, "is a string"),
    (f"m,t=v f=9223372036854775808i {NS}", Reason.NUMBER_OUT_OF_RANGE, "9223372036854775808i"),
    (f"m,t=v f=-9223372036854775809i {NS}", Reason.NUMBER_OUT_OF_RANGE, "-9223372036854775809i"),
    (f"m,t=v f=9223372036854775808u {NS}", Reason.NUMBER_OUT_OF_RANGE, "9223372036854775808u"),
    (f"m,t=v f=18446744073709551615u {NS}", Reason.NUMBER_OUT_OF_RANGE, "18446744073709551615u"),
    (f"m,t=v f={'9' * 5000}i {NS}", Reason.NUMBER_OUT_OF_RANGE, "999..."),
    (f"m,t=v f=1e400 {NS}", Reason.NUMBER_OUT_OF_RANGE, "1e400"),
    (f"{'m' * 5000},t f=1 {NS}", Reason.BAD_TAG, "invalid tag"),
    (f"m,t=v {'f' * 5000}=x {NS}", Reason.BAD_NUMBER, "is not a number"),
]


@pytest.mark.parametrize(("line", "reason", "why"), REJECTED)
def test_rejected(line: str, reason: Reason, why: str) -> None:
    """Alone, and between good lines, which are stored."""
    good = f"m,t=v f=1 {NS}\n"
    for text, at in ((line, 100), (good + line + "\n" + good, 100 + len(good))):
        parsed = parse(text)
        assert len(parsed.batch) == text.count(good)
        (rejected,) = parsed.rejected
        found = (rejected.payload, rejected.reason, rejected.stage, rejected.source, rejected.offset)
        assert found == (line.encode(), reason, Stage.PARSE, "gs://b/f", at)
        assert why in rejected.message
        assert len(rejected.message) < 200


def test_a_line_that_is_not_utf8() -> None:
    (rejected,) = parse(b"m,t=\xff f=1 1556813561098000000").rejected
    assert (rejected.reason, rejected.message) == (Reason.BAD_ENCODING, "not UTF-8 at byte 4 of the line")


def test_rejected_fields_leave_the_others_and_are_one_dead_letter_for_each_reason() -> None:
    line = f'm,t=v a=1,s="x y",b=t,i=2i,big=9223372036854775808u,n=NaN,z=3 {NS}'
    parsed = parse(line, booleans="reject")
    assert [(str(series), value) for series, _, value in parsed.batch.points()] == [
        ("m.a{t=v}", 1.0),
        ("m.i{t=v}", 2),
        ("m.z{t=v}", 3.0),
    ]
    assert [(one.payload, one.reason, one.offset) for one in parsed.rejected] == [
        (line.encode(), Reason.BAD_NUMBER, 100),
        (line.encode(), Reason.NUMBER_OUT_OF_RANGE, 100),
    ]
    assert parsed.rejected[0].message == 'field s: "x y" is a string (and 2 more of this line\'s fields)'


@pytest.mark.parametrize(
    ("template", "metric"),
    [
        ("{measurement}.{field}", "cpu.user"),
        ("{measurement}_{field}", "cpu_user"),
        ("{field}", "user"),
        ("telegraf.{field}.{measurement}.{field}", "telegraf.user.cpu.user"),
    ],
)
def test_metric_templates(template: str, metric: str) -> None:
    assert points(f"cpu,t=v user=1 {NS}", metric=template) == [(f"{metric}{{t=v}}", T, 1.0)]


def test_names_with_braces_are_not_templates() -> None:
    line = f"{{field}},t=v {{measurement}}=1 {NS}"
    assert points(line) == [("{field}.{measurement}{t=v}", T, 1.0)]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"metric": "{measurement}"}, "influx_metric must hold {field}"),
        ({"metric": ""}, "influx_metric must hold {field}"),
        ({"metric": "{field}{host}"}, "influx_metric"),
        ({"metric": "{field}}"}, "influx_metric"),
        ({"metric": "{}{field}"}, "influx_metric"),
        ({"precision": "m"}, "influx_precision must be one of ns, us, ms, s, auto, not 'm'"),
        ({"booleans": "yes"}, "influx_booleans must be one of reject, number, not 'yes'"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match="influx_") as error:
        parse("", **options)
    assert why in str(error.value)
