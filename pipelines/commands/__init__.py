"""The commands of `timebeam`: what each is called, and the module that declares its options."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from timebeam.pipelines.options.command_line import Command

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
