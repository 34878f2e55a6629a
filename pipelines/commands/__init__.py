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
    "cardinality": ("upkeep", "show what has the most series"),
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
    "layout": ("setup", "explain declared tables, plot their key heat"),
    "completion": ("setup", "print a completion script for bash, zsh or fish"),
}

COMMANDS = {name: summary for name, (_, summary) in _DECLARED.items()}
"""What `timebeam --help` says of each command."""


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


def call(function: Callable[..., Any], command: Command, options: argparse.Namespace, **supplied: Any) -> Any:
    """Calls the function of a command with those of these that its parameters name; returns what it returns.

    - `options`: a dataclass declared in the module of the function, see `options_from`;
    - `place`: the `Place` of the options, or `source` and `sink`, those of a command with two;
    - `now_ms`: the time in ms since 1970, and `runner`, if they are `supplied`.
    """
    arguments = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in supplied:
            arguments[name] = supplied[name]
        elif name == "options":
            kind = vars(importlib.import_module(function.__module__)).get(parameter.annotation)
            arguments[name] = options if kind is None else options_from(kind, vars(options))
        elif name == "now_ms":
            arguments[name] = int(time.time() * 1000)
        else:
            arguments[name] = places(command, options)[name]
    return function(**arguments)


def options_from(kind: type[T], values: Mapping[str, Any]) -> T:
    """A dataclass out of values by the names of its fields."""
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    return kind(**{field.name: values[field.name] for field in fields if field.name in values})


def places(command: Command, options: argparse.Namespace) -> dict[str, Place]:
    """The places that options describe, by the name of the parameter that takes them."""
    from timebeam.pipelines.options.place import Place

    layouts = command.opened_layouts or (("layout", ""),)
    names = ("place",) if len(layouts) == 1 else ("source", "sink")
    origins = getattr(options, "origins", {})
    return {
        name: Place.of(vars(options), origins, layout, before)
        for name, (layout, before) in zip(names, layouts, strict=True)
    }
