"""Dead letters: written and read back without loss, whatever was refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timebeam.schema.layouts import Cell, Row
from timebeam.schema.points import Envelope, Reason, Rejected, Stage
from timebeam.transforms.dead_letters import store as dead_letters
from timebeam.transforms.dead_letters.rejected import refused_row, row_of
from timebeam.transforms.dead_letters.store import from_json, to_json

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
def test_a_refused_row_is_read_back(table: str, key: bytes, cells: list[Cell]) -> None:
    row = Row(table, key, cells)
    rejected = refused_row(row, Reason.WRITE_REFUSED, "no", Stage.WRITE)
    assert row_of(from_json(to_json(rejected, 1)).rejected.payload) == row


@pytest.mark.parametrize("byte", [b"a", b"\xff"])
def test_a_letter_too_long_for_a_message_is_cut_and_says_so(
    byte: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "LETTER_BYTES", 2000)
    for size in (100, 5000):
        rejected = Rejected(byte * size, Reason.BAD_SYNTAX, "no", Stage.PARSE)
        message = dead_letters._as_message(to_json(rejected, 1))
        assert len(message.data) < 2100
        assert message.attributes == {"reason": "bad-syntax", "stage": "parse"}
        letter = from_json(message.data)
        assert letter.is_complete == (size == 100)
        assert rejected.payload.startswith(letter.rejected.payload)
        assert len(letter.rejected.payload) > (90 if size == 100 else 1000)
        assert json.loads(message.data).get("payload_is_cut", False) == (size > 100)
