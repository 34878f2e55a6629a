"""What the options of a command mean, for functions that still take them as a namespace; see `Place`."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from timebeam.pipelines.options.parameters import UsageError, parsed_file, usage_errors
from timebeam.pipelines.options.place import (
    Place,
    declared_layouts,
    declared_tables,
    emulator_address,
    layout_named,
)
from timebeam.schema.core.contract import ReadableStore, Store
from timebeam.schema.core.point_fragments import Packing
from timebeam.schema.core.rows import TableSpec
from timebeam.schema.rollup.rollup_config import RollupConfig
from timebeam.schema.stores import MissingAbilityError, as_opentsdb
from timebeam.transforms.bigtable.target import Target

if TYPE_CHECKING:
    from timebeam.schema.stores import OpenTsdb
    from timebeam.schema.stores.declared.declaration import Declaration

T = TypeVar("T")

__all__ = ["declared_layouts", "declared_tables", "emulator_address", "layout_named"]


def place_of(options: argparse.Namespace) -> Place:
    """The place that options describe."""
    return Place.of(vars(options), getattr(options, "origins", {}))


def layout_of(options: argparse.Namespace) -> Store:
    """See `Place.store`."""
    return place_of(options).store


def store_of(options: argparse.Namespace, *, reading: bool = False) -> ReadableStore:
    """See `Place.any_store`."""
    return place_of(options).any_store(reading=reading)


def readable_of(options: argparse.Namespace, *, apart: bool = False) -> ReadableStore:
    """See `Place.readable`."""
    return place_of(options).readable(apart=apart)


def declared_points(
    options: argparse.Namespace, declaration: Declaration, *, apart: bool = False
) -> ReadableStore:
    """See `Place.declared_points`."""
    return place_of(options).declared_points(declaration, apart=apart)


def layout_with(options: argparse.Namespace, noun: str, find: Callable[[Store], T | None]) -> T:
    """See `Place.ability`."""
    return place_of(options).ability(noun, find)


def opentsdb_of(options: argparse.Namespace, noun: str) -> OpenTsdb:
    """See `Place.opentsdb`."""
    return place_of(options).opentsdb(noun)


def declaration_of(options: argparse.Namespace, *, reading: bool = False) -> Declaration:
    """See `Place.declaration`."""
    return place_of(options).declaration(reading=reading)


def declaration_text(options: argparse.Namespace) -> tuple[str, str]:
    """See `Place.declaration_text`."""
    return place_of(options).declaration_text()


def tables_of(options: argparse.Namespace, *, reading: bool = False) -> Sequence[TableSpec]:
    """See `Place.table_specs`."""
    return place_of(options).table_specs(reading=reading)


def target_of(options: argparse.Namespace) -> Target:
    """See `Place.target`."""
    return place_of(options).target


def create_command(options: argparse.Namespace, action: str = "create") -> str:
    """See `Place.create_command`."""
    return place_of(options).create_command(action)


def required_opentsdb(store: ReadableStore, noun: str) -> OpenTsdb:
    """A store as OpenTSDB's, for what the options ask for and only OpenTSDB has.

    Raises:
      UsageError: it is another store.
    """
    with usage_errors(MissingAbilityError):
        return as_opentsdb(store, noun)


def read_config(path: str) -> RollupConfig:
    """The configuration in a file; raises UsageError."""
    from timebeam.schema.rollup.config_json import parse_config

    return parsed_file(path, "rollup configuration", parse_config)


def rollups_of(place: Place, path: str) -> tuple[OpenTsdb, RollupConfig]:
    """The store of a place, and the rollup configuration in a file.

    Raises:
      UsageError: the layout has no rollups, or the configuration is not of its tables.
    """
    layout = place.opentsdb("rollup tables")
    config = read_config(path)
    raw = layout.options.table_prefix + config.default.table
    if raw != layout.data_table:
        raise UsageError(
            f"intervals: the default interval's table is {config.default.table}, with --table-prefix {raw}; "
            f"the raw points are in {layout.data_table}"
        )
    return layout, config


def check_writer(options: argparse.Namespace, packing: Packing) -> None:
    """Raises UsageError if the writer cannot do what is asked of it."""
    if options.app_profile and options.bigtable_writer == "beam" and packing is not Packing.APPEND:
        raise UsageError(
            "Beam's writer does not support app profiles: leave out --bigtable-writer beam, or --app-profile"
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
                f"--dead-letters {place}: Google Cloud has no project name of this form; for an emulator set "
                "PUBSUB_EMULATOR_HOST"
            )
        return place
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(run_ms / 1000))
    return f"{place}-{stamp}{run_ms % 1000:03d}"
