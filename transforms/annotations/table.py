"""Edits of annotations merged with what is stored, by compare-and-set (docs/how-to/annotations.md).

As meta/Annotation.syncToStorage of OpenTSDB 2.4.1, and safe beside TSDs that edit the same annotations.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from google.api_core import exceptions

from timebeam.schema.annotations.edits import NOTHING, AnnotationEdit, Method, State, after
from timebeam.schema.annotations.record import NotAnAnnotationError, parse_stored
from timebeam.schema.layouts import Annotations
from timebeam.schema.layouts.opentsdb import annotation_cells as cells
from timebeam.schema.layouts.opentsdb.fragments import FAMILY
from timebeam.schema.layouts.reading import Scan
from timebeam.schema.points import Reason, RefusedError, Rejected, Stage
from timebeam.transforms import metrics
from timebeam.transforms.bigtable.conditional import Replacement, replace_cells
from timebeam.transforms.bigtable.retry import REFUSALS, Backoff
from timebeam.transforms.bigtable.rows import Cell
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.readers.table_reader import TableReader

_STAGE = Stage.ENCODE
"""Of refusals. Those of WRITE have rows as payloads, where these have edits, which a replay reads again."""

_CONNECTIONS = 16


class AddressedEdit(NamedTuple):
    """An edit and where its annotation stands; `tsuid` is hex, empty for a global one."""

    tsuid: str
    edit: AnnotationEdit


def store(
    target: Target,
    layout: Annotations,
    groups: Mapping[cells.Place, Sequence[AddressedEdit]],
    *,
    dry_run: bool = False,
) -> list[Rejected]:
    """Carries out the edits of some annotations; those that are refused.

    Args:
      groups: by place, all edits of each, in any order.
    """
    found = stored_cells(target, layout, groups)
    table = _AnnotationTable(target, layout, dry_run=dry_run)
    with concurrent.futures.ThreadPoolExecutor(_CONNECTIONS) as pool:
        done = list(pool.map(lambda at: table.carry_out(at, groups[at], found.get(at)), groups))
    metrics.count_annotations("annotations_written", sum(one.written for one in done))
    metrics.count_annotations("annotations_deleted", sum(one.deleted for one in done))
    return [rejected for one in done for rejected in one.refused]


def stored_cells(
    target: Target, layout: Annotations, places: Iterable[cells.Place]
) -> dict[cells.Place, StoredCell]:
    """The cells at these places that exist."""
    wanted = set(places)
    keys = sorted({at.key for at in wanted})
    scan = Scan(layout.data_table, [(key, key + b"\x00") for key in keys], columns=cells.COLUMNS)
    return {
        at: StoredCell(cell.timestamp_ms, cell.value)
        for row in TableReader(target).scan(scan)
        for cell in row.cells
        if (at := cells.Place(row.key, cell.qualifier)) in wanted
    }


class StoredCell(NamedTuple):
    """What stands at a place."""

    timestamp_ms: int
    value: bytes


class EditOutcome(NamedTuple):
    """What came of the edits of one annotation."""

    written: bool
    deleted: bool
    refused: Sequence[Rejected]


class _AnnotationTable:
    """The data table, for compare-and-set of single annotations."""

    def __init__(self, target: Target, layout: Annotations, *, dry_run: bool) -> None:
        self._target, self._layout, self._dry_run = target, layout, dry_run

    def carry_out(
        self, at: cells.Place, addressed: Sequence[AddressedEdit], stored: StoredCell | None
    ) -> EditOutcome:
        """Changes one annotation, however often others change it meanwhile.

        An answer that got lost is cleared up by reading: the edits over what they have made change nothing.
        """
        event = self._layout.options.is_event_time
        backoff = Backoff()
        while True:
            before, edits, refused = _begin(stored, [one.edit for one in addressed])
            then = after(before, edits, addressed[0].tsuid, event_time=event)
            if then == before or (then.note is None and stored is None):
                return EditOutcome(False, False, refused)
            outcome = EditOutcome(then.note is not None, then.note is None, refused)
            try:
                if self._dry_run or self._swap(at, stored, then):
                    return outcome
            except REFUSALS as error:
                why = RefusedError(Reason.WRITE_REFUSED, f"Bigtable refused the annotation: {error}")
                return EditOutcome(False, False, [*refused, *(edit.refuse(why, _STAGE) for edit in edits)])
            name = f"annotation {at.qualifier.hex()} of row {at.key.hex()}"
            backoff.wait(exceptions.Aborted(f"{name} changes all the time"))
            stored = stored_cells(self._target, self._layout, [at]).get(at)

    def _swap(self, at: cells.Place, stored: StoredCell | None, then: State) -> bool:
        """Stores a state if what stands there is what was read; whether it was."""
        old = Cell(FAMILY, at.qualifier, *stored) if stored else None
        note = then.note
        new = Cell(FAMILY, at.qualifier, then.timestamp_ms, note.stored()) if note else None
        return replace_cells(self._target, self._layout.data_table, [Replacement(at.key, old, new)])[0]


def _begin(
    stored: StoredCell | None, edits: Sequence[AnnotationEdit]
) -> tuple[State, Sequence[AnnotationEdit], list[Rejected]]:
    """(what is stored, the edits that can be carried out on it, the refusals of the others).

    What is stored and is no annotation can be replaced or deleted, and not changed.
    """
    if stored is None:
        return NOTHING, edits, []
    try:
        return State(parse_stored(stored.value), stored.timestamp_ms), edits, []
    except NotAnAnnotationError as error:
        why = RefusedError(
            Reason.VALUE_NOT_STORABLE, f"what is stored there is no annotation ({error}): PUT or DELETE it"
        )
    ordered = sorted(edits, key=lambda edit: edit.order)
    first = next((n for n, edit in enumerate(ordered) if edit.method is not Method.POST), len(ordered))
    refused = [edit.refuse(why, _STAGE) for edit in ordered[:first]]
    return State(None, stored.timestamp_ms - 1), ordered[first:], refused
