"""Index rows: one row for each key, every cell once, and no request beyond what the service takes."""

from __future__ import annotations

import random

from timebeam.schema.core.rows import Cell, Row
from timebeam.transforms.ingest.row_mutations import merged_rows


def cells(numbers: range) -> list[Cell]:
    return [Cell("s", b"%d" % number, 0, b"\0") for number in numbers]


def test_rows_of_one_key_become_one() -> None:
    rng = random.Random(1)
    rows = [
        Row(rng.choice("ab"), b"%d" % rng.randrange(3), cells(range(at, at + rng.randrange(1, 5))))
        for at in (rng.randrange(20) for _ in range(300))
    ]
    merged = merged_rows(rows)
    assert {(row.table, row.key): set(row.cells) for row in merged} == {
        (row.table, row.key): {
            cell for other in rows if (other.table, other.key) == (row.table, row.key) for cell in other.cells
        }
        for row in rows
    }
    assert len(merged) == len({(row.table, row.key) for row in rows})
    assert all(len(set(row.cells)) == len(row.cells) for row in merged)
