"""Fields of protobuf: many messages together as one by one, on good and on hostile bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timebeam.schema.bits import protobuf, protobuf_columns
from timebeam.schema.bits.memory_limit import VALUE_BYTES, MemoryMeter, NoRoomError, metered
from timebeam.schema.bits.protobuf import encoded_bytes, encoded_varint
from timebeam.schema.bits.protobuf_columns import PADDING, CorruptMessagesError, scan, varints

longs = st.integers(0, (1 << 64) - 1)
numbers = st.integers(1, 40) | st.sampled_from([200, 1 << 20])
fields = st.one_of(
    st.builds(encoded_bytes, st.sampled_from([1, 1, 1, 2, 16, 300]), st.binary(max_size=200)),
    st.builds(
        lambda n, v: encoded_varint(n << 3) + encoded_varint(v), numbers, st.integers(0, (1 << 64) - 1)
    ),
    st.builds(lambda n, v: encoded_varint(n << 3 | 1) + v, numbers, st.binary(min_size=8, max_size=8)),
    st.builds(lambda n, v: encoded_varint(n << 3 | 5) + v, numbers, st.binary(min_size=4, max_size=4)),
)
good = st.lists(fields, max_size=8).map(b"".join)


def read(messages: list[bytes], together: int) -> object:
    """(message, tag, content) of each field, or which messages are corrupt."""
    text = b"\n".join(messages)
    lengths = np.array([len(message) for message in messages], np.int64)
    starts = np.cumsum(lengths + 1) - lengths - 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protobuf_columns, "_TOGETHER", together)
        try:
            found = scan(text + PADDING, starts, starts + lengths)
        except CorruptMessagesError as error:
            return error.positions.tolist()
    spans = zip(
        found.message.tolist(), found.tags.tolist(), found.starts, found.firsts, found.ends, strict=True
    )
    return [(message, tag, text[start:end], text[first:end]) for message, tag, start, first, end in spans]


@given(st.lists(good, min_size=1, max_size=12))
def test_good_messages(messages: list[bytes]) -> None:
    together = read(messages, 1)
    assert together == read(messages, 1000)
    assert isinstance(together, list)
    for number, message in enumerate(messages):
        assert b"".join(field for owner, _, field, _ in together if owner == number) == message


@given(st.lists(good | st.binary(max_size=12), min_size=1, max_size=12))
def test_corrupt_messages(messages: list[bytes]) -> None:
    assert read(messages, 1) == read(messages, 1000)


@given(st.lists(st.integers(0, (1 << 64) - 1), min_size=1))
def test_varints(values: list[int]) -> None:
    encoded = [encoded_varint(value) for value in values]
    ends = np.cumsum([len(each) for each in encoded])
    starts = ends - [len(each) for each in encoded]
    read_values = varints(b"".join(encoded) + PADDING, starts.astype(np.int64), ends.astype(np.int64))
    assert read_values.view(np.uint64).tolist() == values


@given(st.lists(st.lists(st.binary(max_size=200), max_size=5), min_size=1, max_size=6), st.booleans())
def test_runs_of_fields_with_one_tag(contents: list[list[bytes]], other: bool) -> None:
    messages = [
        b"".join(encoded_bytes(1, each) for each in run) + (b"\x10\x05" if other else b"") for run in contents
    ]
    text = b"".join(messages)
    ends = np.cumsum([len(message) for message in messages])
    starts = ends - [len(message) for message in messages]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protobuf_columns, "_TOGETHER", 1)
        found = scan(text + PADDING, starts.astype(np.int64), ends.astype(np.int64), run_tag=10)
    labels = found.of(10)
    for number, run in enumerate(contents):
        spans = [
            text[start:end]
            for owner, start, end in zip(labels.message, labels.starts, labels.ends, strict=True)
            if owner == number
        ]
        assert b"".join(spans) == b"".join(encoded_bytes(1, each) for each in run)
    assert len(found.of(16)) == (len(contents) if other else 0)


@pytest.mark.parametrize("message", [b"\x08\x00\x10\x00" * 5, b"\x0a\x00" * 40])
@pytest.mark.parametrize("together", [1, 1000])
def test_fields_of_all_messages_are_charged(message: bytes, together: int) -> None:
    """A message of a few kB, unpacked to 64 MiB of fields of two bytes, would take gigabytes."""
    with metered(MemoryMeter(24 * VALUE_BYTES)):
        assert read([b"\x08\x00" * 4] * 2, together)
    with pytest.raises(NoRoomError), metered(MemoryMeter(24 * VALUE_BYTES)):
        read([b"\x08\x00" * 4, message, message, message], together)


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 5, 127, 128, 200]), st.integers(1, 20), st.sampled_from([1, 1, 2])),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 200),
    st.booleans(),
)
def test_runs_of_fields_of_one_length(
    runs: list[tuple[int, int, int]], cut: int, makes_steps_small: bool
) -> None:
    """Many are read at once; cut anywhere, the message is corrupt as one by one."""
    message = b"".join(
        encoded_bytes(number, bytes([count]) * size) for size, count, number in runs for _ in range(count)
    )
    with pytest.MonkeyPatch.context() as patch:
        if makes_steps_small:
            patch.setattr(protobuf, "_ALIKE", 3)
        whole, corrupt = read([message], 1000), read([message[: max(0, len(message) - cut)]], 1000)
        patch.setattr(protobuf, "_REPEATS", 1000)
        assert whole == read([message], 1000)
        assert corrupt == read([message[: max(0, len(message) - cut)]], 1000)
    assert isinstance(whole, list)
    assert b"".join(field for _, _, field, _ in whole) == message


def test_a_list_whose_last_field_ends_after_the_text() -> None:
    """Its length is the same as that of the fields before it."""
    message = encoded_bytes(1, bytes(127)) * 19
    assert read([message[:-1]], 1000) == [0]
    assert read([message[:-100]], 1000) == [0]
