"""Format `opentsdb-json`: what it reads, and what it rejects and why."""

from __future__ import annotations

import pytest

from timebeam.schema.bits import text_columns
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.points import Series
from timebeam.schema.formats import Message, Parsed
from timebeam.schema.formats.opentsdb.put_points import OpenTsdbJson

SERIES = Series.of("sys.cpu", {"host": "web01"})


def parse(text: bytes) -> Parsed:
    return OpenTsdbJson().parse(Message(text, 5, "sub", 100))


def line(
    metric: str = '"sys.cpu"', time: str = "1356998400", value: str = "5", tags: str = '{"host":"web01"}'
) -> bytes:
    """One object with these texts as its members."""
    return f'{{"metric":{metric},"timestamp":{time},"value":{value},"tags":{tags}}}'.encode()


def test_the_example() -> None:
    (point,) = parse(OpenTsdbJson.example).batch.points()
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
        ('{"a":"\\ud83d\\ude00"}', {"a": "\U0001f600"}),
    ],
)
def test_tags(tags: str, expected: dict[str, str]) -> None:
    assert parse(line(tags=tags)).batch.series == (Series.of("sys.cpu", expected),)


REJECTED = [
    (line(metric='""'), Reason.BAD_METRIC, "Metric name was empty"),
    (line(metric="null"), Reason.BAD_METRIC, "Metric name was empty"),
    (line(metric="5"), Reason.BAD_METRIC, "must be a string"),
    (line(metric='["a"]'), Reason.BAD_METRIC, "must be a string"),
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
    (line(value="true"), Reason.BAD_NUMBER, "neither a number nor a string"),
    (line(value='{"a":1}'), Reason.BAD_NUMBER, "neither a number nor a string"),
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
    (line(tags='{"host":"a","host":"b"}'), Reason.DUPLICATE_TAG, "host=a and host=b"),
    (b"{}", Reason.BAD_METRIC, "Metric name was empty"),
    (b"5", Reason.BAD_SYNTAX, "must be a JSON object"),
    (b"null", Reason.BAD_SYNTAX, "must be a JSON object"),
    (b"hello", Reason.BAD_SYNTAX, "not JSON"),
    (b'{"metric":"a"', Reason.BAD_SYNTAX, "not JSON"),
    (b'{"metric":"a","metric":"b"}', Reason.BAD_SYNTAX, "duplicate key 'metric'"),
    (line()[:-1] + b',"tags":{"a":"b"}}', Reason.BAD_SYNTAX, "duplicate key 'tags'"),
    (b'{"metric":"a","\\u006detric":"a"}', Reason.BAD_SYNTAX, "duplicate key 'metric'"),
    (b'{"a":' + b"[" * 100_000, Reason.BAD_SYNTAX, "not JSON"),
    (b'{"metric":"\xff"}', Reason.BAD_ENCODING, "byte 11"),
    (b'{"metric":"\xed\xa0\x80"}', Reason.BAD_ENCODING, "byte 11"),
    (line(metric='"\\ud800"'), Reason.BAD_ENCODING, "'\\ud800'"),
    (line(tags='{"\\udfff":null}'), Reason.BAD_ENCODING, "'\\udfff'"),
    (line(tags='{"host":"a\\ud83d"}'), Reason.BAD_ENCODING, "'a\\ud83d'"),
]


@pytest.mark.parametrize(("text", "reason", "why"), REJECTED)
def test_rejected(text: bytes, reason: Reason, why: str) -> None:
    parsed = parse(text)
    assert len(parsed.batch) == 0
    (rejected,) = parsed.rejected
    assert (rejected.payload, rejected.reason, rejected.source, rejected.offset) == (text, reason, "sub", 100)
    assert why in rejected.message
    assert len(rejected.message) < 200


def spans(parsed: Parsed, text: bytes) -> list[tuple[Reason, bytes]]:
    """Reason and payload of each rejection, the payload being where its offset says."""
    for rejected in parsed.rejected:
        at = rejected.offset - 100
        assert text[at : at + len(rejected.payload)] == rejected.payload
    return [(rejected.reason, rejected.payload) for rejected in parsed.rejected]


def test_the_bad_elements_of_an_array_are_rejected_one_by_one() -> None:
    bad = line(time="0", metric='"größe"')
    text = b"[ " + line() + b" , " + bad + b',5,"x", ' + line(value="6") + b" ]\r\n"
    parsed = parse(text)
    assert [value for _, _, value in parsed.batch.points()] == [5, 6]
    assert spans(parsed, text) == [
        (Reason.BAD_TIMESTAMP, bad),
        (Reason.BAD_SYNTAX, b"5"),
        (Reason.BAD_SYNTAX, b'"x"'),
    ]


@pytest.mark.parametrize(
    ("text", "points", "payload"),
    [
        (line() + b" x", 1, b"x"),
        (line() + line(), 1, line()),
        (line() + b",,", 1, b","),
        (b"[" + line() + b"] ]", 1, b"]"),
        (b"[]5", 0, b"5"),
        (b"[" + line(), 1, b""),
        (b"[" + line() + b"   x  5]", 1, b"x  5]"),
        (b"[" + line() + b", ]", 1, b"]"),
        (b"[" + line() + b"," + line()[:-1] + b"]", 1, line()[:-1] + b"]"),
        (b"\xef\xbb\xbf" + line(), 0, b"\xef\xbb\xbf" + line()),
    ],
)
def test_what_follows_a_good_point_is_rejected(text: bytes, points: int, payload: bytes) -> None:
    parsed = parse(text)
    assert (len(parsed.batch), spans(parsed, text)) == (points, [(Reason.BAD_SYNTAX, payload)])


def test_the_objects_of_an_array_are_read_in_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    form = OpenTsdbJson()
    form.parse(Message(line(), 1))
    slow: list[bytes] = []
    records = form.records
    monkeypatch.setattr(
        form, "records", lambda text, start, end: slow.append(text[start:end]) or records(text, start, end)
    )
    text = (
        b"["
        + line(value="5")
        + b" ,\t"
        + line(value="6")
        + b"]\n"
        + line(value="7")
        + b"\n[["
        + line()
        + b"]]"
    )
    parsed = form.parse(Message(text, 1))
    assert [value for _, _, value in parsed.batch.points()] == [5, 6, 7]
    assert all(read.startswith(b"[[") for read in slow), slow
    assert [rejected.payload for rejected in parsed.rejected] == [b"[" + line() + b"]"]


def test_many_tiny_objects_are_no_spans() -> None:
    """Spans and elements of a text of `{},` would need a hundred times its bytes."""
    form = OpenTsdbJson()
    text = b"[" + b",".join([b"{}"] * 1000) + b"]"
    starts, ends = text_columns.lines(text)
    assert len(form.split(text, starts, ends)[0]) == 1
    assert sum(rejected.points for rejected in form.parse(Message(text, 1)).rejected) == 1000


def test_an_empty_array_is_nothing() -> None:
    parsed = parse(b"[]\n [ ] \n")
    assert (len(parsed.batch), list(parsed.rejected)) == (0, [])


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("lead", ["", "\n"])
@pytest.mark.parametrize("unit", ["", "  "])
def test_an_array_over_several_lines(newline: str, lead: str, unit: str) -> None:
    good = [
        f"{unit}{{",
        f'{unit}{unit}"metric": "sys.cpu",',
        f'{unit}{unit}"timestamp": 1356998400,',
        f'{unit}{unit}"value": 5,',
        f'{unit}{unit}"tags": {{',
        f'{unit}{unit}"host": "web01"',
        f"{unit}}}}}",
    ]
    bad = [part.replace("1356998400", "0").replace("web01", "größe") for part in good]
    text = (lead + newline.join(["[", *good, ",", *bad, "]", ""])).encode()
    parsed = parse(text)
    assert list(parsed.batch.points()) == [(SERIES, 1_356_998_400_000, 5)]
    assert spans(parsed, text) == [(Reason.BAD_TIMESTAMP, newline.join(bad).strip().encode())]


def test_one_object_over_several_lines() -> None:
    parsed = parse(line().replace(b",", b",\n "))
    assert list(parsed.batch.points()) == [(SERIES, 1_356_998_400_000, 5)]


def test_a_newline_inside_a_text_is_no_json() -> None:
    text = b"[\n" + line(metric='"sys\n.cpu"').replace(b",", b",\n ", 1) + b"]"
    parsed = parse(text)
    assert len(parsed.batch) == 0
    assert [rejected.payload for rejected in parsed.rejected] == [
        one.strip() for one in text.splitlines()[1:]
    ]


def test_offsets_behind_wide_characters_count_bytes() -> None:
    one = line(time="0", metric='"größe"')
    text = b"[" + b",".join([one] * 3_000) + b"]"
    parsed = parse(text)
    assert {rejected.payload for rejected in parsed.rejected} == {one}
    assert [rejected.offset - 101 for rejected in parsed.rejected] == list(
        range(0, len(text) - 1, len(one) + 1)
    )


def test_an_array_with_an_object_on_each_line_may_be_cut_anywhere():
    lines = [b"[\n", *(line(value=str(i)) + b",\n" for i in range(4)), line(value="4") + b"\n", b"]\n"]
    for cut in range(len(lines) + 1):
        values = []
        for part in (lines[:cut], lines[cut:]):
            parsed = OpenTsdbJson().parse(Message(b"".join(part), 1))
            assert not parsed.rejected
            values += [value for _, _, value in parsed.batch.points()]
        assert values == [0, 1, 2, 3, 4]


def test_a_cut_line_at_the_head_of_a_block_loses_nothing_but_itself():
    text = b'{"metric":"a","timestamp":1,\n' + line(value="1") + b"\n" + line(value="2") + b"\n"
    parsed = OpenTsdbJson().parse(Message(text, 1))
    assert [value for _, _, value in parsed.batch.points()] == [1, 2]
    assert [(r.reason, r.payload) for r in parsed.rejected] == [
        (Reason.BAD_SYNTAX, b'{"metric":"a","timestamp":1,')
    ]


PLAIN = b'{"metric":"m","timestamp":1356998400,"value":1,"tags":{"a":"b"}}'


@pytest.mark.parametrize(
    ("text", "points"),
    [
        (PLAIN, 1),
        (b"[%s, %s]" % (PLAIN, PLAIN.replace(b"1,", b"-1.5e18,")), 2),
        (b" [\n%s\n] " % PLAIN, 1),
        (PLAIN.replace(b"1356998400", b"4294967295999"), 1),
        (PLAIN.replace(b"1,", b"-9223372036854775808,"), 1),
        (PLAIN.replace(b'"metric":"m"', b'"metric":"m","metric":"n"'), None),
        (PLAIN.replace(b'"a":"b"', b'"a":"b","a":"c"'), None),
        (PLAIN.replace(b'"value":1', b'"value":1,"value":2'), None),
        (PLAIN.replace(b'"value":1', b'"value":1,"other":[]'), None),
        (PLAIN.replace(b'"value":1', b'"value":"1"'), None),
        (PLAIN.replace(b'"b"', b"1"), None),
        (PLAIN.replace(b'"b"', b'"\\u0062"'), None),
        (PLAIN.replace(b'"m"', b'""'), None),
        (PLAIN.replace(b'"a":"b"', b""), None),
        (PLAIN.replace(b"1356998400", b"1356998400.0"), None),
        (PLAIN.replace(b"1356998400", b"0"), None),
        (PLAIN.replace(b"1356998400", b"4294967296000"), None),
        (PLAIN.replace(b"1,", b"9223372036854775808,"), None),
        (PLAIN.replace(b"1,", b"1e400,"), None),
        (PLAIN.replace(b"1,", b"NaN,"), None),
        (PLAIN.replace(b'"m"', b'"\xff"'), None),
        (PLAIN + b"\n" + PLAIN, None),
        (b"[%s,1]" % PLAIN, None),
        (b"[]", None),
        (b"", None),
        pytest.param(b"[" * 100_000, None, id="deep"),
    ],
)
def test_a_quick_look_counts_plain_points(text: bytes, points: int | None) -> None:
    assert OpenTsdbJson().good_points(text) == points
    if points is not None:
        parsed = parse(text)
        assert (len(parsed.batch), parsed.rejected) == (points, [])
