"""`timebeam config`: the value of every setting, and where it comes from."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence

from timebeam.pipelines.options.command_line import (
    CONFIG,
    DEFAULT,
    PROFILE,
    CommandParser,
    given_settings,
    parser_of,
    setting_parameters,
)
from timebeam.pipelines.options.parameters import Parameter, UsageError
from timebeam.pipelines.options.parsing import did_you_mean
from timebeam.pipelines.options.profiles import VARIABLES
from timebeam.pipelines.options.stored import setting_text, use_stored

PARAMETERS = (
    CONFIG,
    PROFILE,
    Parameter("output", "form of the list", "Output", default="text", choices=("text", "json")),
)

EXAMPLES = """\
  timebeam config
  timebeam config --profile prod --output json

precedence: option of the command, variable TIMEBEAM_NAME, profile, settings file, settings stored with the
tables, default"""


def command_parser() -> CommandParser:
    """The parser of the command."""
    return parser_of("config", "Prints every setting and where it comes from.", EXAMPLES, PARAMETERS)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the settings; exit code 2 if they contradict those that are stored with the tables."""
    arguments = command_parser().parse_args(argv)
    parameters = setting_parameters()
    settings = given_settings(arguments.config, arguments.profile, os.environ)
    values = {name: parameter.default for name, parameter in parameters.items()}
    values |= {name: setting.value(parameters[name]) for name, setting in settings.items()}
    origins = dict.fromkeys(parameters, DEFAULT) | {
        name: setting.origin for name, setting in settings.items()
    }
    options = argparse.Namespace(**values, origins=origins)
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
    endings = {name.upper() for name in (*names, CONFIG.name, PROFILE.name)}
    for variable in sorted(os.environ):
        ending = variable.removeprefix(VARIABLES)
        hint = "" if ending in {variable, *endings} else did_you_mean(ending, endings)
        if hint:
            yield f"no setting {ending} for the variable {variable}{hint}"
