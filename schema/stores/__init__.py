"""Stores by name: each is imported when it is asked for; no other module knows all of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from timebeam.schema.core.declared_options import DeclaredOptions, Option

if TYPE_CHECKING:  # numpy, and a store
    from timebeam.schema.core.contract import ReadableStore, Store
    from timebeam.schema.stores.opentsdb.layout import OpenTsdb as OpenTsdb

_CLASSES = {
    "opentsdb": ("opentsdb", "OpenTsdb", "OpenTsdbOptions"),
    "heroic": ("heroic", "Heroic", "HeroicOptions"),
    "heroic-readable": ("heroic", "Heroic", "HeroicReadableOptions"),
    "kairosdb": ("kairosdb", "KairosDb", "KairosDbOptions"),
}
"""By the name of a store, as of --layout, its package, its class, and its options in the module `options`."""

STORES = tuple(_CLASSES)
"""The names of the stores."""


def _options(name: str) -> type[DeclaredOptions]:
    package, _, class_name = _CLASSES[name]
    options = importlib.import_module(f"timebeam.schema.stores.{package}.options")
    found: type[DeclaredOptions] = getattr(options, class_name)
    return found


def make_store(name: str, options: Mapping[str, Any]) -> Store:
    """The store of a name, with those of the options that it declares or shares.

    Raises:
      ValueError: a value is out of its range; the message names the option.
    """
    package, class_name, _ = _CLASSES[name]
    module = importlib.import_module(f"timebeam.schema.stores.{package}.layout")
    store: Store = getattr(module, class_name)(_options(name).of(options))
    return store


def declared_options(name: str) -> tuple[Option, ...]:
    """The options of a store, without those that all share, such as `table_prefix`; imports little of it."""
    return _options(name).declared()


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
