"""Records to the rows of declared tables, and their tables."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import numpy as np

from timebeam.schema.declared.codec.cells import cells, events
from timebeam.schema.declared.codec.records import RecordBatch
from timebeam.schema.declared.codec.rendered_keys import Refusals, Renderer
from timebeam.schema.declared.model import CellTime, Declaration, TableLayout
from timebeam.schema.layouts.tables import ARRIVAL, Row, TableSpec
from timebeam.schema.points import Reason, Rejected


def tables(declaration: Declaration) -> Sequence[TableSpec]:
    """The tables of a declaration, those of rollups too, without those that a job makes day by day."""
    return [
        TableSpec(
            layout.table,
            {layout.family: layout.max_versions},
            holds_points=True,
            cell_time=_cell_time(layout),
        )
        for layout in declaration.all_layouts
    ]


def _cell_time(layout: TableLayout) -> str:
    """What the cell timestamps of a table are; see `TableSpec.cell_time`."""
    event = layout.event[0] if layout.event else ""
    return {
        CellTime.EVENT: f"{event}, the time in the record",
        CellTime.ARRIVAL: ARRIVAL,
        CellTime.REVISION: f"{event}, the time in the record, with the revision as milliseconds",
        CellTime.ZERO: "",
    }[layout.cell_time]


def rows(declaration: Declaration, batch: RecordBatch) -> tuple[list[Row], list[Rejected]]:
    """The row mutations of a batch, table by table, and the records that a table refused.

    A record makes at most one mutation in each table. One that a table refuses is written to the
    others, and refused once, with the first reason.
    """
    written: list[Row] = []
    refused: dict[int, tuple[Reason, str]] = {}
    is_stored = np.zeros(len(batch), np.bool_)
    for layout in declaration.layouts:
        is_present = batch.present(layout.when) if layout.when else np.ones(len(batch), np.bool_)
        is_stored |= is_present
        chosen = np.flatnonzero(is_present)
        if len(chosen) == 0:
            continue
        matching = batch if len(chosen) == len(batch) else batch.take(chosen)
        layout_rows_found, refusals = layout_rows(layout, matching)
        written += layout_rows_found
        for i, why in refusals.by_record.items():
            refused.setdefault(int(chosen[i]), why)
    for i in np.flatnonzero(~is_stored).tolist():
        names = ", ".join(sorted({layout.when for layout in declaration.layouts if layout.when}))
        refused[i] = (Reason.EMPTY_VALUE, f"no table takes the record: it has none of the fields {names}")
    return written, [batch.refuse(i, *refused[i]) for i in sorted(refused)]


def layout_rows(layout: TableLayout, batch: RecordBatch) -> tuple[list[Row], Refusals]:
    """The rows of one table, one for each record that it does not refuse."""
    refusals = Refusals(layout.table)
    event = events(layout, batch, refusals)
    keys = Renderer(layout, batch, event, refusals).keys()
    cells_by_record = cells(layout, batch, event, refusals)
    if () in cells_by_record:
        for i, record_cells in enumerate(cells_by_record):
            if not record_cells:
                refusals.add(i, Reason.EMPTY_VALUE, "the record has none of the fields of its columns")
    if refusals.by_record:
        good_records = [i for i in range(len(batch)) if i not in refusals.by_record]
        keys, cells_by_record = [keys[i] for i in good_records], [cells_by_record[i] for i in good_records]
    return list(map(Row, repeat(layout.table), keys, cells_by_record)), refusals
