"""What `timebeam COMMAND --help` prints: the common options of a command on a screen, or all of them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from timebeam.pipelines.options.catalogue import chosen, format_parameters, is_plugin, plugin_parameters
from timebeam.pipelines.options.parameters import (
    Parameter,
    TemplateType,
    UsageError,
    boolean,
    flag,
    not_negative,
    positive,
    whole,
)
from timebeam.pipelines.options.parsing import did_you_mean

if TYPE_CHECKING:
    from timebeam.pipelines.options.command_line import Argument, Command

_WIDTH, _COLUMN = 100, 32
_EXAMPLES = 3
_VALUES = {
    **dict.fromkeys(("set", "to_set"), "NAME=VALUE"),
    **dict.fromkeys(("start", "end", "since"), "TIME"),
    **dict.fromkeys(("max_series", "max_new_series", "max_tag_values"), "[PATTERN=]N"),
    **dict.fromkeys(("layout", "from", "to"), "LAYOUT"),
    "allowed_host": "NAME",
    "bind": "ADDRESS",
    "config": "FILE",
    "dead_letters": "PREFIX|TOPIC",
    "downsample": "1m-avg",
    "expect": "FILE",
    "group_by": "KEY",
    "keep_days": "[PATTERN=]DAYS",
    "log": "PREFIX",
    "max_rejected": "N|N%",
    "metric": "PATTERN",
    "older_than": "AGE",
    "percentiles": "N",
    "token_file": "FILE",
    "rollup_config": "FILE",
    "tag": "KEY=VALUE",
    "where": "FIELD=VALUE",
}
"""How help calls the values of some options."""
_NUMBERS = (whole, positive, not_negative)


def asked_help(command: Command, words: Sequence[str]) -> str:
    """The help that words of a command line ask for; empty if they do not."""
    if "--help-all" in words or "--help_all" in words:
        return full_help_text(command)
    return help_text(command) if "-h" in words or "--help" in words else ""


def help_text(command: Command) -> str:
    """The help of a command: its common options, and three examples; at most 45 lines."""
    parameters = chosen(command.name, command.common or command.options)
    examples = _examples(command.examples)[:_EXAMPLES]
    more = [f"`timebeam {command.name} --help-all`", *([command.page] if command.page else [])]
    end = ["examples:", *examples, "", f"more: {', '.join(more)}"]
    return "\n".join([*_head(command), *_groups(parameters, is_short=True), "", *end])


def full_help_text(command: Command) -> str:
    """The help of a command with all options and examples."""
    parameters = command.parser().parameters
    end = ["examples:", command.examples, *(["", f"more: {command.page}"] if command.page else [])]
    return "\n".join([*_head(command), *_groups(parameters, is_short=False), "", *end])


def format_help_text(name: str) -> str:
    """The options of a message format; which formats there are, also those of other packages, without a name.

    Raises:
      UsageError: no format has this name, or its package cannot be used.
    """
    names = next(each.choices for each in chosen("ingest", "Format: format"))
    if not name:
        from timebeam.schema.core.plugins import FORMAT_GROUP, list_plugins

        names = (*names, *(plugin.name for plugin in list_plugins(FORMAT_GROUP)))
        head = ["usage: timebeam help format NAME", "", "formats:"]
        return "\n".join([*head, *(f"  {each}" for each in names)])
    if name not in names and not is_plugin("format", name):
        raise UsageError(f"unknown format {name!r}{did_you_mean(name, names)}")
    parameters = [
        each
        for each in (*format_parameters(), *plugin_parameters("format", [name]))
        if name in (each.shown_for or ("", (name,)))[1]
    ]
    options = list(_groups(parameters, is_short=False)) or ["", "It has no options of its own."]
    head = [f"usage: timebeam ingest --format {name} [options]"]
    return "\n".join([*head, *options, "", "more: docs/reference/formats.md"])


def _head(command: Command) -> Iterator[str]:
    """The usage, what the command does, and its arguments."""
    first, *others = command.usage.splitlines() or ["[options]"]
    yield f"usage: timebeam {command.name} {first}"
    yield from (f"       timebeam {command.name} {line}" for line in others)
    yield from ("", *textwrap.wrap(command.description, _WIDTH))
    if command.arguments:
        yield from ("", "arguments:")
        for argument in command.arguments:
            yield from _argument(argument)


def _groups(parameters: Sequence[Parameter], *, is_short: bool) -> Iterator[str]:
    """The lines of options under the headings of their groups."""
    for group in dict.fromkeys(parameter.group for parameter in parameters):
        yield from ("", f"{group}:")
        for parameter in parameters:
            if parameter.group == group:
                yield from _described(spelled(parameter), _text(parameter, is_short=is_short))


def _argument(argument: Argument) -> Sequence[str]:
    name = "|".join(argument.choices) if argument.choices else argument.shown
    return _described(name if len(name) < _WIDTH // 2 else argument.shown, argument.help)


def _text(parameter: Parameter, *, is_short: bool) -> str:
    """What an option does; its first clause alone for the short help."""
    text = parameter.help.split("; ")[0] if is_short else parameter.help
    if parameter.choices and "|" not in spelled(parameter) and not is_short:
        text += f"; one of {', '.join(parameter.choices)}"
    if parameter.required and not (parameter.setting and parameter.stored):
        return f"{text} (required)"
    if parameter.kind is boolean and parameter.default:
        return f"{text} (default: yes)"
    if parameter.kind is boolean or parameter.default in (None, "", []):
        return text
    return f"{text} (default: {parameter.default})"


def spelled(parameter: Parameter) -> str:
    """An option with its value, as help shows it; a boolean that is on by default with its opposite."""
    option = flag(parameter.name)
    if parameter.kind is boolean:
        return f"--[no-]{option[2:]}" if parameter.default else option
    choices = "|".join(parameter.choices)
    if choices and len(option) + len(choices) < _COLUMN:
        return f"{option} {choices}"
    return f"{option} {_metavar(parameter)}"


def _metavar(parameter: Parameter) -> str:
    """How help calls the value of an option."""
    if parameter.name in _VALUES:
        return _VALUES[parameter.name]
    if parameter.kind in _NUMBERS:
        return "N"
    if parameter.template is TemplateType.READ_FILE:
        return "FILE"
    return parameter.name.rpartition("_")[2].upper()


def _described(name: str, text: str) -> Sequence[str]:
    lines = textwrap.wrap(text, _WIDTH - _COLUMN, break_on_hyphens=False, break_long_words=False) or [""]
    if len(name) < _COLUMN - 3:
        return [f"  {name:{_COLUMN - 2}}{lines[0]}", *(" " * _COLUMN + line for line in lines[1:])]
    return [f"  {name}", *(" " * _COLUMN + line for line in lines)]


def _examples(text: str) -> list[str]:
    """The examples of a text, without the notes behind them; one of several lines is one."""
    return re.split(r"\n(?=  timebeam )", text.split("\n\n")[0])
