"""A place: which tables a command opens. It is made once, between parsing and what the command does."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from timebeam.pipelines.options.catalogue import TO, chosen, layout_parameters, plugin_parameters
from timebeam.pipelines.options.parameters import (
    DECLARED,
    UsageError,
    flag,
    given_as,
    parsed_file,
    text_of,
    usage_errors,
)
from timebeam.pipelines.options.profiles import setting_text
from timebeam.schema.core.contract import ReadableStore, Store
from timebeam.schema.core.rows import TableSpec
from timebeam.schema.stores import MissingAbilityError, as_opentsdb, find_opentsdb, make_store, missing
from timebeam.transforms.bigtable.target import EMULATOR_VARIABLE, Target

if TYPE_CHECKING:
    from timebeam.schema.rollup.rollup_config import RollupConfig
    from timebeam.schema.stores import OpenTsdb
    from timebeam.schema.stores.declared.declaration import Declaration, TableLayout
    from timebeam.schema.stores.declared.layout import DeclaredTables

T = TypeVar("T")

_BESIDE = ("zone", "overflow_tag", "drop_tags", "keep_tags")
"""Options of commands that are settings of the store too."""


def _before(option: str) -> str:
    """What the names of a layout's options begin with, where `option` names the layout."""
    return TO if option == "to" else ""


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Which tables a command opens: an instance, a store with its settings, and a prefix of table names.

    All attributes are plain values, so that a place can be handed to another process.

    Attributes:
      layout: the name of the store, or `table` for declared tables; empty if neither an option nor the stored
        settings say it.
      settings: what the layout's own options are, by name; those that are missing have their defaults.
      project, instance, app_profile: as the options say; see `target`.
      tables: the file that declares tables; None for that which is stored.
      stored_tables: the text of the declaration that is stored with the tables; None if there is none.
      origins: where the value of each of these comes from, by its name.
      also: further words for `create_command`, for what the command needs beside the tables of the layout.
      option: the option that names the layout: `layout`, or of `copy` `from` or `to`.
      emulator: HOST:PORT, as of `Target`.
    """

    layout: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    table_prefix: str = ""
    project: str | None = None
    instance: str | None = None
    app_profile: str | None = None
    tables: str | None = None
    stored_tables: str | None = None
    origins: Mapping[str, str] = dataclasses.field(default_factory=dict)
    also: Sequence[str] = ()
    option: str = "layout"
    emulator: str | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any], origins: Mapping[str, str], option: str = "layout") -> Self:
        """The place that parsed values describe.

        Args:
          values: of the options, by name.
          origins: where each of them comes from.
          option: see `Place`.
        """
        before = _before(option)
        plugin = plugin_parameters("layout", [values.get(option) or ""])
        names = [*(parameter.name for parameter in (*layout_parameters()[2:], *plugin)), *_BESIDE]
        own_names = ["table_prefix", *names, *(() if before else ("tables",))]
        return cls(
            values.get(option) or "",
            {name: values[before + name] for name in names if before + name in values},
            values.get(before + "table_prefix") or "",
            values.get("project"),
            values.get("instance"),
            values.get("app_profile"),
            None if before else values.get("tables"),
            None if before else values.get("stored_tables"),
            {name: origins[before + name] for name in own_names if before + name in origins},
            _created(values),
            option,
        )

    def flag(self, name: str) -> str:
        """How an option of the layout is written on the command line."""
        return flag(_before(self.option) + name)

    def in_force(self) -> tuple[dict[str, Any], dict[str, str]]:
        """(the values of the options that describe the place, their origins), by the names of the options."""
        before, origins = _before(self.option), dict(self.origins)
        chosen = {self.option: origins.pop("layout")} if "layout" in origins else {}
        values = {before + name: setting for name, setting in self.settings.items()}
        origins = {before + name: origin for name, origin in origins.items()} | chosen
        return values | {self.option: self.layout or None, "stored_tables": self.stored_tables}, origins

    def with_settings(self, **settings: Any) -> Self:
        """The same place with other values of some settings."""
        return dataclasses.replace(self, settings={**self.settings, **settings})

    def creating(self, *words: str) -> Self:
        """The same place, whose `create_command` has these words too."""
        return dataclasses.replace(self, also=[*dict.fromkeys((*self.also, *words))])

    @property
    def target(self) -> Target:
        """The Bigtable instance.

        Raises:
          UsageError: none is named, and no emulator is configured; or the emulator's address is none.
        """
        how = "set it as `timebeam emulator` prints"
        emulator = self.emulator or emulator_address(EMULATOR_VARIABLE, how)
        local = "local" if emulator else None
        project, instance = self.project or local, self.instance or local
        if not project or not instance:
            raise UsageError(
                "give --project and --instance, or start a local Bigtable (`timebeam emulator`) and set "
                f"{EMULATOR_VARIABLE} as it prints"
            )
        return Target(project, instance, self.app_profile, emulator=self.emulator)

    @property
    def store(self) -> Store:
        """The store of series.

        Raises:
          UsageError: a setting is out of its range, or the layout is that of declared tables.
        """
        if self.layout == DECLARED:
            raise UsageError(
                f"layout {DECLARED}: this command does not support declared tables; `tables`, `ingest`, "
                "`replay`, `query`, `serve`, `series`, `check`, `copy --from`, `rollup` and `layout` do"
            )
        return layout_named(self.layout, {**self.settings, "table_prefix": self.table_prefix})

    def any_store(self, *, reading: bool = False) -> ReadableStore:
        """The store whose tables a command looks after: one of series, or declared tables.

        Args:
          reading: see `declaration`.

        Raises:
          UsageError: see `store`; or a declaration is wrong.
        """
        if self.layout == DECLARED:
            return declared_tables(self.declaration(reading=reading), self.target if reading else None)
        return self.store

    def readable(self, *, apart: bool = False) -> ReadableStore:
        """The store whose points a command reads: one of series, or declared tables with points.

        Tables that do not tell readings apart are readable: see `declaration`.

        Args:
          apart: see `declared_tables`.

        Raises:
          UsageError: see `store`; or a declaration is wrong, or says of no table how it reads as points.
        """
        if self.layout == DECLARED:
            return self.declared_points(self.declaration(reading=True), apart=apart)
        return self.store

    def declared_points(self, declaration: Declaration, *, apart: bool = False) -> ReadableStore:
        """The tables of a declaration, at least one of which has points.

        Raises:
          UsageError: the declaration says of no table how it reads as points.
        """
        layout = declared_tables(declaration, self.target, apart=apart)
        if not any(spec.holds_points for spec in layout.tables()):
            names = ", ".join(each.name for each in declaration.all_layouts)
            raise UsageError(
                f"{declaration.file_name} declares no points: add [layout.NAME.points] with metric and "
                f"value, or read records: `timebeam query TABLE --layout {DECLARED}`, TABLE one of {names}"
            )
        return layout

    def declaration(self, *, reading: bool = False) -> Declaration:
        """The declaration, its tables with their prefix; its warnings go to standard error.

        Args:
          reading: the command writes nothing into the tables (or only deletes), so that a layout that does
            not tell readings apart is a warning.

        Raises:
          UsageError: no file is given, or it is wrong.
        """
        from timebeam.schema.stores.declared.language.load_declaration import DeclarationError, load

        try:
            declaration = load(*self.declaration_text(), reading=reading)
        except DeclarationError as error:
            raise UsageError(*str(error).splitlines()) from error
        for warning in declaration.warnings:
            print(f"warning: {warning}", file=sys.stderr)
        return declaration.with_prefix(self.table_prefix)

    def declaration_text(self) -> tuple[str, str]:
        """(the declaration of tables, where it is from): of the file, or stored with the tables.

        Raises:
          UsageError: there is neither.
        """
        if self.tables:
            return text_of(self.tables, "declaration of tables"), self.tables
        if self.stored_tables is None:
            raise UsageError(f"--layout {DECLARED} needs the file that declares the tables: --tables FILE")
        return self.stored_tables, self.origins.get("tables", "the stored declaration")

    def table_specs(self, *, reading: bool = False) -> Sequence[TableSpec]:
        """The tables of the layout, or of the declaration.

        Args:
          reading: see `declaration`.

        Raises:
          UsageError: a setting, or the declaration, is wrong.
        """
        if self.layout == DECLARED:
            return self.declaration(reading=reading).specs
        return self.store.tables()

    def ability(self, noun: str, find: Callable[[Store], T | None]) -> T:
        """What the store must have.

        Args:
          noun: what it must have, in words, for the error: "index tables".
          find: gives what a store has; None if it has it not.

        Raises:
          UsageError: see `store`; or it has it not.
        """
        ability = find(self.store) if self.layout != DECLARED else None
        if ability is None:
            raise UsageError(str(missing(self.layout, noun, find)))
        return ability

    def opentsdb(self, noun: str) -> OpenTsdb:
        """The store as OpenTSDB's, for what only OpenTSDB has.

        Args:
          noun: what is asked for, for the error: "annotations".

        Raises:
          UsageError: see `store`; or it is another store.
        """
        return self.ability(noun, find_opentsdb)

    def rollups(self, path: str) -> tuple[OpenTsdb, RollupConfig]:
        """(the store, the rollup configuration in a file).

        Raises:
          UsageError: the store has no rollups, or the configuration is not of its tables.
        """
        layout, config = self.opentsdb("rollup tables"), read_config(path)
        raw = self.table_prefix + config.default.table
        if raw != layout.data_table:
            raise UsageError(
                f"intervals: the default interval's table is {config.default.table}, with --table-prefix "
                f"{raw}; the raw points are in {layout.data_table}"
            )
        return layout, config

    def create_command(self, action: str = "create") -> str:
        """What a user runs to create the tables: with all stored settings that are not defaults.

        Args:
          action: another one of `timebeam tables`.
        """
        values = {**self.settings, "table_prefix": self.table_prefix, "tables": self.tables}
        own = *chosen("", "Layout: table_prefix *stored"), *plugin_parameters("layout", [self.layout])
        defaults = {each.name: each.default for each in own} | {"tables": None}
        words = [
            given_as(name, setting_text(values[name]))
            for name, default in defaults.items()
            if values.get(name, default) != default
        ]
        if self.settings.get("marked_since") and not any("--rollup-config" in word for word in self.also):
            words.append("--rollup-config FILE")
        return " ".join([f"timebeam tables {action} --layout {self.layout}", *words, *self.also])


def _created(values: Mapping[str, Any]) -> list[str]:
    """The words of `timebeam tables create` for what a command needs beside the tables of the layout."""
    words = []
    if values.get("rollup_config"):
        words.append(f"--rollup-config {shlex.quote(values['rollup_config'])}")
    elif values.get("mark_changed"):
        words.append("--rollup-config FILE")
    if values.get("meta", "off") not in ("off", False):
        words.append("--meta")
    if values.get("trees"):
        words.append("--trees")
    limits = ("max_new_series", "max_series", "max_tag_values", "max_all_series")
    if any(values.get(name) not in (None, []) for name in limits):
        words.append("--series-limits")
    return words


def required_opentsdb(store: ReadableStore, noun: str) -> OpenTsdb:
    """A store as OpenTSDB's, for what the options ask for and only OpenTSDB has.

    Raises:
      UsageError: it is another store.
    """
    with usage_errors(MissingAbilityError):
        return as_opentsdb(store, noun)


def read_config(path: str) -> RollupConfig:
    """The rollup configuration in a file; raises UsageError."""
    from timebeam.schema.rollup.config_json import parse_config

    return parsed_file(path, "rollup configuration", parse_config)


def layout_named(name: str, settings: Mapping[str, Any]) -> Store:
    """The store of a name, with those of the settings that are its own.

    Raises:
      UsageError: a value is out of its range.
    """
    with usage_errors():
        return make_store(name, settings)


def declared_tables(
    declaration: Declaration, target: Target | None = None, *, apart: bool = False
) -> DeclaredTables:
    """The tables of a declaration as a layout.

    Args:
      target: where its tables per day are; None if they are not read.
      apart: whether each copy of a point in tables per day is read by itself.
    """
    from timebeam.schema.stores.declared import layout  # imports pyarrow

    if target is None:
        return layout.DeclaredTables(declaration)
    from timebeam.transforms.bigtable.existing_tables import recent_table_names  # imports Google's clients

    return layout.DeclaredTables(declaration, functools.partial(recent_table_names, target), apart)


def declared_layouts(text: str, name: str) -> Sequence[TableLayout]:
    """The layouts that the text of a declaration has, also such as can only be read.

    Args:
      name: where the text is from.

    Raises:
      ValueError: it is wrong.
    """
    from timebeam.schema.stores.declared.language.load_declaration import load

    return load(text, name, reading=True).all_layouts


_ADDRESS = re.compile(r"(?:\w+://)?([^\s/@]*:[0-9]{1,5})/*")


def emulator_address(variable: str, how: str) -> str | None:
    """HOST:PORT of the emulator that an environment variable names; None if it is not set.

    Args:
      how: what to do if it is something else.

    Raises:
      UsageError: it is something else, such as an URL.
    """
    address = os.environ.get(variable)
    match = _ADDRESS.fullmatch(address or "")
    if not address or (match and match[1] == address):
        return address or None
    raise UsageError(
        f"{variable}={address} is not HOST:PORT: " + (f"did you mean {match[1]}?" if match else how)
    )
