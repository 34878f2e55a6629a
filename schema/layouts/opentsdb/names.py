"""Names that OpenTSDB does not allow, stored in characters that it allows.

A TSD allows letters, digits and `-_./`. Names of Prometheus and OpenTelemetry have colons, blanks and more.
Escaped, as Prometheus' own adapter for OpenTSDB did: `_` is `__`, `:` is `_.`, any other byte of UTF-8 `_XX`.
Whether names are escaped is stored with the tables: an old `disk_ab` only looks escaped.
"""

from __future__ import annotations

import enum
import re

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
        """A name as it is stored."""
        if self is Names.ESCAPE:
            return _ILLEGAL.sub(_escaped, name.encode()).decode()
        return _NOT_PLAIN.sub(REPLACEMENT, name) if self is Names.REPLACE else name

    def shown(self, stored: str) -> str:
        """The name that is stored so; a name that no escaping gives is itself."""
        if self is not Names.ESCAPE or "_" not in stored:
            return stored
        try:
            name = b"".join(map(_unescaped, _ESCAPE.split(stored)[::2], [*_ESCAPE.split(stored)[1::2], ""]))
            text = name.decode()
        except UnicodeError:
            return stored
        return text if self.stored(text) == stored else stored


def _escaped(match: re.Match[bytes]) -> bytes:
    byte = match[0]
    return {b"_": b"__", b":": b"_."}.get(byte) or b"_%02X" % byte[0]


def _unescaped(plain: str, escape: str) -> bytes:
    """The bytes of plain characters and of the escape behind them."""
    raw = {"": b"", "_": b"_", ".": b":"}.get(escape)
    return plain.encode() + (bytes.fromhex(escape) if raw is None else raw)
