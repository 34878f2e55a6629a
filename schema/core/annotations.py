"""Annotations: their JSON, as stored and as OpenTSDB's API shows it, and edits of them.

meta/Annotation.getStorageJSON of OpenTSDB 2.4.1, docs/spec/opentsdb.md §4.1. A TSD compares the stored bytes
when it updates, so the order of keys and the escapes of characters are part of the format.

Edits are requests to /api/annotation (meta/Annotation.syncToStorage and syncNote, tsd/AnnotationRpc). A TSD
handles requests in the order of their arrival; here each edit has an arrival time, and input may be
delivered again: see `after`.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from timebeam.schema.bits.java_text import json_object, json_text
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.points import FIRST_MILLISECOND, Series, source_checksum
from timebeam.schema.core.rejections import Envelope, Rejected, Stage

Pairs = tuple[tuple[str, str], ...]


class NotAnAnnotationError(ValueError):
    """The stored bytes cannot be read as an annotation."""


@dataclasses.dataclass(frozen=True, slots=True)
class Annotation:
    """A note about a time, or a range of time.

    Attributes:
      tsuid: hex of its series; empty for a global annotation.
      start, end: in s or, from 2**32 on, in ms; an end of 0 means none.
      description: one line.
      notes: more text.
      custom: the user's own fields, in the order of `sorted_custom`; None for none.
    """

    tsuid: str
    start: int
    end: int = 0
    description: str = ""
    notes: str = ""
    custom: Pairs | None = None

    @property
    def start_ms(self) -> int:
        """When it begins, in ms."""
        return as_ms(self.start)

    @property
    def end_ms(self) -> int:
        """When it ends, in ms: its start if it has no end, or an end before the start."""
        return max(self.start_ms, as_ms(self.end))

    def stored(self) -> bytes:
        """The value of its cell.

        >>> print(Annotation("", 1357002000, description="d1357002000").stored().decode())  # a global one
        {"startTime":1357002000,"endTime":0,"description":"d1357002000","notes":"","custom":null}
        """
        members = [f'"tsuid":{json_text(self.tsuid)}'] if self.tsuid else []
        members += [
            f'"startTime":{self.start}',
            f'"endTime":{self.end}',
            f'"description":{json_text(self.description)}',
            f'"notes":{json_text(self.notes)}',
            f'"custom":{"null" if self.custom is None else json_object(self.custom)}',
        ]
        return ("{" + ",".join(members) + "}").encode()

    def shown(self) -> str:
        """Its JSON in answers of the API, which `ingest --format opentsdb-annotations` also reads."""
        members = [
            f'"tsuid":{json_text(self.tsuid)}',
            f'"description":{json_text(self.description)}',
            f'"notes":{json_text(self.notes)}',
            *([] if self.custom is None else [f'"custom":{json_object(self.custom)}']),
            f'"startTime":{self.start}',
            f'"endTime":{self.end}',
        ]
        return "{" + ",".join(members) + "}"


def as_ms(time: int) -> int:
    """A time in ms, from one in s or, from 2**32 on, in ms."""
    return time if time >= FIRST_MILLISECOND else time * 1000


def sorted_custom(pairs: Sequence[tuple[str, str]]) -> Pairs:
    """Custom fields in the order of Java's strings: by UTF-16 units."""
    return tuple(sorted(pairs, key=lambda pair: pair[0].encode("utf-16-be")))


def parse_stored(value: bytes) -> Annotation:
    """The annotation of a cell, read as by a TSD: keys in any order, unknown keys ignored.

    Raises:
      NotAnAnnotationError: it cannot be read, or has no start.
    """
    try:
        members: Any = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise NotAnAnnotationError(f"not JSON: {error}") from error
    if not isinstance(members, dict):
        raise NotAnAnnotationError("not a JSON object")
    custom = members.get("custom")
    if custom is not None and not (
        isinstance(custom, dict) and all(isinstance(text, str) for text in custom.values())
    ):
        raise NotAnAnnotationError("custom is not an object of strings")
    annotation = Annotation(
        _text(members, "tsuid"),
        _time(members, "startTime"),
        _time(members, "endTime"),
        _text(members, "description"),
        _text(members, "notes"),
        None if custom is None else sorted_custom(list(custom.items())),
    )
    if annotation.start < 1:
        raise NotAnAnnotationError("no startTime")
    return annotation


def _text(members: dict[str, Any], key: str) -> str:
    """A string; empty if missing or null."""
    text = members.get(key)
    if text is None:
        return ""
    if not isinstance(text, str):
        raise NotAnAnnotationError(f"{key} is not a string")
    return text


def _time(members: dict[str, Any], key: str) -> int:
    """A time; 0 if missing."""
    time = members.get(key, 0)
    if not isinstance(time, int) or isinstance(time, bool):
        raise NotAnAnnotationError(f"{key} is not a whole number")
    return time


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
        return self.arrival_ms, source_checksum(self.source), self.offset, self.payload

    def reject(self, error: RejectedError, stage: Stage) -> Rejected:
        """The rejection of this edit, with its bytes."""
        origin = self.source, self.offset, self.arrival_ms, self.envelope
        return Rejected(self.payload, error.reason, error.message, stage, *origin)


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
    """An annotation after a POST or PUT (meta/Annotation.syncNote)."""
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


NO_CHANGES = RejectedError(
    Reason.EMPTY_VALUE,
    "No changes detected in Annotation data: give a description, notes, custom fields or an endTime",
)
