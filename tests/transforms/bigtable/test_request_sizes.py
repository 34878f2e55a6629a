"""Requests to read and write rows stay below what the service takes, however long and many their keys are."""

from __future__ import annotations

import pytest

from timebeam.schema.core.rows import MUTATIONS, Cell, Deletion, EncodedRow, Row
from timebeam.schema.stores.opentsdb.keys import MOST_VALUES, key_pattern
from timebeam.transforms.bigtable import write_rows
from timebeam.transforms.bigtable.read_ranges import _key_requests, _requests, row_filter
from timebeam.transforms.bigtable.read_stream import ReadRequest, _request
from timebeam.transforms.bigtable.target import Target

REQUEST_BYTES, FILTER_BYTES = 512 << 10, 20 << 10
TAGS = {bytes((key,)) * 8: [bytes((value,)) * 8 for value in range(50)] for key in (200, 201)}
"""As many values of UIDs as a pattern has, as wide as UIDs can be."""


@pytest.mark.parametrize(("count", "length"), [(3, 4096), (501, 4096), (5000, 40), (20_000, 200)])
def test_sizes_of_requests(count: int, length: int) -> None:
    keys = [number.to_bytes(4, "big").ljust(length, b"\xfe") for number in range(count)]
    assert sum(map(len, TAGS.values())) == MOST_VALUES
    cells = row_filter(key_pattern=key_pattern(TAGS), keys_only=True)
    assert cells.ByteSize() < FILTER_BYTES
    of_ranges = [
        ReadRequest("t", cells, ranges=some) for some in _requests([(key, key + b"\0") for key in keys])
    ]
    of_keys = [ReadRequest("t", cells, keys=some) for some in _key_requests(keys)]
    for requests in (of_ranges, of_keys):
        messages = [_request(Target("project", "instance"), request, b"", 0) for request in requests]
        assert all(message is not None and message.ByteSize() < REQUEST_BYTES for message in messages)
    assert [key for request in of_ranges for key, _ in request.ranges] == keys
    assert [key for request in of_keys for key in request.keys] == keys


def test_requests_have_at_most_so_many_cells_and_rows() -> None:
    large = Row("t", b"large", [Cell("f", b"%d" % number, 0, b"") for number in range(2 * MUTATIONS + 5)])
    small = [Row("t", b"%d" % number, [Cell("f", b"", 0, b"")]) for number in range(12_000)]
    found = list(write_rows.requests([*small[:10], large, *small[10:]]))
    assert max(sum(len(row.cells) for row in some) for some in found) == MUTATIONS
    assert max(len(some) for some in found) == 10_000
    assert sorted((row.key, cell) for some in found for row in some for cell in row.cells) == sorted(
        (row.key, cell) for row in [large, *small] for cell in row.cells
    )


def test_deletions_and_encoded_rows_count_as_mutations() -> None:
    deleted = Row("t", b"a", (), [Deletion("f", b"%d" % number) for number in range(MUTATIONS - 1)])
    encoded = EncodedRow("t", b"b", b"", 2)
    assert list(write_rows.requests([deleted, encoded, encoded])) == [[deleted], [encoded, encoded]]
