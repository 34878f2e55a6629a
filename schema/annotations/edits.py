"""Edits of annotations: what a request to OpenTSDB's /api/annotation asks for, and what comes of it.

meta/Annotation.syncToStorage and syncNote, tsd/AnnotationRpc of OpenTSDB 2.4.1. A TSD takes requests in
the order in which they come; here each has an arrival, and input may come again: see `after`.
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
    """Stores the fields that are given; the others stay."""
    PUT = "PUT"
    """Stores the fields that are given; the others become empty."""
    DELETE = "DELETE"


@dataclasses.dataclass(frozen=True, slots=True)
class AnnotationEdit:
    """One request.

    Attributes:
      series: of the annotation, in place of a TSUID.
      tsuid: hex, as it was given; empty if there is a series, or for a global annotation.
      start: in s, or in ms from 2**32 on.
      end, description, notes, custom: None where the request says nothing, or nothing new: 0 and empty texts.
      payload, source, offset, arrival_ms, envelope: as those of `Rejected`.
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
        """Its refusal, with the bytes that it came from."""
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


class State(NamedTuple):
    """An annotation's cell: None for no annotation, and its timestamp in ms; -1 for no cell."""

    note: Annotation | None
    timestamp_ms: int


NOTHING = State(None, -1)


def after(state: State, edits: Iterable[AnnotationEdit], tsuid: str, *, event_time: bool = False) -> State:
    """What is stored after some edits of one annotation, in any order of theirs.

    They are carried out in the order of their arrival. An edit that is older than what is stored, as one
    that is delivered again, or comes late, fills in only what is empty there; a PUT or DELETE that is
    older changes nothing. So input that comes again changes nothing, unless a deletion came between.

    Args:
      tsuid: hex of the series; empty for a global one.
      event_time: cells have the time of the annotation (tsd.storage.use_otsdb_timestamp), which tells
        nothing of the age of what is stored: every edit counts as newer.
    """
    note, timestamp_ms = state
    for edit in sorted(edits, key=lambda edit: edit.order):
        if not event_time and edit.arrival_ms < timestamp_ms:
            note = _filled(note, edit)
            continue
        note = None if edit.method is Method.DELETE else _changed(note, edit, tsuid)
        timestamp_ms = edit.arrival_ms
    if note is not None and event_time:
        timestamp_ms = note.start_ms
    return State(note, timestamp_ms)


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
    """An annotation after an edit that is older than it."""
    if note is None or edit.method is not Method.POST:
        return note
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
