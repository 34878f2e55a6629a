"""What commands make of their words: options, places and jobs; the stored settings of tables are not read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from timebeam.pipelines.commands import call, find_command, named, options_from, places
from timebeam.pipelines.options.place import Place

T = TypeVar("T")


def options_of(kind: type[T], command: str, *words: str | Path) -> T:
    """The options of a function of a command.

    Args:
      kind: the dataclass that the function takes.
      words: of the command line, behind the name of the command.
    """
    return options_from(kind, vars(find_command(command).parse([*map(str, words)])[0]))


def place_of(command: str, *words: str | Path) -> Place:
    """The tables that a command opens; of `copy`, those that it writes."""
    declared = find_command(command)
    options, _ = declared.parse([*map(str, words)])
    return [*places(declared, options, opens=False).values()][-1]


def job_of(command: str, *words: str | Path, now_ms: int) -> Any:
    """The job that a command starts."""
    declared = find_command(command)
    options, _ = declared.parse([*map(str, words)])
    parts = {**places(declared, options, opens=False), "now_ms": now_ms}
    return call(named(declared.job), options, **parts)
