"""An option that a layout or a message format declares, as plain data: no command line, no template."""

from __future__ import annotations

import dataclasses
import enum


class Kind(enum.Enum):
    """What the text of an option means."""

    TEXT = enum.auto()
    FLAG = enum.auto()
    """`true` or `false`."""
    WHOLE = enum.auto()
    """A whole number of at least 0."""
    FILE = enum.auto()
    """The path of a file, whose content is the value; or one of `choices`, which is the value itself."""


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
      name: with underscores.
      help: what it does, its unit and, where it needs one, an example.
      default: None means none.
      choices: the strings that it can be; empty if they are not a closed set.
      regex: what its whole text must match; empty for any.
      example: a text that it can have; empty if the default is one.
      shown_for: another option, and the values of it for which this one has a meaning; None if it always has.
      stored: whether the bytes of the tables depend on it, so that their stored settings hold its value.
    """

    name: str
    help: str
    kind: Kind = Kind.TEXT
    default: object = None
    choices: tuple[str, ...] = ()
    regex: str = ""
    example: str = ""
    shown_for: tuple[str, tuple[str, ...]] | None = None
    stored: bool = False


def values_of(members: type[enum.Enum]) -> tuple[str, ...]:
    """The values of an enum, as choices."""
    return tuple(str(member.value) for member in members)
