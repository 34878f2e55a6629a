"""What a reader raises, whatever it is, rejects one record: those beside it are read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.rejections import rejected_point
from timebeam.schema.bits import memory_limit
from timebeam.schema.bits.json_text import starts_document
from timebeam.schema.bits.memory_limit import SERIES_BYTES, TAG_BYTES
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.rejections import Envelope, Rejected
from timebeam.schema.formats import FORMATS, Message, MessageFormat, format_class, message_format
from timebeam.schema.formats.base import Framing
from timebeam.transforms.input.cut_lines import LINE_BYTES

POISON = b"poison"
JSON_EXAMPLES = {
    "opentsdb-histogram": b'{"metric":"m","timestamp":1356998400,"buckets":{"0,1":1},"tags":{"h":"a"}}',
    "telegraf-json": b'{"fields":{"a":1},"name":"m","tags":{"h":"a"},"timestamp":1356998400}',
    "otlp": b'{"resourceMetrics":[]}',
}
JSON_FORMATS = [*("opentsdb-json", "opentsdb-annotations", "heroic-json", "kairosdb-json", *JSON_EXAMPLES)]

LINES = [name for name in FORMATS if message_format(name).framing in (Framing.LINES, Framing.JSON)]


class FailsOnPoison:
    """Lets a format raise at any text with the word."""

    def __init__(self, form: MessageFormat, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("_parse", "_parse_all"):
            monkeypatch.setattr(form, name, self._failing(getattr(form, name)))

    @staticmethod
    def _failing(read: Any) -> Any:
        def fails(given: Message | Sequence[Message]) -> Any:
            if any(POISON in each.text for each in ([given] if isinstance(given, Message) else given)):
                raise LookupError("nobody thought of this")
            return read(given)

        return fails


def failing(name: str, monkeypatch: pytest.MonkeyPatch) -> MessageFormat:
    form = message_format(name)
    FailsOnPoison(form, monkeypatch)
    return form


def good_of(name: str) -> int:
    """The points, or edits of annotations, of the example of a format."""
    parsed = message_format(name).parse(Message(format_class(name).example, 1))
    return len(parsed.batch) + len(parsed.annotations)


def check(rejected: Rejected, name: str) -> None:
    assert (rejected.reason, rejected.payload) == (Reason.INTERNAL_ERROR, POISON)
    assert rejected.message.startswith(f"the reader of {name} failed at test_doors.py:")
    assert rejected.message.endswith("LookupError: nobody thought of this")


@pytest.mark.parametrize("name", FORMATS)
def test_a_message_that_makes_the_reader_fail_is_rejected_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [format_class(name).example] * 5 + [POISON] + [format_class(name).example] * 2
    messages = [
        Message(text, 1000 + number, "topic", 0, Envelope(str(number), 1000 + number, {}))
        for number, text in enumerate(texts)
    ]
    form = failing(name, monkeypatch)
    parts = list(form.parse_all(messages))
    assert sum(len(part.batch) + len(part.annotations) for part in parts) == 7 * good_of(name)
    arrivals = {arrival for part in parts for arrival in part.batch.arrivals_ms.tolist()}
    assert not arrivals or arrivals == {1000, 1001, 1002, 1003, 1004, 1006, 1007}
    (rejected,) = (rejected for part in parts for rejected in part.rejected)
    check(rejected, name)
    assert (rejected.arrival_ms, rejected.envelope) == (1005, messages[5].envelope)


@pytest.mark.parametrize("name", LINES)
def test_a_line_that_makes_the_reader_fail_is_rejected_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = format_class(name).example
    text = b"\n".join([example] * 6 + [b"", POISON, b""] + [example] * 2)
    form = failing(name, monkeypatch)
    for parts in (
        [form.parse(Message(text, 7, "file", 100))],
        form.parse_all([Message(text, 7, "file", 100)]),
    ):
        places = []
        points = 0
        for part in parts:
            points += len(part.batch) + len(part.annotations)
            for rejected in part.rejected:
                check(rejected, name)
                assert (rejected.offset, rejected.source) == (100 + text.index(POISON), "file")
            for point in range(len(part.batch)):
                rejected = rejected_point(part.batch, point)
                assert rejected.payload.strip() == example
                places.append(rejected.offset - 100)
        assert points == 8 * good_of(name)
        starts = [number * (len(example) + 1) for number in range(6)]
        if places:
            assert sorted(set(places)) == [
                *starts,
                text.index(POISON) + 8,
                text.index(POISON) + 9 + len(example),
            ]


def test_each_message_has_its_own_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of a message are rejected for which it has no room; no message takes that of another one."""
    monkeypatch.setattr(memory_limit, "MESSAGE_BYTES", 1 << 20)
    fields = b",".join(b"f%d=1" % number for number in range(100))
    lines = [b"m%d,h=" % n + b"a" * 1_000 + b" " + fields + b" 1356998400000000000" for n in range(40)]
    messages = [Message(line, number, "topic") for number, line in enumerate(lines)]
    parts = list(message_format("influx").parse_all(messages))
    assert len(parts) > 1
    assert sum(len(part.batch) for part in parts) == 4_000
    assert not any(part.rejected for part in parts)
    together = message_format("influx").parse(Message(b"\n".join(lines), 1))
    assert {rejected.reason for rejected in together.rejected} == {Reason.CORRUPT_MESSAGE}
    assert "send less at once" in together.rejected[0].message
    stored = len(together.batch) // 100
    assert stored == (1 << 20) // (100 * (SERIES_BYTES + TAG_BYTES + len(b"m0h") + 1_000))
    assert [rejected.payload for rejected in together.rejected] == lines[stored:]


MANY_DIGITS = b"9" * 4301


@pytest.mark.parametrize("name", ["opentsdb-json", "kairosdb-json", "heroic-json", "opentsdb-annotations"])
def test_more_digits_than_python_reads(name: str) -> None:
    """In a document of several lines the others are read."""
    good = format_class(name).example
    numbers = [
        number
        for number in (b"1356998400000", b"1300000000000", b"1356998400", b"1356998407")
        if number in good
    ]
    bad = good.replace(numbers[0], MANY_DIGITS)
    assert not starts_document(bad, LINE_BYTES)
    assert starts_document(b"[\n" + bad.replace(b",", b",\n") + b"]", LINE_BYTES)
    for text in (bad, bad + b"\n" + good, b"[\n" + good + b",\n" + bad.replace(b",", b",\n", 1) + b"\n]"):
        if name == "heroic-json" and text.startswith(b"["):
            continue
        parsed = message_format(name).parse(Message(text, 1))
        assert len(parsed.batch) + len(parsed.annotations) == text.count(good)
        (rejected,) = parsed.rejected
        assert rejected.reason in (Reason.TIMESTAMP_OUT_OF_RANGE, Reason.BAD_TIMESTAMP)
        assert MANY_DIGITS in rejected.payload


@pytest.mark.parametrize("levels", [300, 490, 900])
@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
@pytest.mark.parametrize("name", JSON_FORMATS)
def test_a_value_that_nests_deeper_than_python_writes_out(name: str, opening: bytes, levels: int) -> None:
    """Errors quote values."""
    closing = {b"[": b"]", b'{"a":': b"}"}[opening]
    nested = opening * levels + b"1" + closing * levels
    document = json.loads(JSON_EXAMPLES.get(name, format_class(name).example))
    for key in document:
        text = json.dumps(document | {key: "HERE"}).encode().replace(b'"HERE"', nested)
        parsed = message_format(name).parse(Message(text, 1))
        assert Reason.INTERNAL_ERROR not in {rejected.reason for rejected in parsed.rejected}, parsed.rejected
        assert parsed.rejected or len(parsed.batch) or parsed.annotations
