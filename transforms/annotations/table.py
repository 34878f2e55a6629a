"""Applies edits of annotations to the stored annotations, by compare-and-set (docs/how-to/annotations.md).

As meta/Annotation.syncToStorage of OpenTSDB 2.4.1, and safe beside TSDs that edit the same annotations.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from google.api_core import exceptions

from timebeam.schema.annotations.edits import NO_CELL, AnnotationEdit, AnnotationState, Method, after
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
"""The stage of refusals. The payload of a refusal of stage WRITE is a row; here it is an edit."""

_CONNECTIONS = 16


class AddressedEdit(NamedTuple):
    """An edit, and the TSUID of its annotation in hex; empty for a global annotation."""

    tsuid: str
    edit: AnnotationEdit


def store(
    target: Target,
    layout: Annotations,
    groups: Mapping[cells.Place, Sequence[AddressedEdit]],
    *,
    dry_run: bool = False,
) -> list[Rejected]:
    """Applies edits of annotations; returns the refused edits.

    Args:
      groups: all edits of each annotation by its place, in any order.
    """
    stored = stored_cells(target, layout, groups)
    table = _AnnotationTable(target, layout, dry_run=dry_run)
    with concurrent.futures.ThreadPoolExecutor(_CONNECTIONS) as pool:
        outcomes = list(pool.map(lambda place: table.apply(place, groups[place], stored.get(place)), groups))
    metrics.count_annotations("annotations_written", sum(outcome.written for outcome in outcomes))
    metrics.count_annotations("annotations_deleted", sum(outcome.deleted for outcome in outcomes))
    return [rejected for outcome in outcomes for rejected in outcome.refused]


def stored_cells(
    target: Target, layout: Annotations, places: Iterable[cells.Place]
) -> dict[cells.Place, StoredCell]:
    """The existing cells at these places."""
    places = set(places)
    keys = sorted({place.key for place in places})
    scan = Scan(layout.data_table, [(key, key + b"\x00") for key in keys], columns=cells.COLUMNS)
    return {
        place: StoredCell(cell.timestamp_ms, cell.value)
        for row in TableReader(target).scan(scan)
        for cell in row.cells
        if (place := cells.Place(row.key, cell.qualifier)) in places
    }


class StoredCell(NamedTuple):
    """The content of a cell."""

    timestamp_ms: int
    value: bytes


class EditOutcome(NamedTuple):
    """The result of the edits of one annotation."""

    written: bool
    deleted: bool
    refused: Sequence[Rejected]


class _AnnotationTable:
    """The data table, for compare-and-set of single annotations."""

    def __init__(self, target: Target, layout: Annotations, *, dry_run: bool) -> None:
        self._target, self._layout, self._dry_run = target, layout, dry_run

    def apply(
        self, place: cells.Place, addressed: Sequence[AddressedEdit], stored: StoredCell | None
    ) -> EditOutcome:
        """Applies edits to one annotation; again from the stored one if another writer changes it meanwhile.

        If an answer is lost, the cell is read again: edits that were stored change nothing.
        """
        event = self._layout.options.is_event_time
        backoff = Backoff()
        while True:
            old, edits, refused = _applicable(stored, [addressed_edit.edit for addressed_edit in addressed])
            new = after(old, edits, addressed[0].tsuid, event_time=event)
            if new == old or (new.note is None and stored is None):
                return EditOutcome(False, False, refused)
            outcome = EditOutcome(new.note is not None, new.note is None, refused)
            try:
                if self._dry_run or self._replace(place, stored, new):
                    return outcome
            except REFUSALS as error:
                why = RefusedError(Reason.WRITE_REFUSED, f"Bigtable refused the annotation: {error}")
                return EditOutcome(False, False, [*refused, *(edit.refuse(why, _STAGE) for edit in edits)])
            name = f"annotation {place.qualifier.hex()} of row {place.key.hex()}"
            backoff.wait(exceptions.Aborted(f"{name} keeps changing"))
            stored = stored_cells(self._target, self._layout, [place]).get(place)

    def _replace(self, place: cells.Place, stored: StoredCell | None, state: AnnotationState) -> bool:
        """Stores a state if the stored cell has not changed since it was read; whether it was stored."""
        old = Cell(FAMILY, place.qualifier, *stored) if stored else None
        note = state.note
        new = Cell(FAMILY, place.qualifier, state.timestamp_ms, note.stored()) if note else None
        return replace_cells(self._target, self._layout.data_table, [Replacement(place.key, old, new)])[0]


def _applicable(
    stored: StoredCell | None, edits: Sequence[AnnotationEdit]
) -> tuple[AnnotationState, Sequence[AnnotationEdit], list[Rejected]]:
    """(the stored state, the edits that can be applied to it, the refusals of others).

    A stored value that is not an annotation can be replaced or deleted, but not changed.
    """
    if stored is None:
        return NO_CELL, edits, []
    try:
        return AnnotationState(parse_stored(stored.value), stored.timestamp_ms), edits, []
    except NotAnAnnotationError as error:
        why = RefusedError(
            Reason.VALUE_NOT_STORABLE, f"the stored value is not an annotation ({error}): PUT or DELETE it"
        )
    ordered = sorted(edits, key=lambda edit: edit.order)
    first = next((n for n, edit in enumerate(ordered) if edit.method is not Method.POST), len(ordered))
    refused = [edit.refuse(why, _STAGE) for edit in ordered[:first]]
    return AnnotationState(None, stored.timestamp_ms - 1), ordered[first:], refused
