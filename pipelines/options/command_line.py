"""The parser of a command: an option, else a variable, else the settings file, else the default.

What none of them gives is taken from the stored settings of the tables, by the commands that open tables
(`timebeam.pipelines.options.use_settings`).
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from timebeam.pipelines.options.catalogue import (
    TO,
    choosers,
    chosen,
    layout_parameters,
    settable_parameters,
    setting_parameters,
    with_plugins,
)
from timebeam.pipelines.options.help_text import asked_help
from timebeam.pipelines.options.parameters import Parameter, UsageError, flag
from timebeam.pipelines.options.parsing import CommandLine, GivenOption, Splitter, detail, did_you_mean
from timebeam.pipelines.options.profiles import FILE, Setting, read_profiles, variables

DEFAULT = "default"
"""The origin of a value that nothing gives."""


@dataclasses.dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a command that is no option.

    Attributes:
      name: of its value among the parsed options.
      choices: the words that it can be; any if empty.
      metavar: how the usage calls it; the name if empty.
      nargs: `?` for one that may be left out, `*` for any number of words; else it is one word.
      default: of one that is left out.
    """

    name: str
    help: str
    choices: Sequence[str] = ()
    metavar: str = ""
    nargs: str = ""
    default: str | None = None

    @property
    def shown(self) -> str:
        """Its name in usage and messages."""
        return self.metavar or self.name


_SIDES = {"set": "", "to_set": TO}
"""How the names of the settings begin that an option gives."""


class CommandParser:
    """Parses a command line over the settings of variables and of the settings file.

    The parsed options have `origins`: where the value of each parameter comes from, by name.
    """

    def __init__(
        self, parameters: Sequence[Parameter], arguments: Sequence[Argument] = (), *, takes_beam: bool = True
    ) -> None:
        """A parser of the parameters and arguments of a command.

        Args:
          takes_beam: whether Beam's own options can be given too.
        """
        self.parameters = with_profiles(parameters)
        self._arguments = arguments
        self._by_name = {parameter.name: parameter for parameter in self.parameters}
        self._all = self._by_name | settable_parameters(self._by_name)
        instead = {
            start + name: f"{flag(option)} {name}"
            for option, start in _SIDES.items()
            if option in self._by_name
            for name in _stored_settings()
            if start + name not in self._by_name
        }
        self._splitter = Splitter(self._by_name, instead, takes_words=not arguments, takes_beam=takes_beam)

    def parse_args(self, words: Sequence[str]) -> argparse.Namespace:
        """The options.

        Raises:
          UsageError: see `parse_known_args`; or there are options of Beam.
        """
        options, rest = self.parse_known_args(words)
        if rest:
            raise self.unknown(rest[0])
        return options

    def parse_known_args(self, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """(the options, those that are Beam's).

        Raises:
          UsageError: the settings file cannot be read, a setting is wrong, an option or argument is unknown,
            missing, or wrong, or an option is given twice with different values.
        """
        line = self._splitter.split(words)
        given = [self._assigned(each) for each in line.options]
        settings = self._settings(line)
        values: dict[str, Any] = {}
        for name, parameter in self._all.items():
            written = [each for each in given if each.name == name]
            values[name] = _value(parameter, written, settings.get(name))
        values |= self._argument_values(line)
        self._check_required(line, settings)
        origins = dict.fromkeys(self._all, DEFAULT)
        origins |= {name: setting.origin for name, setting in settings.items()}
        origins |= {each.name: each.word for each in given}
        for name, origin in origins.items():
            if origin != DEFAULT:
                detail(f"{name} {values[name]}: {origin}")
        return argparse.Namespace(**values, origins=origins), line.rest

    def unknown(self, word: str, more_options: Iterable[str] = ()) -> UsageError:
        """The error for a word that nothing takes.

        Args:
          more_options: names of options that are taken besides those of this parser.
        """
        return self._splitter.unknown(word, more_options)

    def _assigned(self, given: GivenOption) -> GivenOption:
        """What NAME=VALUE of `--set` gives; of other options that itself.

        Raises:
          UsageError: there is no such setting.
        """
        if given.name not in _SIDES:
            return given
        key, equals, text = given.text.partition("=")
        start = _SIDES[given.name]
        stored = {name for name, each in self._all.items() if each.stored}
        names = [name for name in _stored_settings() if start + name in stored]
        name = key.strip().replace("-", "_")
        if not equals:
            raise UsageError(f"argument {given.word}: {given.text!r} is not NAME=VALUE, such as salt_width=1")
        if name not in names:
            near = did_you_mean(name, names) or f": choose from {', '.join(names)}"
            if start + name in self._by_name:
                near = f", but an option {flag(start + name)}"
            raise UsageError(f"argument {given.word}: no setting {key!r}{near}")
        return GivenOption(start + name, f"{given.word} {name}", text.strip())

    def _settings(self, line: CommandLine) -> dict[str, Setting]:
        """The settings of this command that variables and the settings file give."""
        own = {name for name, parameter in self._all.items() if parameter.setting}
        if not own:
            return {}
        files = {each.name: each.text for each in line.options if each.name in ("config", "profile")}
        settings = given_settings(files.get("config"), files.get("profile"), os.environ)
        return {name: setting for name, setting in settings.items() if name in own}

    def _argument_values(self, line: CommandLine) -> dict[str, Any]:
        """The values of the arguments; raises UsageError for a word too many, or a wrong one."""
        words, values = list(line.words), dict[str, Any]()
        for argument in self._arguments:
            if argument.nargs == "*":
                values[argument.name], words = words, []
            elif words:
                values[argument.name] = word = words.pop(0)
                if argument.choices and word not in argument.choices:
                    raise UsageError(f"argument {argument.shown}: {_no_choice(word, argument.choices)}")
            else:
                values[argument.name] = argument.default
        if words:
            hint = line.hints.get(len(line.words) - len(words), "")
            raise UsageError(f"unexpected argument {words[0]!r}{hint}")
        return values

    def _check_required(self, line: CommandLine, settings: Mapping[str, Setting]) -> None:
        """Raises UsageError if an argument or option is missing that must be given."""
        needed = sum(not argument.nargs for argument in self._arguments)
        missing = [each.shown for each in self._arguments if not each.nargs][len(line.words) :]
        assert needed >= len(missing)
        opens_tables = "project" in settings or "project" in self._by_name  # stored settings may tell
        written = {each.name for each in line.options} | settings.keys()
        missing += [
            flag(name)
            for name, each in self._by_name.items()
            if each.required and name not in written and not (each.setting and each.stored and opens_tables)
        ]
        if missing:
            raise UsageError(f"the following arguments are required: {', '.join(missing)}")


def _stored_settings() -> Sequence[str]:
    """The names of the settings of layouts that are stored with the tables."""
    return [each.name for each in layout_parameters()[2:] if each.stored]


def _value(parameter: Parameter, written: Sequence[GivenOption], setting: Setting | None) -> Any:
    """The value of a parameter.

    Raises:
      UsageError: an option or a setting is wrong, or the option is given twice.
    """
    values = [_converted(parameter, each) for each in written]
    if parameter.many and values:
        return values
    if any(value != values[0] for value in values):
        raise UsageError(f"{written[0].word} is given twice, with different values: give it once")
    if values:
        return values[0]
    if setting is not None:
        return setting.value(parameter)
    default = parameter.default
    if isinstance(default, list):
        return list(default)
    return parameter.kind(default) if isinstance(default, str) else default


def _converted(parameter: Parameter, written: GivenOption) -> Any:
    """The value that an option gives; raises UsageError."""
    try:
        value = parameter.value_of(written.text)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"argument {written.word}: {error}") from error
    except ValueError as error:
        raise UsageError(f"argument {written.word}: invalid value: {written.text!r}") from error
    if parameter.choices and value not in parameter.choices:
        raise UsageError(f"argument {written.word}: {_no_choice(written.text, parameter.choices)}")
    return value


def _no_choice(text: str, choices: Iterable[str]) -> str:
    """What is wrong with a word that is not one of some."""
    near = did_you_mean(text, choices).replace(":", ";", 1)
    return f"invalid choice: {text!r} (choose from {', '.join(choices)}){near}"


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


def _chosen_names(words: Sequence[str]) -> dict[str, list[str]]:
    """The formats and layouts that words, variables and the settings file name, by the name of the option.

    Raises:
      UsageError: see `given_settings`.
    """
    given: dict[str, list[str]] = {}
    for word, behind in zip(words, (*words[1:], ""), strict=True):
        option, equals, text = word.partition("=")
        if option.startswith("--"):
            given.setdefault(option.removeprefix("--"), []).extend((text if equals else behind).split(","))
    config, profile = (given.get(name, [None])[-1] for name in ("config", "profile"))
    settings = given_settings(config, profile, os.environ)
    return {name: [*setting.texts] for name, setting in settings.items()} | given


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """A command of `timebeam`: its options, and what runs it.

    A declaration imports neither Beam nor Google's clients; what it names is imported when its options have
    been parsed.

    Attributes:
      description: what it does, in a sentence.
      examples: lines that begin with `  timebeam`, the three best ones first; behind an empty line, notes.
      usage: at most three lines of what follows its name.
      common: the options that its short help shows, as `options`; all if empty.
      page: of the documents, which says more.
      options: as `timebeam.pipelines.options.catalogue.chosen` takes them.
      runs: MODULE:FUNCTION: takes the options and returns the exit code; empty if it always starts a job.
      job: MODULE:FUNCTION: takes the options and the time in ms since 1970, and makes the job. The command
        then takes Beam's own options too.
      job_action: the `action` that is the job, if others are what `runs` does.
      layouts: the options that name layouts, whose stored settings are compared with the options; by default
        `layout`, of a command that opens tables.
      takes_archive: whether it takes tables with an archive: it reads that too, or needs no closed hours.
    """

    name: str
    description: str
    examples: str
    options: str = ""
    usage: str = "[options]"
    common: str = ""
    page: str = ""
    runs: str = ""
    job: str = ""
    job_action: str = ""
    arguments: Sequence[Argument] = ()
    layouts: Sequence[str] | None = None
    takes_archive: bool = False

    @property
    def parameters(self) -> Sequence[Parameter]:
        """Its options."""
        return chosen(self.name, self.options)

    def parser(self, words: Sequence[str] = ()) -> CommandParser:
        """The parser of its options and arguments, and of packages whose formats or stores are chosen.

        Raises:
          UsageError: the settings file cannot be read, or such a package cannot be used.
        """
        parameters = self.parameters
        if words and choosers(parameters):
            parameters = with_plugins(parameters, _chosen_names(words))
        return CommandParser(parameters, self.arguments, takes_beam=bool(self.job))

    def parse(self, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """(the options, those that are Beam's).

        Raises:
          UsageError: see `CommandParser.parse_known_args`.
        """
        if shown := asked_help(self, words):
            print(shown, flush=True)
            raise SystemExit(0)
        parser = self.parser(words)
        options, rest = parser.parse_known_args(words)
        if rest and not self.starts_job(options):
            raise parser.unknown(rest[0])
        return options, rest

    @property
    def opened_layouts(self) -> Sequence[str]:
        """`layouts`, or its default."""
        if self.layouts is not None:
            return self.layouts
        opens_tables = any(parameter.name == "app_profile" for parameter in self.parameters)
        return ("layout",) if opens_tables else ()

    def starts_job(self, options: argparse.Namespace) -> bool:
        """Whether the options start a job, and not only what `runs` does."""
        return bool(self.job) and self.job_action in ("", getattr(options, "action", ""))
