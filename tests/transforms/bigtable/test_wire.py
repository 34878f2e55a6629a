"""Mutations as bytes against protobuf's own messages."""

from __future__ import annotations

import numpy as np
import pytest
from google.cloud.bigtable_v2.types import MutateRowsRequest
from hypothesis import given
from hypothesis import strategies as st

from timebeam.schema.layouts import Cell, Deletion, Row
from timebeam.transforms.bigtable.rows import EncodedRow
from timebeam.transforms.bigtable.wire import (
    decoded_row,
    encoded_mutations,
    request_bytes,
    set_cells,
)

Request = MutateRowsRequest.pb()
KEYS = st.binary(min_size=1, max_size=200)
TIMES = st.integers(0, (1 << 55) // 1000) | st.sampled_from(
    [0, 1, 16, 17, 2097, 2_097_151, 1_356_998_400_000]
)


def tables(size: int, wide: int) -> st.SearchStrategy[np.ndarray]:
    rows = st.lists(st.binary(min_size=wide, max_size=wide), min_size=size, max_size=size)
    return rows.map(lambda some: np.frombuffer(b"".join(some), np.uint8).reshape(size, wide))


@given(
    st.data(),
    st.lists(TIMES, max_size=8),
    st.integers(1, 4),
    st.integers(1, 9),
    st.sampled_from(["t", "name"]),
)
def test_cells_in_columns_are_the_mutations_of_the_same_cells(data, times, wide, length, family):
    n = len(times)
    names, values = data.draw(tables(n, wide)), data.draw(tables(n, length))
    content, starts = set_cells(family, names, np.array(times, np.int64), values)
    cells = [
        Cell(family, bytes(name), time, bytes(value))
        for name, time, value in zip(names, times, values, strict=True)
    ]
    assert starts[-1] == len(content)
    for number, cell in enumerate(cells):
        one = content[starts[number] : starts[number + 1]]
        assert decoded_row(EncodedRow("", b"", one, 1)).cells == [cell]
        assert one == encoded_mutations([cell], ()) or not cell.timestamp_ms  # protobuf leaves zero out
    assert decoded_row(EncodedRow("t", b"k", content, n)) == Row("t", b"k", cells, [])


@given(
    st.lists(
        st.tuples(
            KEYS, st.lists(st.tuples(st.binary(max_size=300), TIMES, st.binary(max_size=300)), max_size=3)
        )
    ),
    st.sampled_from(["", "profile"]),
)
def test_a_request_is_read_by_protobuf_as_it_was_meant(rows, profile):
    made: list[Row | EncodedRow] = []
    for number, (key, found) in enumerate(rows):
        row = Row(
            "t", key, [Cell("f", *one) for one in found], [Deletion("f", b"old"), Deletion("f", b"x", 7)]
        )
        made.append(
            EncodedRow("t", key, encoded_mutations(row.cells, row.deleted), len(found) + 2)
            if number % 2
            else row
        )
    request = Request.FromString(request_bytes("projects/p/instances/i/tables/t", profile, made))
    assert (request.table_name, request.app_profile_id) == ("projects/p/instances/i/tables/t", profile)
    assert [entry.row_key for entry in request.entries] == [key for key, _ in rows]
    for entry, (_, found) in zip(request.entries, rows, strict=True):
        first, second, *sets = entry.mutations
        assert first.delete_from_column.column_qualifier == b"old"
        assert not first.delete_from_column.HasField("time_range")
        assert second.delete_from_column.time_range.end_timestamp_micros == 7000
        assert [
            (one.set_cell.column_qualifier, one.set_cell.timestamp_micros, one.set_cell.value) for one in sets
        ] == [(name, time * 1000, value) for name, time, value in found]


def test_deletions_come_back():
    deleted = [Deletion("t", b"\x00\x00\x07"), Deletion("t", b"sum:\x00\x07", 5)]
    assert decoded_row(EncodedRow("t", b"k", encoded_mutations((), deleted), 2)).deleted == deleted


def test_cells_whose_lengths_take_two_bytes_are_refused():
    wide = np.zeros((1, 120), np.uint8)
    with pytest.raises(ValueError, match="are too large"):
        set_cells("t", wide[:, :2], np.zeros(1, np.int64), wide)
