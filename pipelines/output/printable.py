"""Text that a terminal shows and does not obey: control characters are written as escapes.

Names come from whoever sends points; `\\x1b[2J` in one would clear the screen of whoever lists it.
"""

from __future__ import annotations

import os
import re
import shutil
from typing import Any, TextIO

_CONTROLS = r"\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
"""C0 and C1 controls, line separators, direction marks, halves of surrogate pairs."""

_IN_NAMES = re.compile(f"[{_CONTROLS}]")
_IN_LINES = re.compile(rf"(?![\n\t])[{_CONTROLS}]")

_ERROR, _WARNING, _PLAIN = "\x1b[31m", "\x1b[33m", "\x1b[0m"
_LABEL = re.compile(
    r"^(?:(?P<error>timebeam [a-z]+:|corruption:|ERROR:)|warning:|WARNING:|skipped:|nothing found:)",
    re.MULTILINE,
)
"""How lines begin that say what is wrong: coloured where a terminal is."""

_CLEAR_LINE = "\r\x1b[K"


def printable(text: str) -> str:
    """A name, in one line, with control characters as `\\u001b`, which is their escape in JSON too."""
    return _IN_NAMES.sub(_escape, text)


class PrintableStream:
    """A text stream that escapes control characters but for line ends and tabs.

    On a terminal the labels of errors and warnings are coloured, unless NO_COLOR is set (no-color.org) or
    TERM is `dumb`; and a status line can be shown, which the next text replaces.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._is_coloured = self.is_terminal and not os.environ.get("NO_COLOR")
        self._has_status = False

    def write(self, text: str) -> int:
        shown = _IN_LINES.sub(_escape, text)
        if self._is_coloured:
            shown = _LABEL.sub(_coloured, shown)
        if self._has_status and text:
            shown = _CLEAR_LINE + shown
            self._has_status = False
        self._stream.write(shown)
        return len(text)

    def show_status(self, text: str) -> None:
        """Shows a line on a terminal until the next text, cut to its width; an empty one clears it."""
        if text or self._has_status:
            width = shutil.get_terminal_size().columns
            self._stream.write(_CLEAR_LINE + printable(text)[: max(1, width - 1)])
            self._stream.flush()
        self._has_status = bool(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def _coloured(match: re.Match[str]) -> str:
    return f"{_ERROR if match['error'] else _WARNING}{match[0]}{_PLAIN}"
