"""The side output of every step for rejected input, and rows that Bigtable refuses as dead letters.

Limits are checked before the sink: one rejected row fails the whole bundle of Beam's own writer.
"""

from __future__ import annotations

import base64
import json
from typing import Annotated, Any, Final, Literal

import apache_beam as beam
import msgspec
from apache_beam.pvalue import TaggedOutput

from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.core.rows import CELL_BYTES, KEY_BYTES, LAST_MS, QUALIFIER_BYTES, Cell, Row

REJECTED: Final = "rejected"

ROW_SOURCE = "row of table "
"""How the source of a rejected row begins."""

RejectedOutput = TaggedOutput[Literal["rejected"], Rejected]


def reject(rejected: Rejected) -> RejectedOutput:
    """A rejection as an element of the output `REJECTED`."""
    return TaggedOutput(REJECTED, rejected)


def rejecting(fn: beam.DoFn, output_type: Any, *side_inputs: Any) -> Any:
    """A ParDo with the outputs `main`, of the given type, and `REJECTED`."""
    step = beam.ParDo(fn, *side_inputs).with_output_types(output_type)
    return step.with_outputs(REJECTED, main="main")


CellTime = Annotated[int, msgspec.Meta(ge=-LAST_MS, le=LAST_MS)]
"""A cell timestamp in ms in JSON; Bigtable takes none below 0."""


def over_limit(row: Row) -> Rejected | None:
    """The rejection of a row that Bigtable would not take, or None."""
    why = None
    if not 0 < len(row.key) <= KEY_BYTES:
        why = f"row key of {len(row.key)} bytes; Bigtable takes 1 to {KEY_BYTES}"
    for _, qualifier, timestamp_ms, value in row.cells:
        if len(qualifier) > QUALIFIER_BYTES:
            why = f"qualifier of {len(qualifier)} bytes; Bigtable takes at most {QUALIFIER_BYTES}"
        elif len(value) > CELL_BYTES:
            why = f"cell of {len(value)} bytes; Bigtable takes at most {CELL_BYTES}"
        elif timestamp_ms < 0:
            why = f"cell timestamp of {timestamp_ms} ms; Bigtable takes none below 0"
    return None if why is None else rejected_row(row, Reason.OVER_BIGTABLE_LIMIT, why, Stage.VALIDATE)


def rejected_row(row: Row, reason: Reason, message: str, stage: Stage) -> Rejected:
    """The rejection of a row mutation; its payload is the row as JSON, bytes in base64."""
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
    return Rejected(json.dumps(payload).encode(), reason, message, stage, ROW_SOURCE + row.table)


class _CellJson(msgspec.Struct):
    family: str
    qualifier: bytes
    timestamp_ms: CellTime
    value: bytes


class _RowJson(msgspec.Struct):
    table: str
    key: bytes
    cells: list[_CellJson]


def row_of(payload: bytes) -> Row:
    """The row in the payload of `rejected_row`.

    Raises:
      ValueError: the payload is not a row.
    """
    try:
        row = msgspec.json.decode(payload, type=_RowJson)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"not a row mutation: {error}") from error
    cells = [Cell(cell.family, cell.qualifier, cell.timestamp_ms, cell.value) for cell in row.cells]
    return Row(row.table, row.key, cells)


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
