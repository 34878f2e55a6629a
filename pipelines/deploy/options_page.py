"""docs/reference/options.md: the options of all commands, generated from their declarations.

python -m timebeam.pipelines.deploy.options_page write
python -m timebeam.pipelines.deploy.options_page check      # exit code 1 if the page is out of date
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from timebeam.pipelines.commands import COMMANDS, find_command
from timebeam.pipelines.deploy.templates import write_or_check
from timebeam.pipelines.options.command_line import with_profiles
from timebeam.pipelines.options.parameters import Parameter, flag

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "options.md"
_SHARED = 4
"""An option that this many commands declare alike is described once."""

_INTRODUCTION = """\
# Options

All options of all commands. This page is generated from the declarations that also make the command line:
`python -m timebeam.pipelines.deploy.options_page write`.

A name may have `_` for `-`. A boolean is `--x` or `--no-x`, or has its value after `=`:
`--x=false`. An option takes one value, and is repeated for several: `--tag a=b --tag c=d`. Any other option
that is given twice with different values is wrong usage. `--input` takes all words up to the next option.
Jobs also take Apache Beam's options, such as `--runner`.
"""


def page() -> str:
    """The text of the page."""
    declared = {command: with_profiles(find_command(command).parameters) for command in COMMANDS}
    distinct: list[Parameter] = []
    for parameters in declared.values():
        distinct += [parameter for parameter in parameters if parameter not in distinct]
    shared = [p for p in distinct if sum(p in declared[command] for command in COMMANDS) >= _SHARED]
    lines = [_INTRODUCTION, "## Options that many commands share", ""]
    for group in dict.fromkeys(parameter.group for parameter in shared):
        lines += [f"### {group}", "", *_table(p for p in shared if p.group == group), ""]
    for command, parameters in declared.items():
        summary = COMMANDS[command]
        lines += [f"## timebeam {command}", "", f"{summary[:1].upper()}{summary[1:]}.", ""]
        specific = [parameter for parameter in parameters if parameter not in shared]
        if specific:
            lines += [*_table(specific), ""]
        common = list(_common(parameters, shared))
        if common:
            lines += [f"Shared options: {'; '.join(common)}.", ""]
    return "\n".join(lines).rstrip() + "\n"


def _common(parameters: Sequence[Parameter], shared: Sequence[Parameter]) -> Iterator[str]:
    """The shared options of a command: a link for most of a group, else the names."""
    for group in dict.fromkeys(parameter.group for parameter in shared):
        members = [parameter for parameter in shared if parameter.group == group]
        absent = [f"`{flag(parameter.name)}`" for parameter in members if parameter not in parameters]
        link = f"[{group}](#{group.lower().replace(' ', '-')})"
        if len(absent) <= len(members) / 2:
            yield link + (f" without {', '.join(absent)}" if absent else "")
        else:
            yield from (f"`{flag(parameter.name)}`" for parameter in members if parameter in parameters)


def row(parameter: Parameter) -> str:
    """The line of a table that describes one option."""
    default = "" if parameter.default in (None, [], "") else f"`{parameter.default}`"
    if isinstance(parameter.default, bool):
        default = default.lower()
    if parameter.required:
        default = "required"
    choices = ", ".join(f"`{choice}`" for choice in parameter.choices)
    description = parameter.help.replace("|", "\\|").replace("<", "\\<")
    return f"| `{flag(parameter.name)}`{f' ({choices})' if choices else ''} | {default} | {description} |"


def _table(parameters: Iterator[Parameter] | Sequence[Parameter]) -> list[str]:
    return ["| option | default | description |", "|---|---|---|", *map(row, parameters)]


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the page, or checks that it is up to date; returns the exit code."""
    description = "Generates the page of options."
    return write_or_check({PAGE: page()}, "timebeam.pipelines.deploy.options_page", description, argv)


if __name__ == "__main__":
    sys.exit(main())
