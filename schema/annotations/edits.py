"""Edits of annotations: requests to OpenTSDB's /api/annotation, and their results.

meta/Annotation.syncToStorage and syncNote, tsd/AnnotationRpc of OpenTSDB 2.4.1. A TSD handles requests in the
order of their arrival; here each edit has an arrival time, and input may be delivered again: see `after`.
"""

from __future__ import annotations

import dataclasses
import enum
import zlib
from collections.abc import Iterable
from typing import NamedTuple

from timebeam.schema.annotations.record import Annotation, Pairs
from timebeam.schema.points import Envelope, Reason, RefusedError, Rejected, Series, Stage


class Method(enum.StrEnum):
    """The HTTP method of a request."""

    POST = "POST"
    """Stores the given fields; the others stay."""
    PUT = "PUT"
    """Stores the given fields; the others become empty."""
    DELETE = "DELETE"


@dataclasses.dataclass(frozen=True, slots=True)
class AnnotationEdit:
    """One request.

    Attributes:
      series: of the annotation, instead of a TSUID.
      tsuid: in hex as given; empty if there is a series, or for a global annotation.
      start: in s, or in ms from 2**32 on.
      end, description, notes, custom: None if the request has no value, or 0 or an empty string.
      payload, source, offset, arrival_ms, envelope: as in `Rejected`.
    """

    method: Method
    series: Series | None
    tsuid: str
    start: int
    end: int | None
    description: str | None
    notes: str | None
    custom: Pairs | None
    payload: bytes
    source: str
    offset: int
    arrival_ms: int
    envelope: Envelope | None = None

    @property
    def order(self) -> tuple[int, int, int, bytes]:
        """Edits of one annotation are carried out in this order."""
        return self.arrival_ms, zlib.crc32(self.source.encode()), self.offset, self.payload

    def refuse(self, error: RefusedError, stage: Stage) -> Rejected:
        """The refusal of this edit, with its bytes."""
        return Rejected(
            self.payload,
            error.reason,
            error.message,
            stage,
            self.source,
            self.offset,
            self.arrival_ms,
            self.envelope,
        )


class AnnotationState(NamedTuple):
    """The cell of an annotation: the annotation or None, and the timestamp in ms, -1 for no cell."""

    note: Annotation | None
    timestamp_ms: int


NO_CELL = AnnotationState(None, -1)


def after(
    state: AnnotationState, edits: Iterable[AnnotationEdit], tsuid: str, *, event_time: bool = False
) -> AnnotationState:
    """The cell after some edits of one annotation, whatever their order.

    Edits are carried out in the order of their arrival. An edit that is older than the stored annotation,
    because it is late or delivered again, only fills in empty fields; an older PUT or DELETE changes nothing.
    So input that is delivered again as a whole changes nothing; a single edit that is delivered again changes
    nothing unless a PUT or DELETE came after it.

    Args:
      tsuid: hex of the series; empty for a global annotation.
      event_time: cell timestamps are the times of annotations (tsd.storage.use_otsdb_timestamp), which do not
        tell the age of the stored annotation: every edit counts as newer.
    """
    note, timestamp_ms = state
    ordered = sorted(edits, key=lambda edit: edit.order)
    older = 0 if event_time else sum(edit.arrival_ms < timestamp_ms for edit in ordered)
    # Fields of older edits before an older PUT or DELETE were removed by it, and stay so.
    resets = [number for number, edit in enumerate(ordered[:older]) if edit.method is not Method.POST]
    for edit in ordered[resets[-1] + 1 if resets else 0 : older]:
        note = _filled(note, edit)
    for edit in ordered[older:]:
        note = None if edit.method is Method.DELETE else _changed(note, edit, tsuid)
        timestamp_ms = edit.arrival_ms
    if note is not None and event_time:
        timestamp_ms = note.start_ms
    return AnnotationState(note, timestamp_ms)


def _changed(note: Annotation | None, edit: AnnotationEdit, tsuid: str) -> Annotation:
    """An annotation after a POST or PUT (`syncNote`)."""
    start = edit.start if note is None else min(edit.start, note.start)
    base = Annotation(tsuid, start) if note is None or edit.method is Method.PUT else note
    return Annotation(
        edit.tsuid or base.tsuid,
        start,
        base.end if edit.end is None else edit.end,
        base.description if edit.description is None else edit.description,
        base.notes if edit.notes is None else edit.notes,
        base.custom if edit.custom is None else edit.custom,
    )


def _filled(note: Annotation | None, edit: AnnotationEdit) -> Annotation | None:
    """An annotation after a POST that is older than the annotation."""
    if note is None:
        return None
    return dataclasses.replace(
        note,
        end=note.end or edit.end or 0,
        description=note.description or edit.description or "",
        notes=note.notes or edit.notes or "",
        custom=edit.custom if note.custom is None else note.custom,
    )


NO_CHANGES = RefusedError(
    Reason.EMPTY_VALUE,
    "No changes detected in Annotation data: give a description, notes, custom fields or an endTime",
)
