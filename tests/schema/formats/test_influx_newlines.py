"""Line protocol whose strings have newlines, and lines without a time."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.rejections import Envelope
from timebeam.schema.formats import Message, message_format
from timebeam.schema.formats.base import Parsed
from timebeam.schema.formats.influx import influx_format

NS = 1_556_813_561_098_000_000
GOOD = f"m,t=v f=1 {NS}"
Values = list[tuple[str, float]]


def parse(text: str, **options: str) -> Parsed:
    named = {f"influx_{name}": value for name, value in options.items()}
    return message_format("influx", named).parse(Message(text.encode(), 5, "topic"))


def values(parsed: Parsed) -> Values:
    return [(str(series), float(value)) for series, _, value in parsed.batch.points()]


RECORDS = [
    f'log,host=a text="one\ntwo",n=2i {NS}',
    f'log,host=a n=2i,text="one\ntwo" {NS}',
    f'log,host=a text="one\r\ntwo\r\n",n=2i {NS}\r',
    f'log,host=a text="\n",n=2i,more="\n\n\n" {NS}',
    f'log,host=a text="a \\"quoted\\" word\nand \\\\",n=2i {NS}',
    f'log,host=a text="looks like\n{GOOD}\n# a comment\n",n=2i {NS}',
    f'log,host=a text="in \nb=" ,n=2i {NS}'.replace('" ,', '",'),
    f'  log,host=a  text="x,\ny z=",n=2i   {NS}  ',
    f'log,host=a text="größe\n🍭",n=2i {NS}',
    f'log,host=a a="1\n2",b="3\n4",n=2i,c="5\n6" {NS}',
]


@pytest.mark.parametrize("record", RECORDS)
def test_the_numbers_beside_a_string_with_newlines_are_stored(record: str) -> None:
    for before, after in (("", ""), (f"{GOOD}\n", f"\n{GOOD}\n"), ("\n\n", "\n\n"), ("# c\n", "\n#")):
        parsed = parse(before + record + after)
        goods = (before + after).count(GOOD)
        assert values(parsed) == sorted([("m.f{t=v}", 1.0)] * (goods > 0)) + [("log.n{host=a}", 2.0)] + (
            [("m.f{t=v}", 1.0)] * (goods > 1)
        )
        (rejected,) = parsed.rejected
        assert rejected.reason is Reason.BAD_NUMBER
        assert rejected.payload.decode() == record.removesuffix("\r") or rejected.payload.decode() == record
        assert rejected.offset == len(before.encode())
        again = parse(rejected.payload.decode())  # as a replay does
        assert values(again) == [("log.n{host=a}", 2.0)]


def test_tag_values_with_quotes_open_no_string() -> None:
    text = f'm,t="v f=1 {NS}\nm,t=v" f=2 {NS}\nm,t=" f="a\nb",g=3 {NS}'
    parsed = parse(text)
    assert values(parsed) == [('m.f{t="v}', 1.0), ('m.f{t=v"}', 2.0), ('m.g{t="}', 3.0)]


@pytest.mark.parametrize(
    "bad",
    [
        'log text="never closed 5',
        f'log text="closed" and more {NS}',
        f'log text="never closed {NS}',
        f'log text="a\\" {NS}',
        'log n=1,text="',
        'log ="',
    ],
)
def test_a_missing_quote_costs_no_other_line(bad: str) -> None:
    """Also if a later line has quotes of its own."""
    other = f'm s="x, y",f=2 {NS}'
    parsed = parse("\n".join([GOOD, bad, GOOD, GOOD, other, GOOD]))
    assert values(parsed).count(("m.f{t=v}", 1.0)) == 4
    assert ("m.f{}", 2.0) in values(parsed)
    assert bad in {rejected.payload.decode() for rejected in parsed.rejected}


def test_a_record_does_not_go_on_in_the_next_message() -> None:
    """Messages are read as one text: one without its closing quote would swallow those of others."""
    texts = [f'log text="open,n=1 {NS}', GOOD, f'",n=2 {NS}', GOOD, f'log text="a\nb",n=3 {NS}', GOOD]
    messages = [Message(text.encode(), 1000 + n, "topic") for n, text in enumerate(texts)]
    (parsed,) = message_format("influx").parse_all(messages)
    assert values(parsed) == [("m.f{t=v}", 1.0), ("m.f{t=v}", 1.0), ("log.n{}", 3.0), ("m.f{t=v}", 1.0)]
    assert parsed.batch.arrivals_ms.tolist() == [1001, 1003, 1004, 1005]
    assert [rejected.payload.decode() for rejected in parsed.rejected] == [texts[0], texts[2], texts[4]]
    assert [(rejected.arrival_ms, rejected.offset) for rejected in parsed.rejected] == [
        (1000, 0),
        (1002, 0),
        (1004, 0),
    ]


strings = st.text(st.sampled_from('a",= \\\n\r#m1'), max_size=12)
fields = st.lists(st.one_of(st.integers(-99, 99), strings), min_size=1, max_size=5)


@given(st.lists(fields, min_size=1, max_size=6))
def test_any_strings_beside_numbers(records: list[list[int | str]]) -> None:
    lines, expected = [], []
    for number, content in enumerate(records):
        texts = []
        for field, value in enumerate(content):
            if isinstance(value, int):
                texts.append(f"f{field}={value}i")
                expected.append((f"m.f{field}{{r={number}}}", float(value)))
            else:
                escaped = value.replace("\\", "\\\\").replace('"', '\\"')
                texts.append(f'f{field}="{escaped}"')
        lines.append(f"m,r={number} {','.join(texts)} {NS}")
    assert values(parse("\n".join(lines))) == expected


WHOLE = [*RECORDS, GOOD, '# "c', "", f'm,t="q f="a",t=true {NS}', "m f=1"]


@pytest.mark.parametrize("seed", range(100))
def test_mutated_messages_are_read_together_as_alone(seed: int) -> None:
    """Nothing is read twice, or with another message; each rejection holds the bytes at its offset."""
    rng = random.Random(seed)
    form = message_format("influx", {"influx_no_time": "publish"})
    sent = messages(*(mutated("\n".join(rng.choices(WHOLE, k=4)), rng) for _ in range(3)))
    together = list(form.parse_all(sent))
    alone = [form.parse(message) for message in sent]
    for parts in (together, alone):
        assert Reason.INTERNAL_ERROR not in {rejected.reason for part in parts for rejected in part.rejected}
    points = [repr(point) for each in alone for point in each.batch.points()]
    assert sorted(repr(point) for part in together for point in part.batch.points()) == sorted(points)
    rejections = [
        (message.arrival_ms, rejected.offset, rejected.payload, rejected.reason)
        for message, each in zip(sent, alone, strict=True)
        for rejected in each.rejected
    ]
    addressed = [(r.arrival_ms, r.offset, r.payload, r.reason) for part in together for r in part.rejected]
    assert addressed == rejections
    texts = {message.arrival_ms: message.text for message in sent}
    assert all(texts[ms].startswith(payload, offset) for ms, offset, payload, _ in addressed)


def mutated(text: str, rng: random.Random) -> str:
    """A text with some other characters."""
    for _ in range(rng.randrange(6)):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(['"', ",", " ", "=", "\\", "\n", "\r", "#", "1i", ""]) + text[at + 1 :]
    return text


def test_work_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line begins a chain of strings to the end of the text, which is no record."""
    scanned = 0
    record = influx_format._scanned

    def counted(text: bytes, position: int, limit: int) -> influx_format._Record:
        nonlocal scanned
        scan = record(text, position, limit)
        scanned += scan.position - position
        return scan

    monkeypatch.setattr(influx_format, "_scanned", counted)
    for line in ('m a=1",b="', 'm a="', 'm a="\\'):
        text = "\n".join([line] * 5_000) + "x"
        parse(text)
        assert scanned <= 6 * len(text)
        scanned = 0


def messages(*texts: str) -> list[Message]:
    """Messages that are published a second and a bit after one another."""
    return [
        Message(text.encode(), ms, "topic", 0, Envelope(str(ms), ms, {}))
        for text, ms in zip(texts, range(1_700_000_000_250, 1_700_000_100_000, 1_250), strict=False)
    ]


TIMES = {
    "ns": [(1_700_000_000_250, True), (1_700_000_001_500, True)],
    "ms": [(1_700_000_000_250, True), (1_700_000_001_500, True)],
    "s": [(1_700_000_000_000, False), (1_700_000_001_000, False)],
    "auto": [(1_700_000_000_250, True), (1_700_000_001_500, True)],
}


@pytest.mark.parametrize("precision", TIMES)
def test_lines_without_a_time_get_that_of_their_publication(precision: str) -> None:
    form = message_format("influx", {"influx_no_time": "publish", "influx_precision": precision})
    sent = messages("m f=1", "m f=2\n\nm,t=v f=3 \n")
    for _ in range(2):  # at each delivery the same
        (together,) = form.parse_all(sent)
        assert [value for _, _, value in together.batch.points()] == [1.0, 2.0, 3.0]
        first, second = TIMES[precision]
        found = list(zip(together.batch.times_ms.tolist(), together.batch.in_ms.tolist(), strict=True))
        assert found == [first, second, second]
        alone = form.parse(sent[0]).batch
        assert (int(alone.times_ms[0]), bool(alone.in_ms[0])) == first
    whole = form.parse_all(messages("m f=1", "m f=2", "m f=3", "m f=4", "m f=5"))
    assert {int(each) % 1000 for part in whole for each in part.batch.times_ms} <= {0, 250, 500, 750}


def test_times_that_are_given_stay() -> None:
    form = message_format("influx", {"influx_no_time": "publish"})
    (parsed,) = form.parse_all(
        messages(f"m f=1 {NS}\nm f=2\nm f=3 {NS}", f'm s="x",f=4\nm s="a\nb",f=5 {NS}')
    )
    given = NS // 1_000_000
    assert parsed.batch.times_ms.tolist() == [given, 1_700_000_000_250, given, 1_700_000_001_500, given]
    for wrong in ("m f=1 0", "m f=1 -5", "m f=1 x", "m f=1 12"):
        (rejected,) = form.parse(messages(wrong)[0]).rejected
        assert rejected.reason in (Reason.BAD_TIMESTAMP, Reason.TIMESTAMP_OUT_OF_RANGE)


def test_they_are_rejected_by_default_and_in_files() -> None:
    by_default = message_format("influx")
    asked = message_format("influx", {"influx_no_time": "publish"})
    of_a_file = Message(b"m f=1", 1_700_000_000_250, "lines.txt")
    for form, message in ((by_default, messages("m f=1")[0]), (by_default, of_a_file), (asked, of_a_file)):
        (rejected,) = form.parse(message).rejected
        assert rejected.reason is Reason.BAD_TIMESTAMP
        assert "--influx-no-time publish" in rejected.message
    with pytest.raises(ValueError, match="influx_no_time must be one of reject, publish, not 'now'"):
        message_format("influx", {"influx_no_time": "now"})
