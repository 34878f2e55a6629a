"""Names: those that OpenTSDB accepts, how others are stored, and the UID table, which maps names to UIDs.

A TSD allows letters, digits and `-_./`. Names of Prometheus and OpenTelemetry have colons, blanks and more.
Escaped, as Prometheus' own adapter for OpenTSDB did: `_` is `__`, `:` is `_.`, any other byte of UTF-8 `_XX`.
Whether names are escaped is stored with the tables: an old `disk_ab` only looks escaped.

Format: docs/spec/opentsdb.md §1.3 (core/Tags.validateString and checkMetricAndTags) and §5.1. The table
also holds the counters:

| row | family | qualifier | value |
|---|---|---|---|
| name, ISO-8859-1 | `id` | `metrics`, `tagk`, `tagv` | UID |
| UID | `name` | the same | name |
| one zero byte | `id` | the same | highest id so far, 8 bytes, signed |
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import itertools
import json
import re
from collections.abc import Iterable

from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.point_fragments import Name
from timebeam.schema.core.points import Series
from timebeam.schema.core.rows import KEY_BYTES
from timebeam.schema.core.selection import Reader

_PLAIN = re.compile(r"[a-zA-Z0-9\-_./]+")
_ILLEGAL = re.compile(rb"[^a-zA-Z0-9\-./]")
_ESCAPE = re.compile(r"_(_|\.|[0-9A-F]{2})")
_NOT_PLAIN = re.compile(r"[^a-zA-Z0-9\-_./]")
REPLACEMENT = "_"


class Names(enum.StrEnum):
    """What happens to names that OpenTSDB does not allow."""

    REFUSE = "refuse"
    ESCAPE = "escape"
    """Every name of the tables is escaped, also legal ones with `_`; queries undo it."""
    REPLACE = "replace"
    """Each illegal character becomes `_`: different names may become equal."""

    def stored(self, name: str) -> str:
        """A name as it is stored.

        >>> Names.ESCAPE.stored("http:requests_total"), Names.REPLACE.stored("http:requests_total")
        ('http_.requests__total', 'http_requests_total')
        """
        if self is Names.ESCAPE:
            return _ILLEGAL.sub(_escaped, name.encode()).decode()
        return _NOT_PLAIN.sub(REPLACEMENT, name) if self is Names.REPLACE else name

    def shown(self, stored: str) -> str:
        """The name that is stored so; a name that no escaping gives is itself.

        >>> Names.ESCAPE.shown("http_.requests__total"), Names.ESCAPE.shown("disk_ab")
        ('http:requests_total', 'disk_ab')
        """
        if self is not Names.ESCAPE or "_" not in stored:
            return stored
        try:
            name = b"".join(map(_unescaped, _ESCAPE.split(stored)[::2], [*_ESCAPE.split(stored)[1::2], ""]))
            text = name.decode()
        except UnicodeError:
            return stored
        return text if self.stored(text) == stored else stored

    def stores(self, stored: str) -> bool:
        """Whether a name is stored so."""
        return self.stored(self.shown(stored)) == stored


def _escaped(match: re.Match[bytes]) -> bytes:
    byte = match[0]
    return {b"_": b"__", b":": b"_."}.get(byte) or b"_%02X" % byte[0]


def _unescaped(plain: str, escape: str) -> bytes:
    """The bytes of plain characters and of the escape behind them."""
    raw = {"": b"", "_": b"_", ".": b":"}.get(escape)
    return plain.encode() + (bytes.fromhex(escape) if raw is None else raw)


@dataclasses.dataclass(frozen=True, slots=True)
class Overflow:
    """Which tags a series loses that has more than `max_tags`; a tag with their hash keeps series apart.

    Attributes:
      tag: key of the tag with the hash.
      drop: keys of the tags that are dropped; if empty, all but those of `keep` are.
      keep: keys of the tags that stay.
    """

    tag: str
    drop: frozenset[str] = frozenset()
    keep: frozenset[str] = frozenset()

    @classmethod
    def of(cls, tag: str, drop: str, keep: str) -> Overflow | None:
        """From the options `overflow_tag`, `drop_tags` and `keep_tags` (a,b,...); None if all are empty.

        Raises:
          ValueError: they contradict each other, or one is missing.
        """
        dropped, remaining = (frozenset(filter(None, text.split(","))) for text in (drop, keep))
        if not (tag or dropped or remaining):
            return None
        if not tag:
            raise ValueError(
                "drop_tags and keep_tags alone would make different series equal: give overflow_tag, the key "
                "of a tag for a hash of the dropped tags"
            )
        if bool(dropped) == bool(remaining):
            raise ValueError("overflow_tag needs either drop_tags or keep_tags")
        if tag in dropped | remaining:
            raise ValueError(f"overflow_tag {tag} must not be in drop_tags or keep_tags")
        return cls(tag, dropped, remaining)

    def reduced(self, series: Series) -> Series:
        """The series without the tags that are dropped, with the tag of their hash if there are any.

        The hash is 64 bits of BLAKE2b of the dropped tags alone, in hex. A tag of the series itself with the
        key of the hash is dropped, too.
        """
        dropped = [
            (key, value)
            for key, value in series.tags
            if key == self.tag or (key in self.drop if self.drop else key not in self.keep)
        ]
        if not dropped:
            return series
        tags = dict(series.tags)
        for key, _ in dropped:
            del tags[key]
        tags[self.tag] = hashlib.blake2b(json.dumps(dropped).encode(), digest_size=8).hexdigest()
        return Series.of(series.metric, tags, dict(series.resources))


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
            raise RejectedError(Reason.DUPLICATE_TAG, f"two tag names become equal, see --names: {series}")
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
