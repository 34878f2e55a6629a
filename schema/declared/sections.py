"""Sections of a declaration: options read by name and type, with the line in every complaint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from schema.declared.toml_lines import Path, TomlLines


class ProblemError(Exception):
    """Something wrong (or worth a warning) at a line of the document."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line
        self.text = text


class Section:
    """A TOML table, with its place in the document; keeps account of the options that were read."""

    def __init__(self, content: dict[str, Any], path: Path, lines: TomlLines) -> None:
        self.path = path
        self._content, self._lines = content, lines
        self._read: set[str] = set()

    def __contains__(self, option: str) -> bool:
        return option in self._content

    def line(self, option: str | None = None, element: int | None = None) -> int:
        """The line of the section, or of one of its options, or of an element of this."""
        path = self.path if option is None else (*self.path, option)
        return self._lines.line(path if element is None else (*path, element))

    def problem(self, option: str | None, text: str, element: int | None = None) -> ProblemError:
        """A complaint about an option."""
        return ProblemError(self.line(option, element), text)

    def value(self, option: str, default: Any = None) -> Any:
        """An option of whatever type."""
        self._read.add(option)
        return self._content.get(option, default)

    def text(self, option: str, default: str | None = None) -> str:
        """An option that is a text; without a default it must be there."""
        found = self.value(option, default)
        if found is None:
            raise self.problem(None, f'{self._name()} lacks {option}: add {option} = "..."')
        if not isinstance(found, str):
            raise self.problem(option, f"{option} must be a text in quotes, not {found!r}")
        return found

    def optional_text(self, option: str) -> str | None:
        """An option that is a text, or None."""
        return self.text(option) if option in self._content else None

    def choice(self, option: str, known: Sequence[str], default: str) -> str:
        """An option that is one of a few texts."""
        found = self.text(option, default)
        if found not in known:
            raise self.problem(option, f"{option} = {found!r} is not known: choose one of {', '.join(known)}")
        return found

    def integer(self, option: str, default: int, low: int = 0) -> int:
        """An option that is a whole number."""
        found = self.value(option, default)
        if not isinstance(found, int) or isinstance(found, bool) or found < low:
            raise self.problem(option, f"{option} must be a whole number of at least {low}, not {found!r}")
        return found

    def optional_integer(self, option: str, low: int = 0) -> int | None:
        """An option that is a whole number, or None."""
        return self.integer(option, low, low) if option in self._content else None

    def boolean(self, option: str, default: bool) -> bool:
        """An option that is true or false."""
        found = self.value(option, default)
        if not isinstance(found, bool):
            raise self.problem(option, f"{option} must be true or false, not {found!r}")
        return found

    def texts(self, option: str) -> list[str]:
        """An option that is a list of texts; none without it."""
        found = self.value(option, [])
        if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
            raise self.problem(option, f'{option} must be a list of names, as ["A", "B"]')
        return found

    def table(self, option: str) -> dict[str, Any]:
        """An option that is a table of anything; empty without it."""
        found = self.value(option, {})
        if not isinstance(found, dict):
            raise self.problem(option, f"{option} must be a table, as {{ NAME = ... }}")
        return found

    def section(self, option: str) -> Section:
        """An option that is a table, as a section."""
        return Section(self.table(option), (*self.path, option), self._lines)

    def within(self, content: dict[str, Any], option: str, element: int = 0) -> Section:
        """A table that is an element of an option."""
        return Section(content, (*self.path, option, element), self._lines)

    def sections(self, option: str) -> Iterator[Section]:
        """An option that is a list of tables."""
        found = self.value(option, [])
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise self.problem(option, f"{option} must be a list of tables")
        for number, content in enumerate(found):
            yield Section(content, (*self.path, option, number), self._lines)

    def must_be_read(self) -> None:
        """Refuses options that nothing has asked for."""
        for option in self._content:
            if option not in self._read:
                known = ", ".join(sorted(self._read))
                raise self.problem(option, f"unknown option {option!r} of {self._name()}: known are {known}")

    def _name(self) -> str:
        return ".".join(str(name) for name in self.path)
