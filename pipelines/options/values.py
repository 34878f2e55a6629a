"""What the options of a command mean: layouts, tables, places."""

from __future__ import annotations

import argparse
import functools
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from timebeam.pipelines.options.catalogue import layout_parameters
from timebeam.pipelines.options.parameters import DECLARED, UsageError, parsed_file, text_of, usage_errors
from timebeam.pipelines.options.profiles import setting_text
from timebeam.schema.core.contract import ReadableStore, Store
from timebeam.schema.core.point_fragments import Packing
from timebeam.schema.core.rows import TableSpec
from timebeam.schema.rollup.rollup_config import RollupConfig
from timebeam.schema.stores import MissingAbilityError, as_opentsdb, find_opentsdb, make_store, missing
from timebeam.transforms.bigtable.target import EMULATOR_VARIABLE, Target

if TYPE_CHECKING:
    from timebeam.schema.stores import OpenTsdb
    from timebeam.schema.stores.declared.declaration import Declaration, TableLayout
    from timebeam.schema.stores.declared.layout import DeclaredTables

T = TypeVar("T")


def layout_of(options: argparse.Namespace) -> Store:
    """The layout that the options describe.

    Raises:
      UsageError: a value is out of its range, or the layout is that of declared tables.
    """
    if options.layout == DECLARED:
        raise UsageError(
            f"layout {DECLARED}: this command does not support declared tables; `tables`, `ingest`, "
            "`replay`, `query`, `serve`, `series`, `check`, `copy --from`, `rollup` and `layout` do"
        )
    return layout_named(options.layout, vars(options))


def store_of(options: argparse.Namespace, *, reading: bool = False) -> ReadableStore:
    """The layout whose tables a command looks after: one of series, or declared tables.

    Args:
      reading: see `declaration_of`.

    Raises:
      UsageError: see `layout_of`; or a declaration is wrong.
    """
    if options.layout == DECLARED:
        return declared_tables(
            declaration_of(options, reading=reading), target_of(options) if reading else None
        )
    return layout_of(options)


def readable_of(options: argparse.Namespace, *, apart: bool = False) -> ReadableStore:
    """The layout whose points a command reads: one of series, or declared tables with points.

    Tables that do not tell readings apart are readable: see `declaration_of`.

    Args:
      apart: see `declared_tables`.

    Raises:
      UsageError: see `layout_of`; or a declaration is wrong, or says of no table how it reads as points.
    """
    if options.layout == DECLARED:
        return declared_points(options, declaration_of(options, reading=True), apart=apart)
    return layout_of(options)


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


def declared_points(
    options: argparse.Namespace, declaration: Declaration, *, apart: bool = False
) -> ReadableStore:
    """The tables of a declaration, at least one of which has points.

    Raises:
      UsageError: the declaration says of no table how it reads as points.
    """
    layout = declared_tables(declaration, target_of(options), apart=apart)
    if not any(spec.holds_points for spec in layout.tables()):
        names = ", ".join(each.name for each in declaration.all_layouts)
        raise UsageError(
            f"{declaration.file_name} declares no points: add [layout.NAME.points] with metric and value, or "
            f"read records: `timebeam query TABLE --layout {DECLARED}`, TABLE one of {names}"
        )
    return layout


def layout_named(name: str, options: Mapping[str, Any]) -> Store:
    """The layout of a name, with those of the options that are its own.

    Raises:
      UsageError: a value is out of its range.
    """
    with usage_errors():
        return make_store(name, options)


def layout_with(options: argparse.Namespace, noun: str, find: Callable[[Store], T | None]) -> T:
    """What the store that the options describe must have.

    Args:
      noun: what it must have, in words, for the error: "index tables".
      find: gives what a store has; None if it has it not.

    Raises:
      UsageError: see `layout_of`; or it has it not.
    """
    found = find(layout_of(options)) if options.layout != DECLARED else None
    if found is None:
        raise UsageError(str(missing(options.layout, noun, find)))
    return found


def opentsdb_of(options: argparse.Namespace, noun: str) -> OpenTsdb:
    """The store that the options describe, as OpenTSDB's, for what only OpenTSDB has.

    Args:
      noun: what is asked for, for the error: "annotations".

    Raises:
      UsageError: see `layout_of`; or it is another store.
    """
    return layout_with(options, noun, find_opentsdb)


def required_opentsdb(store: ReadableStore, noun: str) -> OpenTsdb:
    """A store as OpenTSDB's, for what the options ask for and only OpenTSDB has.

    Raises:
      UsageError: it is another store.
    """
    with usage_errors(MissingAbilityError):
        return as_opentsdb(store, noun)


def declaration_of(options: argparse.Namespace, *, reading: bool = False) -> Declaration:
    """The declaration that the options name, its tables with their prefix; its warnings go to standard error.

    Args:
      reading: the command writes nothing into the tables (or only deletes), so that a layout that does not
        tell readings apart is a warning.

    Raises:
      UsageError: no file is given, or it is wrong.
    """
    from timebeam.schema.stores.declared.language.load_declaration import DeclarationError, load

    try:
        declaration = load(*declaration_text(options), reading=reading)
    except DeclarationError as error:
        raise UsageError(*str(error).splitlines()) from error
    for warning in declaration.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return declaration.with_prefix(options.table_prefix)


def declaration_text(options: argparse.Namespace) -> tuple[str, str]:
    """(the declaration of tables, where it is from): of the file, or stored with the tables.

    Raises:
      UsageError: there is neither.
    """
    if options.tables:
        return text_of(options.tables, "declaration of tables"), options.tables
    text = getattr(options, "stored_tables", None)
    if text is None:
        raise UsageError(f"--layout {DECLARED} needs the file that declares the tables: --tables FILE")
    return text, options.origins["tables"]


def tables_of(options: argparse.Namespace, *, reading: bool = False) -> Sequence[TableSpec]:
    """The tables of the layout, or of the declaration, that the options describe.

    Args:
      reading: see `declaration_of`.

    Raises:
      UsageError: an option, or the declaration, is wrong.
    """
    if options.layout == DECLARED:
        return declaration_of(options, reading=reading).specs
    return layout_of(options).tables()


def read_config(path: str) -> RollupConfig:
    """The configuration in a file; raises UsageError."""
    from timebeam.schema.rollup.config_json import parse_config

    return parsed_file(path, "rollup configuration", parse_config)


def rollups_of(options: argparse.Namespace) -> tuple[OpenTsdb, RollupConfig]:
    """The layout and the rollup configuration that the options name.

    Raises:
      UsageError: the layout has no rollups, or the configuration is not of its tables.
    """
    layout = opentsdb_of(options, "rollup tables")
    config = read_config(options.rollup_config)
    raw = layout.options.table_prefix + config.default.table
    if raw != layout.data_table:
        raise UsageError(
            f"intervals: the default interval's table is {config.default.table}, with --table_prefix {raw}; "
            f"the raw points are in {layout.data_table}"
        )
    return layout, config


def check_writer(options: argparse.Namespace, packing: Packing) -> None:
    """Raises UsageError if the writer cannot do what is asked of it."""
    if options.app_profile and options.bigtable_writer == "beam" and packing is not Packing.APPEND:
        raise UsageError(
            "Beam's writer does not support app profiles: leave out --bigtable_writer beam, or --app_profile"
        )


def dead_letters_of(place: str, run_ms: int) -> str:
    """Where the dead letters of a run go: a topic, or how names of files begin, the run's time in them.

    Raises:
      UsageError: the name of a topic cannot be one.
    """
    from timebeam.transforms.dead_letters.letter_files import TOPIC, has_project_id  # imports Beam

    if TOPIC.fullmatch(place):
        if not has_project_id(place) and not os.environ.get("PUBSUB_EMULATOR_HOST"):
            raise UsageError(
                f"--dead_letters {place}: Google Cloud has no project name of this form; for an emulator set "
                "PUBSUB_EMULATOR_HOST"
            )
        return place
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(run_ms / 1000))
    return f"{place}-{stamp}{run_ms % 1000:03d}"


def target_of(options: argparse.Namespace) -> Target:
    """The Bigtable instance that the options name.

    Raises:
      UsageError: none is named, and no emulator is configured; or the emulator's address is none.
    """
    emulator = emulator_address(EMULATOR_VARIABLE, "set it as `timebeam emulator` prints")
    local = "local" if emulator else None
    project, instance = options.project or local, options.instance or local
    if not project or not instance:
        raise UsageError(
            "give --project and --instance, or start a local Bigtable (`timebeam emulator`) and set "
            f"{EMULATOR_VARIABLE} as it prints"
        )
    return Target(project, instance, options.app_profile)


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


def create_command(options: argparse.Namespace, action: str = "create") -> str:
    """What a user runs to create the tables that the options describe: with all options of layouts given.

    Args:
      action: another one of `timebeam tables`.
    """
    command = f"timebeam tables {action} --layout {options.layout}"
    defaults = {each.name: each.default for each in layout_parameters()[1:]} | {"tables": None}
    for name, default in defaults.items():
        value = getattr(options, name, default)
        if value != default:
            command += f" --{name} {shlex.quote(setting_text(value))}"
    if getattr(options, "rollup_config", None):
        command += f" --rollup_config {shlex.quote(options.rollup_config)}"
    elif getattr(options, "mark_touched", False) or getattr(options, "marked_since", ""):
        command += " --rollup_config FILE"
    if getattr(options, "meta", "off") not in ("off", False):
        command += " --meta"
    if getattr(options, "trees", False):
        command += " --trees"
    if any(
        getattr(options, name, None) not in (None, [])
        for name in ("max_new_series", "max_series", "max_tag_values", "max_all_series")
    ):
        command += " --series_limits"
    return command
