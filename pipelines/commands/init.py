"""`timebeam init`: a settings file with comments, and what to do next."""

from __future__ import annotations

import json
from collections.abc import Sequence

from timebeam.pipelines.options.command_line import CommandParser, parser_of
from timebeam.pipelines.options.parameters import Parameter, UsageError
from timebeam.pipelines.options.profiles import FILE
from timebeam.schema.layouts import LAYOUTS

PARAMETERS = (
    Parameter("project", "Google Cloud project; without it the file is for the local emulator", "Init"),
    Parameter("instance", "Bigtable instance of the project", "Init"),
    Parameter("layout", "how points are stored", "Init", default="opentsdb", choices=tuple(LAYOUTS)),
)

EXAMPLES = """\
  timebeam init
  timebeam init --project my-project --instance my-instance"""

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


def command_parser() -> CommandParser:
    """The parser of the command."""
    return parser_of("init", f"Writes {FILE} into this folder; asks nothing.", EXAMPLES, PARAMETERS)


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the file and prints the next commands."""
    options = command_parser().parse_args(argv)
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
    """The next three commands."""
    first = "timebeam tables create --dry_run    # checks whether the instance can be reached"
    if project is None:
        first = "timebeam emulator &    # then run the line that it prints: export BIGTABLE_EMULATOR_HOST=..."
    return [
        first,
        "timebeam tables create",
        "timebeam ingest --format opentsdb-text --input points.txt",
    ]
