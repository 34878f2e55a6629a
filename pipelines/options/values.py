"""What the options of a command mean, for functions that still take them as a namespace; see `Place`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from timebeam.pipelines.options.place import (
    Place,
    declared_layouts,
    declared_tables,
    emulator_address,
    layout_named,
    read_config,
    required_opentsdb,
)
from timebeam.schema.core.contract import ReadableStore, Store
from timebeam.schema.core.rows import TableSpec
from timebeam.schema.rollup.rollup_config import RollupConfig
from timebeam.transforms.bigtable.target import Target

if TYPE_CHECKING:
    from timebeam.schema.stores import OpenTsdb
    from timebeam.schema.stores.declared.declaration import Declaration

T = TypeVar("T")

__all__ = [
    "declared_layouts",
    "declared_tables",
    "emulator_address",
    "layout_named",
    "read_config",
    "required_opentsdb",
]


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


def rollups_of(place: Place, path: str) -> tuple[OpenTsdb, RollupConfig]:
    """See `Place.rollups`."""
    return place.rollups(path)


def use_stored(options: argparse.Namespace, *, replaces: bool = False) -> None:
    """See `open_place`."""
    from timebeam.pipelines.options.use_settings import open_place

    values, origins = open_place(place_of(options), replaces=replaces).in_force()
    vars(options).update(values)
    options.origins.update(origins)
