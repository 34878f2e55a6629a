"""Is a command line one that its command takes? Its parser is run, and nothing else of it."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence

from timebeam.pipelines import cli
from timebeam.pipelines.commands import COMMANDS, find_command
from timebeam.pipelines.jobs.runners import Runner
from timebeam.pipelines.options.parameters import UsageError


def rejection(arguments: Sequence[str]) -> str | None:
    """Why `timebeam` with these arguments is wrong usage; None if its parser takes them."""
    words = list(arguments)
    name = words.pop(0) if words else ""
    if name in ("--help", "help"):
        return None
    if name not in COMMANDS:
        return f"no command {name!r}"
    cli._take_verbosity(words)
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
        try:
            command = find_command(name)
            _, rest = command.parse(words)
            if rest:
                Runner.of(command.parser(), rest, None)
        except UsageError as error:
            return str(error)
        except SystemExit as stop:
            return None if not stop.code else printed.getvalue()
    return None
