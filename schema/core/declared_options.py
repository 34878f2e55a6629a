"""Options that layouts and message formats declare, as plain data without a command line."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

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


_OPTION, _MEMBERS, _READ = "option", "members", "read"
_KINDS: dict[type, OptionKind] = {bool: OptionKind.FLAG, int: OptionKind.WHOLE}


def option(
    text: str,
    default: Any,
    *,
    unset: object = ...,
    members: type[enum.Enum] | None = None,
    read: Callable[[Any], Any] | None = None,
    **more: Any,
) -> Any:
    """A field of a class of `DeclaredOptions` that is an option; its default says what its values are.

    Args:
      text: the `help` of an `Option`, of which `more` are other attributes.
      unset: the default of the option, if it is not that of the field.
      members: its values are those of an enum; that of the default if that is a member.
      read: makes the value of the field, if no enum does.
    """
    shown = default if unset is ... else unset
    if isinstance(default, enum.Enum):
        members = type(default)
        shown = default.value if shown is default else shown
    if members is not None:
        more["choices"] = values_of(members)
    more.setdefault("kind", _KINDS.get(type(default), OptionKind.TEXT))
    declared = Option("", text, default=shown, **more)
    return dataclasses.field(default=default, metadata={_OPTION: declared, _MEMBERS: members, _READ: read})


def _read(field: dataclasses.Field[Any], value: Any) -> Any:
    """The value of a field, from that of its option."""
    if members := field.metadata.get(_MEMBERS):
        return member(members, field.name, value)
    read = field.metadata.get(_READ)
    return value if read is None else read(value)


def archive_option() -> Any:
    """The option of layouts that can have an archive, as a field of their options."""
    return option(
        "the tables have an archive of closed hours, table PREFIXarchive, which `timebeam archive` writes "
        "and queries read",
        False,
        unset=None,
        example="true",
        stored=True,
    )


class DeclaredOptions:
    """The base of dataclasses of options; a field made by `option` is one on the command line too."""

    __slots__ = ()

    @classmethod
    def declared(cls) -> tuple[Option, ...]:
        """The options, without fields that all classes share, such as `table_prefix`."""
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        return tuple(
            dataclasses.replace(field.metadata[_OPTION], name=field.name)
            for field in fields
            if _OPTION in field.metadata
        )

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """These options out of the values of many, by name; None is the default.

        Raises:
          ValueError: a value is out of its range; the message names the option.
        """
        arguments = {}
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]
            if (value := values.get(field.name)) is not None:
                arguments[field.name] = _read(field, value)
        return cls(**arguments)
