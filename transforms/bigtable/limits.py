"""Bigtable's limits, enforced before the sink: one refused row fails the whole bundle of Beam's.

Figures: cloud.google.com/bigtable/quotas. The emulator enforces none of them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

from schema.layouts import Cell, Row
from schema.points import Reason, Rejected, Stage

KEY_BYTES = 4 * 1024
QUALIFIER_BYTES = 16 * 1024
CELL_BYTES = 100_000_000
MUTATIONS = 100_000
"""Cells of one request; a row with more is written by several mutations."""


def split_row(row: Row) -> Iterator[Row]:
    """A row as mutations of at most `MUTATIONS` cells each."""
    if len(row.cells) <= MUTATIONS:
        yield row
        return
    for at in range(0, len(row.cells), MUTATIONS):
        yield row._replace(cells=row.cells[at : at + MUTATIONS])


def over_limit(row: Row) -> Rejected | None:
    """The refusal of a row that Bigtable would not take, or None."""
    why = None
    if not 0 < len(row.key) <= KEY_BYTES:
        why = f"row key of {len(row.key)} bytes; Bigtable takes 1 to {KEY_BYTES}"
    for cell in row.cells:
        if len(cell.qualifier) > QUALIFIER_BYTES:
            why = f"qualifier of {len(cell.qualifier)} bytes; Bigtable takes at most {QUALIFIER_BYTES}"
        elif len(cell.value) > CELL_BYTES:
            why = f"cell of {len(cell.value)} bytes; Bigtable takes at most {CELL_BYTES}"
        elif cell.timestamp_ms < 0:
            why = f"cell timestamp of {cell.timestamp_ms} ms; Bigtable takes none below 0"
    return None if why is None else refused_row(row, Reason.OVER_BIGTABLE_LIMIT, why, Stage.VALIDATE)


def refused_row(row: Row, reason: Reason, message: str, stage: Stage) -> Rejected:
    """The refusal of a row mutation; its payload is the row as JSON, bytes in base64."""
    payload = {
        "table": row.table,
        "key": _text(row.key),
        "cells": [
            {
                "family": cell.family,
                "qualifier": _text(cell.qualifier),
                "timestamp_ms": cell.timestamp_ms,
                "value": _text(cell.value),
            }
            for cell in row.cells
        ],
    }
    return Rejected(json.dumps(payload).encode(), reason, message, stage, f"row of table {row.table}")


def row_of(payload: bytes) -> Row:
    """The row in the payload of such a refusal.

    Raises:
      ValueError: it is none.
    """
    try:
        row = json.loads(payload)
        cells = [
            Cell(
                cell["family"],
                base64.b64decode(cell["qualifier"]),
                cell["timestamp_ms"],
                base64.b64decode(cell["value"]),
            )
            for cell in row["cells"]
        ]
        return Row(row["table"], base64.b64decode(row["key"]), cells)
    except (KeyError, TypeError) as error:
        raise ValueError(f"no row mutation: {error!r}") from error


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
