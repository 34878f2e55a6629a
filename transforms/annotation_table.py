"""Edits of annotations merged with what is stored, by compare-and-set (docs/annotations.md).

As meta/Annotation.syncToStorage of OpenTSDB 2.4.1, and safe beside TSDs that edit the same annotations.
"""

from __future__ import annotations

import concurrent.futures
import datetime
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from google.api_core import exceptions
from google.cloud.bigtable.data import DeleteRangeFromColumn, SetCell
from google.cloud.bigtable.data import row_filters as filters
from google.cloud.bigtable.data.mutations import Mutation

from schema.annotations.edits import NOTHING, AnnotationEdit, Method, State, after
from schema.annotations.record import NotAnAnnotationError, parse_stored
from schema.layouts.base import Scan
from schema.layouts.opentsdb import annotation_cells as cells
from schema.layouts.opentsdb.layout import OpenTsdb
from schema.layouts.opentsdb.pieces import FAMILY
from schema.points import Reason, RefusedError, Rejected, Stage
from transforms import metrics
from transforms.bigtable.mutate import FOR_GOOD, RETRYABLE
from transforms.bigtable.reader import TableReader
from transforms.bigtable.target import Target, open_table

_STAGE = Stage.ENCODE
"""Of refusals. Those of WRITE have rows as payloads, where these have edits, which a replay reads again."""

_CONNECTIONS = 16
_ATTEMPTS = 12
_FILTER_BYTES = 8_000
"""Longest value that a filter compares: it stands in it twice, and Bigtable takes filters of 20 KB."""


class Addressed(NamedTuple):
    """An edit and where its annotation stands; `tsuid` is hex, empty for a global one."""

    tsuid: str
    edit: AnnotationEdit


def store(
    target: Target,
    layout: OpenTsdb,
    groups: Mapping[cells.Place, Sequence[Addressed]],
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
    target: Target, layout: OpenTsdb, places: Iterable[cells.Place]
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


class Done(NamedTuple):
    """What came of the edits of one annotation."""

    written: bool
    deleted: bool
    refused: Sequence[Rejected]


class _AnnotationTable:
    """The data table, for compare-and-set of single annotations."""

    def __init__(self, target: Target, layout: OpenTsdb, *, dry_run: bool) -> None:
        self._target, self._layout, self._dry_run = target, layout, dry_run
        self._table = open_table(target, layout.data_table)

    def carry_out(self, at: cells.Place, addressed: Sequence[Addressed], stored: StoredCell | None) -> Done:
        """Changes one annotation, however often others change it meanwhile.

        An answer that got lost is cleared up by reading: the edits over what they have made change nothing.
        """
        event = self._layout.options.is_event_time
        for attempt in range(_ATTEMPTS):
            before, edits, refused = _begin(stored, [one.edit for one in addressed])
            then = after(before, edits, addressed[0].tsuid, event_time=event)
            if then == before or (then.note is None and stored is None):
                return Done(False, False, refused)
            outcome = Done(then.note is not None, then.note is None, refused)
            try:
                if self._dry_run or self._swap(at, stored, then):
                    return outcome
            except FOR_GOOD as error:
                why = RefusedError(Reason.WRITE_REFUSED, f"Bigtable refused the annotation: {error}")
                return Done(False, False, [*refused, *(edit.refuse(why, _STAGE) for edit in edits)])
            except RETRYABLE:
                if attempt == _ATTEMPTS - 1:
                    raise
            time.sleep(min(2.0, 0.01 * 2**attempt) * random.uniform(0.5, 1.5))
            stored = stored_cells(self._target, self._layout, [at]).get(at)
        raise exceptions.Aborted(
            f"annotation {at.qualifier.hex()} of row {at.key.hex()} changes all the time"
        )

    def _swap(self, at: cells.Place, stored: StoredCell | None, then: State) -> bool:
        """Stores a state if what stands there is what was read; whether it was."""
        mutations: list[Mutation] = []
        if stored is not None and (then.note is None or stored.timestamp_ms > then.timestamp_ms):
            mutations.append(DeleteRangeFromColumn(FAMILY, at.qualifier))
        if then.note is not None:
            mutations.append(SetCell(FAMILY, at.qualifier, then.note.stored(), then.timestamp_ms * 1000))
        chain: list[filters.RowFilter] = [
            filters.ColumnRangeFilter(FAMILY, at.qualifier, at.qualifier, True, True),
            filters.CellsColumnLimitFilter(1),
        ]
        swap = self._table.check_and_mutate_row
        if stored is None:
            return not swap(at.key, filters.RowFilterChain(chain), false_case_mutations=mutations)
        chain.append(_is_still(stored))
        return bool(swap(at.key, filters.RowFilterChain(chain), true_case_mutations=mutations))


def _is_still(stored: StoredCell) -> filters.RowFilter:
    """What a cell passes that is as it was read; a value too long for a filter is told by its timestamp."""
    if len(stored.value) <= _FILTER_BYTES:
        return filters.ValueRangeFilter(stored.value, stored.value, True, True)
    start, end = (
        datetime.datetime.fromtimestamp(ms / 1000, datetime.timezone.utc)
        for ms in (stored.timestamp_ms, stored.timestamp_ms + 1)
    )
    return filters.TimestampRangeFilter(start, end)


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
