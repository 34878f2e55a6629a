"""JSON documents cut into arrays of their elements: each element once, at its offset, whatever the cuts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timebeam.schema.bits import json_text
from timebeam.schema.bits.json_text import starts_document
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.formats import Message
from timebeam.transforms.input import cut_json, cut_lines
from timebeam.transforms.input.cut_json import JsonCutter

TEXT = st.text(st.sampled_from('ab"\\,[]{}\n é東'), max_size=8)
ELEMENT: st.SearchStrategy[Any] = st.recursive(
    st.integers() | TEXT | st.none(), lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner)
)


@contextmanager
def sizes(
    line: int = 1, document: int = 64 << 20, record: int = 16 << 20, step: int = 1 << 20
) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cut_lines, "LINE_BYTES", line)
        patch.setattr(cut_json, "LARGEST", document)
        patch.setattr(cut_json, "RECORD_BYTES", record)
        patch.setattr(cut_json, "_STEP", step)
        patch.setattr(cut_json, "_FIRST", min(step, 4096))
        patch.setattr(json_text, "_FIRST", min(step, 4096))
        yield


def cut(text: bytes, size: int, portion: int) -> tuple[list[Message], list[Rejected]]:
    """The blocks and rejections of a text that comes in portions."""
    cutter = JsonCutter(Message(b"", 7, "file", 100), size)
    pieces: list[Message | Rejected] = []
    for start in range(0, len(text), portion):
        pieces += cutter.add(text[start : start + portion])
    pieces += cutter.finish()
    return (
        [piece for piece in pieces if isinstance(piece, Message)],
        [piece for piece in pieces if isinstance(piece, Rejected)],
    )


@given(
    st.lists(ELEMENT, min_size=1, max_size=6),
    st.sampled_from([None, 1]),
    st.booleans(),
    st.sampled_from([b"", b"\n", b"\r\n\n"]),
    st.integers(1, 60),
    st.integers(5, 60),
    st.integers(1, 9),
)
def test_every_element_once_and_at_its_place(
    elements: list[Any], indent: int | None, ascii_only: bool, end: bytes, size: int, portion: int, step: int
) -> None:
    elements = [{"over": ["lines"]}, *elements]
    text = b"\n" + json.dumps(elements, indent=indent, ensure_ascii=ascii_only).encode() + end
    with sizes(line=len(text) if indent else 1, step=step):
        messages, rejected = cut(text, size, portion)
    assert not rejected
    assert [element for message in messages for element in json.loads(message.text)] == elements
    for message in messages:
        start = message.offset - 100
        inside = message.text.rstrip()[1:-1]
        assert text[start + 1 : start + 1 + len(inside)] == inside
        assert (message.arrival_ms, message.source) == (7, "file")


def test_blocks_have_about_the_size_that_was_asked_for() -> None:
    text = json.dumps([{"n": number} for number in range(2000)], indent=2).encode()
    with sizes(line=100):
        messages, _ = cut(text, 1000, 64)
    assert len(messages) > 20
    assert max(len(message.text) for message in messages) < 1100


def test_an_object_is_not_cut() -> None:
    text = json.dumps({"n": [*range(200)], "m": 1, "o": 2}, indent=1).encode()
    (message,), rejected = cut(text, 100, 50)
    assert (message.text, rejected) == (text, [])


def test_an_object_over_several_lines_is_one_block_and_another_may_follow() -> None:
    text = b'{\n"a": [1,\n2]}\n{"b":\n3}\n{"c": 4}\n{"d": 5}\n'
    messages, rejected = cut(text, 10, 1000)
    assert not rejected
    assert [message.text for message in messages] == [
        b'{\n"a": [1,\n2]}',
        b'{"b":\n3}',
        b'{"c": 4}\n{"d": 5}\n',
    ]


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b'{"a": 1}\n{"a": 2}\n', False),
        (b'[\n{"a": 1},\n{"a": 2}\n]\n', False),  # of any length, as lines
        (b"[\n]\n", False),
        (b'[{"a": 1}, {"b": 2}]\n[{"a": 3}]\n', False),
        (b'{"metric": "a",\n{"metric": "b"}\n', False),  # a line that was cut, and good ones
        (b'{"metric": "a\n{"metric": "b"}\n', False),
        (b"put a 1 1 b=c\n", False),
        (b"\n \n", False),
        (b'[\n  {\n    "a": 1\n', True),
        (b'[{"a": 1},\n{"a": 2}]', True),
        (b'[{"a": "text that is c', False),
        (b'[\n  {\n    "a": "text that is c', True),
        (b'{"a":\n  NaN}', True),
        (b"[" * 100_000 + b"\n", False),
    ],
)
def test_documents_are_told_from_lines(head: bytes, expected: bool) -> None:
    assert starts_document(head, cut_lines.LINE_BYTES) == expected


def test_short_documents_that_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each was looked for in a mebibyte: 4 MB of them took minutes, and 64 MiB hours."""
    looked_at: list[int] = []
    scan, value = cut_json._JsonScan._step, json_text._value

    def counted_scan(self: Any, view: Any) -> int:
        looked_at.append(len(view))
        return scan(self, view)

    def counted_value(text: str) -> tuple[int, bool]:
        looked_at.append(len(text))
        return value(text)

    monkeypatch.setattr(cut_json._JsonScan, "_step", counted_scan)
    monkeypatch.setattr(json_text, "_value", counted_value)
    document = json.dumps({"n": [*range(100)], "text": "}"}, indent=1).encode() + b"\n\n"
    text = document * 4000
    messages, rejected = cut(text, 4 << 20, len(text))
    assert not rejected
    assert [message.text for message in messages] == [document.rstrip()] * 4000
    assert [message.offset for message in messages] == [100 + len(document) * n for n in range(4000)]
    assert sum(looked_at) < 20 * len(text)


def test_an_array_in_one_line_that_is_too_long_is_a_document() -> None:
    text = json.dumps([{"n": number} for number in range(200)]).encode() + b"\n"
    with sizes(line=300):
        messages, rejected = cut(text, 500, 100)
    assert not rejected
    assert [element["n"] for message in messages for element in json.loads(message.text)] == [*range(200)]


@pytest.mark.parametrize("limit", ["document", "record"])
def test_what_is_too_long_is_rejected_once(limit: str) -> None:
    good = [{"n": number} for number in range(20)]
    long = [{"n": number} for number in range(500)] if limit == "document" else ["x" * 5000, *good]
    text = json.dumps(good + long, indent=1).encode()
    with sizes(line=100, **{limit: 1000}):
        messages, (rejected,) = cut(text, 200, 100)
    elements = [element for message in messages for element in json.loads(message.text)]
    assert elements == (good + long)[: len(elements)]
    assert len(elements) >= (30 if limit == "document" else 20)
    assert rejected.reason is Reason.LINE_TOO_LONG
    start = rejected.offset - 100
    assert rejected.payload == text[start : start + len(rejected.payload)]
    assert rejected.arrival_ms == 7


def test_a_document_that_does_not_end_is_rejected_once_behind_its_last_whole_element() -> None:
    text = json.dumps([{"n": number} for number in range(20)], indent=1).encode()[:-8]
    messages, (rejected,) = cut(text, 1000, 50)
    elements = [element["n"] for message in messages for element in json.loads(message.text)]
    assert elements == [*range(19)]
    assert (rejected.reason, rejected.payload) == (Reason.BAD_SYNTAX, text[rejected.offset - 100 :])
