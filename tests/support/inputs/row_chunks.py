"""Rows cut into the chunks of ReadRows responses at random."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

from tests.support.servers.rows_server import RESPONSE, chunk
from timebeam.schema.core.rows import Cell, Row

CELL = chunk(b"k", "f", b"q", 1000, b"v")
WHOLE = chunk(b"k", "f", b"q", 1000, b"v", commit_row=True)

MICROS = 1_700_000_000_123_456

cells = st.builds(
    Cell,
    st.sampled_from(["t", "ü", "f" * 127, "f" * 128]),
    st.one_of(
        st.binary(max_size=4), st.binary(min_size=126, max_size=130), st.just(b"q" * 16_384), st.just(b"")
    ),
    st.integers(0, 10**14),
    st.binary(max_size=40),
)
rows_of = st.dictionaries(st.binary(min_size=1, max_size=5), st.lists(cells, min_size=1, max_size=6))


def chunks_of(rng: random.Random, row: Row) -> Iterator[Any]:
    """The chunks of a row: what may be left out is or is not, values in parts, and resets in between."""
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        begun = list(_whole(rng, row))
        yield from begun[: rng.randrange(1, len(begun) + 1) - 1] or [
            chunk(row.key, "t", b"void", value_size=9)
        ]
        yield chunk(reset_row=True)
    yield from _whole(rng, row)


def _whole(rng: random.Random, row: Row) -> Iterator[Any]:
    before: Cell | None = None
    for number, cell in enumerate(row.cells):
        same_family = before is not None and before.family == cell.family
        same_column = same_family and before is not None and before.qualifier == cell.qualifier
        sends_family = not same_family or rng.random() < 0.3
        sends_column = sends_family or not same_column or rng.random() < 0.3
        parts = _parts(rng, cell.value)
        for at, part in enumerate(parts):
            first, last = at == 0, at == len(parts) - 1
            repeats = first or rng.random() < 0.3
            yield chunk(
                row.key if (number == 0 and first) or rng.random() < 0.3 else b"",
                cell.family if sends_family and repeats else None,
                cell.qualifier if sends_column and repeats else None,
                cell.timestamp_ms * 1000 + MICROS % 1000 if repeats else 0,
                part,
                value_size=0 if last else len(cell.value),
                commit_row=last and number == len(row.cells) - 1,
            )
        before = cell


def _parts(rng: random.Random, value: bytes) -> list[bytes]:
    if not value or rng.random() < 0.5:
        return [value]
    cuts = sorted(rng.randrange(len(value) + 1) for _ in range(rng.randrange(1, 4)))
    return [value[start:end] for start, end in zip([0, *cuts], [*cuts, len(value)], strict=True)]


def responses_of(rng: random.Random, rows: Sequence[Row]) -> Iterator[Any]:
    """The rows' chunks in messages; between rows, now and then, the row up to which was read."""
    response, before = RESPONSE(), b""
    for row in rows:
        between = before + b"\0"
        if rng.random() < 0.3 and between < row.key:
            yield response
            response = RESPONSE(last_scanned_row_key=between)
        before = row.key
        for one in chunks_of(rng, row):
            response.chunks.append(one)
            if rng.random() < 0.2:
                yield response
                response = RESPONSE()
    yield response
