"""Is a command line one that its command takes? Its parser is run, and nothing else of it."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from unittest import mock

from timebeam.pipelines import cli
from timebeam.pipelines.jobs.runners import beam_options
from timebeam.pipelines.options.command_line import CommandParser

_METHODS = ("parse_args", "parse_known_args", "parse_intermixed_args", "parse_known_intermixed_args")


class _ParsedError(Exception):
    """The parser has taken the line."""


def refusal(arguments: Sequence[str]) -> str | None:
    """Why `timebeam` with these arguments is wrong usage; None if its parser takes them."""
    command = arguments[0] if arguments else ""
    if command in ("--help", "help"):
        return None
    if command not in cli.COMMANDS:
        return f"no command {command!r}"
    methods = {name: getattr(CommandParser, name) for name in _METHODS}
    inside = [0]

    def asked(name: str) -> Callable[..., object]:
        """One of the methods: the outermost call on the command's own parser ends the program."""

        def parse(self: CommandParser, *arguments: object, **named: object) -> object:
            inside[0] += 1
            try:
                found = methods[name](self, *arguments, **named)
            finally:
                inside[0] -= 1
            if inside[0] or not self.prog.startswith("timebeam"):
                return found
            inside[0] += 1  # the parser of Beam's options is not the one that is looked at
            if "known" in name and found[1]:
                beam_options(self, found[1], None)
            raise _ParsedError

        return parse

    said = io.StringIO()
    with (
        mock.patch.multiple(CommandParser, **{name: asked(name) for name in methods}),
        mock.patch.object(cli, "_check_credentials"),
        contextlib.redirect_stderr(said),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        try:
            cli.main(list(arguments))
        except _ParsedError:
            return None
        except SystemExit as stop:
            return None if not stop.code else said.getvalue()
    return said.getvalue() or "no parser was asked"
