"""`timebeam.open`: a database by arguments, variables, timebeam.toml and the stored settings of tables."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from timebeam.pipelines.options.catalogue import chosen, with_plugins
from timebeam.pipelines.options.command_line import DEFAULT, given_settings
from timebeam.pipelines.options.parsing import did_you_mean
from timebeam.pipelines.options.place import Place
from timebeam.pipelines.options.profiles import Setting, setting_text
from timebeam.pipelines.options.use_settings import open_place
from timebeam.pipelines.query.database import Database
from timebeam.schema.core.contract import Store
from timebeam.schema.stores import StoreName
from timebeam.transforms.bigtable.target import check_emulator

_OPTIONS = """
    Layout: layout table_prefix *layout tables | Bigtable: project instance app_profile | Query: rollup_config
"""


def open(  # noqa: A001
    project: str | None = None,
    instance: str | None = None,
    *,
    profile: str | None = None,
    config: str | os.PathLike[str] | None = None,
    emulator: str | None = None,
    app_profile: str | None = None,
    store: StoreName | Store | str | None = None,
    table_prefix: str | None = None,
    tables: str | os.PathLike[str] | None = None,
    rollup_config: str | os.PathLike[str] | None = None,
    **settings: str | int | bool,
) -> Database:
    """Opens the tables of a store in a Bigtable instance.

    What is not given is taken from the variables TIMEBEAM_..., then from timebeam.toml, then from the
    settings that are stored with the tables; what contradicts these is an error.

    >>> import timebeam
    >>> database = timebeam.open("my-project", "my-instance", profile="prod")  # doctest: +SKIP

    Args:
      project, instance: of Bigtable; not needed for an emulator.
      profile, config: a profile of timebeam.toml, and the file in its place.
      emulator: HOST:PORT of Bigtable's emulator; None for that of the variable BIGTABLE_EMULATOR_HOST, and
        for the real service if that is not set.
      app_profile: of the instance; None for the default one.
      store: the name of a store, `table` for declared tables, or a store.
      table_prefix: before the names of all tables.
      tables: the file that declares tables, of store `table`.
      rollup_config: the file that describes rollup tables, to answer from these.
      settings: other options of the store by name, such as `salt_width`.

    Raises:
      ValueError: an argument is wrong, or contradicts the stored settings.
      BigtableError: the instance cannot be reached, or the settings may not be read.
    """
    arguments: dict[str, Any] = {
        "project": project,
        "instance": instance,
        "app_profile": app_profile,
        "table_prefix": table_prefix,
        "tables": tables,
        "rollup_config": rollup_config,
        **settings,
    }
    arguments["layout"] = store.name if isinstance(store, Store) else store
    if isinstance(store, Store):
        arguments |= _settings_of(store)
    place, rollups = _place(
        {name: setting_text(each) for name, each in arguments.items() if each is not None},
        None if config is None else os.fspath(config),
        profile,
        emulator,
    )
    return Database.of(place, store=store if isinstance(store, Store) else None, rollup_config=rollups)


def _settings_of(store: Store) -> dict[str, Any]:
    """The options of a store, by name."""
    options: Any = getattr(store, "options", None)
    return {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}


def _place(
    texts: Mapping[str, str], config: str | None, profile: str | None, emulator: str | None
) -> tuple[Place, str | None]:
    """(the place of arguments, with the stored settings of its tables; the file that describes its rollups).

    Raises:
      UsageError: an argument is wrong or unknown, or contradicts the stored settings.
    """
    settings = given_settings(config, profile, os.environ)
    settings |= {
        name: Setting((text,), f"argument {'store' if name == 'layout' else name}")
        for name, text in texts.items()
    }
    layouts = settings["layout"].texts if "layout" in settings else ()
    parameters = {each.name: each for each in with_plugins(chosen("query", _OPTIONS), {"layout": layouts})}
    for name in texts:
        if name not in parameters:
            raise ValueError(f"unknown setting {name}{did_you_mean(name, parameters)}")
    values: dict[str, Any] = {}
    origins = dict.fromkeys(parameters, DEFAULT)
    for name, parameter in parameters.items():
        values[name] = parameter.default
        if name in settings:
            values[name], origins[name] = settings[name].value(parameter), settings[name].origin
    place = dataclasses.replace(Place.of(values, origins), emulator=emulator)
    if emulator is not None:
        check_emulator(place.target)
    return open_place(place), values["rollup_config"]
