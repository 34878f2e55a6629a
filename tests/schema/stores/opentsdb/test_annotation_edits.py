"""Requests against the second writing of OpenTSDB's rules; edits that come again, late and in any order."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.schema.stores.opentsdb import plain_annotations as plain
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.annotations import (
    NO_CELL,
    Annotation,
    AnnotationEdit,
    AnnotationState,
    NotAnAnnotationError,
    after,
    parse_stored,
)
from timebeam.schema.core.points import Series
from timebeam.schema.core.rejections import Envelope
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.formats import message_format
from timebeam.schema.formats.base import Message
from timebeam.schema.stores.opentsdb.columns import annotation_cells as cells
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions

TSUID = "000001000001000001"

texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=5)
custom = st.dictionaries(texts, texts, max_size=3)
times = st.integers(1, (1 << 32) - 1) | st.integers(1 << 32, (1 << 32) * 1000 - 1)
starts = st.sampled_from([1356998407, 1356998407000])
request = st.fixed_dictionaries(
    {"method": st.sampled_from(["POST", "POST", "PUT", "DELETE"]), "startTime": starts},
    optional={
        "endTime": times,
        "description": texts.filter(bool),
        "notes": texts.filter(bool),
        "custom": custom,
    },
).filter(lambda one: len(one) > 2 or one["method"] == "DELETE")


def edits(requests: list[plain.Request], arrivals: list[int] | None = None) -> list[AnnotationEdit]:
    """Requests as they are parsed; each arrives a millisecond after the one before it."""
    found: list[AnnotationEdit] = []
    for number, one in enumerate(requests):
        message = Message(json.dumps(one | {"tsuid": TSUID}).encode(), (arrivals or range(999))[number], "f")
        parsed = message_format("opentsdb-annotations").parse(message)
        assert not parsed.rejected
        found += parsed.annotations
    return found


@given(st.lists(request, max_size=6))
def test_requests_one_after_the_other_are_a_tsds(requests: list[plain.Request]) -> None:
    state, expected = NO_CELL, None
    for one, edit in zip(requests, edits(requests), strict=True):
        state = after(state, [edit], TSUID)
        expected = plain.carried_out(expected, one)
        assert (state.note is None) == (expected is None)
        if state.note is not None and expected is not None:
            assert state.note.stored() == plain.json_bytes(expected, TSUID)
            assert parse_stored(state.note.stored()) == state.note


@given(st.lists(request, max_size=6), st.randoms(use_true_random=False))
@example(
    [
        {"method": "POST", "startTime": 1356998407, "description": "a"},
        {"method": "DELETE", "startTime": 1356998407},
        {"method": "POST", "startTime": 1356998407, "endTime": 1356998408},
    ],
    random.Random(1),
)
def test_requests_together_are_those_one_after_the_other(
    requests: list[plain.Request], chance: random.Random
) -> None:
    found = edits(requests)
    one_by_one = NO_CELL
    for edit in found:
        one_by_one = after(one_by_one, [edit], TSUID)
    chance.shuffle(found)
    together = after(NO_CELL, found, TSUID)
    assert together == one_by_one
    if together.note is not None:  # the same input again, as a whole
        assert after(together, found, TSUID) == together


@given(st.lists(request.filter(lambda one: one["method"] != "DELETE"), min_size=1, max_size=5), st.data())
def test_an_edit_that_is_delivered_again_changes_nothing(
    requests: list[plain.Request], data: st.DataObject
) -> None:
    found = edits([one | {"method": "POST"} for one in requests])
    state = after(NO_CELL, found, TSUID)
    again = data.draw(st.lists(st.sampled_from(found)))
    for edit in again:
        assert after(state, [edit], TSUID) == state


def test_a_late_edit_fills_in_what_is_empty() -> None:
    first, late, last = edits(
        [
            {"startTime": 1356998407, "description": "a"},
            {"startTime": 1356998407, "description": "b", "notes": "n", "endTime": 1356998500},
            {"startTime": 1356998407, "description": "c"},
        ]
    )
    state = after(after(NO_CELL, [first, last], TSUID), [late], TSUID)
    assert state == AnnotationState(Annotation(TSUID, 1356998407, 1356998500, "c", "n"), 2)
    (put, delete) = edits([{"startTime": 1356998407, "notes": "x", "method": "PUT"}] * 2)
    assert after(state, [put], TSUID) == state
    assert after(state, [delete], TSUID) == state


def test_with_event_time_every_edit_counts_and_cells_have_the_time_of_the_annotation() -> None:
    first, last = edits(
        [{"startTime": 1356998407500, "description": "a"}, {"startTime": 1356998407500, "description": "b"}]
    )
    state = after(NO_CELL, [last], TSUID, event_time=True)
    assert state.timestamp_ms == 1356998407500
    assert after(state, [first], TSUID, event_time=True).note == Annotation(TSUID, 1356998407500, 0, "a")


@given(times, st.sampled_from([0, 1, 2]), st.sampled_from([TSUID, "", "FFFFFF000001000001000002000004"]))
def test_places(start: int, salt_width: int, tsuid: str) -> None:
    options = OpenTsdbOptions(salt_width=salt_width)
    place = cells.place(options, bytes.fromhex(tsuid), start)
    assert place == plain.cell_place(tsuid, start, salt_width)
    assert cells.tsuid_of(options, place.key) == bytes.fromhex(tsuid)
    value = Annotation(tsuid, start, description="d").stored()
    (found,) = cells.read_annotations(options, Row("tsdb", place.key, [Cell("t", place.qualifier, 1, value)]))
    assert found.note == Annotation(tsuid, start, description="d")


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ('q"b\\s/', r"q\"b\\s/"),
        ("\b\t\n\f\r", r"\b\t\n\f\r"),
        ("\x00\x1f\x7f", "\\u0000\\u001F\x7f"),
        ("größe 雪 \U0001f680 \u2028", "größe 雪 \\uD83D\\uDE80 \u2028"),
    ],
)
def test_characters_are_escaped_as_jackson_does(text: str, stored: str) -> None:
    note = Annotation("", 1, description=text)
    head, tail = b'{"startTime":1,"endTime":0,"description":"', b'","notes":"","custom":null}'
    assert note.stored() == head + stored.encode() + tail
    assert parse_stored(note.stored()) == note


def test_custom_fields_have_the_order_of_utf_16() -> None:
    """U+FF5E stands behind the surrogates of an emoji there, and before it by code point."""
    (edit,) = edits([{"startTime": 1, "custom": {"\uff5e": "1", "\U0001f680": "2", "a": "3"}}])
    assert edit.custom == (("a", "3"), ("\U0001f680", "2"), ("\uff5e", "1"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "no startTime"),
        (b'{"startTime":"1"}', "startTime is not a whole number"),
        (b'{"startTime":1,"custom":{"a":1}}', "custom is not an object of strings"),
        (b'{"startTime":1,"notes":1}', "notes is not a string"),
    ],
)
def test_what_is_no_annotation(value: bytes, text: str) -> None:
    with pytest.raises(NotAnAnnotationError, match=text):
        parse_stored(value)


def test_a_stored_annotation_may_have_other_keys_in_any_order() -> None:
    value = b'{"notes":"n","x":[1],"startTime":7,"custom":null,"description":null}'
    assert parse_stored(value) == Annotation("", 7, notes="n")


@pytest.mark.parametrize(
    "value",
    [
        b'{"startTime":1356998408}',
        b'{"startTime":9356998407000}',
        b'{"startTime":1356998407}',
        b'{"startTime":1356998407,"tsuid":"000001000001000002"}',
    ],
)
def test_an_annotation_of_another_place_is_corruption(value: bytes) -> None:
    place = cells.place(OpenTsdbOptions(), bytes.fromhex(TSUID), 1356998407)
    row = Row("tsdb", place.key, [Cell("t", place.qualifier, 1, value), Cell("t", b"\1\0", 1, b"\0")])
    (found,) = cells.read_annotations(OpenTsdbOptions(), row)
    assert found.note is None
    assert found.corruption.startswith("annotation 010007: its ")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", Reason.BAD_METRIC),
        ("000001", Reason.BAD_METRIC),
        ("00000100000100000", Reason.BAD_METRIC),
        ("00000100000100000x", Reason.BAD_METRIC),
        ("000001 000001000001", Reason.BAD_METRIC),
        ("000000000001000001", Reason.BAD_METRIC),
        ("000001000002000001000001000001", Reason.BAD_TAG),
        ("000001000001000001000001000001", Reason.BAD_TAG),
    ],
)
def test_tsuids_of_no_series(text: str, reason: Reason) -> None:
    with pytest.raises(RejectedError) as caught:
        cells.check_tsuid(OpenTsdbOptions(), text)
    assert caught.value.reason is reason


def parsed(text: str, attributes: dict[str, str] | None = None) -> tuple[list[Any], list[Any]]:
    """(edits, (reason, payload, offset) of each rejection) of a message."""
    envelope = Envelope("1", 5, attributes) if attributes is not None else None
    message = Message(text.encode("utf-8", "surrogatepass"), 5, "f", 100, envelope)
    (result,) = message_format("opentsdb-annotations").parse_all([message])
    assert not len(result.batch)
    assert all(one.envelope == envelope and one.arrival_ms == 5 for one in result.rejected)
    rejected = [(one.reason, one.payload.decode(), one.offset) for one in result.rejected]
    return list(result.annotations), rejected


def test_single_bulk_and_documents_over_lines() -> None:
    one, two = '{"startTime":7,"notes":"ä"}', '{"startTime":8,"notes":"b"}'
    for text in (
        f"{one}\n\n{two}\n",
        f"[{one}, {two}]",
        f"[\n{one},\n{two}\n]\n",
        json.dumps([json.loads(one), json.loads(two)], indent=2),
    ):
        found, rejected = parsed(text)
        assert [(edit.start, edit.notes) for edit in found] == [(7, "ä"), (8, "b")]
        assert rejected == []
    found, _ = parsed(f"{one}\n{two}")
    assert [edit.offset for edit in found] == [100, 129]
    assert found[1].payload.decode() == two


def test_methods_of_objects_and_messages() -> None:
    found, _ = parsed('[{"startTime":7,"method":"put","notes":"x"},{"startTime":7}]', {"method": "DELETE"})
    assert [edit.method.value for edit in found] == ["PUT", "DELETE"]


def test_a_series_by_its_names() -> None:
    (edit,), _ = parsed('{"metric":"m","tags":{"b":1,"a":"x"},"startTime":"7","description":"d"}')
    assert (edit.series, edit.tsuid, edit.start) == (Series.of("m", {"a": "x", "b": "1"}), "", 7)


def test_custom_values_become_texts() -> None:
    (edit,), _ = parsed('{"startTime":7,"custom":{"n":1.50,"b":true,"t":"x"}}')
    assert edit.custom == (("b", "true"), ("n", "1.50"), ("t", "x"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("5", Reason.BAD_SYNTAX),
        ("nonsense", Reason.BAD_SYNTAX),
        ('{"notes":"x"}', Reason.BAD_TIMESTAMP),
        ('{"startTime":0,"notes":"x"}', Reason.BAD_TIMESTAMP),
        ('{"startTime":-1,"notes":"x"}', Reason.BAD_TIMESTAMP),
        ('{"startTime":1.5,"notes":"x"}', Reason.BAD_TIMESTAMP),
        ('{"startTime":true,"notes":"x"}', Reason.BAD_TIMESTAMP),
        ('{"startTime":9999999999999,"notes":"x"}', Reason.TIMESTAMP_OUT_OF_RANGE),
        ('{"startTime":7,"endTime":-1}', Reason.BAD_TIMESTAMP),
        ('{"startTime":7}', Reason.EMPTY_VALUE),
        ('{"startTime":7,"description":"","endTime":0,"custom":null}', Reason.EMPTY_VALUE),
        ('{"startTime":7,"method":"PUT"}', Reason.EMPTY_VALUE),
        ('{"startTime":7,"notes":5}', Reason.BAD_SYNTAX),
        ('{"startTime":7,"notes":"x","notes":"y"}', Reason.BAD_SYNTAX),
        ('{"startTime":7,"custom":["x"]}', Reason.BAD_SYNTAX),
        ('{"startTime":7,"custom":{"a":null}}', Reason.BAD_SYNTAX),
        ('{"startTime":7,"custom":{"a":"1","a":"2"}}', Reason.BAD_SYNTAX),
        ('{"startTime":7,"notes":"x","method":"GET"}', Reason.BAD_SYNTAX),
        ('{"startTime":7,"endTime":8,"tsuids":["00"]}', Reason.BAD_SYNTAX),
        ('{"startTime":7,"endTime":8,"global":true,"method":"DELETE"}', Reason.BAD_SYNTAX),
        ('{"startTime":7,"notes":"x","tsuid":"00","metric":"m","tags":{"a":"b"}}', Reason.BAD_SYNTAX),
        ('{"startTime":7,"notes":"x","tags":{"a":"b"}}', Reason.BAD_METRIC),
        ('{"startTime":7,"notes":"x","metric":"m"}', Reason.NO_TAGS),
        ('{"startTime":7,"notes":"\\ud800"}', Reason.BAD_ENCODING),
    ],
)
def test_what_is_rejected(text: str, reason: Reason) -> None:
    good = '{"startTime":7,"notes":"good"}'
    found, rejected = parsed(f"{good}\n{text}\n{good}")
    assert [edit.notes for edit in found] == ["good", "good"]
    assert rejected == [(reason, text, 100 + len(good) + 1)]
