"""Mutations as bytes against protobuf's own messages."""

from __future__ import annotations

import numpy as np
from google.cloud.bigtable_v2.types import MutateRowsRequest
from hypothesis import given
from hypothesis import strategies as st

from timebeam.schema.core.rows import LAST_MS, Cell, Deletion, EncodedRow, Row
from timebeam.transforms.bigtable.mutation_bytes import encoded_mutations, plain_row, request_bytes, set_cells

Request = MutateRowsRequest.pb()
KEYS = st.binary(min_size=1, max_size=200)
TIMES = st.integers(0, LAST_MS) | st.sampled_from(
    [0, 1, 16, 17, 2097, 2_097_151, 1_356_998_400_000, (1 << 56) // 1000, (1 << 56) // 1000 + 1, LAST_MS]
)
VALUES = st.binary(max_size=4) | st.sampled_from([b"v" * 100, b"v" * 127, b"w" * 128, b"v" * 70_000])


def strings(values: list[bytes]) -> tuple[bytes, np.ndarray]:
    return b"".join(values), np.cumsum([0, *map(len, values)])


@given(
    st.lists(
        st.tuples(st.sampled_from(["t", "name"]), VALUES, TIMES, VALUES).map(lambda cell: Cell(*cell)),
        max_size=8,
    )
)
def test_cells_in_columns_are_the_mutations_of_the_same_cells(cells: list[Cell]) -> None:
    families = sorted({cell.family for cell in cells})
    content, starts = set_cells(
        families,
        np.array([families.index(cell.family) for cell in cells], np.int64),
        strings([cell.qualifier for cell in cells]),
        np.array([cell.timestamp_ms for cell in cells], np.int64),
        strings([cell.value for cell in cells]),
    )
    assert starts[-1] == len(content)
    for number, cell in enumerate(cells):
        one = content[starts[number] : starts[number + 1]]
        assert plain_row(EncodedRow("", b"", one, 1)).cells == [cell]
        if cell.timestamp_ms and cell.qualifier and cell.value:  # protobuf leaves out zero and empty fields
            assert one == encoded_mutations([cell], ())
    assert plain_row(EncodedRow("t", b"k", content, len(cells))) == Row("t", b"k", cells, [])


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
    assert plain_row(EncodedRow("t", b"k", encoded_mutations((), deleted), 2)).deleted == deleted
