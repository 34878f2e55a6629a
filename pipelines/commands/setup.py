"""The commands around tables and this machine, and what `init`, `config` and `completion` do.

A script for a shell holds all commands and options, so that nothing of timebeam runs when Tab is pressed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence

from timebeam.pipelines.commands import COMMANDS, find_command
from timebeam.pipelines.options.catalogue import setting_parameters
from timebeam.pipelines.options.command_line import DEFAULT, Argument, Command, given_settings
from timebeam.pipelines.options.parameters import TemplateType, UsageError, boolean, flag
from timebeam.pipelines.options.parsing import did_you_mean
from timebeam.pipelines.options.profiles import FILE, VARIABLES, setting_text

INIT_COMMAND = Command(
    "init",
    "Writes timebeam.toml into this folder; asks nothing.",
    usage="[--project PROJECT --instance INSTANCE] [--layout LAYOUT]",
    page="docs/start/first-steps.md",
    runs="timebeam.pipelines.commands.setup:init",
    options="Init: project instance layout",
    examples="""\
  timebeam init
  timebeam init --project my-project --instance my-instance""",
)

CONFIG_COMMAND = Command(
    "config",
    "Prints every setting and where it comes from.",
    usage="[--profile PROFILE] [--config FILE]",
    page="docs/reference/settings.md",
    runs="timebeam.pipelines.commands.setup:config",
    options="""
        Settings: config profile |
        Output: output
    """,
    examples="""\
  timebeam config
  timebeam config --profile prod --output json

precedence: option of the command, variable TIMEBEAM_NAME, profile, settings file, settings stored with the
tables, default""",
)

EMULATOR_COMMAND = Command(
    "emulator",
    "Runs Google's Bigtable emulator in the foreground; builds it first if there is none.",
    usage="[--port PORT]",
    page="docs/start/first-steps.md",
    runs="timebeam.pipelines.local.emulator:run",
    options="Emulator: port build_only",
    examples="""\
  timebeam emulator                 on the port that gcloud uses too, 8086
  timebeam emulator --port 0        on any free port
  timebeam emulator --build-only    only build it, for an image or a CI cache""",
)

GENERATE_COMMAND = Command(
    "generate",
    "Generates test points, including late, duplicate, corrected and bad ones.",
    usage="(--output FILE | --topic TOPIC) [options]",
    common="""
        Load: points series format step start seed |
        Output: output topic rate expect
    """,
    page="docs/start/first-steps.md",
    runs="timebeam.pipelines.local.generate:run",
    options="""
        Load: points series format step start jitter_ms late late_steps duplicates corrections
            poison seed |
        Output: output topic rate points_per_message expect |
        Run: summary
    """,
    examples="""\
  timebeam generate --points 1000000 --output points.json.gz
  timebeam generate --format influx --late 0.01 --corrections 0.01 --poison 0.001 \\
      --output points.lp --expect expected.csv
  timebeam generate --topic projects/my-project/topics/points --start now --rate 5000""",
)

COMPLETION_COMMAND = Command(
    "completion",
    "Prints a script that completes command lines.",
    usage="bash|zsh|fish",
    page="docs/start/first-steps.md",
    runs="timebeam.pipelines.commands.setup:completion",
    arguments=(Argument("shell", choices=("bash", "zsh", "fish"), help="for which shell"),),
    examples="""\
  timebeam completion bash > ~/.local/share/bash-completion/completions/timebeam
  timebeam completion zsh > ~/.zfunc/_timebeam       with this in ~/.zshrc: fpath+=~/.zfunc; compinit
  timebeam completion fish > ~/.config/fish/completions/timebeam.fish""",
)

TABLES_COMMAND = Command(
    "tables",
    "Creates the tables of a layout, adopts those of another system, forgets their settings, or shows and "
    "sets retention; safe to repeat.",
    usage="create|adopt|forget --layout LAYOUT [options]\n"
    "retention --layout LAYOUT [--max-age-days N] [options]",
    common="""
        Tables: layout tables table_prefix project instance |
        Also create: rollup_config meta trees series_limits archive |
        Retention: max_age_days table family |
        Run: dry_run
    """,
    page="docs/reference/layouts.md",
    runs="timebeam.pipelines.tables.tables:run",
    layouts=(),
    arguments=(
        Argument(
            "action",
            choices=["create", "adopt", "forget", "retention"],
            help="create: create missing tables; adopt: store the settings of tables that another system "
            "made; forget: remove the stored settings of a layout, its tables stay; retention: show or set "
            "the maximum age of cells",
        ),
    ),
    takes_archive=True,
    options="""
        Layout: layout table_prefix *stored set tables zone rollup_config meta trees series_limits |
        Retention: max_age_days table family |
        Adopt: rows |
        Bigtable: project instance app_profile |
        Run: output dry_run
    """,
    examples="""\
  timebeam tables create --layout opentsdb --project my-project --instance my-instance
  timebeam tables create --layout opentsdb --rollup-config rollups.json
  timebeam tables adopt --layout opentsdb --salt-width 1   (tables that a TSD made)
  timebeam tables create --layout table --tables market.toml
  timebeam tables create --layout opentsdb --meta --trees
  timebeam tables create --layout opentsdb --table-prefix test- --dry-run   (with an emulator)
  timebeam tables forget --layout kairosdb --dry-run
  timebeam tables retention --layout opentsdb
  timebeam tables retention --layout opentsdb --max-age-days 400 --dry-run
  timebeam tables retention --layout kairosdb --retention 7,90 --family d7 --max-age-days 7""",
)

CHECK_COMMAND = Command(
    "check",
    "Verifies that every row decodes, and that names and UIDs map one to one.",
    usage="[--layout LAYOUT] [options]",
    common="""
        Tables: layout tables table_prefix set project instance |
        Findings: output most
    """,
    page="docs/operate/maintenance.md",
    runs="timebeam.pipelines.tables.tables:check",
    takes_archive=True,
    options="""
        Layout: layout table_prefix tables set |
        Bigtable: project instance app_profile |
        Run: output most
    """,
    examples="""\
  timebeam check --layout opentsdb --project my-project --instance my-instance
  timebeam check --layout opentsdb --salt-width 1 --most 1000
  timebeam check --layout table --tables market.toml""",
)

PLAN_COMMAND = Command(
    "plan",
    "Estimates what a load of points needs, for each packing.",
    usage="--series N --layout LAYOUT [options]",
    common="""
        Load: series interval retention metrics tags values points_per_message |
        Tables: layout set |
        Prices: node_price gb_price core_price |
        Run: summary
    """,
    page="docs/operate/sizing.md",
    runs="timebeam.pipelines.tables.plan:run",
    takes_archive=True,
    options="""
        Load: series interval retention metrics tags tag_values name_length values
            points_per_message flush_seconds |
        Layout: layout table_prefix set |
        Bigtable: storage node_price gb_price |
        Dataflow: core_price shuffle_price |
        Run: summary
    """,
    examples="""\
  timebeam plan --series 1000000 --interval 10s --layout opentsdb --retention 30d
  timebeam plan --series 1000000 --layout opentsdb --salt-width 1 --salt-buckets 20 --points-per-message 6
  timebeam plan --series 50000 --interval 1s --layout heroic --name-length 20 --summary json
  timebeam plan --series 200000 --layout kairosdb --node-price 0.65 --gb-price 0.17

bytes are measured on a sample, before compression; docs/operate/sizing.md explains the output""",
)

LAYOUT_COMMAND = Command(
    "layout",
    "Explains tables declared in TOML, or plots how writes spread over their keys.",
    usage="check FILE\nheat FILE --input SAMPLE [options]",
    page="docs/reference/tables.md",
    runs="timebeam.pipelines.tables.layout:run",
    arguments=(
        Argument("action", choices=["check", "heat"], help="check: explain the tables; heat: plot writes"),
        Argument("file", help="the declaration, a TOML file"),
    ),
    options="""
        Heat: input layout output |
        Run: summary
    """,
    examples="""\
  timebeam layout check examples/tables/market.toml
  timebeam layout heat examples/tables/battery_salted.toml --input examples/tables/battery.jsonl""",
)


_TEXT = """\
# Settings of timebeam in this folder. `timebeam config` prints each of them and where it comes from.
#
# A key is the name of an option without its dashes. An option of a command wins over a variable, such as
# TIMEBEAM_LAYOUT, and a variable wins over this file.

layout = {layout}
{place}
auto_create_metrics = true       # assign UIDs to new metrics
dead_letters = "dead-letters"    # where rejected input goes: files dead-letters-TIME-*.jsonl
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


@dataclasses.dataclass(frozen=True, slots=True)
class InitOptions:
    """What the settings file says."""

    project: str | None
    instance: str | None
    layout: str


def init(options: InitOptions) -> int:
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
    first = "timebeam tables create --dry-run    # checks whether the instance can be reached"
    if project is None:
        first = "timebeam emulator &    # then run the line that it prints: export BIGTABLE_EMULATOR_HOST=..."
    return [
        first,
        "timebeam tables create",
        "timebeam ingest --format opentsdb-text --input points.txt    # for some points: timebeam generate "
        "--format opentsdb-text --output points.txt",
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class ConfigOptions:
    """Which settings are shown, and how."""

    config: str | None
    profile: str | None
    output: str


def config(options: ConfigOptions) -> int:
    """Prints the settings; exit code 2 if they contradict those that are stored with the tables."""
    parameters = setting_parameters()
    settings = given_settings(options.config, options.profile, os.environ)
    values = {name: parameter.default for name, parameter in parameters.items()}
    values |= {name: setting.value(parameters[name]) for name, setting in settings.items()}
    origins = dict.fromkeys(parameters, DEFAULT) | {
        name: setting.origin for name, setting in settings.items()
    }
    from timebeam.pipelines.options.place import Place  # these import Google's clients
    from timebeam.pipelines.options.use_settings import open_place

    error, place = None, Place.of(values, origins)
    try:
        stored, of_stored = open_place(place, replaces=True).in_force()
        values, origins = values | stored, origins | of_stored
        open_place(place)
    except UsageError as contradiction:
        error = contradiction if place.layout else None
    rows = [(name, _text(values[name]), origins[name]) for name in parameters]
    if options.output == "json":
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


@dataclasses.dataclass(frozen=True, slots=True)
class CompletionOptions:
    """For which shell the script is."""

    shell: str


def completion(options: CompletionOptions) -> int:
    """Prints the script."""
    import shtab

    print(shtab.complete(_all_commands(), options.shell))
    return 0


def _all_commands() -> argparse.ArgumentParser:
    """A parser with every command as a subcommand, as shtab takes it."""
    root = argparse.ArgumentParser(prog="timebeam", allow_abbrev=False)
    root.add_argument("--version", action="store_true", help="print the version")
    commands = root.add_subparsers()
    for name, summary in COMMANDS.items():
        command = find_command(name)
        parser = commands.add_parser(name, help=summary)
        for argument in command.arguments:
            _add(parser, argument.name, argument.help, argument.choices, nargs=argument.nargs or None)
        for parameter in command.parser().parameters:
            option, text = flag(parameter.name), parameter.help.replace("%", "%%")
            if parameter.kind is boolean:
                for word in (option, f"--no-{option[2:]}")[: 1 + bool(parameter.default)]:
                    parser.add_argument(word, action="store_true", help=text)
            else:
                is_file = parameter.template is TemplateType.READ_FILE
                _add(parser, option, text, parameter.choices, is_file=is_file)
    return root


def _add(
    parser: argparse.ArgumentParser,
    name: str,
    text: str,
    choices: Sequence[str],
    *,
    nargs: str | None = None,
    is_file: bool = False,
) -> None:
    """Adds an argument, or an option with a value, to a parser."""
    import shtab

    action = parser.add_argument(name, help=text, choices=choices or None, nargs=nargs)
    if (is_file or action.dest in _FILES) and not choices:
        action.complete = shtab.FILE  # type: ignore[attr-defined]
