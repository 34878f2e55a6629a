"""Applies edits of annotations to the stored annotations, by compare-and-set (docs/reference/formats.md).

As meta/Annotation.syncToStorage of OpenTSDB 2.4.1, and safe beside TSDs that edit the same annotations.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import PCollection
from google.api_core import exceptions

from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.annotations import (
    NO_CELL,
    Annotation,
    AnnotationEdit,
    AnnotationState,
    Method,
    NotAnAnnotationError,
    after,
    as_ms,
    parse_stored,
)
from timebeam.schema.core.contract import Store
from timebeam.schema.core.points import SeriesKey
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.core.rows import Cell
from timebeam.schema.core.selection import Scan
from timebeam.schema.stores import MissingAbilityError, as_opentsdb
from timebeam.schema.stores.opentsdb.columns import annotation_cells as cells
from timebeam.schema.stores.opentsdb.encode import FAMILY
from timebeam.schema.stores.opentsdb.uids.uid_table import UidDirectory
from timebeam.transforms.bigtable.compare_and_set import Replacement, replace_cells
from timebeam.transforms.bigtable.retry import REFUSALS, Backoff
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.flow import metrics
from timebeam.transforms.flow.steps import REJECTED, BufferedDoFn, RejectedOutput, reject, rejecting
from timebeam.transforms.ingest.encode_group_pack import SharedSeriesKeys
from timebeam.transforms.ingest.series_keys import UidOptions
from timebeam.transforms.read.table_reader import TableReader

if TYPE_CHECKING:
    from timebeam.schema.stores.opentsdb.layout import OpenTsdb

_STAGE = Stage.ENCODE
"""The stage of rejections. The payload of a rejection of stage WRITE is a row; here it is an edit."""

_CONNECTIONS = 16


class AddressedEdit(NamedTuple):
    """An edit, and the TSUID of its annotation in hex; empty for a global annotation."""

    tsuid: str
    edit: AnnotationEdit


def store(
    target: Target,
    layout: OpenTsdb,
    groups: Mapping[cells.CellAddress, Sequence[AddressedEdit]],
    *,
    dry_run: bool = False,
) -> list[Rejected]:
    """Applies edits of annotations; returns the rejected edits.

    Args:
      groups: all edits of each annotation by its place, in any order.
    """
    if not dry_run:
        _move_former(target, layout, groups)
    stored = stored_cells(target, layout, groups)
    table = _AnnotationTable(target, layout, dry_run=dry_run)
    with concurrent.futures.ThreadPoolExecutor(_CONNECTIONS) as pool:
        outcomes = list(pool.map(lambda place: table.apply(place, groups[place], stored.get(place)), groups))
    metrics.count_annotations("annotations_written", sum(outcome.written for outcome in outcomes))
    metrics.count_annotations("annotations_deleted", sum(outcome.deleted for outcome in outcomes))
    return [rejected for outcome in outcomes for rejected in outcome.rejected]


def stored_cells(
    target: Target, layout: OpenTsdb, places: Iterable[cells.CellAddress]
) -> dict[cells.CellAddress, StoredCell]:
    """The existing cells at these places."""
    places = set(places)
    keys = sorted({place.key for place in places})
    scan = Scan(layout.data_table, [(key, key + b"\x00") for key in keys], columns=cells.COLUMNS)
    return {
        place: StoredCell(cell.timestamp_ms, cell.value)
        for row in TableReader(target).scan(scan)
        for cell in row.cells
        if (place := cells.CellAddress(row.key, cell.qualifier)) in places
    }


def _move_former(
    target: Target, layout: OpenTsdb, groups: Mapping[cells.CellAddress, Sequence[AddressedEdit]]
) -> None:
    """Moves annotations from where earlier versions stored them to where TSDs and these edits look."""
    moved_to = {
        former: (place, edit.start)
        for place, addressed in groups.items()
        for tsuid, edit in addressed
        if (former := cells.former_place(layout.options, bytes.fromhex(tsuid), edit.start)) != place
    }
    while moved_to:
        stored = stored_cells(target, layout, {*moved_to, *(place for place, _ in moved_to.values())})
        moves = [
            Replacement(
                former.key,
                Cell(FAMILY, former.qualifier, *stored[former]),
                None,
                [Cell(FAMILY, place.qualifier, *stored[former])],
            )
            for former, (place, start) in moved_to.items()
            if former in stored and place not in stored and cells.starts_at(stored[former].value, start)
        ]
        if all(replace_cells(target, layout.data_table, moves)):
            return


class StoredCell(NamedTuple):
    """The content of a cell."""

    timestamp_ms: int
    value: bytes


class EditOutcome(NamedTuple):
    """The result of the edits of one annotation."""

    written: bool
    deleted: bool
    rejected: Sequence[Rejected]


class _AnnotationTable:
    """The data table, for compare-and-set of single annotations."""

    def __init__(self, target: Target, layout: OpenTsdb, *, dry_run: bool) -> None:
        self._target, self._layout, self._dry_run = target, layout, dry_run

    def apply(
        self, place: cells.CellAddress, addressed: Sequence[AddressedEdit], stored: StoredCell | None
    ) -> EditOutcome:
        """Applies edits to one annotation; again from the stored one if another writer changes it meanwhile.

        If an answer is lost, the cell is read again: edits that were stored change nothing.
        """
        event = self._layout.options.is_event_time
        backoff = Backoff()
        while True:
            old, edits, rejected = _applicable(stored, [addressed_edit.edit for addressed_edit in addressed])
            edits, of_others = self._of_one_start(place, addressed[0].tsuid, old.note, edits)
            rejected += of_others
            new = after(old, edits, addressed[0].tsuid, event_time=event)
            if new == old or (new.note is None and stored is None):
                return EditOutcome(False, False, rejected)
            outcome = EditOutcome(new.note is not None, new.note is None, rejected)
            try:
                if self._dry_run or self._replace(place, stored, new):
                    return outcome
            except REFUSALS as error:
                why = RejectedError(Reason.WRITE_REFUSED, f"Bigtable refused the annotation: {error}")
                return EditOutcome(False, False, [*rejected, *(edit.reject(why, _STAGE) for edit in edits)])
            name = f"annotation {place.qualifier.hex()} of row {place.key.hex()}"
            backoff.wait(exceptions.Aborted(f"{name} keeps changing"))
            stored = stored_cells(self._target, self._layout, [place]).get(place)

    def _of_one_start(
        self, place: cells.CellAddress, tsuid: str, note: Annotation | None, edits: Sequence[AnnotationEdit]
    ) -> tuple[Sequence[AnnotationEdit], list[Rejected]]:
        """(the edits of the annotation of a cell, the rejections of those that start at another time).

        Two starts in s can share a cell (`cells.qualifier`), and a TSD mixes their annotations. Deletions of
        what is not there are neither.
        """
        ordered = sorted(edits, key=lambda edit: edit.order)
        if note is not None and cells.belongs(self._layout.options, bytes.fromhex(tsuid), note, place):
            start = note.start
        else:
            start = next((edit.start for edit in ordered if edit.method is not Method.DELETE), 0)
        own = [edit for edit in ordered if not start or as_ms(edit.start) == as_ms(start)]
        others = [edit for edit in ordered if edit not in own and edit.method is not Method.DELETE]
        why = RejectedError(
            Reason.VALUE_NOT_STORABLE,
            f"OpenTSDB stores it in the same cell as the annotation with startTime {start}: "
            "give another startTime",
        )
        return own, [edit.reject(why, _STAGE) for edit in others]

    def _replace(self, place: cells.CellAddress, stored: StoredCell | None, state: AnnotationState) -> bool:
        """Stores a state if the stored cell has not changed since it was read; whether it was stored."""
        old = Cell(FAMILY, place.qualifier, *stored) if stored else None
        note = state.note
        new = Cell(FAMILY, place.qualifier, state.timestamp_ms, note.stored()) if note else None
        return replace_cells(self._target, self._layout.data_table, [Replacement(place.key, old, new)])[0]


def _applicable(
    stored: StoredCell | None, edits: Sequence[AnnotationEdit]
) -> tuple[AnnotationState, Sequence[AnnotationEdit], list[Rejected]]:
    """(the stored state, the edits that can be applied to it, the rejections of others).

    A stored value that is not an annotation can be replaced or deleted, but not changed.
    """
    if stored is None:
        return NO_CELL, edits, []
    try:
        return AnnotationState(parse_stored(stored.value), stored.timestamp_ms), edits, []
    except NotAnAnnotationError as error:
        why = RejectedError(
            Reason.VALUE_NOT_STORABLE, f"the stored value is not an annotation ({error}): PUT or DELETE it"
        )
    ordered = sorted(edits, key=lambda edit: edit.order)
    first = next((n for n, edit in enumerate(ordered) if edit.method is not Method.POST), len(ordered))
    rejected = [edit.reject(why, _STAGE) for edit in ordered[:first]]
    return AnnotationState(None, stored.timestamp_ms - 1), ordered[first:], rejected


_HELD_EDITS = 2_000


class StoreAnnotations(beam.PTransform):  # type: ignore[type-arg]
    """Lists of `AnnotationEdit` in; the PCollection of `Rejected` ones out.

    Args:
      endless: whether the input is a stream: the edits of each bundle are applied together, else all edits.
      dry_run: resolve names, and write nothing.
    """

    def __init__(
        self, target: Target, layout: Store, uids: UidOptions, *, endless: bool, dry_run: bool
    ) -> None:
        super().__init__()
        self._target, self._layout, self._uids = target, layout, uids
        self._endless, self._dry_run = endless, dry_run

    def expand(self, edits: PCollection[list[AnnotationEdit]]) -> PCollection[Rejected]:
        try:
            layout = as_opentsdb(self._layout, "annotations")
        except MissingAbilityError as error:
            return edits | "Reject" >> beam.FlatMap(_reject_all, str(error))
        address = _AddressFn(self._target, layout, self._uids, dry_run=self._dry_run)
        addressed = edits | "Address" >> rejecting(address, tuple[tuple[bytes, bytes], list[Any]])
        groups = addressed.main
        if not self._endless:
            grouped = groups | "GroupPerAnnotation" >> beam.GroupByKey()
            groups = grouped | "Join" >> beam.MapTuple(_joined_lists).with_output_types(
                tuple[tuple[bytes, bytes], list[Any]]
            )
        store = _StoreAnnotationsFn(self._target, layout, dry_run=self._dry_run)
        stored = groups | "Store" >> beam.ParDo(store).with_output_types(Rejected)
        return (addressed[REJECTED], stored) | "AllRejected" >> beam.Flatten()


def _reject_all(edits: list[AnnotationEdit], message: str) -> list[Rejected]:
    """The rejections of edits in a layout without annotations."""
    why = RejectedError(Reason.VALUE_NOT_STORABLE, message)
    return [edit.reject(why, Stage.ASSIGN) for edit in edits]


class _AddressFn(beam.DoFn):
    """Lists of edits in; ((row key, qualifier), list of `AddressedEdit`) out, rejected ones to `REJECTED`."""

    def __init__(self, target: Target, layout: OpenTsdb, uids: UidOptions, *, dry_run: bool) -> None:
        self._target, self._layout = target, layout
        self._keys = SharedSeriesKeys(target, layout, uids, dry_run=dry_run)

    def setup(self) -> None:
        """Opens the UID table and the cache of the process."""
        self._keys.open()
        reader = TableReader(self._target)
        self._names = UidDirectory(self._layout.options, reader)

    def process(
        self, edits: Sequence[AnnotationEdit]
    ) -> Iterator[tuple[tuple[bytes, bytes], list[AddressedEdit]] | RejectedOutput]:
        options = self._layout.options
        groups: dict[cells.CellAddress, list[AddressedEdit]] = {}
        for edit, tsuid in zip(edits, self._tsuids(edits), strict=True):
            if isinstance(tsuid, RejectedError):
                yield reject(edit.reject(tsuid, Stage.ASSIGN))
            else:
                place = cells.place(options, tsuid, edit.start)
                groups.setdefault(place, []).append(AddressedEdit(tsuid.hex().upper(), edit))
        for place, addressed in groups.items():
            yield tuple(place), addressed  # type: ignore[misc]

    def _tsuids(self, edits: Sequence[AnnotationEdit]) -> list[bytes | RejectedError]:
        """The TSUID of each edit, or why it has none; empty for a global annotation."""
        named = [edit.series for edit in edits if edit.series is not None]
        keys = iter(self._keys.series_keys(named)) if named else iter(())
        tsuids = [self._tsuid(edit, next(keys) if edit.series is not None else None) for edit in edits]
        claimed_tsuids = {
            tsuid
            for edit, tsuid in zip(edits, tsuids, strict=True)
            if edit.tsuid and isinstance(tsuid, bytes)
        }
        unknown = self._unknown(claimed_tsuids)
        return [unknown.get(tsuid, tsuid) if isinstance(tsuid, bytes) else tsuid for tsuid in tsuids]

    def _tsuid(self, edit: AnnotationEdit, key: SeriesKey | RejectedError | None) -> bytes | RejectedError:
        if isinstance(key, RejectedError):
            return key
        if key is not None:
            return key.head[self._layout.options.salt_width :] + key.tail
        try:
            return cells.check_tsuid(self._layout.options, edit.tsuid) if edit.tsuid else b""
        except RejectedError as error:
            return error

    def _unknown(self, tsuids: Iterable[bytes]) -> dict[bytes, RejectedError]:
        """The TSUIDs with a UID without a name: no query could find their annotations."""
        unknown = {}
        for tsuid, (kind, uid) in self._names.nameless(tsuids).items():
            why = f"tsuid {tsuid.hex().upper()}: UID {uid.hex().upper()} of kind {kind} has no name"
            unknown[tsuid] = RejectedError(Reason.UNKNOWN_NAME, why)
        return unknown


def _joined_lists(
    key: tuple[bytes, bytes], lists: Iterable[list[AddressedEdit]]
) -> tuple[tuple[bytes, bytes], list[AddressedEdit]]:
    return key, [addressed for edits in lists for addressed in edits]


class _StoreAnnotationsFn(BufferedDoFn[tuple[tuple[bytes, bytes], list[AddressedEdit]]]):
    """((row key, qualifier), list of `AddressedEdit`) in, stored before the bundle ends; `Rejected` out."""

    most_weight = _HELD_EDITS

    def __init__(self, target: Target, layout: OpenTsdb, *, dry_run: bool) -> None:
        self._target, self._layout, self._dry_run = target, layout, dry_run

    def weight(self, element: tuple[tuple[bytes, bytes], list[AddressedEdit]]) -> int:
        return len(element[1])

    def handle(self, elements: list[tuple[tuple[bytes, bytes], list[AddressedEdit]]]) -> list[Rejected]:
        groups: dict[cells.CellAddress, list[AddressedEdit]] = {}
        for place, addressed in elements:
            groups.setdefault(cells.CellAddress(*place), []).extend(addressed)
        return store(self._target, self._layout, groups, dry_run=self._dry_run)
