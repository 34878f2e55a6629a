"""What the options of a command mean: layouts, formats, tables, places."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from apache_beam.io.filesystems import FileSystems
from apache_beam.io.gcp.pubsub import parse_topic

from pipelines.parameters import DECLARED, FORMAT, LAYOUT, RECORDS, TABLES, UsageError, boolean
from schema.declared.loader import DeclarationError, load
from schema.declared.model import Declaration
from schema.declared.rows import tables as declared_tables
from schema.layouts import LAYOUTS, Layout, Packing, TableSpec
from schema.messages import Framing, message_format
from transforms.bigtable.target import EMULATOR_VARIABLE, Target
from transforms.dead_letters import TOPIC


def format_of(options: argparse.Namespace) -> tuple[dict[str, Any], Framing]:
    """The options of the message format by name, and how its files are cut.

    Raises:
      UsageError: an option makes no sense.
    """
    own = {parameter.name: getattr(options, parameter.name) for parameter in FORMAT}
    if options.format == RECORDS:
        raise UsageError(
            f"--format {RECORDS} is for tables that you declare: --layout {DECLARED} --tables FILE"
        )
    try:
        framing = message_format(options.format, own).framing
    except ValueError as error:
        raise UsageError(str(error)) from error
    return own, framing


def text_of(path: str, what: str) -> str:
    """The text of a file, local or of any file system that Beam knows.

    Args:
      what: the file is to be, for the message.

    Raises:
      UsageError: it cannot be read, or is not UTF-8.
    """
    try:
        with FileSystems.open(path) as file:
            return str(file.read(), "utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the {what} {path}: {error}") from error


def layout_of(options: argparse.Namespace) -> Layout:
    """The layout that the options describe.

    Raises:
      UsageError: a value is out of its range, or the layout is that of declared tables.
    """
    if options.layout == DECLARED:
        raise UsageError(
            f"layout {DECLARED}: declared tables hold records and no series; they are for `tables create`, "
            "`ingest` of files, and `layout`, not for this"
        )
    return layout_named(options.layout, vars(options))


def layout_named(name: str, options: Mapping[str, Any]) -> Layout:
    """The layout of a name, with those of the options that are its own.

    Raises:
      UsageError: a value is out of its range.
    """
    try:
        return LAYOUTS[name].from_options(options)
    except ValueError as error:
        raise UsageError(str(error)) from error


def declaration_of(options: argparse.Namespace) -> Declaration:
    """The declaration that the options name, its tables with their prefix; its warnings go to standard error.

    Raises:
      UsageError: no file is given, or it is wrong.
    """
    if not options.tables:
        raise UsageError(f"--layout {DECLARED} needs the file that declares the tables: --tables FILE")
    try:
        with FileSystems.open(options.tables) as file:
            declaration = load(str(file.read(), "utf-8"), options.tables)
    except UnicodeDecodeError as error:
        raise UsageError(f"{options.tables} is not UTF-8: {error}") from error
    except DeclarationError as error:
        raise UsageError(str(error)) from error
    for warning in declaration.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return declaration.with_prefix(options.table_prefix)


def tables_of(options: argparse.Namespace) -> Sequence[TableSpec]:
    """The tables of the layout, or of the declaration, that the options describe.

    Raises:
      UsageError: an option, or the declaration, is wrong.
    """
    if options.layout == DECLARED:
        return declared_tables(declaration_of(options))
    return layout_of(options).tables()


def check_writer(options: argparse.Namespace, packing: Packing) -> None:
    """Raises UsageError if the writer cannot do what is asked of it."""
    if options.app_profile and options.bigtable_writer == "beam" and packing is not Packing.APPEND:
        raise UsageError(
            "Beam's writer knows no app profile: add --bigtable_writer direct, or leave --app_profile out"
        )


def letters_of(options: argparse.Namespace, run_ms: int) -> str:
    """Where the dead letters of a run go: a topic, or how names of files begin, the run's time in them.

    Raises:
      UsageError: the name of a topic cannot be one.
    """
    place = str(options.dead_letters)
    if TOPIC.fullmatch(place):
        try:
            parse_topic(place)
        except ValueError as error:
            raise UsageError(f"--dead_letters: {error}") from error
        return place
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(run_ms / 1000))
    return f"{place}-{stamp}{run_ms % 1000:03d}"


def target_of(options: argparse.Namespace) -> Target:
    """The Bigtable instance that the options name.

    Raises:
      UsageError: none is named, and no emulator is configured.
    """
    local = "local" if os.environ.get(EMULATOR_VARIABLE) else None
    project, instance = options.project or local, options.instance or local
    if not project or not instance:
        raise UsageError(
            "give --project and --instance, or start a local Bigtable (`timebeam emulator`) and set "
            f"{EMULATOR_VARIABLE} as it prints"
        )
    return Target(project, instance, options.app_profile)


def create_command(options: argparse.Namespace) -> str:
    """What a user runs to create the tables that the options describe: with all options of layouts given."""
    command = f"timebeam tables create --layout {options.layout}"
    for parameter in (*LAYOUT[1:], TABLES):
        value = getattr(options, parameter.name, parameter.default)
        if value != parameter.default:
            text = str(value).lower() if parameter.kind is boolean else str(value)
            command += f" --{parameter.name} {shlex.quote(text)}"
    if getattr(options, "mark_touched", False):
        command += " --rollup_config FILE"
    if getattr(options, "meta", "off") not in ("off", False):
        command += " --meta"
    if getattr(options, "trees", False):
        command += " --trees"
    return command
