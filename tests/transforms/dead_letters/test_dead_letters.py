"""Dead letters: written and read back without loss, whatever was rejected."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.rejections import MOST_RECORDS, Envelope, Rejected, Stage
from timebeam.schema.core.rows import Cell, Row
from timebeam.transforms.dead_letters.letter import (
    from_json,
    joined,
    letters,
    of_one_payload,
    rejected_row,
    row_of,
    to_json,
)
from timebeam.transforms.dead_letters.letter_files import _messages

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ENVELOPES = st.builds(Envelope, TEXT, st.integers(0, 1 << 45), st.dictionaries(TEXT, TEXT, max_size=3))
REJECTED = st.builds(
    Rejected,
    st.binary(max_size=30) | TEXT.map(str.encode),
    st.sampled_from(Reason),
    TEXT,
    st.sampled_from(Stage),
    TEXT,
    st.integers(-1, 1 << 50),
    st.integers(-1, 1 << 45),
    st.none() | ENVELOPES,
)


@given(REJECTED)
def test_a_letter_is_read_back(rejected: Rejected) -> None:
    line = to_json(rejected, 5)
    assert "\n" not in line
    assert from_json(line).rejected == rejected
    assert from_json(line.encode()).is_complete == (
        rejected.reason not in (Reason.LINE_TOO_LONG, Reason.TRUNCATED_FILE, Reason.CORRUPT_FILE)
    )


@pytest.mark.parametrize("line", ["", "5", "[]", "{}", '{"reason": "bad-tag"}', '{"payload": 5}', "nothing"])
def test_other_lines_are_no_letters(line: str) -> None:
    with pytest.raises(ValueError, match="not a dead letter"):
        from_json(line)


@given(
    st.text(max_size=5),
    st.binary(min_size=1, max_size=20),
    st.lists(
        st.builds(Cell, st.just("t"), st.binary(max_size=9), st.integers(0, 1 << 45), st.binary(max_size=9))
    ),
)
def test_a_rejected_row_is_read_back(table: str, key: bytes, cells: list[Cell]) -> None:
    row = Row(table, key, cells)
    rejected = rejected_row(row, Reason.WRITE_REFUSED, "no", Stage.WRITE)
    assert row_of(from_json(to_json(rejected, 1)).rejected.payload) == row


def test_a_letter_lists_a_bounded_number_of_records() -> None:
    spans = tuple((10 * number, 3) for number in range(MOST_RECORDS))
    rejected = Rejected(b"x" * 20_000, Reason.BAD_TAG, "why", Stage.PARSE, points=1000, records=spans)
    line = to_json(rejected, 5)
    assert from_json(line).rejected == rejected
    parts = [from_json(part).rejected for part in letters(rejected, 5, 30_000)]
    assert len(parts) > 1
    assert joined(parts) == rejected
    members = json.loads(line)
    for records in ([*members["records"], [0, 1]], [[1, -1]], [[1]], 5):
        with pytest.raises(ValueError, match="not a dead letter"):
            from_json(json.dumps(members | {"records": records}))


@pytest.mark.parametrize("payload", [b"\x01" * 700, b"\xff" * 700, b"\x02a" * 400, 'ü"\n'.encode() * 900])
def test_a_letter_too_long_for_a_message_becomes_several(payload: bytes) -> None:
    """None is longer than a message may be, and joined in any order they are the letter again."""
    envelope = Envelope("5", 6, {"a": "b"})
    rejected = Rejected(payload, Reason.BAD_SYNTAX, "no\ud800", Stage.PARSE, "s", 3, 4, envelope, 7)
    lines = list(letters(rejected, 1, 800))
    assert len(lines) > 1
    assert max(map(len, map(str.encode, lines))) <= 800
    parts = [from_json(line).rejected for line in lines]
    assert len({of_one_payload(part) for part in parts}) == 1
    assert sum(part.points for part in parts) == 7
    random.Random(1).shuffle(parts)
    assert joined(parts) == dataclasses.replace(rejected, message="no\\ud800")
    with pytest.raises(ValueError, match=f"in {len(parts)} parts, without {parts[0].part.number}:"):  # type: ignore[union-attr]
        joined(parts[1:])
    changed = dataclasses.replace(parts[0], payload=b"x" * len(parts[0].payload))
    with pytest.raises(ValueError, match="SHA-256"):
        joined([changed, *parts[1:]])


@pytest.mark.parametrize("byte", [b"\x01", b"\xff", b'"', b"a"])
def test_no_message_of_a_topic_is_longer_than_pubsub_takes(byte: bytes) -> None:
    rejected = Rejected(byte * 12_000_000, Reason.BAD_SYNTAX, "\x01" * 9_000_000, Stage.PARSE)
    messages = list(_messages(rejected, 1))
    assert all(len(message.data) <= 9_000_000 for message in messages)
    assert messages[0].attributes == {"reason": "bad-syntax", "stage": "parse"}
    assert joined([from_json(message.data).rejected for message in messages]).payload == rejected.payload


def test_bytes_are_written_in_the_shorter_way_and_text_as_text() -> None:
    def line(payload: bytes) -> str:
        return to_json(Rejected(payload, Reason.BAD_SYNTAX, "no", Stage.PARSE), 1)

    assert len(line(b"\x01" * 30_000)) < 41_000
    assert '"payload": "{\\"a\\": \\"b\\"}\\n"' in line(b'{"a": "b"}\n')


def test_letters_of_earlier_versions_with_half_surrogates_are_read() -> None:
    line = to_json(Rejected(b"p", Reason.BAD_TAG, "HALF", Stage.PARSE, "HALF", 1, 2, Envelope("1", 2, {})), 3)
    rejected = from_json(line.replace("HALF", "\\udc80").replace("{}", '{"a": "\\ud800"}')).rejected
    assert (rejected.message, rejected.source) == ("\\udc80", "\\udc80")
    assert rejected.envelope is not None
    assert rejected.envelope.attributes == {"a": "\\ud800"}


def test_what_a_letter_may_hold_beside_its_payload_is_bounded() -> None:
    """Objects in JSON take a hundred times the memory of their text."""
    whole = json.loads(
        to_json(Rejected(b"p", Reason.BAD_TAG, "no", Stage.PARSE, "", 1, 2, Envelope("1", 2, {})), 3)
    )
    many = {str(number): "" for number in range(200_000)}
    for more in ({"attributes": many}, {"source": "a" * 100_000}):
        with pytest.raises(ValueError, match="not a dead letter"):
            from_json(json.dumps(whole | more))
    assert from_json(json.dumps(whole | {"other": many})).rejected.payload == b"p"
