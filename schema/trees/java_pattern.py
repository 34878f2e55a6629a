"""A pattern of java.util.regex.Pattern written for Python's `re`, to be compiled with re.ASCII."""

from __future__ import annotations

import re

_WORD = "(?u:[^\\W\xb2\xb3\xb9\xbc-\xbe])"
_BOUNDARY = f"(?:(?<={_WORD})(?!{_WORD})|(?<!{_WORD})(?={_WORD}))"
_NO_BOUNDARY = f"(?:(?<={_WORD})(?={_WORD})|(?<!{_WORD})(?!{_WORD}))"
_TERMINATORS = "\n\r\x85\u2028\u2029"
_END = "(?=(?:\r\n|(?<!\r)\n|[\r\x85\u2028\u2029])?\\Z)"
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_ASSERTIONS = {"A": "\\A", "z": "\\Z", "Z": _END, "b": _BOUNDARY, "B": _NO_BOUNDARY}
_SETS = {
    "h": "\\ \t\xa0\u1680\u180e\u2000-\u200a\u202f\u205f\u3000",
    "v": "\n\x0b\f\r\x85\u2028\u2029",
}
_POSIX = {
    "Lower": "a-z",
    "Upper": "A-Z",
    "ASCII": "\\x00-\\x7f",
    "Alpha": "a-zA-Z",
    "Digit": "0-9",
    "Alnum": "a-zA-Z0-9",
    "Punct": "!-/:-@\\[-`{-~",
    "Graph": "!-~",
    "Print": "\\ -~",
    "Blank": "\\ \t",
    "Cntrl": "\\x00-\\x1f\\x7f",
    "XDigit": "0-9a-fA-F",
    "Space": "\\ \t\n\x0b\f\r",
}
_FLAGS = re.compile(r"\(\?([is]+)\)")
_GROUP = re.compile(r"\((?:\?(?:[:=!]|<[=!]|<([a-zA-Z][a-zA-Z0-9]*)>))?")
_QUANTIFIER = re.compile(r"(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})(\?|\+)?")
_HEX = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|x\{([0-9a-fA-F]{1,6})\}|0([0-3][0-7]{2}|[0-7]{1,2})")
_NAMED_SET = re.compile(r"([pP])\{([^}]*)\}")
_NAMED_BACK = re.compile(r"k<([a-zA-Z][a-zA-Z0-9]*)>")


class PatternError(ValueError):
    """A pattern that Java refuses, or that cannot be carried over as it is."""


def translated(pattern: str) -> str:
    """The pattern for Python.

    Raises:
      PatternError: it has a part that Java refuses, or without counterpart. Not all that Java refuses is
        found here: the rest is left to `re.compile`.
    """
    return _Translator(pattern).run()


class _Translator:
    """One pass from the left to the right; `_at` is where it stands."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._open: list[str] = []
        self._dot = f"[^{_TERMINATORS}]"

    def run(self) -> str:
        """The whole pattern."""
        out = []
        flags = self._take(_FLAGS)
        if flags:
            out.append("(?i)" if "i" in flags[1] else "")
            if "s" in flags[1]:
                self._dot = "[\\x00-\U0010ffff]"
        while self._at < len(self._text):
            out.append(self._piece())
        return "".join(out)

    def _piece(self) -> str:
        """The next part outside of a class."""
        character = self._text[self._at]
        if character == "\\":
            self._at += 1
            return self._escape()
        if character == "[":
            return self._class()
        if character == "(":
            group = self._take(_GROUP)
            assert group is not None
            if self._text[self._at : self._at + 1] == "?":
                raise PatternError(f"'(?{self._text[self._at + 1 : self._at + 2]}' is not supported here")
            if (group[0] == "(" or group[1]) and any(each in ("(?!", "(?<!") for each in self._open):
                raise PatternError("a capturing group within a negative look-around is not supported")
            self._open.append(group[0])
            return f"(?P<{group[1]}>" if group[1] else group[0]
        if character in "*+?{":
            quantifier = self._take(_QUANTIFIER)
            if quantifier is None:
                raise PatternError("'{' without a number of times; '\\{' is the character")
            if quantifier[1] == "+":
                raise PatternError(f"the possessive quantifier {quantifier[0]!r} is not supported")
            return quantifier[0]
        self._at += 1
        if character == ".":
            return self._dot
        if character == ")" and self._open:
            self._open.pop()
        if character == "$":
            return _END
        return character if character in "^|)" else re.escape(character)

    def _escape(self) -> str:
        """What stands behind a backslash outside of a class."""
        single = self._single()
        if single is not None:
            return re.escape(single)
        named = self._take(_NAMED_BACK)
        if named:
            self._check_back_reference()
            return f"(?P={named[1]})"
        found = self._set()
        if found is not None:
            negative, content = found
            return f"[^{content}]" if negative else f"[{content}]"
        character = self._next()
        if character == "Q":
            end = self._text.find("\\E", self._at)
            quoted = self._text[self._at :] if end < 0 else self._text[self._at : end]
            self._at = len(self._text) if end < 0 else end + 2
            return re.escape(quoted)
        if character in _ASSERTIONS:
            return _ASSERTIONS[character]
        if character in "123456789":
            if self._text[self._at : self._at + 1].isdecimal():
                raise PatternError(f"the back reference \\{character} is followed by a digit")
            self._check_back_reference()
            return f"(?:\\{character})"
        raise PatternError(f"'\\{character}' is not supported")

    def _check_back_reference(self) -> None:
        if any(group in ("(?<=", "(?<!") for group in self._open):
            raise PatternError("Look-behind group does not have an obvious maximum length")

    def _single(self) -> str | None:
        """The one character that an escape stands for; None if it stands for something else."""
        number = self._take(_HEX)
        if number:
            point = int(number[4], 8) if number[4] else int(number[1] or number[2] or number[3], 16)
            if point > 0x10FFFF or 0xD800 <= point < 0xE000:
                raise PatternError(f"'\\{number[0]}' is no character")
            return chr(point)
        character = self._text[self._at : self._at + 1]
        if not character:
            raise PatternError("a backslash at the end")
        if character == "c" and self._at + 1 < len(self._text):
            self._at += 2
            return chr(ord(self._text[self._at - 1]) ^ 64)
        if character in _CONTROLS:
            self._at += 1
            return _CONTROLS[character]
        if not (character.isascii() and character.isalnum()):
            self._at += 1
            return character
        return None

    def _set(self) -> tuple[bool, str] | None:
        """(all but these?, content of a class) of an escape that stands for several characters."""
        named = self._take(_NAMED_SET)
        if named:
            if named[2] not in _POSIX:
                raise PatternError(f"'\\{named[0]}' is not supported; there are {', '.join(_POSIX)}")
            return named[1] == "P", _POSIX[named[2]]
        character = self._text[self._at : self._at + 1]
        if character in _SETS:
            self._at += 1
            return False, _SETS[character]
        if character and character in "dDwWsS":
            self._at += 1
            return False, f"\\{character}"
        return None

    def _class(self) -> str:
        """A class in brackets, each of its characters escaped."""
        self._at += 1
        out = ["["]
        if self._text[self._at : self._at + 1] == "^":
            self._at += 1
            out.append("^")
        first = True
        while first or self._text[self._at : self._at + 1] != "]":
            if self._at >= len(self._text) or (first and self._text[self._at] == "]"):
                raise PatternError("a class in brackets has no end; ']' in it is '\\]'")
            out.append(self._member())
            first = False
        self._at += 1
        return "".join([*out, "]"])

    def _member(self) -> str:
        """A character, a range or a set within a class."""
        low = self._class_character()
        if low is None:
            found = self._set()
            if found is None or found[0]:
                raise PatternError(f"'\\{self._text[self._at : self._at + 1]}' in a class is not supported")
            return found[1]
        if self._text[self._at : self._at + 1] != "-" or self._text[self._at + 1 : self._at + 2] in ("]", ""):
            return _literal(low)
        self._at += 1
        high = self._class_character()
        if high is None or high < low:
            raise PatternError(f"a range in a class from {low!r} has no end, or one before it")
        return f"{_literal(low)}-{_literal(high)}"

    def _class_character(self) -> str | None:
        """The next character of a class; None at an escape that is a set."""
        character = self._next()
        if character == "[" or (character == "&" and self._text[self._at : self._at + 1] == "&"):
            raise PatternError("classes within classes, and '&&', are not supported")
        return self._single() if character == "\\" else character

    def _next(self) -> str:
        character = self._text[self._at : self._at + 1]
        if not character:
            raise PatternError("it ends too early")
        self._at += 1
        return character

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """What stands next, if it is of this form; goes behind it."""
        found = pattern.match(self._text, self._at)
        if found:
            self._at = found.end()
        return found


def _literal(character: str) -> str:
    """A character within a class of Python."""
    return "\\" + character if not character.isalnum() and character.isascii() else character
