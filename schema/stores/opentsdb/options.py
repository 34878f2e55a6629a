"""The options of OpenTSDB's tables, named after the configuration keys of a TSD; imports no numpy.

A TSD allows letters, digits and `-_./`. Names of Prometheus and OpenTelemetry have colons, blanks and more.
Escaped, as Prometheus' own adapter for OpenTSDB did: `_` is `__`, `:` is `_.`, any other byte of UTF-8 `_XX`.
Whether names are escaped is stored with the tables: an old `disk_ab` only looks escaped.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import hashlib
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from timebeam.schema.core.declared_options import DeclaredOptions, archive_option, option

if TYPE_CHECKING:
    from timebeam.schema.core.points import Series

BASE_BYTES = 4
"""Bytes of the base time in a row key."""

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
        return series.of(series.metric, tags, dict(series.resources))


class Decimals(enum.StrEnum):
    """How many bytes a decimal value takes (docs/spec/opentsdb.md §1.6).

    Use DOUBLE for a table that a TSD also writes over HTTP: the qualifier holds the width, so with another
    one the same point becomes two cells.
    """

    EXACT = "exact"
    """4 bytes where they hold the value exactly, else 8: telnet `put`."""
    DOUBLE = "double"
    """Always 8 bytes: HTTP /api/put."""
    FLOAT = "float"
    """Always 4 bytes, precision lost: `tsdb import`. A value beyond float32 stays on 8 bytes."""


class OpenTsdbCellTime(enum.StrEnum):
    """What the timestamps of cells are."""

    ARRIVAL = "arrival"
    """The arrival of the point: the newest cell wins a time."""
    EVENT = "event"
    """The time of the point (tsd.storage.use_otsdb_timestamp): the greatest or smallest value wins."""


MAX_TAGS = 30
"""The default of `max_tags`: TSDs count tags only when they write, and read rows of any number
(docs/spec/opentsdb.md §1.1). Prometheus describes itself with nine, Kubernetes a container with twenty."""


TSD_MAX_TAGS = 8
"""The default of a TSD; also the one of `Overflow`, since it decides which series lose tags."""


@dataclasses.dataclass(frozen=True, slots=True)
class OpenTsdbOptions(DeclaredOptions):
    """Options, which must agree with the TSDs that share the tables (docs/reference/layouts.md).

    Attributes:
      table_prefix: put before the table names `tsdb` and `tsdb-uid`.
      overflow: what happens to series of more than `max_tags` tags; None: they are rejected.
    """

    table_prefix: str = ""
    salt_width: int = option("bytes of salt in row keys (tsd.storage.salt.width)", 0, stored=True)
    salt_buckets: int = option("salt buckets (tsd.storage.salt.buckets)", 20, stored=True)
    uid_width_metric: int = option("bytes of a metric UID (tsd.storage.uid.width.metric)", 3, stored=True)
    uid_width_tagk: int = option("bytes of a tag key UID (tsd.storage.uid.width.tagk)", 3, stored=True)
    uid_width_tagv: int = option("bytes of a tag value UID (tsd.storage.uid.width.tagv)", 3, stored=True)
    names: Names = option(
        "opentsdb: what to do with names that contain characters OpenTSDB does not allow: "
        "refuse (the record is rejected), escape (queries undo it), or replace each such character "
        "by _; by default escape for formats of other systems, otherwise refuse",
        Names.REFUSE,
        unset=None,
        stored=True,
    )
    max_tags: int = option(
        f"maximum tags of a written series (tsd.storage.max_tags); {MAX_TAGS} by default, {TSD_MAX_TAGS} "
        "with --overflow-tag",
        MAX_TAGS,
        unset=None,
        example=str(MAX_TAGS),
    )
    decimals: Decimals = option(
        "bytes of decimal values: exact (4 if they hold the value, otherwise 8: telnet put), "
        "double (always 8: HTTP; use it for tables that a TSD writes over HTTP), float "
        "(always 4: tsdb import)",
        Decimals.EXACT,
    )
    cell_time: OpenTsdbCellTime = option(
        "opentsdb: timestamp of a cell; arrival: when the point arrived, the latest value of a time "
        "is read; event: the time of the point, the greatest value of a time is read "
        "(tsd.storage.use_otsdb_timestamp)",
        OpenTsdbCellTime.ARRIVAL,
        stored=True,
    )
    use_max_value: bool = option(
        "opentsdb, if cell_time is event: read the greatest value of a time, or with false "
        "the smallest (tsd.storage.use_max_value)",
        True,
        shown_for=("cell_time", (OpenTsdbCellTime.EVENT.value,)),
        stored=True,
    )
    archive: bool = archive_option()
    marked_since: str = option(
        "opentsdb: UTC day from which all writers mark the hours of their points; from then "
        "on commands mark hours without --mark-changed, and queries do not use rollups of marked hours "
        "(docs/use/rollups.md)",
        "",
        unset=None,
        regex=r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
        example="2026-11-20",
        stored=True,
    )
    overflow: Overflow | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """See `DeclaredOptions.of`; also takes the options of `Overflow.of`."""
        tag, drop, keep = (values.get(name) or "" for name in ("overflow_tag", "drop_tags", "keep_tags"))
        overflow = Overflow.of(tag, drop, keep)
        values = {**values, "overflow": overflow}
        if overflow and values.get("max_tags") is None:
            values["max_tags"] = TSD_MAX_TAGS
        return super(OpenTsdbOptions, cls).of(values)

    def __post_init__(self) -> None:
        if self.marked_since and self.marked_since_s is None:
            raise ValueError(
                f"marked_since must be a day from 1970 to 2105, such as 2026-11-20, not {self.marked_since}"
            )
        for name, low, high in (
            ("salt_width", 0, 8),
            ("salt_buckets", 1, 1 << 31),
            ("uid_width_metric", 1, 8),
            ("uid_width_tagk", 1, 8),
            ("uid_width_tagv", 1, 8),
            ("max_tags", 1, 255),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} must be from {low} to {high}, not {value}")
        if self.salt_width and self.salt_buckets > 1 << (8 * self.salt_width):
            raise ValueError(
                f"{self.salt_buckets} salt_buckets do not fit a salt_width of {self.salt_width}: "
                "different buckets would share a salt"
            )

    def head_bytes(self, key: bytes) -> int:
        """See `timebeam.schema.archive.archive_rows.SeriesHeads`; of the archive: salt and metric UID.

        Raises:
          ValueError: the length of the key cannot be that of an archive row.
        """
        head = self.salt_width + self.uid_width_metric
        tags = len(key) - head - 1 - BASE_BYTES
        if tags <= 0 or tags % (self.uid_width_tagk + self.uid_width_tagv):
            raise ValueError(
                f"archive row key {key.hex()} of {len(key)} bytes is not salt, metric, span code, base time "
                "and tag pairs"
            )
        return head

    @property
    def uid_table(self) -> str:
        """Name of the UID table."""
        return self.table_prefix + "tsdb-uid"

    @property
    def is_event_time(self) -> bool:
        """Whether cells have the time of their points."""
        return self.cell_time is OpenTsdbCellTime.EVENT

    @property
    def marked_since_s(self) -> int | None:
        """The start of the day `marked_since`, in s; None if it is empty, or no day of 1970 to 2105."""
        try:
            day = datetime.datetime.strptime(self.marked_since, "%Y-%m-%d")
        except ValueError:
            return None
        is_stored = day.date().isoformat() == self.marked_since and 1970 <= day.year <= 2105
        return int(day.replace(tzinfo=datetime.UTC).timestamp()) if is_stored else None

    def uid_width(self, kind: str) -> int:
        """Bytes of a UID of kind `metrics`, `tagk` or `tagv`."""
        widths = {"metrics": self.uid_width_metric, "tagk": self.uid_width_tagk, "tagv": self.uid_width_tagv}
        return widths[kind]
