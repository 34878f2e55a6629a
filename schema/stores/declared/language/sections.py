"""Sections of a declaration: options read by name and type, with the dotted path in every complaint."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

Path = tuple[str | int, ...]
"""Names of sections and options, and numbers of elements: `("layout", "quote", "key", 1)`."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")


class ProblemError(Exception):
    """Something wrong (or worth a warning) at a place in the document; the text names the place."""

    def __init__(self, path: Path, text: str) -> None:
        super().__init__(f"{dotted(path)}: {text}")


def dotted(path: Path) -> str:
    """A path as in TOML, elements of arrays counted from 0: `layout.quote.key[1]`."""
    text = ""
    for name in path:
        if isinstance(name, int):
            text += f"[{name}]"
        else:
            text += ("." if text else "") + (name if _BARE.fullmatch(name) else f'"{name}"')
    return text


class Section:
    """A TOML table, with its path in the document; keeps account of the options that were read."""

    def __init__(self, content: dict[str, Any], path: Path) -> None:
        self.path = path
        self._content = content
        self._read: set[str] = set()

    def __contains__(self, option: str) -> bool:
        return option in self._content

    def problem(self, option: str | None, text: str, element: int | None = None) -> ProblemError:
        """A complaint about the section, one of its options, or an element of an option."""
        path = self.path if option is None else (*self.path, option)
        return ProblemError(path if element is None else (*path, element), text)

    def value(self, option: str, default: Any = None) -> Any:
        """An option of whatever type."""
        self._read.add(option)
        return self._content.get(option, default)

    def text(self, option: str, default: str | None = None) -> str:
        """An option that is a text; without a default it must be there."""
        text = self.value(option, default)
        if text is None:
            raise self.problem(None, f'lacks {option}: add {option} = "..."')
        if not isinstance(text, str):
            raise self.problem(option, f"{option} must be a string in quotes, not {text!r}")
        return text

    def optional_text(self, option: str) -> str | None:
        """An option that is a text, or None."""
        return self.text(option) if option in self._content else None

    def choice(self, option: str, choices: Sequence[str], default: str) -> str:
        """An option that is one of a few texts."""
        text = self.text(option, default)
        if text not in choices:
            raise self.problem(option, f"{option} = {text!r} is unknown: choose one of {', '.join(choices)}")
        return text

    def integer(self, option: str, default: int, low: int = 0) -> int:
        """An option that is a whole number."""
        number = self.value(option, default)
        if not isinstance(number, int) or isinstance(number, bool) or number < low:
            raise self.problem(option, f"{option} must be a whole number of at least {low}, not {number!r}")
        return number

    def optional_integer(self, option: str, low: int = 0) -> int | None:
        """An option that is a whole number, or None."""
        return self.integer(option, low, low) if option in self._content else None

    def boolean(self, option: str, default: bool) -> bool:
        """An option that is true or false."""
        flag = self.value(option, default)
        if not isinstance(flag, bool):
            raise self.problem(option, f"{option} must be true or false, not {flag!r}")
        return flag

    def texts(self, option: str) -> list[str]:
        """An option that is a list of texts; none without it."""
        texts = self.value(option, [])
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise self.problem(option, f'{option} must be a list of names, as ["A", "B"]')
        return texts

    def table(self, option: str) -> dict[str, Any]:
        """An option that is a table of anything; empty without it."""
        table = self.value(option, {})
        if not isinstance(table, dict):
            raise self.problem(option, f"{option} must be a table, as {{ NAME = ... }}")
        return table

    def section(self, option: str) -> Section:
        """An option that is a table, as a section."""
        return Section(self.table(option), (*self.path, option))

    def within(self, content: dict[str, Any], option: str, element: int = 0) -> Section:
        """A table that is an element of an option."""
        return Section(content, (*self.path, option, element))

    def sections(self, option: str) -> Iterator[Section]:
        """An option that is a list of tables."""
        entries = self.value(option, [])
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise self.problem(option, f"{option} must be a list of tables")
        for number, content in enumerate(entries):
            yield Section(content, (*self.path, option, number))

    def must_be_read(self) -> None:
        """Refuses options that nothing has asked for."""
        for option in self._content:
            if option not in self._read:
                options = ", ".join(sorted(self._read))
                raise self.problem(option, f"unknown option {option!r}: known are {options}")
