"""Text that a terminal shows and does not obey: control characters are written as escapes.

Names come from whoever sends points; `\\x1b[2J` in one would clear the screen of whoever lists it.
"""

from __future__ import annotations

import re
from typing import Any, TextIO

_CONTROLS = r"\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
"""C0 and C1 controls, line separators, direction marks, halves of surrogate pairs."""

_IN_NAMES = re.compile(f"[{_CONTROLS}]")
_IN_LINES = re.compile(rf"(?![\n\t])[{_CONTROLS}]")


def printable(text: str) -> str:
    """A name, in one line, with control characters as `\\u001b`, which is their escape in JSON too."""
    return _IN_NAMES.sub(_escape, text)


class PrintableStream:
    """A text stream that escapes control characters but for line ends and tabs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """See `TextIO.write`."""
        self._stream.write(_IN_LINES.sub(_escape, text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
