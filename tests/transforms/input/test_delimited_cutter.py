"""Files of protobuf messages, each behind its length: whole messages, whatever the pieces; corruption."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timebeam.schema.bits.compression import CorruptDataError, TruncatedError
from timebeam.schema.bits.protobuf import encoded_varint
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.formats import Framing, Message
from timebeam.transforms.input.cut_lines import DelimitedCutter
from timebeam.transforms.input.files import blocks, match, spans


def delimited(texts: list[bytes]) -> bytes:
    return b"".join(encoded_varint(len(text)) + text for text in texts)


@given(st.lists(st.binary(max_size=300), min_size=1), st.integers(1, 50))
def test_whole_messages(texts: list[bytes], size: int) -> None:
    content = delimited(texts)
    cutter = DelimitedCutter(Message(b"", 7, "file", 0), may_be_json=False)
    messages = [
        message
        for start in range(0, len(content), size)
        for message in cutter.add(content[start : start + size])
        if isinstance(message, Message)
    ]
    assert [message.text for message in messages] == texts
    assert [content[m.offset : m.offset + len(m.text)] for m in messages] == texts
    assert list(cutter.finish()) == []


@pytest.mark.parametrize("end", [b"\x05abc", b"\x80"])
def test_a_file_that_ends_inside_a_message(end: bytes) -> None:
    cutter = DelimitedCutter(Message(b"", 7, "file", 0))
    (message,) = cutter.add(delimited([b"good"]) + end)
    assert isinstance(message, Message)
    with pytest.raises(TruncatedError):
        list(cutter.finish())
    assert (cutter.rest, cutter.offset) == (end, 5)


@pytest.mark.parametrize("length", [b"\xff" * 5, b"\xff" * 12])
def test_a_length_that_makes_no_sense(length: bytes) -> None:
    cutter = DelimitedCutter(Message(b"", 7, "file", 0))
    with pytest.raises(CorruptDataError):
        list(cutter.add(delimited([b"good"]) + length + b"\x7f" * 20))


@pytest.mark.parametrize("is_packed", [False, True])
def test_files(tmp_path: Path, is_packed: bool) -> None:
    path = tmp_path / ("metrics.gz" if is_packed else "metrics")
    content = delimited([b"one", b"two"]) + b"\x09rest"
    path.write_bytes(gzip.compress(content) if is_packed else content)
    (span,) = spans(match([str(path)])[0], Framing.DELIMITED)
    one, two, rejected = blocks(span, Framing.DELIMITED)
    assert isinstance(one, Message)
    assert isinstance(two, Message)
    assert (one.text, two.text) == (b"one", b"two")
    assert isinstance(rejected, Rejected)
    assert (rejected.reason, rejected.payload) == (Reason.TRUNCATED_FILE, b"\x09rest")


def test_lines_of_json(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    path.write_bytes(b'{"a":1}\n{"a":2}\n')
    (span,) = spans(match([str(path)])[0], Framing.DELIMITED)
    (block,) = blocks(span, Framing.DELIMITED)
    assert isinstance(block, Message)
    assert block.text == path.read_bytes()


def test_a_length_that_looks_like_json() -> None:
    """A request of OTLP begins with a newline, and 123 is a brace."""
    text = b"\n" + b"x" * 122
    (message,) = DelimitedCutter(Message(b"", 7, "file", 0)).add(delimited([text]))
    assert isinstance(message, Message)
    assert message.text == text
