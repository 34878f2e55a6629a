"""Where the keys of a TOML document stand: line numbers for messages, which parsers do not give.

A scan of headers, keys and brackets over text that the parser has already taken as TOML; strings of
several lines are not looked into for brackets beyond their first line's quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

Path = tuple[str | int, ...]

_HEADER = re.compile(r"\s*(\[\[?)([^\[\]]+)\]")
_KEY = re.compile(r"""\s*([A-Za-z0-9_.\-]+|"[^"]*"|'[^']*')\s*=""")


class TomlLines:
    """Line numbers by path: `("layout", "quote", "key", 1)` is the second element of an array."""

    def __init__(self, text: str) -> None:
        self._lines: dict[Path, int] = {}
        header: Path = ()
        counts: dict[Path, int] = {}
        array: Path | None = None  # the array that the line is in
        depth = element = 0
        for number, line in enumerate(text.splitlines(), 1):
            start = 0
            if array is None:
                found = _HEADER.match(line)
                if found:
                    header = tuple(_names(found[2]))
                    if found[1] == "[[":
                        counts[header] = counts.get(header, -1) + 1
                        self._lines.setdefault(header, number)
                        header = (*header, counts[header])
                    self._lines.setdefault(header, number)
                    continue
                key = _KEY.match(line)
                if not key:
                    continue
                array, start, depth, element = (*header, *_names(key[1])), key.end(), 0, 0
                self._lines.setdefault(array, number)
            for mark in _marks(line, start):
                if mark in "[{":
                    depth += 1
                elif mark in "]}":
                    depth -= 1
                elif mark == "," and depth == 1:
                    element += 1
                if depth >= 2 or (depth == 1 and mark not in "[{,"):
                    self._lines.setdefault((*array, element), number)
            if depth <= 0:
                array = None

    def line(self, path: Sequence[str | int]) -> int:
        """The line of a path, or of the nearest one above it that is written in the document."""
        for size in range(len(path), 0, -1):
            found = self._lines.get(tuple(path[:size]))
            if found:
                return found
        return 1


def _names(dotted: str) -> list[str | int]:
    return [name.strip().strip("\"'") for name in dotted.split(".")]


def _marks(line: str, start: int) -> Iterator[str]:
    """Brackets, commas and other letters outside of strings and comments, blanks left out."""
    quote = ""
    at = start
    while at < len(line):
        letter = line[at]
        if quote:
            if letter == "\\" and quote == '"':
                at += 1
            elif letter == quote:
                quote = ""
        elif letter in "\"'":
            quote = letter
            yield "x"
        elif letter == "#":
            return
        elif not letter.isspace():
            yield letter
        at += 1
