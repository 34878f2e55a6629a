"""Sections of a declaration: read by msgspec into the options of their kind, each complaint with its path.

A kind of section is a subclass of `Options`: names, types and defaults of its options. What msgspec rejects
becomes a `ProblemError` with the dotted path, what is wrong, and what to write instead.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import types
import typing
from typing import Annotated, Any, Literal, NoReturn, TypeVar

import msgspec

Path = tuple[str | int, ...]
"""Names of sections and options, and numbers of elements: `("layout", "quote", "key", 1)`."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_WHERE = re.compile(r"(?P<text>.*?)(?: - at `\$(?P<where>.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_NAME = re.compile(r"(unknown|missing required) field `(.*)`", re.DOTALL)

Count = Annotated[int, msgspec.Meta(ge=1)]
"""A whole number of at least 1."""
Number = Annotated[int, msgspec.Meta(ge=0)]
"""A whole number of at least 0."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of a kind of section; those without a default must be there."""


_Options = TypeVar("_Options", bound=Options)


class ProblemError(Exception):
    """Something wrong (or worth a warning) at a place in the document; the text names the place."""

    def __init__(self, path: Path, text: str) -> None:
        super().__init__(f"{dotted(path)}: {text}")


def dotted(path: Path) -> str:
    """A path as in TOML, elements of arrays counted from 0.

    >>> dotted(("layout", "quote", "key", 1))
    'layout.quote.key[1]'
    """
    text = ""
    for name in path:
        if isinstance(name, int):
            text += f"[{name}]"
        else:
            text += ("." if text else "") + (name if _BARE.fullmatch(name) else f'"{name}"')
    return text


@dataclasses.dataclass(frozen=True, slots=True)
class Location:
    """Where a section is in the document."""

    path: Path

    def within(self, *path: str | int) -> Location:
        """The place of an option of the section, or of one of its elements."""
        return Location((*self.path, *path))

    def problem(self, option: str | None, text: str, element: int | None = None) -> ProblemError:
        """A complaint about the section, one of its options, or an element of an option."""
        path = self.path if option is None else (*self.path, option)
        return ProblemError(path if element is None else (*path, element), text)


def read(kind: type[_Options], content: object, place: Location) -> _Options:
    """The options of a section.

    Raises:
      ProblemError: an option is missing, unknown, or not of its type.
    """
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        match = _WHERE.fullmatch(str(error))
        assert match is not None
        _complain(kind, content, place, match["text"], match["where"] or "")


def _complain(kind: Any, content: Any, place: Location, text: str, where: str) -> NoReturn:
    """Raises what msgspec found (`Expected ...`, `... field ...`), in the words of this module.

    Args:
      where: msgspec's path within the section, as `.fields[1].encoding`.
    """
    path: list[str | int] = []
    steps = _STEP.findall(where)
    for count, (name, number) in enumerate(steps, 1):
        if name:
            kind, content = _hints(kind)[name], content[name]
            path.append(name)
            continue
        inner = next(typing.get_args(each)[0] for each in _alternatives(kind) if _is_list(each))
        if text.startswith("Expected") and len(_alternatives(inner)) == 1 and count == len(steps):
            break  # the list as a whole
        kind, content = inner, content[int(number)]
        path.append(int(number))
    named = _NAME.search(text)
    if named is None:
        raise ProblemError((*place.path, *path), _must_be(path, kind, content))
    place, hints = place.within(*path), _hints(kind)
    if named[1] == "unknown":
        raise place.problem(named[2], f"unknown option {named[2]!r}: known are {', '.join(sorted(hints))}")
    form = '"..."' if hints[named[2]] is str else "{ ... }"
    raise place.problem(None, f"lacks {named[2]}: add {named[2]} = {form}")


def _hints(kind: Any) -> dict[str, Any]:
    """The types of the options of a kind of section, or of the kind among alternatives."""
    return typing.get_type_hints(_options(kind), include_extras=True)


def _options(kind: Any) -> Any:
    """The kind of section among alternatives; None without one."""
    classes = (each for each in _alternatives(kind) if isinstance(each, type) and issubclass(each, Options))
    return next(classes, None)


def _alternatives(kind: Any) -> list[Any]:
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return [each for each in typing.get_args(kind) if each is not types.NoneType] if is_union else [kind]


def _is_list(kind: Any) -> bool:
    return typing.get_origin(kind) in (list, tuple)


def _must_be(path: list[str | int], kind: Any, value: object) -> str:
    """What the option or the element at the end of a path must be, in words."""
    option = path[-1] if path else "it"
    if isinstance(option, int):
        other = "{ name = ... }" if _options(kind) else "a part"
        return f"{value!r} is neither a field's name nor {other}"
    for each in _alternatives(kind):
        origin, arguments = typing.get_origin(each), typing.get_args(each)
        choices = arguments if origin is Literal else [*each] if isinstance(each, enum.EnumMeta) else ()
        if choices and isinstance(value, str):
            return f"{option} = {value!r} is unknown: choose one of {', '.join(choices)}"
        if origin is Annotated:
            return f"{option} must be a whole number of at least {arguments[1].ge}, not {value!r}"
        if _is_list(each) and arguments[0] is str:
            return f'{option} must be a list of names, as ["A", "B"]'
        if _is_list(each) and len(_alternatives(arguments[0])) > 1:
            example = (
                'list, as ["A", { name = "B", qualifier = "b" }]'
                if _options(arguments[0])
                else 'list of fields, as ["TS"]'
            )
            return f"{option} must be a {example}"
        if _is_list(each):
            return f"{option} must be a list of tables"
        if each is bool:
            return f"{option} must be true or false, not {value!r}"
        if origin is dict or _options(each):
            return f"{option} must be a table, as {{ NAME = ... }}"
    return f"{option} must be a string in quotes, not {value!r}"
