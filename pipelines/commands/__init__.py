"""The commands of `timebeam`: what each is called, the module that declares its options, and how its
function is called."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import inspect
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from timebeam.pipelines.options.command_line import Command
    from timebeam.pipelines.options.place import Place

T = TypeVar("T")

_DECLARED = {
    "init": ("setup", "write a settings file for this folder"),
    "config": ("setup", "show every setting and where it comes from"),
    "emulator": ("setup", "run a local Bigtable emulator"),
    "tables": ("setup", "create or adopt tables, show and set retention"),
    "ingest": ("ingest_and_query", "store points from files or Pub/Sub"),
    "replay": ("ingest_and_query", "ingest dead letters again"),
    "generate": ("setup", "make test points, into a file or Pub/Sub"),
    "query": ("ingest_and_query", "read and aggregate points, as OpenTSDB does"),
    "serve": ("ingest_and_query", "serve OpenTSDB's read API over HTTP, or take points from producers"),
    "series": ("ingest_and_query", "list series by pattern"),
    "suggest": ("ingest_and_query", "list metrics, tag keys or tag values by prefix"),
    "names": ("upkeep", "list, rename, merge, free and fix OpenTSDB's names"),
    "cardinality": ("upkeep", "show which metrics and tags have the most series"),
    "meta": ("upkeep", "create OpenTSDB's metadata from the data table"),
    "trees": ("upkeep", "build and show OpenTSDB's trees"),
    "copy": ("ingest_and_query", "copy points from one layout to another"),
    "export": ("ingest_and_query", "write points as Parquet files, by day"),
    "delete": ("upkeep", "delete points, after a dry run"),
    "reindex": ("upkeep", "rebuild index tables from the data rows"),
    "rollup": ("upkeep", "make rollups and pre-aggregates"),
    "compact": ("upkeep", "merge the cells of each row of closed hours"),
    "archive": ("upkeep", "move closed hours into the archive"),
    "check": ("setup", "verify that rows decode and UIDs are consistent"),
    "plan": ("setup", "estimate rows, bytes and nodes for a load"),
    "layout": ("setup", "check declared tables, plot writes per key range"),
    "completion": ("setup", "print a completion script for bash, zsh or fish"),
}

COMMANDS = {name: summary for name, (_, summary) in _DECLARED.items()}
"""What `timebeam --help` says of each command."""


PLUGIN_COMMANDS = ("ingest", "replay", "query", "check", "copy", "tables")
"""The commands that take a store of another package."""


def find_command(name: str) -> Command:
    """The declaration of a command: NAME_COMMAND of its module.

    Raises:
      KeyError: there is no such command.
    """
    module = importlib.import_module(f"{__name__}.{_DECLARED[name][0]}")
    command: Command = getattr(module, f"{name.upper()}_COMMAND")
    return command


def named(name: str) -> Callable[..., Any]:
    """The function that MODULE:FUNCTION names."""
    module, _, function = name.partition(":")
    named: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return named


def call(function: Callable[..., Any], options: argparse.Namespace, **supplied: Any) -> Any:
    """Calls the function of a command with what its parameters name; returns what it returns.

    - `options`: a dataclass declared in the module of the function, see `options_from`;
    - `now_ms`: the time in ms since 1970;
    - any of those `supplied`: `place` (of `copy`, `source` and `sink`), `runner`.
    """
    arguments = {"now_ms": int(time.time() * 1000), **supplied}
    names = inspect.signature(function).parameters
    if "options" in names:
        kind = vars(importlib.import_module(function.__module__))[names["options"].annotation]
        arguments["options"] = options_from(kind, vars(options))
    return function(**{name: arguments[name] for name in names})


def options_from(kind: type[T], values: Mapping[str, Any]) -> T:
    """A dataclass out of the values of options, by its fields; `format_options` are those of all formats."""
    fields = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    chosen = {name: values[name] for name in fields if name in values}
    if "format_options" in fields:
        from timebeam.pipelines.options.catalogue import format_parameters, plugin_parameters

        formats = {
            name for text in (values.get("format", ""), *values["formats"]) for name in text.split(",")
        }
        names = [each.name for each in (*format_parameters(), *plugin_parameters("format", formats))]
        chosen["format_options"] = {name: values[name] for name in names if name in values}
    return kind(**chosen)


def places(command: Command, options: argparse.Namespace, *, opens: bool = True) -> dict[str, Place]:
    """The places of a command, by the names of the parameters that take them; none if it has no tables.

    The options take what the stored settings say, as the places do.

    Args:
      opens: whether the places are compared with the stored settings.

    Raises:
      UsageError, BigtableError: see `open_place`.
    """
    named_layouts = command.opened_layouts or [name for name in ("layout",) if hasattr(options, name)]
    if not named_layouts:
        return {}
    from timebeam.pipelines.options.place import Place

    names = ("place",) if len(named_layouts) == 1 else ("source", "sink")
    opened = {
        name: Place.of(vars(options), options.origins, option)
        for name, option in zip(names, named_layouts, strict=True)
    }
    if not opens or not command.opened_layouts or getattr(options, "write_only", False):
        return opened
    from timebeam.pipelines.options.catalogue import is_plugin
    from timebeam.pipelines.options.parameters import UsageError
    from timebeam.pipelines.options.use_settings import open_place

    for name, place in opened.items():
        opened[name] = open_place(
            place,
            takes_archive=command.takes_archive,
            checks_later=getattr(options, "preflight", False),
        )
        if command.name not in PLUGIN_COMMANDS and is_plugin("layout", opened[name].layout):
            raise UsageError(
                f"store {opened[name].layout} has no {command.name}: stores of other packages are "
                f"experimental and work with {', '.join(PLUGIN_COMMANDS)}"
            )
        values, origins = opened[name].in_force()
        vars(options).update(values)
        options.origins.update(origins)
    return opened
