"""What `timebeam COMMAND --help` prints."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from timebeam.pipelines.options.parameters import Parameter, boolean, flag

if TYPE_CHECKING:
    from timebeam.pipelines.options.command_line import Argument, Command

_WIDTH, _COLUMN = 100, 30


def help_text(command: Command) -> str:
    """The whole help of a command."""
    lines = [f"usage: timebeam {command.name} {_usage(command)}", "", command.description]
    if command.arguments:
        lines += ["", "arguments:", *(line for each in command.arguments for line in _argument(each))]
    parameters = command.parser().parameters
    for group in dict.fromkeys(parameter.group for parameter in parameters):
        lines += ["", f"{group}:"]
        lines += [line for each in parameters if each.group == group for line in _option(each)]
    return "\n".join([*lines, "", "examples:", command.examples])


def _usage(command: Command) -> str:
    words = {"": "{}", "?": "[{}]", "*": "[{} ...]"}
    return " ".join([*(words[each.nargs].format(each.shown) for each in command.arguments), "[options]"])


def _argument(argument: Argument) -> Iterator[str]:
    text = argument.help if not argument.choices else f"{'|'.join(argument.choices)}: {argument.help}"
    yield from _described(argument.shown, text)


def _option(parameter: Parameter) -> Iterator[str]:
    """The lines of an option."""
    text = parameter.help
    if parameter.required:
        text += " (required)"
    elif parameter.kind is not boolean and parameter.default not in (None, "", []):
        text += f" (default: {parameter.default})"
    yield from _described(spelled(parameter), text)


def spelled(parameter: Parameter) -> str:
    """An option with its value, as help shows it: the way of a boolean that is not its default."""
    option = flag(parameter.name)
    if parameter.kind is boolean:
        return f"--no-{option[2:]}" if parameter.default else option
    return f"{option} {'|'.join(parameter.choices) or parameter.name.upper().replace('_', '-')}"


def _described(name: str, text: str) -> Sequence[str]:
    lines = textwrap.wrap(text, _WIDTH - _COLUMN, break_on_hyphens=False, break_long_words=False) or [""]
    first = (
        [f"  {name:{_COLUMN - 2}}{lines[0]}"]
        if len(name) < _COLUMN - 3
        else [f"  {name}", " " * _COLUMN + lines[0]]
    )
    return [*first, *(" " * _COLUMN + line for line in lines[1:])]
