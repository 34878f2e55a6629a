"""Stored settings: what the bytes of tables depend on, in a small table beside them.

Table PREFIXtimebeam: `timebeam tables` writes it, and the first ingest into empty tables; every
command that opens tables reads it once. `cbt read PREFIXtimebeam` shows it.

| row key | family | qualifier | value, UTF-8 |
|---|---|---|---|
| a layout, as `opentsdb` | `settings` | `version` | `1` |
| | | a parameter with `stored`, as `salt_width` | as the option takes it, `0` |
| | `package`, of a store of another package | `NAME VERSION` |
| `table` | `settings` | `table NAME`, a declared table without prefix | the text of its declaration, TOML |

The row `leases` is that of `timebeam.transforms.care.range_leases`.
Cells have timestamp 0. A setting that a row lacks is not checked. Tables that other systems made have no row.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

from google.api_core import exceptions

from timebeam.pipelines.options.catalogue import OPTIONS, layout_parameters, plugin_parameters
from timebeam.pipelines.options.command_line import DEFAULT
from timebeam.pipelines.options.parameters import DECLARED, Parameter, UsageError, usage_errors
from timebeam.pipelines.options.parsing import detail
from timebeam.pipelines.options.place import Place, declared_layouts, layout_named
from timebeam.pipelines.options.profiles import setting_text
from timebeam.schema.core.rows import WHOLE_TABLE, TableSpec
from timebeam.schema.stores import STORES, declared_options, store_plugin
from timebeam.transforms.bigtable.chunk_rows import RowMerger
from timebeam.transforms.bigtable.existing_tables import table_exists
from timebeam.transforms.bigtable.read_ranges import read_ranges, row_filter
from timebeam.transforms.bigtable.target import BigtableError, NoPermissionError, Target, check_emulator
from timebeam.transforms.care.range_leases import LEASES

VERSION = "1"
"""Of the form of a row. A new setting needs no other version: an unknown column is rejected too."""

FAMILY = "settings"

VERSION_COLUMN = "version"
TABLE = "table "
"""How the columns of declared tables begin."""
ZONE = "zone"
"""The setting that is stored if there are rollups; the others are options of layouts."""
PACKAGE = "package"
"""The setting of a store of another package: the name of the package, a blank, and its version."""
_STORED = {
    parameter.name: parameter for parameter in (*layout_parameters()[1:], OPTIONS[ZONE]) if parameter.stored
}

UNPROVED = ("row_spec", "names", "cell_time", "use_max_value", "retention", "marked_since", ZONE)
"""Settings that rows can contradict, but do not prove."""

StoredRows = Mapping[str, Mapping[str, str]]
"""The texts of the settings by name, by layout."""


def settings_table(table_prefix: str) -> TableSpec:
    """The table of stored settings."""
    return TableSpec(f"{table_prefix}timebeam", {FAMILY: 1}, holds_points=False)


def open_place(
    place: Place, *, takes_archive: bool = True, replaces: bool = False, checks_later: bool = False
) -> Place:
    """Compares a place with the stored settings of its tables, and takes from these what is not given.

    Args:
      takes_archive: whether the command takes tables with an archive.
      replaces: whether the options replace the stored settings, which they may contradict.
      checks_later: whether the command itself reports that the instance does not answer.

    Raises:
      UsageError: an option contradicts a stored setting; or the layout is not given and not stored; or the
        tables have an archive, which the command does not take; or a table is that of another layout.
      BigtableError: a newer timebeam stored them, or they may not be read.
    """
    table = settings_table(place.table_prefix).name
    rows = _reachable_rows(place, table, checks_later)
    if not place.layout:
        of_table = {"layout": f"table {table}"}
        name = _only_layout(rows, place.option, table)
        place = dataclasses.replace(place, layout=name, origins={**place.origins, **of_table})
    stored = rows.get(place.layout, {})
    _check_package(place.layout, stored, table)
    _reject_unused(place)
    texts: Mapping[str, str]
    if place.layout != DECLARED:
        place, contradictions = _take_stored(place, parsed(stored, table, place.layout), table)
        texts = {"archive": setting_text(bool(place.settings.get("archive")))}
    elif "tables" in place.origins:  # else the command does not support declared tables
        place, texts, contradictions = _use_stored_tables(place, stored, table)
    else:
        return place
    if texts.get("archive") == "true" and not takes_archive:
        raise UsageError(
            f"{place.origins['archive']} says that layout {place.layout} has an archive here: "
            "this command does not read it, so it would leave out archived points; `query`, `serve`, "
            "`rollup`, `series`, `check`, `export` and `copy` do (docs/operate/maintenance.md)"
        )
    reject_shared(rows, place.layout, texts, place.table_prefix, place.flag("table_prefix"))
    if contradictions and not replaces:
        raise UsageError(
            f"{'; '.join(contradictions)}: leave it out, choose other tables ({place.flag('table_prefix')}), "
            "or correct what is stored with `timebeam tables adopt`, or with `timebeam tables forget` if "
            "these tables do not exist"
        )
    return place


def _reject_unused(place: Place) -> None:
    """Raises UsageError for a `--set` of what the layout does not have; a settings file may have it."""
    origins = {
        name: origin for name, origin in place.origins.items() if origin.startswith(("--set ", "--to-set "))
    }
    if not origins:
        return
    with usage_errors():
        options = declared_options(place.layout) if place.layout != DECLARED else ()
    names = [option.name for option in options if option.stored]
    for name, origin in origins.items():
        if name not in (*names, ZONE):
            choices = f": choose from {', '.join(names)}" if names else ""
            raise UsageError(f"{origin}: layout {place.layout} has no such setting{choices}")


def _check_package(layout: str, stored: Mapping[str, str], table: str) -> None:
    """Raises UsageError if the store of a layout is not of the package that the stored settings name."""
    if PACKAGE not in stored:
        return
    with usage_errors():
        plugin = store_plugin(layout)
    package, _, version = stored[PACKAGE].partition(" ")
    if plugin is None or plugin.package != package:
        raise UsageError(
            f"the tables were made with store {layout} of package {stored[PACKAGE]} (table {table})"
            + (f", not {plugin.package} {plugin.version}" if plugin else "")
            + ": install that package"
        )
    if plugin.version != version:
        detail(f"package {package} {plugin.version}: table {table} has {version}")


def _take_stored(place: Place, stored: Mapping[str, Any], table: str) -> tuple[Place, list[str]]:
    """(the place with the stored settings that are not given, what contradicts them, in words)."""
    settings, origins, contradictions = {**place.settings}, {**place.origins}, []
    for name, setting in stored.items():
        if origins.get(name, DEFAULT) == DEFAULT:
            settings[name], origins[name] = setting, f"table {table}"
            option = place.flag(name).removeprefix("--").replace("-", "_")
            detail(f"{option} {setting}: table {table}")
        elif not agrees(name, settings[name], setting):
            contradictions.append(
                f"{origins[name]} says {name} {setting_text(settings[name])}, but table {table} "
                f"says that layout {place.layout} has {setting_text(setting)} here"
            )
    return dataclasses.replace(place, settings=settings, origins=origins), contradictions


def reject_shared(
    rows: StoredRows, layout: str, texts: Mapping[str, str], table_prefix: str, option: str = "--table-prefix"
) -> None:
    """Rejects tables that are also those of another layout, or of the settings.

    Args:
      rows: all stored settings of the prefix.
      texts: the settings of the layout.
      option: the option of the prefix.

    Raises:
      UsageError: each layout would read the rows of the other as corruption.
    """
    settings = settings_table(table_prefix).name
    tables = _table_names(layout, texts, table_prefix, is_own=True)
    if settings in tables:
        raise UsageError(
            f"table {settings} holds the stored settings: rename the declared table, or choose other "
            f"tables ({option})"
        )
    for other, other_texts in rows.items():
        shared = tables & _table_names(other, other_texts, table_prefix)
        if other == layout or not shared:
            continue
        table = min(shared)
        way = f"`timebeam tables forget --layout {other}` if table {settings} is wrong"
        if table == table_prefix + "archive":
            way = f"store which of them has none: `timebeam tables adopt --layout {other} --no-archive`"
        raise UsageError(f"table {table} is that of layout {other}: choose other tables ({option}), or {way}")


def _table_names(
    layout: str, texts: Mapping[str, str], table_prefix: str, *, is_own: bool = False
) -> set[str]:
    """The tables of a layout with these settings; none of another one that is not ours, but newer or a
    package's."""
    if layout == DECLARED:
        return {table_prefix + name.removeprefix(TABLE) for name in texts if name.startswith(TABLE)}
    if layout not in STORES and not is_own:
        return set()
    values = {"table_prefix": table_prefix, "archive": texts.get("archive") == "true"}
    return {spec.name for spec in layout_named(layout, values).tables()}


def read_rows(target: Target, table: str) -> StoredRows:
    """The stored settings of all layouts of a table prefix; none if there is no such table.

    Raises:
      BigtableError: they may not be read, or the instance cannot be reached.
    """
    return _rows(target, table) if table_exists(target, table) else {}


def _use_stored_tables(
    place: Place, texts: Mapping[str, str], table: str
) -> tuple[Place, Mapping[str, str], list[str]]:
    """Compares the declaration of a place with the stored ones, or takes the only one that is stored.

    Returns:
      (the place, the settings of its tables, what contradicts the stored ones, in words).

    Raises:
      UsageError: several are stored.
      BigtableError: a newer timebeam stored them.
    """
    parsed(texts, table)
    stored = {name.removeprefix(TABLE): text for name, text in texts.items() if name.startswith(TABLE)}
    if not place.tables:
        if len(distinct := set(stored.values())) > 1:
            raise UsageError(f"table {table} has several declarations of tables: give --tables FILE")
        if distinct:
            origins = {**place.origins, "tables": f"table {table}"}
            place = dataclasses.replace(place, stored_tables=distinct.pop(), origins=origins)
        return place, texts, []
    declared, contradictions = {}, []
    declaration, name = place.declaration_text()
    with contextlib.suppress(ValueError):  # the declaration is wrong: the command reports it
        for layout in declared_layouts(declaration, name):
            declared[TABLE + layout.table] = declaration
            text = stored.get(layout.table)
            before = () if text is None else declared_layouts(text, table)
            option = next((old.contradiction(layout) for old in before if old.table == layout.table), "")
            if option:
                contradictions.append(
                    f"{place.tables}, from {place.origins['tables']}, declares another {option} of table "
                    f"{layout.table} than table {table} says"
                )
    return place, declared, contradictions


def agrees(name: str, value: Any, stored: Any) -> bool:
    """Whether a value does not contradict the stored one; a retention class can be added."""
    if name == PACKAGE:
        return str(value).partition(" ")[0] == str(stored).partition(" ")[0]
    if name == "retention":
        return set(stored.split(",")) <= set(value.split(","))
    return bool(value == stored)


def _reachable_rows(place: Place, table: str, checks_later: bool) -> StoredRows:
    """The stored settings; none where no instance is named or no emulator runs: the command says that better.

    Without the permission to look for the table it says that nothing is compared.

    Raises:
      BigtableError: the instance does not answer.
    """
    try:
        target = place.target
        check_emulator(target)
    except (UsageError, BigtableError):
        return {}
    try:
        if not table_exists(target, table):
            return {}
    except NoPermissionError as error:
        print(
            f"warning: the options are not compared with the stored settings, table {table}: {error}",
            file=sys.stderr,
        )
        return {}
    except BigtableError:
        if checks_later:
            return {}
        raise
    return _rows(target, table)


def _rows(target: Target, table: str) -> StoredRows:
    """The stored settings of a table that exists."""
    try:
        rows = list(read_ranges(target, table, [WHOLE_TABLE], row_filter(), lambda: RowMerger(table)))
    except exceptions.PermissionDenied as error:
        raise NoPermissionError(
            f"no permission to read the stored settings, table {table}: {error.message}"
        ) from error
    return {
        row.key.decode(errors="replace"): {
            cell.qualifier.decode(errors="replace"): cell.value.decode(errors="replace")
            for cell in row.cells
            if cell.family == FAMILY
        }
        for row in rows
        if row.key != LEASES
    }


def _only_layout(rows: StoredRows, layout: str, table: str) -> str:
    """The layout of the only row; raises UsageError if there is none, or there are several."""
    if len(rows) > 1:
        raise UsageError(
            f"table {table} has settings of {', '.join(rows)}: give --{layout}; `timebeam tables forget` "
            "removes those of tables that do not exist"
        )
    if not rows:
        raise UsageError(f"the following arguments are required: --{layout}")
    return next(iter(rows))


def stored_parameters(layout: str) -> Mapping[str, Parameter]:
    """The settings that can be stored, by name, with those of a layout of another package."""
    own = {each.name: each for each in plugin_parameters("layout", [layout]) if each.stored}
    return {**_STORED, **own}


def parsed(texts: Mapping[str, str], table: str, layout: str = "") -> dict[str, Any]:
    """The values of a row; raises BigtableError if a newer timebeam wrote it, or it is corrupt."""
    if not texts:
        return {}
    reject_newer(texts, table, layout)
    known = stored_parameters(layout)
    try:
        return {name: known[name].value_of(text) for name, text in texts.items() if name in known}
    except (argparse.ArgumentTypeError, ValueError) as error:
        raise BigtableError(
            f"table {table} holds a corrupt setting: {error}: remove it with `timebeam tables forget`, then "
            "store it again with `timebeam tables adopt`"
        ) from error


def reject_newer(texts: Mapping[str, str], table: str, layout: str = "") -> None:
    """Raises BigtableError if a newer timebeam wrote a row."""
    names = {*stored_parameters(layout), VERSION_COLUMN, PACKAGE}
    newer = [f"version {texts.get(VERSION_COLUMN)}"] if texts.get(VERSION_COLUMN) != VERSION else []
    newer += [f"setting {name}" for name in texts if name not in names and not name.startswith(TABLE)]
    if newer:
        raise BigtableError(
            f"table {table} has {', '.join(newer)}, which this version of timebeam does not support (it "
            "supports version "
            f"{VERSION}): a newer timebeam wrote it; upgrade timebeam"
        )
