"""--quiet and --verbose: what a command says beside its results."""

from __future__ import annotations

import contextvars
import enum
import sys


class Verbosity(enum.Enum):
    """What a command says beside its results and what goes wrong."""

    QUIET = enum.auto()
    """Nothing."""
    NORMAL = enum.auto()
    """Its progress, and notes."""
    VERBOSE = enum.auto()
    """The settings in force and the stack of an error too."""


VERBOSITY = contextvars.ContextVar("VERBOSITY", default=Verbosity.NORMAL)
"""Of the command that runs; `timebeam.pipelines.cli` sets it."""


def note(text: str) -> None:
    """Prints a line on standard error that is no result and no warning; not with --quiet."""
    if VERBOSITY.get() is not Verbosity.QUIET:
        print(text, file=sys.stderr)


def detail(text: str) -> None:
    """Prints a line on standard error with --verbose only."""
    if VERBOSITY.get() is Verbosity.VERBOSE:
        print(text, file=sys.stderr)
