"""Names that OpenTSDB does not allow, stored in characters that it allows; and tags beyond its limit.

A TSD allows letters, digits and `-_./`. Names of Prometheus and OpenTelemetry have colons, blanks and more.
Escaped, as Prometheus' own adapter for OpenTSDB did: `_` is `__`, `:` is `_.`, any other byte of UTF-8 `_XX`.
Whether names are escaped is stored with the tables: an old `disk_ab` only looks escaped.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import re

from timebeam.schema.core.points import Series

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
