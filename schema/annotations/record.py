"""An annotation and its JSON, as stored and as OpenTSDB's API shows it.

meta/Annotation.getStorageJSON of OpenTSDB 2.4.1, docs/spec/opentsdb.md §4.1. A TSD compares the stored bytes
when it updates, so the order of keys and the escapes of characters are part of the format.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from timebeam.schema.common.java_text import json_text

Pairs = tuple[tuple[str, str], ...]

_FIRST_MILLISECOND = 1 << 32


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
        """The value of its cell."""
        members = [f'"tsuid":{json_text(self.tsuid)}'] if self.tsuid else []
        members += [
            f'"startTime":{self.start}',
            f'"endTime":{self.end}',
            f'"description":{json_text(self.description)}',
            f'"notes":{json_text(self.notes)}',
            f'"custom":{"null" if self.custom is None else _object(self.custom)}',
        ]
        return ("{" + ",".join(members) + "}").encode()

    def shown(self) -> str:
        """Its JSON in answers of the API, which `ingest --format opentsdb-annotations` also reads."""
        members = [
            f'"tsuid":{json_text(self.tsuid)}',
            f'"description":{json_text(self.description)}',
            f'"notes":{json_text(self.notes)}',
            *([] if self.custom is None else [f'"custom":{_object(self.custom)}']),
            f'"startTime":{self.start}',
            f'"endTime":{self.end}',
        ]
        return "{" + ",".join(members) + "}"


def as_ms(time: int) -> int:
    """A time in ms, from one in s or, from 2**32 on, in ms."""
    return time if time >= _FIRST_MILLISECOND else time * 1000


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


def _object(pairs: Pairs) -> str:
    return "{" + ",".join(f"{json_text(key)}:{json_text(text)}" for key, text in pairs) + "}"


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
