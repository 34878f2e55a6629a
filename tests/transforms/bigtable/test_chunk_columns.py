"""Cell chunks merged into columns, against the rows they were cut from."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.inputs.row_chunks import CELL, WHOLE, responses_of, rows_of
from tests.support.servers.rows_server import RESPONSE, chunk
from timebeam.schema.core.rows import Cell, Row
from timebeam.transforms.bigtable.chunk_columns import CHUNKS, ColumnMerger, MergedRows, chunks_class
from timebeam.transforms.bigtable.chunk_rows import InvalidChunkError

Content = dict[bytes, list[tuple[bytes, int, bytes]]]
"""By key, the (qualifier, timestamp in ms, value) of each cell, sorted."""


def content_of(merged: Sequence[MergedRows]) -> Content:
    """The cells of merged rows."""
    content: Content = {}
    for rows in merged:
        assert not content.keys() & set(rows.keys)
        content |= {key: [] for key in rows.keys}
        for cells in rows.cells:
            fields = cells.rows.tolist(), cells.qualifiers, cells.times_ms.tolist(), cells.values
            for row, qualifier, time_ms, value in zip(*fields, strict=True):
                content[rows.keys[row]].append((bytes(qualifier), time_ms, bytes(value)))
    return {key: sorted(cells) for key, cells in content.items()}


def take(merger: ColumnMerger, response: Any) -> list[MergedRows]:
    return merger.take(chunks_class().FromString(response.SerializeToString()))


def merged(responses: Sequence[Any], most: int = CHUNKS) -> list[MergedRows]:
    merger = ColumnMerger(most)
    complete = [rows for response in responses for rows in take(merger, response)]
    return complete + merger.end()


def expected(rows: Sequence[Row]) -> Content:
    return {row.key: sorted((cell[1], cell[2], cell[3]) for cell in row.cells) for row in rows}


@given(rows_of, st.integers(0, 2**32), st.sampled_from([1, 4, 20_000]))
def test_any_rows(content: dict[bytes, list[Cell]], seed: int, most: int) -> None:
    rows = [
        Row("table", key, [cell._replace(family="t") for cell in content[key]]) for key in sorted(content)
    ]
    assert content_of(merged(list(responses_of(random.Random(seed), rows)), most)) == expected(rows)


@given(rows_of, st.integers(0, 2**32), st.sampled_from([1, 4, 20_000]))
def test_keys_alone(content: dict[bytes, list[Cell]], seed: int, most: int) -> None:
    """Of rows of any families, whose values are not sent."""
    rows = [Row("table", key, [cell._replace(value=b"") for cell in content[key]]) for key in sorted(content)]
    responses = list(responses_of(random.Random(seed), rows))
    assert [key for some in merged(responses, most) for key in some.keys] == sorted(content)


def chunks_of(row: Row, *, repeats: bool) -> Iterator[Any]:
    """As the service sends them, or as the emulator, which repeats row key and family."""
    for number, cell in enumerate(row.cells):
        start = (row.key, "t") if repeats or not number else (b"", None)
        last = number == len(row.cells) - 1
        yield chunk(*start, cell.qualifier, cell.timestamp_ms * 1000, cell.value, commit_row=last)


def cells_of(rng: random.Random) -> Iterator[Cell]:
    while True:
        yield Cell("t", rng.randbytes(3), rng.randrange(10**12, 10**13), rng.randbytes(8))


@given(st.integers(0, 2**32), st.booleans())
def test_rows_of_a_rollup_are_tables(seed: int, repeats: bool) -> None:
    """Keys of two lengths, a number of eight bytes in each cell: no row is merged by itself."""
    rng = random.Random(seed)
    keys = sorted({rng.randbytes(rng.choice((13, 19))) for _ in range(rng.randrange(1, 9))})
    rows = [Row("", key, list(itertools.islice(cells_of(rng), rng.choice((1, 2, 18))))) for key in keys]
    responses = [RESPONSE(chunks=list(chunks_of(row, repeats=repeats))) for row in rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(ColumnMerger, "_by_row")
        assert content_of(merged(responses)) == expected(rows)


def test_cells_without_a_time_are_tables() -> None:
    rows = [Row("", b"key %d" % number, [Cell("t", b"q", 0, b"")]) for number in range(9)]
    responses = [RESPONSE(chunks=list(chunks_of(row, repeats=True))) for row in rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(ColumnMerger, "_by_row")
        assert content_of(merged(responses)) == expected(rows)


@pytest.mark.parametrize(
    ("why", "chunks"),
    [
        ("the first chunk of a row has no key", [chunk(b"", "f", b"q", 1000, commit_row=True)]),
        ("the first chunk of a row has no key", [WHOLE, chunk(b"", "f", b"q", 1000, commit_row=True)]),
        ("row keys do not ascend", [WHOLE, WHOLE]),
        ("the row key changes within a row", [CELL, chunk(b"l", "f", b"q", 1000, b"v", commit_row=True)]),
        ("the row key changes within a row", [CELL, chunk(b"l", "f", b"q", 1000, b"v"), WHOLE]),
        ("a reset outside of a row", [chunk(reset_row=True), WHOLE]),
        ("the read ended before the row was complete", [CELL]),
    ],
)
def test_what_breaks_the_contract(why: str, chunks: list[Any]) -> None:
    with pytest.raises(InvalidChunkError, match=why):
        merged([RESPONSE(chunks=chunks)])


def test_a_read_that_breaks_off() -> None:
    """Complete rows stay; the incomplete one is sent again."""
    merger = ColumnMerger()
    later = chunk(b"l", "f", b"q", 1000, b"v")
    assert take(merger, RESPONSE(chunks=[WHOLE, later])) == []
    merger.forget()
    assert merger.last == b"k"
    later.commit_row = True
    complete = take(merger, RESPONSE(chunks=[later])) + merger.end()
    assert content_of(complete) == {key: [(b"q", 1, b"v")] for key in (b"k", b"l")}
    assert merger.last == b"l"


def test_the_row_scanned_last() -> None:
    merger = ColumnMerger()
    assert take(merger, RESPONSE(chunks=[WHOLE])) == []
    assert content_of(take(merger, RESPONSE(last_scanned_row_key=b"m"))).keys() == {b"k"}
    assert merger.last == b"m"
    assert take(merger, RESPONSE(chunks=[chunk(b"l", "f", b"q", 1000, commit_row=True)])) == []
    with pytest.raises(InvalidChunkError, match="ascend"):
        merger.end()
    merger = ColumnMerger()
    take(merger, RESPONSE(chunks=[CELL]))
    with pytest.raises(InvalidChunkError, match="before the row was complete"):
        take(merger, RESPONSE(last_scanned_row_key=b"l"))
