"""The public names of timebeam with their signatures, as text.

`python -m tests.library.public_names write` writes them beside this module; a test compares them.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import typing
from collections.abc import Iterator
from pathlib import Path

FILE = Path(__file__).with_name("public_names.txt")

MODULES = ("timebeam", "timebeam.formats", "timebeam.io", "timebeam.stores", "timebeam.testing")

MOST_NAMES = 45

MEMBERS = {"timebeam.Database": ("query", "series", "store", "suggest", "write")}
"""The public members of classes that commands and the server stand on too; of other classes all are."""


def public_objects() -> dict[str, object]:
    """Every public name, with the name of its module, and what it is."""
    modules = [importlib.import_module(name) for name in MODULES if importlib.util.find_spec(name)]
    return {
        f"{module.__name__}.{name}": getattr(module, name)
        for module in modules
        for name in sorted(module.__all__)
    }


def members(name: str, kind: type) -> dict[str, object]:
    """The public members that a class declares itself, but for those that Beam asks of a transform."""
    others = [base for base in kind.__mro__ if not base.__module__.startswith("timebeam")]
    declared = {
        member: value
        for member, value in vars(kind).items()
        if not member.startswith("_") and not any(member in vars(base) for base in others)
    }
    chosen = MEMBERS.get(name, declared)
    return {member: declared[member] for member in sorted(declared) if member in chosen}


def lines() -> Iterator[str]:
    """A line for each public name, and for each public member of a class."""
    for name, public in public_objects().items():
        if not isinstance(public, type):
            shown = _signature(public) if callable(public) else f" = {public}"
            yield f"{name}{shown}"
            continue
        yield f"class {name}{'' if name in MEMBERS else _signature(public)}"
        for member, value in members(name, public).items():
            yield f"    {member}{_member(value)}"


def _signature(public: object) -> str:
    if not callable(public) or typing.get_origin(public) is not None:
        return f" = {public}"
    try:
        return str(inspect.signature(public))
    except ValueError:  # of a class that is made by C
        return "(...)"


def _member(value: object) -> str:
    function = getattr(value, "__func__", getattr(value, "fget", value))
    if not inspect.isfunction(function):
        return ""
    return (
        f": {inspect.signature(function).return_annotation}"
        if isinstance(value, property)
        else _signature(function)
    )


if __name__ == "__main__":
    text = "\n".join(lines()) + "\n"
    if sys.argv[1:] == ["write"]:
        FILE.write_text(text, "utf-8")
    else:
        print(text, end="")
