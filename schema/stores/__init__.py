"""Stores by name: each is imported when it is asked for; no other module knows all of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from timebeam.schema.core.declared_options import DeclaredOptions, Option
from timebeam.schema.core.plugins import STORE_GROUP, Plugin, find_plugin, own_options

if TYPE_CHECKING:  # numpy, and a store
    from timebeam.schema.core.contract import ReadableStore, Store
    from timebeam.schema.stores.opentsdb.layout import OpenTsdb as OpenTsdb

StoreName = Literal["opentsdb", "heroic", "heroic-readable", "kairosdb"]
"""The names of our own stores, as of --layout."""

_CLASSES: dict[StoreName, tuple[str, str, str]] = {
    "opentsdb": ("opentsdb", "OpenTsdb", "OpenTsdbOptions"),
    "heroic": ("heroic", "Heroic", "HeroicOptions"),
    "heroic-readable": ("heroic", "Heroic", "HeroicReadableOptions"),
    "kairosdb": ("kairosdb", "KairosDb", "KairosDbOptions"),
}
"""By the name of a store its package, its class, and its options in the module `options`."""

DECLARED = "table"
"""The layout of tables that a user declares: no `Store`, since records have no series."""

STORES: tuple[StoreName, ...] = get_args(StoreName)
"""The same as a tuple; stores of other packages are not among them."""


def store_plugin(name: str) -> Plugin | None:
    """The package that provides a store of this name, which is experimental; None if none of them does.

    Raises:
      PluginError: two packages have it.
    """
    return None if name in STORES or name == DECLARED else find_plugin(STORE_GROUP, name)


def _plugin_class(name: str) -> type[Store]:
    """The class of a store of another package, which is imported only now.

    Raises:
      ValueError: no store has this name.
      PluginError: two packages have it, or it cannot be imported.
    """
    plugin = store_plugin(name)
    if plugin is None:
        raise ValueError(f"unknown store {name!r}: choose one of {', '.join(STORES)}")
    from timebeam.schema.core.contract import Store

    return plugin.load(Store)  # type: ignore[type-abstract]


def _options(name: str) -> type[DeclaredOptions]:
    if name not in STORES:
        return _plugin_class(name).options_class
    package, _, class_name = _CLASSES[name]
    options = importlib.import_module(f"timebeam.schema.stores.{package}.options")
    found: type[DeclaredOptions] = getattr(options, class_name)
    return found


def make_store(name: str, options: Mapping[str, Any]) -> Store:
    """The store of a name, with those of the options that it declares or shares.

    Raises:
      ValueError: no store has this name, or a value is out of its range; the message names the option.
      PluginError: see `store_plugin`.
    """
    if name not in STORES:
        return _plugin_class(name)(_options(name).of(options))  # type: ignore[call-arg]
    package, class_name, _ = _CLASSES[name]
    module = importlib.import_module(f"timebeam.schema.stores.{package}.layout")
    store: Store = getattr(module, class_name)(_options(name).of(options))
    return store


def declared_options(name: str) -> tuple[Option, ...]:
    """The options of a store, without those that all share, such as `table_prefix`; imports little of it.

    Raises:
      ValueError: see `make_store`.
    """
    options = _options(name)
    return options.declared() if name in STORES else own_options(name, options, DeclaredOptions, "layout")


class MissingAbilityError(ValueError):
    """A store lacks what is asked of it."""


def missing(name: str, noun: str, find: Callable[[Store], object]) -> MissingAbilityError:
    """The error for a store that lacks what is asked of it, which names those that have it.

    >>> print(missing("opentsdb", "index tables", lambda store: store.index))
    layout opentsdb has no index tables; heroic, heroic-readable and kairosdb have

    Args:
      name: of the store.
      noun: what it lacks, in words.
      find: gives what a store has; None if it has it not.
    """
    able = [each for each in STORES if find(make_store(each, {})) is not None]
    names = " and ".join([", ".join(able[:-1]), able[-1]] if len(able) > 1 else able)
    hint = f"; {names} {'have' if len(able) > 1 else 'has'}" if able else ""
    return MissingAbilityError(f"layout {name} has no {noun}{hint}")


def find_opentsdb(store: ReadableStore) -> OpenTsdb | None:
    """The store, if it is OpenTSDB's; else None."""
    return cast("OpenTsdb", store) if store.name == "opentsdb" else None


def as_opentsdb(store: ReadableStore, noun: str) -> OpenTsdb:
    """The store as OpenTSDB's, for what only OpenTSDB has.

    Args:
      noun: what is asked for, for the error: "annotations".

    Raises:
      MissingAbilityError: it is another store.
    """
    if (found := find_opentsdb(store)) is None:
        raise missing(store.name, noun, find_opentsdb)
    return found
