"""Regular expressions of java.util.regex with Python's engine, and String.split.

What means the same in both is taken over, what differs is translated, and what has no counterpart
is refused: no pattern ever means something else than it means to a TSD.

| Java | here |
|---|---|
| `\\d` `\\w` `\\s`, `(?i)` | ASCII, as in Java |
| `.` | all but \\n, \\r, U+0085, U+2028, U+2029 |
| `$`, `\\Z` | the end, also before one line terminator at the end |
| `\\b`, `\\B` | by Unicode's letters and digits, as in Java 8 to 18 |
| `\\p{Alpha}` and the other POSIX classes, `\\h`, `\\v` | the same characters |
| `\\Q..\\E`, `\\x{..}`, `\\0oo`, `\\e`, `\\cX` | the same characters |
| `[a&&b]`, `[a[b]]`, `\\p{L}`, possessive and atomic parts, flags but for `(?i)`, `(?s)` in front | refused |
"""

from __future__ import annotations

import functools
import re

from schema.trees.java_pattern import PatternError, translated

__all__ = ["PatternError", "compiled", "split"]


@functools.lru_cache(maxsize=4096)
def compiled(pattern: str) -> re.Pattern[str]:
    """A pattern of Java, to be searched for with `search`, as Java's Matcher.find does.

    Raises:
      PatternError: Java refuses it, or it has a part without counterpart.
    """
    try:
        return re.compile(translated(pattern), re.ASCII)
    except (re.error, RecursionError, OverflowError) as error:
        raise PatternError(str(error)) from error


def split(pattern: str, text: str) -> list[str]:
    """String.split (Java 8): pieces between matches; empty ones at the end are dropped.

    No match gives the text itself; a match of no characters in front makes no piece.

    Raises:
      PatternError: see `compiled`; also where Java would cut a character beyond U+FFFF in two halves.
    """
    pieces: list[str] = []
    begin = at = 0
    while at <= len(text) and (found := compiled(pattern).search(text, at)):
        at = found.end()
        if found.start() == at:
            if any(character > "\uffff" for character in text):
                raise PatternError(f"separator {pattern!r} cuts characters of {text!r} in two")
            at += 1
        if found.end() > 0:
            pieces.append(text[begin : found.start()])
            begin = found.end()
    if begin == 0:
        return [text]
    pieces.append(text[begin:])
    while pieces and not pieces[-1]:
        pieces.pop()
    return pieces
