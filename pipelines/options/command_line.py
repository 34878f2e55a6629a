"""The parser of a command: an option, else a variable, else the settings file, else the default.

What none of them gives is taken from the stored settings of the tables, by the commands that open tables
(`timebeam.pipelines.options.use_settings`).
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import os
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from timebeam.pipelines.options.catalogue import chosen, setting_parameters
from timebeam.pipelines.options.parameters import Parameter, boolean
from timebeam.pipelines.options.parsing import Parser, detail
from timebeam.pipelines.options.profiles import FILE, Setting, read_profiles, variables

DEFAULT = "default"
"""The origin of a value that nothing gives."""

_BEAM_OPTION = re.compile(r"argument\(\s*((?:[\"']--[-\w]+[\"'],?\s*)+)")


class CommandParser(Parser):
    """Parses a command line over the settings of variables and of the settings file.

    The parsed options have `origins`: where the value of each parameter comes from, by name.
    """

    def __init__(self, parameters: Sequence[Parameter], **named: Any) -> None:
        """See `argparse.ArgumentParser`.

        Args:
          parameters: of the command.
        """
        super().__init__(**named)
        self.parameters = with_profiles(parameters)
        self._settings = {parameter.name: parameter for parameter in parameters if parameter.setting}
        add_parameters(self, self.parameters)
        if "project" in self._settings:  # it opens tables, whose stored settings may tell
            for action in self._actions:
                stored = action.dest in self._settings and self._settings[action.dest].stored
                action.required = action.required and not stored

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """See `argparse.ArgumentParser.parse_known_args`.

        Raises:
          UsageError: the settings file cannot be read, or a setting is wrong.
        """
        words = list(args or ())
        asks_for_help = not {"-h", "--help"}.isdisjoint(words)
        if asks_for_help or hasattr(namespace, "origins"):  # parse_known_intermixed_args parses twice
            return super().parse_known_args(args, namespace)
        settings = self._given(words)
        for action in self._actions:
            if action.dest in settings:
                texts = settings[action.dest].texts
                parameter = self._settings[action.dest]
                value = settings[action.dest].value(parameter)
                action.default = value if parameter.many else texts[0]
                action.required = False
        options, rest = super().parse_known_args(args, namespace)
        origins = {parameter.name: DEFAULT for parameter in self.parameters}
        origins |= {name: setting.origin for name, setting in settings.items()}
        options.origins = origins | {name: f"--{name}" for name in self.given_words & set(origins)}
        for name, origin in options.origins.items():
            if origin != DEFAULT:
                detail(f"{name} {vars(options)[name]}: {origin}")
        return options, rest

    def _given(self, words: Sequence[str]) -> dict[str, Setting]:
        """The settings of this command that variables and the settings file give."""
        if not self._settings:
            return {}
        finder = Parser(prog=self.prog, add_help=False)
        add_parameters(finder, _profiles())
        chosen = finder.parse_known_args(words)[0]
        settings = given_settings(chosen.config, chosen.profile, os.environ)
        return {name: setting for name, setting in settings.items() if name in self._settings}


def with_profiles(parameters: Sequence[Parameter]) -> Sequence[Parameter]:
    """The parameters of a command with `--config` and `--profile`, if some of them are settings."""
    return (*parameters, *_profiles()) if any(parameter.setting for parameter in parameters) else parameters


def _profiles() -> Sequence[Parameter]:
    return chosen("", "Settings: config profile")


def given_settings(
    config: str | None, profile: str | None, environment: Mapping[str, str]
) -> dict[str, Setting]:
    """The settings that variables give, and those of the settings file that variables do not give, by name.

    Args:
      config, profile: as the options give them; None if they do not.

    Raises:
      UsageError: see `read_profiles`; there is no such profile.
    """
    config = config or environment.get("TIMEBEAM_CONFIG") or None
    profile = profile or environment.get("TIMEBEAM_PROFILE") or None
    is_there = config or profile or os.path.lexists(FILE)
    by_file = read_profiles(config, setting_parameters()).settings(profile) if is_there else {}
    by_variable = {}
    if any(name.startswith("TIMEBEAM_") for name in environment):
        by_variable = variables(environment, setting_parameters().values())
    return by_file | by_variable


def add_parameters(parser: argparse.ArgumentParser, parameters: Iterable[Parameter]) -> None:
    """Declares parameters as options, in their groups."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for parameter in parameters:
        if parameter.group not in groups:
            groups[parameter.group] = parser.add_argument_group(parameter.group)
        options: dict[str, Any] = {"help": parameter.help.replace("%", "%%"), "default": parameter.default}
        if parameter.required:
            options["required"] = True
        elif parameter.default not in (None, "", False):
            options["help"] += f" (default: {parameter.default})"
        if parameter.kind is boolean:
            options |= {"nargs": "?", "const": True, "type": boolean, "metavar": "true|false"}
        else:
            options |= {"type": parameter.value_of, "metavar": parameter.name.upper()}
            if parameter.choices:
                options |= {"choices": parameter.choices, "metavar": "|".join(parameter.choices)}
            if parameter.many:
                options["nargs"] = "+"
        groups[parameter.group].add_argument(f"--{parameter.name}", **options)


@dataclasses.dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a command that is no option; see `argparse.ArgumentParser.add_argument`."""

    name: str
    help: str
    choices: Sequence[str] | None = None
    metavar: str | None = None
    nargs: str | None = None
    default: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """A command of `timebeam`: its options, and what runs it.

    A declaration imports neither Beam nor Google's clients; what it names is imported when its options have
    been parsed.

    Attributes:
      description: what it does, in a sentence.
      options: as `timebeam.pipelines.options.catalogue.chosen` takes them.
      runs: MODULE:FUNCTION: takes the options and returns the exit code; empty if it always starts a job.
      job: MODULE:FUNCTION: takes the options and the time in ms since 1970, and makes the job. The command
        then takes Beam's own options too.
      job_action: the `action` that is the job, if others are what `runs` does.
      layouts: (option of a layout, start of the names of its other options), whose stored settings are
        compared with the options; by default `--layout` of a command that opens tables.
      takes_archive: whether it takes tables with an archive: it reads that too, or needs no closed hours.
    """

    name: str
    description: str
    examples: str
    options: str = ""
    runs: str = ""
    job: str = ""
    job_action: str = ""
    arguments: Sequence[Argument] = ()
    layouts: Sequence[tuple[str, str]] | None = None
    takes_archive: bool = False

    @property
    def parameters(self) -> Sequence[Parameter]:
        """Its options."""
        return chosen(self.name, self.options)

    def parser(self) -> CommandParser:
        """The parser of its options, with examples at the end of its help."""
        parser = CommandParser(
            self.parameters,
            prog=f"timebeam {self.name}",
            description=self.description,
            epilog=f"examples:\n{self.examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for argument in self.arguments:
            options = {
                name: value for name, value in dataclasses.asdict(argument).items() if value is not None
            }
            parser.add_argument(options.pop("name"), **options)
        return parser

    def parse(self, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """(the options, those that are Beam's); ends the program with exit code 2 if they are wrong.

        Raises:
          UsageError: see `CommandParser.parse_known_args`.
        """
        parser = self.parser()
        takes_words = any(argument.nargs == "*" for argument in self.arguments)
        parse = parser.parse_known_intermixed_args if takes_words else parser.parse_known_args
        options, rest = parse(words)
        if rest and not self.starts_job(options):
            parser.unknown(rest[0])
        if not any(word.partition("=")[0] == "--runner" for word in rest):  # it may have options of its own
            names = _beam_option_names() if rest else frozenset()
            for word in rest:
                if word.startswith("-") and word.partition("=")[0] not in names:
                    parser.unknown(word, names)
        return options, rest

    @property
    def opened_layouts(self) -> Sequence[tuple[str, str]]:
        """`layouts`, or its default."""
        if self.layouts is not None:
            return self.layouts
        opens_tables = any(parameter.name == "app_profile" for parameter in self.parameters)
        return (("layout", ""),) if opens_tables else ()

    def starts_job(self, options: argparse.Namespace) -> bool:
        """Whether the options start a job, and not only what `runs` does."""
        return bool(self.job) and self.job_action in ("", getattr(options, "action", ""))


def _beam_option_names() -> frozenset[str]:
    """The names of Beam's options, from its source: to import it takes a second."""
    beam = importlib.util.find_spec("apache_beam")
    assert beam is not None
    assert beam.origin is not None
    source = pathlib.Path(beam.origin).parent / "options" / "pipeline_options.py"
    declared = _BEAM_OPTION.findall(source.read_text("utf-8"))
    return frozenset(name for names in declared for name in re.findall(r"--[-\w]+", names))
