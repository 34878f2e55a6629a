"""Options that layouts and message formats declare, as plain data without a command line."""

from __future__ import annotations

import dataclasses
import enum
from typing import TypeVar

E = TypeVar("E", bound=enum.Enum)


class OptionKind(enum.Enum):
    """The type of an option's value."""

    TEXT = enum.auto()
    FLAG = enum.auto()
    """`true` or `false`."""
    WHOLE = enum.auto()
    """A whole number of at least 0."""
    FILE = enum.auto()
    """The path of a file whose content is the value; or one of `choices`, which is the value."""


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
      name: with underscores.
      help: what it does, its unit and, if needed, an example.
      default: None means none.
      choices: the allowed strings; empty if they are not a closed set.
      regex: what the whole string must match; empty for any.
      example: an allowed string; empty if the default is one.
      shown_for: (another option, its values for which this one has a meaning); None if it always has.
      stored: whether the bytes of the tables depend on it, so that their stored settings hold its value.
    """

    name: str
    help: str
    kind: OptionKind = OptionKind.TEXT
    default: object = None
    choices: tuple[str, ...] = ()
    regex: str = ""
    example: str = ""
    shown_for: tuple[str, tuple[str, ...]] | None = None
    stored: bool = False


def values_of(members: type[enum.Enum]) -> tuple[str, ...]:
    """The values of an enum, as choices."""
    return tuple(str(member.value) for member in members)


def member(choices: type[E], option: str, value: str) -> E:
    """The member of an enum with the value of an option.

    Raises:
      ValueError: no member has it.
    """
    try:
        return choices(value)
    except ValueError:
        names = ", ".join(str(choice.value) for choice in choices)
        raise ValueError(f"{option} must be one of {names}, not {value!r}") from None
