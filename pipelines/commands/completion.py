"""`timebeam completion`: a script that completes command lines in a shell.

The script holds all commands and options, so that nothing of timebeam runs when Tab is pressed.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

import shtab

from timebeam.pipelines.cli import COMMANDS, module_of
from timebeam.pipelines.options.command_line import CommandParser, parser_of
from timebeam.pipelines.options.parameters import Parameter, TemplateType

PARAMETERS: tuple[Parameter, ...] = ()

EXAMPLES = """\
  timebeam completion bash > ~/.local/share/bash-completion/completions/timebeam
  timebeam completion zsh > ~/.zfunc/_timebeam       with this in ~/.zshrc: fpath+=~/.zfunc; compinit
  timebeam completion fish > ~/.config/fish/completions/timebeam.fish"""

SHELLS = ("bash", "zsh", "fish")

_FILES = frozenset({"file", "input", "output", "argument", "definition", "source", "expect"})
"""Options and arguments that take files, beside those that are files of templates."""


def command_parser() -> CommandParser:
    """The parser of the command."""
    parser = parser_of("completion", "Prints a script that completes command lines.", EXAMPLES, PARAMETERS)
    parser.add_argument("shell", choices=SHELLS, help="for which shell")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the script."""
    options = command_parser().parse_args(argv)
    print(shtab.complete(_all_commands(), options.shell))
    return 0


def _all_commands() -> argparse.ArgumentParser:
    """A parser with every command as a subcommand."""
    root = argparse.ArgumentParser(prog="timebeam", allow_abbrev=False)
    root.add_argument("--version", action="store_true", help="print the version")
    commands = root.add_subparsers()
    for name, summary in COMMANDS.items():
        parser: CommandParser = importlib.import_module(module_of(name)).command_parser()
        files = _FILES | {one.name for one in parser.parameters if one.template is TemplateType.READ_FILE}
        for action in parser._actions:
            if action.dest in files and not action.choices:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
        commands.add_parser(name, parents=[parser], add_help=False, help=summary)
    return root
