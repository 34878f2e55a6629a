"""Cell chunks merged into rows, against the rows they were cut from, and against the client's own merger."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
from google.cloud.bigtable.data._sync_autogen._read_rows import _ReadRowsOperation
from google.cloud.bigtable.data.exceptions import InvalidChunk
from hypothesis import given
from hypothesis import strategies as st

from tests.support.inputs.row_chunks import CELL, WHOLE, responses_of, rows_of
from tests.support.servers.rows_server import RESPONSE, chunk
from timebeam.schema.core.rows import Cell, Row
from timebeam.transforms.bigtable.chunk_rows import InvalidChunkError, Merger, RowMerger, response_class


def merged(merger: Merger[Any], responses: Sequence[Any]) -> list[Any]:
    """What a merger makes of messages that come over the wire."""
    found = [
        one
        for response in responses
        for one in merger.take(response_class().FromString(response.SerializeToString()))
    ]
    merger.end()
    return found


def merged_by_client(chunks: Sequence[Any]) -> list[Row]:
    """What google-cloud-bigtable makes of chunks."""
    operation = object.__new__(_ReadRowsOperation)
    operation._operation_metric = mock.Mock(active_attempt=None)
    return [
        Row(
            "table",
            row.row_key,
            [
                Cell(cell.family, cell.qualifier, cell.timestamp_micros // 1000, cell.value)
                for cell in row.cells
            ],
        )
        for row in operation.merge_rows(iter(chunks))
    ]


@given(rows_of, st.integers(0, 2**32))
def test_rows_cut_into_chunks_at_random(content: dict[bytes, list[Cell]], seed: int) -> None:
    rows = [Row("table", key, content[key]) for key in sorted(content)]
    responses = list(responses_of(random.Random(seed), rows))
    found = merged(RowMerger("table"), responses)
    assert found == rows
    assert all(type(row) is Row and all(type(cell) is Cell for cell in row.cells) for row in found)
    assert merged_by_client([one for response in responses for one in response.chunks]) == rows


any_chunk = st.builds(
    chunk,
    st.sampled_from([b"", b"", b"1", b"2"]),
    st.sampled_from([None, None, "f", "g", ""]),
    st.sampled_from([None, b"", b"p", b"q"]),
    st.sampled_from([0, 1000, 2000]),
    st.sampled_from([b"", b"v"]),
    labels=st.sampled_from([(), (), (), ("l",)]),
    value_size=st.sampled_from([0, 0, 0, 5]),
    reset_row=st.booleans(),
    commit_row=st.booleans(),
)
plain_chunk = st.one_of(
    any_chunk,
    st.builds(chunk, st.just(b"1"), st.just("f"), st.just(b"q"), commit_row=st.booleans()),
    st.builds(chunk, st.just(b"2"), st.just("f"), st.just(b"p"), value_size=st.sampled_from([0, 3])),
    st.builds(chunk, value=st.just(b"w"), commit_row=st.booleans()),
    st.just(chunk(reset_row=True)),
)


@given(st.lists(plain_chunk, max_size=6), st.integers(1, 6))
def test_any_chunks_are_no_worse_checked_than_by_the_client(chunks: list[Any], size: int) -> None:
    """What is taken here is the same there."""
    responses = [RESPONSE(chunks=chunks[at : at + size]) for at in range(0, len(chunks), size)]
    try:
        found = merged(RowMerger("table"), responses)
    except InvalidChunkError:
        return
    assert merged_by_client(chunks) == found


PART = chunk(b"k", "f", b"q", 1000, b"v", labels=["l"], value_size=9)


@pytest.mark.parametrize(
    ("why", "chunks"),
    [
        ("the first chunk of a row has no key", [chunk(b"", "f", b"q", commit_row=True)]),
        ("the first chunk of a row has no key", [WHOLE, chunk(b"", "f", b"q", commit_row=True)]),
        ("the first cell of a row has no family", [chunk(b"k", None, b"q")]),
        ("the first cell of a row has no family", [chunk(b"k", "", b"q")]),
        ("the first cell of a row has no family", [WHOLE, chunk(b"l", None, b"q")]),
        ("the first cell of a row has no family", [chunk(b"k")]),
        ("the first cell of a row has no family", [WHOLE, chunk(b"l")]),
        ("a family without a qualifier", [chunk(b"k", "f")]),
        ("a family without a qualifier", [CELL, chunk(family="g")]),
        ("row keys do not ascend", [WHOLE, CELL]),
        ("row keys do not ascend", [WHOLE, chunk(b"j", "f", b"q")]),
        ("a new row key before the row was complete", [CELL, chunk(b"l", "f", b"q")]),
        ("the row key changes within a value", [PART, chunk(b"l")]),
        ("the family changes within a value", [PART, chunk(family="g")]),
        ("the family changes within a value", [PART, chunk(family="")]),
        ("the qualifier changes within a value", [PART, chunk(qualifier=b"r")]),
        ("the qualifier changes within a value", [PART, chunk(qualifier=b"")]),
        ("the timestamp changes within a value", [PART, chunk(micros=2000)]),
        ("the labels change within a value", [PART, chunk(labels=["m"])]),
        ("before the value of its last cell", [chunk(b"k", "f", b"q", value_size=3, commit_row=True)]),
        ("before the value of its last cell", [PART, chunk(value_size=3, commit_row=True)]),
        ("a reset outside of a row", [chunk(reset_row=True)]),
        ("a reset outside of a row", [WHOLE, chunk(reset_row=True)]),
        ("a reset outside of a row", [CELL, chunk(reset_row=True), chunk(reset_row=True)]),
        ("a reset with data", [CELL, chunk(b"k", reset_row=True)]),
        ("a reset with data", [CELL, chunk(qualifier=b"", reset_row=True)]),
        ("a reset with data", [PART, chunk(value=b"v", reset_row=True)]),
        ("the read ended before the row was complete", [CELL]),
        ("the read ended before the row was complete", [PART]),
    ],
)
def test_what_breaks_the_contract(why: str, chunks: list[Any]) -> None:
    for size in (1, len(chunks)):
        responses = [RESPONSE(chunks=chunks[at : at + size]) for at in range(0, len(chunks), size)]
        with pytest.raises(InvalidChunkError, match=why):
            merged(RowMerger("table"), responses)
    if "ascend" not in why and "outside" not in why and "last cell" not in why:
        with pytest.raises(InvalidChunk):
            merged_by_client(chunks)


def test_labels_may_be_repeated_and_are_left_out() -> None:
    more, end = chunk(labels=["l"], value_size=9), chunk(value=b"w", labels=["l"], commit_row=True)
    expected = [Row("table", b"k", [Cell("f", b"q", 1, b"vw")])]
    assert merged(RowMerger("table"), [RESPONSE(chunks=[PART, more, end])]) == expected
    assert merged_by_client([PART, more, end]) == expected


def test_the_row_scanned_last() -> None:
    merger = RowMerger("table")
    take, message = merger.take, response_class()
    for behind in (b"a", b"c"):
        take(message.FromString(RESPONSE(last_scanned_row_key=behind).SerializeToString()))
        assert merger.last == behind
    for not_behind in (b"c", b"b"):
        with pytest.raises(InvalidChunkError, match="out of order"):
            take(message.FromString(RESPONSE(last_scanned_row_key=not_behind).SerializeToString()))
    with pytest.raises(InvalidChunkError, match="ascend"):
        take(message.FromString(RESPONSE(chunks=[chunk(b"c", "f", b"q")]).SerializeToString()))
    take(message.FromString(RESPONSE(chunks=[CELL]).SerializeToString()))
    with pytest.raises(InvalidChunkError, match="before the row was complete"):
        take(message.FromString(RESPONSE(last_scanned_row_key=b"j").SerializeToString()))
