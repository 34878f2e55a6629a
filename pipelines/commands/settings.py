"""`timebeam init`, `config` and `completion`: the settings file, all settings, and scripts for shells.

A script for a shell holds all commands and options, so that nothing of timebeam runs when Tab is pressed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator

import shtab

from timebeam.pipelines.commands import COMMANDS, find_command
from timebeam.pipelines.options.catalogue import setting_parameters
from timebeam.pipelines.options.command_line import DEFAULT, given_settings
from timebeam.pipelines.options.parameters import TemplateType, UsageError
from timebeam.pipelines.options.parsing import did_you_mean
from timebeam.pipelines.options.profiles import FILE, VARIABLES, setting_text

_TEXT = """\
# Settings of timebeam in this folder. `timebeam config` prints each of them and where it comes from.
#
# A key is the name of an option without its dashes. An option of a command wins over a variable, such as
# TIMEBEAM_LAYOUT, and a variable wins over this file.

layout = {layout}
{place}
auto_create_metrics = true       # assign UIDs to new metrics
dead_letters = "dead-letters"    # where refused input goes: files dead-letters-TIME-*.jsonl
# table_prefix = "test-"         # prefix of all table names

# The stored bytes depend on these. `timebeam tables create` stores them with the tables, where all other
# commands read them.
# salt_width = 1                 # opentsdb: bytes of salt in row keys
# row_spec = "milliseconds"      # kairosdb: how times become columns

# A profile overrides the settings above: timebeam query ... --profile prod
# [profiles.prod]
# project = "my-project"
# instance = "my-instance"
# dead_letters = "gs://my-bucket/dead-letters/points"
"""

_EMULATOR_PLACE = "# No project and no instance: the emulator that BIGTABLE_EMULATOR_HOST names."


def init(options: argparse.Namespace) -> int:
    """Writes the file and prints the next commands."""
    if (options.project is None) != (options.instance is None):
        raise UsageError("give --project and --instance, or neither of them")
    place = _EMULATOR_PLACE
    if options.project is not None:
        place = f"project = {json.dumps(options.project)}\ninstance = {json.dumps(options.instance)}"
    text = _TEXT.format(layout=json.dumps(options.layout), place=place)
    try:
        with open(FILE, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise UsageError(f"{FILE} exists already: edit it, or remove it first") from error
    print(f"wrote {FILE}; next:\n" + "\n".join(f"  {line}" for line in _next_commands(options.project)))
    return 0


def _next_commands(project: str | None) -> list[str]:
    first = "timebeam tables create --dry_run    # checks whether the instance can be reached"
    if project is None:
        first = "timebeam emulator &    # then run the line that it prints: export BIGTABLE_EMULATOR_HOST=..."
    return [
        first,
        "timebeam tables create",
        "timebeam ingest --format opentsdb-text --input points.txt    # for some points: timebeam generate "
        "--format opentsdb-text --output points.txt",
    ]


def config(arguments: argparse.Namespace) -> int:
    """Prints the settings; exit code 2 if they contradict those that are stored with the tables."""
    parameters = setting_parameters()
    settings = given_settings(arguments.config, arguments.profile, os.environ)
    values = {name: parameter.default for name, parameter in parameters.items()}
    values |= {name: setting.value(parameters[name]) for name, setting in settings.items()}
    origins = dict.fromkeys(parameters, DEFAULT) | {
        name: setting.origin for name, setting in settings.items()
    }
    options = argparse.Namespace(**values, origins=origins)
    from timebeam.pipelines.options.use_settings import use_stored  # imports Google's clients

    error = None
    try:
        use_stored(options)
    except UsageError as contradiction:
        error = contradiction if options.layout is not None else None
    rows = [(name, _text(vars(options)[name]), options.origins[name]) for name in parameters]
    if arguments.output == "json":
        shown = {name: {"value": text, "origin": origin} for name, text, origin in rows}
        print(json.dumps(shown, indent=2, ensure_ascii=False))
    else:
        for name, text, origin in rows:
            print(f"{name:20} {'-' if text is None else text or repr(''):24} {origin}")
    for line in _misspelt(parameters):
        print(f"warning: {line}", file=sys.stderr)
    if error is not None:
        raise error
    return 0


def _text(value: object) -> str | None:
    """A value as the settings file takes it; None for none."""
    if isinstance(value, list):
        return ",".join(map(setting_text, value)) or None
    return None if value is None else setting_text(value)


def _misspelt(names: Iterable[str]) -> Iterator[str]:
    """A line for each environment variable that is almost the name of a setting."""
    endings = {name.upper() for name in (*names, "config", "profile")}
    for variable in sorted(os.environ):
        ending = variable.removeprefix(VARIABLES)
        hint = "" if ending in {variable, *endings} else did_you_mean(ending, endings)
        if hint:
            yield f"no setting {ending} for the variable {variable}{hint}"


_FILES = frozenset({"file", "input", "output", "argument", "definition", "source", "expect"})
"""Options and arguments that take files, beside those that are files of templates."""


def completion(options: argparse.Namespace) -> int:
    """Prints the script."""
    print(shtab.complete(_all_commands(), options.shell))
    return 0


def _all_commands() -> argparse.ArgumentParser:
    """A parser with every command as a subcommand."""
    root = argparse.ArgumentParser(prog="timebeam", allow_abbrev=False)
    root.add_argument("--version", action="store_true", help="print the version")
    commands = root.add_subparsers()
    for name, summary in COMMANDS.items():
        parser = find_command(name).parser()
        files = _FILES | {
            parameter.name for parameter in parser.parameters if parameter.template is TemplateType.READ_FILE
        }
        for action in parser._actions:
            if action.dest in files and not action.choices:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
        commands.add_parser(name, parents=[parser], add_help=False, help=summary)
    return root
