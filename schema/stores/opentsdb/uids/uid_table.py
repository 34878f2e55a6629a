"""Names that OpenTSDB accepts, and the UID table, which maps names to UIDs.

Format: docs/spec/opentsdb.md §1.3 (core/Tags.validateString and checkMetricAndTags) and §5.1. The table
also holds the counters:

| row | family | qualifier | value |
|---|---|---|---|
| name, ISO-8859-1 | `id` | `metrics`, `tagk`, `tagv` | UID |
| UID | `name` | the same | name |
| one zero byte | `id` | the same | highest id so far, 8 bytes, signed |
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.point_fragments import Name
from timebeam.schema.core.points import Series
from timebeam.schema.core.rows import KEY_BYTES
from timebeam.schema.core.selection import Reader
from timebeam.schema.stores.opentsdb.options import Names

_PLAIN = re.compile(r"[a-zA-Z0-9\-_./]+")


def reject_series(series: Series, max_tags: int, form: Names = Names.REFUSE) -> RejectedError | None:
    """Why a series cannot be stored, or None if it can; its names are stored in this form."""
    try:
        if series.resources:
            raise RejectedError(Reason.SERIES_NOT_STORABLE, "OpenTSDB has no resources: send them as tags")
        if not series.tags:
            raise RejectedError(Reason.NO_TAGS, "Missing tags: give at least one")
        if len(series.tags) > max_tags:
            raise RejectedError(
                Reason.TOO_MANY_TAGS, f"Too many tags: {len(series.tags)} maximum allowed: {max_tags}"
            )
        names = [series.metric, *itertools.chain.from_iterable(series.tags)]
        if all(names) and _PLAIN.fullmatch("".join(names)):
            return None  # such names are legal in every form
        _check(form.stored(series.metric), "metric name", Reason.BAD_METRIC)
        for key, value in series.tags:
            _check(form.stored(key), f"tag name with value [{value}]", Reason.BAD_TAG)
            _check(form.stored(value), f"tag value with key [{key}]", Reason.BAD_TAG)
        if form is Names.REPLACE and len({form.stored(key) for key, _ in series.tags}) < len(series.tags):
            raise RejectedError(Reason.DUPLICATE_TAG, f"two tag names become equal, see names: {series}")
    except RejectedError as error:
        return error
    return None


def check_name(kind: str, name: str) -> None:
    """Raises RejectedError if OpenTSDB does not allow a name, as it is stored, or cannot store it."""
    role = {"metrics": "metric name", "tagk": "tag name", "tagv": "tag value"}[kind]
    _check(name, role, Reason.BAD_METRIC if kind == "metrics" else Reason.BAD_TAG)
    if row_key(name) is None:
        text = f"Invalid {role}: {len(name)} characters, more than the {KEY_BYTES} of a row key"
        raise RejectedError(Reason.NAME_NOT_STORABLE, text)


def _check(name: str, role: str, reason: Reason) -> None:
    """Checks that a name is legal and fits ISO-8859-1.

    A TSD stores characters above U+00FF as `?`, which makes different names equal: rejected here.

    Raises:
      RejectedError: `reason`, or NAME_NOT_STORABLE.
    """
    if _PLAIN.fullmatch(name):
        return
    if not name:
        raise RejectedError(reason, f"Invalid {role}: empty string")
    for character in name:
        if not (_PLAIN.fullmatch(character) or (character.isalpha() and ord(character) <= 0xFFFF)):
            raise RejectedError(reason, f'Invalid {role} ("{name[:80]}"): illegal character: {character}')
        if ord(character) > 0xFF:
            raise RejectedError(
                Reason.NAME_NOT_STORABLE,
                f'Invalid {role} ("{name[:80]}"): names are stored as ISO-8859-1, which has no {character}',
            )


KINDS = ("metrics", "tagk", "tagv")
ID_FAMILY = "id"
NAME_FAMILY = "name"
COUNTER_ROW = b"\x00"


def name_bytes(name: str) -> bytes:
    """A name as it is stored.

    Raises:
      UnicodeEncodeError: it has a character that ISO-8859-1 has not.
    """
    return name.encode("iso-8859-1")


def row_key(name: str) -> bytes | None:
    """The row of a name; None for a name that cannot be stored, which a query may still ask for."""
    try:
        key = name_bytes(name)
    except UnicodeEncodeError:
        return None
    return None if key in (b"", COUNTER_ROW) or len(key) > KEY_BYTES else key


def name_text(raw: bytes) -> str:
    """A stored name."""
    return raw.decode("iso-8859-1")


def last_id(width: int) -> int:
    """The highest id that fits a UID of `width` bytes; ids of 8 bytes are signed."""
    return (1 << (8 * width)) - 1 if width < 8 else (1 << 63) - 1


def uid_bytes(number: int, width: int) -> bytes:
    """The UID of an id (core/UniqueId.UniqueIdAllocator).

    >>> uid_bytes(1, width=3).hex(), uid_bytes(70_000, width=4).hex()
    ('000001', '00011170')

    Raises:
      ValueError: it does not fit.
    """
    if not 0 < number <= last_id(width):
        raise ValueError(f"id {number} does not fit {width} bytes")
    return number.to_bytes(width, "big")


def look_up(table: str, names: Iterable[Name], reader: Reader) -> dict[Name, bytes]:
    """The UIDs of the names that have one."""
    stored = {name: key for name in names if (key := row_key(name.text)) is not None}
    rows = reader.rows(table, sorted(set(stored.values())))
    uid_of = {}
    for name, key in stored.items():
        row = rows.get(key)
        for cell in row.cells if row else ():
            if (cell.family, cell.qualifier) == (ID_FAMILY, name.kind.encode()):
                uid_of[name] = cell.value
    return uid_of
