"""timebeam.toml: settings that are written once, for all commands, and by profile.

    layout = "opentsdb"             # for every command

    [profiles.prod]                 # with --profile prod, over those above
    project = "my-project"
    instance = "metrics"

    [retention]                     # or [profiles.prod.retention]: the option keep_days as a table
    "debug.*" = 7

A key is the name of an option without `--` (those with `Parameter.setting`), with `_` or `-`; its value is
what the option takes.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import os
import tomllib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from timebeam.pipelines.options.parameters import Parameter, UsageError, read_text, reason_of
from timebeam.pipelines.options.parsing import RENAMED, did_you_mean
from timebeam.schema.series.retention_rules import rule_texts

FILE = "timebeam.toml"
"""Read from the folder in which a command runs, if neither --config nor TIMEBEAM_CONFIG names a file."""

PROFILES = "profiles"
"""The table of the file that holds the profiles."""

_RETENTION, _RULES = "retention", "keep_days"
"""A table, and the option that it is another form of. As a string, the key is KairosDB's classes."""

VARIABLES = "TIMEBEAM_"
"""How the environment variables of settings begin; the name of the setting follows, in capitals."""


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """The text of a setting and where it was found.

    Attributes:
      texts: one text; several for an option of several values.
      origin: as `profile prod of timebeam.toml`, or the name of a variable.
    """

    texts: tuple[str, ...]
    origin: str

    def value(self, parameter: Parameter) -> Any:
        """The value that the texts mean.

        Raises:
          UsageError: they mean none; the message names the origin.
        """
        try:
            values = [parameter.value_of(text) for text in self.texts]
        except (argparse.ArgumentTypeError, ValueError) as error:
            raise UsageError(f"{self.origin}: {parameter.name}: {error}") from error
        for text in self.texts if parameter.choices else ():
            if text not in parameter.choices:
                choices = ", ".join(parameter.choices)
                hint = did_you_mean(text, parameter.choices)
                raise UsageError(f"{self.origin}: {parameter.name}: {text!r} must be one of {choices}{hint}")
        if parameter.many:
            return values
        if len(values) != 1:
            raise UsageError(f"{self.origin}: {parameter.name} takes one value, not {len(values)}")
        return values[0]


@dataclasses.dataclass(frozen=True, slots=True)
class Profiles:
    """The content of a settings file.

    Attributes:
      path: of the file; empty if there is none.
      shared: settings of every command, by name.
      profiles: settings by profile.
    """

    path: str = ""
    shared: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    profiles: Mapping[str, Mapping[str, tuple[str, ...]]] = dataclasses.field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, path: str, names: Collection[str]) -> Profiles:
        """Reads the text of a settings file.

        Args:
          names: the settings that there are.

        Raises:
          UsageError: it is not TOML, a key is unknown, or a value is of a type that no option takes.
        """
        try:
            content = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{path} is not TOML: {error}") from error
        except RecursionError as error:
            raise UsageError(f"{path} has too many levels of arrays or tables") from error
        tables = content.pop(PROFILES, {})
        if not isinstance(tables, dict):
            raise UsageError(f"{path}: {PROFILES} must be tables: [{PROFILES}.NAME]")
        profiles = {}
        for name, table in tables.items():
            place = f"{path}, profile {name}"
            if not isinstance(table, dict):
                raise UsageError(f"{place}: a profile is a table: [{PROFILES}.{name}]")
            profiles[name] = _texts(table, place, names)
        return cls(path, _texts(content, path, (*names, PROFILES)), profiles)

    def settings(self, profile: str | None) -> dict[str, Setting]:
        """The settings of a profile, over the shared ones, by name.

        Raises:
          UsageError: there is no such profile.
        """
        settings = {name: Setting(texts, self.path) for name, texts in self.shared.items()}
        if profile is None:
            return settings
        if not self.path:
            raise UsageError(
                f"no {FILE} with a profile {profile!r} in this folder: give --config FILE, or write one with "
                "`timebeam init`"
            )
        if profile not in self.profiles:
            known = f"it has {', '.join(self.profiles)}" if self.profiles else "it has none"
            raise UsageError(
                f"{self.path}: no profile {profile!r}{did_you_mean(profile, self.profiles) or f': {known}'}"
            )
        origin = f"profile {profile} of {self.path}"
        return settings | {name: Setting(texts, origin) for name, texts in self.profiles[profile].items()}


def read_profiles(path: str | None, names: Collection[str]) -> Profiles:
    """The settings file of a path, or `timebeam.toml` of the folder; an empty one if there is neither.

    Args:
      path: local, or of any file system that Beam knows.
      names: see `Profiles.parse`.

    Raises:
      UsageError: it cannot be read, or see `Profiles.parse`.
    """
    if path is None:
        if not os.path.lexists(FILE):
            return Profiles()
        path = FILE
    try:
        text = read_text(path)
    except UnicodeDecodeError as error:
        raise UsageError(f"the settings {path} are not UTF-8: {error}") from error
    except (OSError, ValueError) as error:  # ValueError: a file system that is not installed
        raise UsageError(f"cannot read the settings {path}: {reason_of(error)}") from error
    return Profiles.parse(text, path, names)


def variables(environment: Mapping[str, str], parameters: Iterable[Parameter]) -> dict[str, Setting]:
    """The settings that environment variables give, by name; an empty variable gives none.

    Raises:
      UsageError: a variable was renamed.
    """
    settings = {}
    by_name = {parameter.name: parameter for parameter in parameters}
    for old, new in RENAMED.items():
        if new in by_name and environment.get(VARIABLES + old.upper()):
            raise UsageError(f"{VARIABLES}{old.upper()} is now {VARIABLES}{new.upper()}")
    for parameter in by_name.values():
        variable = VARIABLES + parameter.name.upper()
        text = environment.get(variable, "")
        if text:
            texts = tuple(text.split()) if parameter.many else (text,)
            settings[parameter.name] = Setting(texts, variable)
    return settings


def _texts(table: Mapping[str, Any], place: str, names: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The texts of the keys of a TOML table."""
    texts = {}
    for key, value in table.items():
        if key == _RETENTION and isinstance(value, dict):
            if _RULES in table:
                raise UsageError(f"{place}: {_RULES} and a table {_RETENTION}: give one of them")
            try:
                texts[_RULES] = tuple(rule_texts(value))
            except ValueError as error:
                raise UsageError(f"{place}: {_RETENTION}: {error}") from error
            continue
        name = key.replace("-", "_")
        if name not in names:
            raise UsageError(f"{place}: unknown key {key!r}{did_you_mean(name, names)}")
        if name in texts:
            raise UsageError(f"{place}: {key} and {name}: give one of them")
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(item, str | int | float) for item in values):
            raise UsageError(f"{place}: {key} must be a string, a number, true, false, or a list of strings")
        texts[name] = tuple(str(item).lower() if isinstance(item, bool) else str(item) for item in values)
    return texts


def setting_text(value: Any) -> str:
    """A value as an option takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value.value) if isinstance(value, enum.Enum) else str(value)
