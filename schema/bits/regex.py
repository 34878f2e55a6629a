"""Regular expressions that users write: the syntax that RE2 and java.util.regex have in common.

RE2 takes time linear in the text for any pattern. Syntax that RE2 does not know, or reads differently from
Java, is rejected by name. The remaining differences in what a pattern matches are in docs/use/names.md,
"Regular expressions". Syntax: github.com/google/re2/wiki/Syntax.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Protocol

import re2

_TOKEN = re.compile(
    r"""
      \\Q.*?(?:\\E|\Z)
    | \[\^?(?P<bracket>\])?(?P<members>(?:\\.|[^\]\\])*)
    | \{[0-9]+(?:,[0-9]*)?\}
    | \\[pPx]\{[^}]*\}
    | (?P<fragment>\\.|\(\?P|\(\?[a-zA-Z]*U|\{)
    """,
    re.VERBOSE | re.DOTALL,
)
_MEMBER = re.compile(r"\\.|\[|&&", re.DOTALL)
_MEANINGS = {
    "(?P": "a group is named '(?<name>…)'",
    "(?U": "Unicode classes in Java, lazy quantifiers in RE2",
    "[": "a class within a class; '\\[' is the character",
    "]": "']' in front in a class; '\\]' is the character",
    "&&": "an intersection of classes; '\\&' is the character",
    "{": "'{' without a number of times; '\\{' is the character",
    r"\0": "an octal number; write '\\x{…}'",
    r"\C": "a single byte in RE2",
    r"\v": "vertical space in Java, one character in RE2; write '[\\n\\x0B\\f\\r]'",
}
"""Syntax that RE2 accepts but reads differently from Java."""
_NAMES = {
    "(?=": "look-ahead",
    "(?!": "look-ahead",
    "(?<=": "look-behind",
    "(?<!": "look-behind",
    "(?>": "atomic group",
    r"\k": "back reference",
    r"\u": "write '\\x{…}'",
    r"\Z": "the end before a line terminator; '\\z' is the end",
}


_MAX_MEMORY = 1 << 20
"""Bytes of a compiled pattern and of what it remembers while it matches; a larger one is rejected."""


class PatternError(ValueError):
    """A pattern, or a text to match, that is rejected."""


class Match(Protocol):
    """The place where a pattern matches a text, in characters."""

    def __getitem__(self, group: int) -> str | None: ...
    def start(self) -> int: ...
    def end(self) -> int: ...


class Regex(Protocol):
    """A compiled pattern."""

    @property
    def groups(self) -> int: ...
    def search(self, text: str) -> Match | None: ...
    def finditer(self, text: str) -> Iterator[Match]: ...


@functools.lru_cache(maxsize=128)  # as many as re2.compile keeps
def compiled(pattern: str) -> Regex:
    """The compiled pattern; `search` corresponds to Java's Matcher.find.

    >>> compiled("^web[0-9]+").search("web01.example.com")[0]
    'web01'
    >>> compiled("(?=web)")
    Traceback (most recent call last):
        ...
    timebeam.schema.bits.regex.PatternError: invalid perl operator: '(?=' (look-ahead)

    Raises:
      PatternError: RE2 does not know a part of the pattern, reads it differently from Java, or needs more
        than 1 MiB for it.
    """
    _check_same_in_java(pattern)
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_MEMORY
    try:
        regex: Regex = re2.compile(pattern, options)
    except UnicodeEncodeError as error:
        raise PatternError("it has half a surrogate pair") from error
    except re2.error as error:
        message, _, fragment = error.args[0].decode(errors="replace").partition(": ")
        raise _rejection(fragment, message) from error
    return regex


def of_bytes(raw: bytes) -> bytes:
    """A pattern of RE2 that matches these bytes only."""
    return b"".join(b"\\x%02x" % byte for byte in raw)


def split(pattern: str, text: str) -> list[str]:
    """String.split of Java 8: the text between matches; empty strings at the end are dropped.

    Without a match it is the text itself; an empty match at the start is skipped.

    Raises:
      PatternError: see `compiled`; also if Java would cut a character above U+FFFF in half.
    """
    fragments: list[str] = []
    begin = 0
    last_empty = -1
    for match in compiled(pattern).finditer(text):
        start, end = match.start(), match.end()
        if start == end:
            if any(character > "\uffff" for character in text):
                raise PatternError(f"separator {pattern!r} cuts characters of {text!r} in two")
            if start == last_empty:  # re2's finditer may yield an empty match twice
                continue
            last_empty = start
        if end > 0:
            fragments.append(text[begin:start])
            begin = end
    if begin == 0:
        return [text]
    fragments.append(text[begin:])
    while fragments and not fragments[-1]:
        fragments.pop()
    return fragments


def _check_same_in_java(pattern: str) -> None:
    """Rejects syntax that RE2 accepts but reads differently from Java."""
    for token in _TOKEN.finditer(pattern):
        for fragment in (token["fragment"], token["bracket"], *_MEMBER.findall(token["members"] or "")):
            if fragment and fragment.startswith("(?") and fragment.endswith("U"):
                raise _rejection("(?U")
            if fragment and (fragment in _MEANINGS or (fragment[0] == "\\" and fragment[1:].isdecimal())):
                raise _rejection(fragment)


def _rejection(fragment: str, message: str = "not supported") -> PatternError:
    """The error for a part of a pattern, with the name of its syntax if it has one."""
    meaning = _MEANINGS.get(fragment) or _NAMES.get(fragment)
    if meaning is None and message.startswith("bad repetition") and fragment.endswith("+"):
        meaning = "possessive quantifier"
    if meaning is None and fragment[:1] == "\\" and fragment[1:].isdecimal():
        meaning = "back reference"
    if meaning is None and fragment[:2] in (r"\p", r"\P"):
        meaning = "unknown Unicode class; for ASCII write it out, as in '[A-Za-z]'"
    described = f"{message}: {fragment!r}" if fragment else message
    return PatternError(f"{described} ({meaning})" if meaning else described)
