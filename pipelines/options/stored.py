"""Stored settings: what the bytes of tables depend on, in a small table beside them.

Table PREFIXtimebeam: `timebeam tables create` and `tables adopt` write it; every command that opens tables
reads it once. `cbt read PREFIXtimebeam` shows it.

| row key | family | qualifier | value, UTF-8 |
|---|---|---|---|
| a layout, as `opentsdb` | `settings` | `version` | `1` |
| | | a parameter with `stored`, as `salt_width` | as the option takes it, `0` |
| `table` | `settings` | `table NAME`, a declared table without prefix | the text of its declaration, TOML |

The row `leases` is that of `timebeam.transforms.store.leases`.
Cells have timestamp 0. A setting that a row lacks is not checked. Tables that other systems made have no row.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from google.api_core import exceptions

from timebeam.pipelines.options.command_line import DEFAULT
from timebeam.pipelines.options.parameters import DECLARED, LAYOUT, UsageError
from timebeam.pipelines.options.parsing import detail, note
from timebeam.pipelines.options.period import ZONE
from timebeam.pipelines.options.profiles import setting_text
from timebeam.pipelines.options.values import declaration_text, tables_of, target_of
from timebeam.schema.layouts import LAYOUTS, Cell, Deletion, Row, TableSpec
from timebeam.schema.layouts.opentsdb.uids.names import Names
from timebeam.transforms.bigtable.conditional import create_cells
from timebeam.transforms.bigtable.existing import table_exists
from timebeam.transforms.bigtable.merge import RowMerger
from timebeam.transforms.bigtable.mutate import mutate_rows
from timebeam.transforms.bigtable.reader import read_ranges, row_filter, scan_keys
from timebeam.transforms.bigtable.rows import WHOLE_TABLE
from timebeam.transforms.bigtable.target import BigtableError, NoPermissionError, Target, check_emulator
from timebeam.transforms.store.leases import LEASES

VERSION = "1"
"""Of the form of a row. A new setting needs no other version: an unknown column is refused too."""

FAMILY = "settings"

_VERSION_COLUMN = "version"
_TABLE = "table "
"""How the columns of declared tables begin."""
_STORED = {parameter.name: parameter for parameter in (*LAYOUT[1:], ZONE) if parameter.stored}

UNPROVED = ("row_spec", "names", "cell_time", "use_max_value", "retention", "marked_since", ZONE.name)
"""Settings that rows can contradict, but do not prove."""

StoredRows = Mapping[str, Mapping[str, str]]
"""The texts of the settings by name, by layout."""


def settings_table(table_prefix: str) -> TableSpec:
    """The table of stored settings."""
    return TableSpec(f"{table_prefix}timebeam", {FAMILY: 1}, holds_points=False)


def use_stored(
    options: argparse.Namespace, layout: str = "layout", before: str = "", *, takes_archive: bool = True
) -> None:
    """Compares options with the stored settings of their tables, and takes from these what is not given.

    Args:
      options: as `CommandParser` parses them; those that are not given are set.
      layout: the name of the option of the layout.
      before: what the names of its other options begin with.
      takes_archive: whether the command takes tables with an archive.

    Raises:
      UsageError: an option contradicts a stored setting; or the layout is not given and not stored; or the
        tables have an archive, which the command does not take, or which is that of another layout.
      BigtableError: a newer timebeam stored them, or they may not be read.
    """
    values = vars(options)
    table = settings_table(values[before + "table_prefix"]).name
    rows = _reachable_rows(options, table)
    if values[layout] is None:
        values[layout] = _only_layout(rows, layout, table)
        options.origins[layout] = f"table {table}"
    if values[layout] == DECLARED:
        if hasattr(options, "tables"):  # else the command does not support declared tables
            _use_stored_tables(options, rows.get(DECLARED, {}), table)
        return
    is_stored = rows.get(values[layout], {}).get("archive") == "true"
    if (is_stored or values.get(before + "archive")) and not takes_archive:
        place = f"table {table}" if is_stored else options.origins[before + "archive"]
        raise UsageError(
            f"{place} says that layout {values[layout]} has an archive here: this command does not "
            "read it, so it would leave out sealed points; `query`, `serve`, `rollup`, `series`, `check`, "
            "`export` and `copy` do (docs/how-to/store/archive.md)"
        )
    others = [
        name for name, texts in rows.items() if texts.get("archive") == "true" and name != values[layout]
    ]
    if (is_stored or values.get(before + "archive")) and others:
        place = f"table {table}" if is_stored else options.origins[before + "archive"]
        raise UsageError(  # both are stored if two programs adopted the tables at once
            f"{place} says archive true, but table {values[before + 'table_prefix']}archive is that of "
            f"layout {others[0]}: choose other tables (--{before}table_prefix)"
            + (", or adopt those of one layout again with --archive false" if is_stored else "")
        )
    contradictions = []
    for name, value in _parsed(rows.get(values[layout], {}), table).items():
        option = before + name
        if option not in values:
            continue
        if options.origins[option] == DEFAULT:
            values[option] = value
            options.origins[option] = f"table {table}"
            detail(f"{option} {value}: table {table}")
        elif not _agrees(name, values[option], value):
            contradictions.append(
                f"{options.origins[option]} says {name} {setting_text(values[option])}, but table {table} "
                f"says that layout {values[layout]} has {setting_text(value)} here"
            )
    if contradictions:
        raise UsageError(
            f"{'; '.join(contradictions)}: leave it out, choose other tables (--{before}table_prefix), or "
            "correct what is stored with `timebeam tables adopt`"
        )


def read_rows(target: Target, table: str) -> StoredRows:
    """The stored settings of all layouts of a table prefix; none if there is no such table.

    Raises:
      BigtableError: they may not be read, or the instance cannot be reached.
    """
    return _rows(target, table) if table_exists(target, table) else {}


def settings_of(options: argparse.Namespace) -> dict[str, str]:
    """The texts to be stored for the layout of the options, by name; the zone only if rollups are made."""
    if options.layout == DECLARED:
        from timebeam.schema.declared.language.loader import load  # imports pyarrow

        text, name = declaration_text(options)
        return {_TABLE + layout.table: text for layout in load(text, name, reading=True).all_layouts}
    names = settable(options.layout)
    if getattr(options, "rollup_config", None):
        names.append(ZONE.name)
    values = {name: vars(options).get(name) for name in names}
    return {name: setting_text(value) for name, value in values.items() if value not in (None, "")}


def settable(layout: str) -> list[str]:
    """The names of the settings that are stored for a layout."""
    return [option.name for option in LAYOUTS[layout].declared_options if option.stored]


def store_new(options: argparse.Namespace, *, dry_run: bool) -> Iterator[str]:
    """Stores the settings of tables that are to be created, or are empty; yields a line for each thing done.

    If several programs do so at the same time, one of them stores its settings.

    Raises:
      UsageError: another program has just stored others.
    """
    from timebeam.transforms.bigtable.tables import create_tables  # its client takes half a second

    target, spec = target_of(options), settings_table(options.table_prefix)
    texts = settings_of(options)
    stored = read_rows(target, spec.name).get(options.layout, {})
    missing = texts.keys() - stored.keys()
    if stored and not missing:
        if options.layout != DECLARED:
            _refuse_others(texts, stored)
        if any(texts[name] != stored[name] for name in texts):  # `use_stored` has compared declarations
            yield f"would store {_shown(options.layout, texts)}" if dry_run else store_again(options)
        return
    new = {options.table_prefix + name.removeprefix(_TABLE) for name in missing}
    for table in tables_of(options) if options.layout == DECLARED or not stored else ():
        is_new = options.layout != DECLARED or table.name in new
        if is_new and table_exists(target, table.name) and any(scan_keys(target, table.name, limit=1)):
            yield (
                f"settings not stored: table {table.name} has rows; `timebeam tables adopt` looks at "
                "them first"
            )
            return
    yield from (line for line in create_tables(target, [spec], dry_run=dry_run) if " exists, " not in line)
    if dry_run:
        yield f"would store {_shown(options.layout, texts)}"
        return
    row = _row(spec.name, options.layout, texts)
    now = {
        column.qualifier.decode(): value.decode()
        for column, value in create_cells(target, spec.name, [row], {}).values.items()
    }
    _refuse_others({name: texts[name] for name in missing}, now)
    yield f"stored {_shown(options.layout, texts)}"


def _refuse_others(texts: Mapping[str, str], stored: Mapping[str, str]) -> None:
    """Raises a UsageError if another program has stored others since `use_stored` compared the options."""
    for name, text in texts.items():
        if not _agrees(name, text, stored.get(name, "")):
            raise UsageError(
                f"another program has just stored {name} {stored.get(name)} for these tables, where this one "
                f"says {text}: run it again with the same options"
            )


def store_first(options: argparse.Namespace) -> None:
    """Stores the settings if their table has none for the layout: Terraform makes it, but cannot fill it.

    Raises:
      UsageError: see `store_new`.
    """
    target, table = target_of(options), settings_table(options.table_prefix).name
    if table_exists(target, table) and options.layout not in _rows(target, table):
        for line in store_new(options, dry_run=False):
            note(line)


def settle_names(options: argparse.Namespace, *, escape: bool) -> None:
    """Settles how a command writes names; that it escapes them is stored with the tables.

    Args:
      escape: whether names are escaped if nothing says otherwise.

    Raises:
      UsageError: the tables have rows, and it is not stored that their names are escaped.
    """
    if "names" not in settable(options.layout):
        return
    if options.names is None and escape:
        options.names = Names.ESCAPE.value
    if options.names != Names.ESCAPE.value or options.dry_run or getattr(options, "preflight", False):
        return
    target, table = target_of(options), settings_table(options.table_prefix).name
    if read_rows(target, table).get(options.layout, {}).get("names") == options.names:
        return
    for line in store_new(options, dry_run=False):
        note(line)
    if read_rows(target, table).get(options.layout, {}).get("names") != options.names:
        raise UsageError(
            f"the tables have rows, and table {table} does not say that their names are escaped: give "
            "--names refuse or replace, or choose other tables (--table_prefix)"
        )


def store_again(options: argparse.Namespace) -> str:
    """Stores the settings of the options in the place of those that are stored; says what it did.

    Raises:
      BigtableError: the row could not be written.
    """
    from timebeam.transforms.bigtable.tables import create_tables  # its client takes half a second

    target, spec = target_of(options), settings_table(options.table_prefix)
    texts = settings_of(options)
    list(create_tables(target, [spec], dry_run=False))
    stored = read_rows(target, spec.name).get(options.layout, {})
    _parsed(stored, spec.name)  # raises an error if a newer timebeam stored them
    row = _row(spec.name, options.layout, texts)
    stale_names = [] if options.layout == DECLARED else stored.keys() - texts.keys()
    stale = [Deletion(FAMILY, name.encode()) for name in stale_names]
    failures = mutate_rows(target, spec.name, [row._replace(deleted=stale)])
    if failures:
        raise BigtableError(f"table {spec.name} refused the settings: {failures[0]}")
    return f"stored {_shown(options.layout, texts)}"


def _use_stored_tables(options: argparse.Namespace, texts: Mapping[str, str], table: str) -> None:
    """Compares the declaration of the options with the stored ones, or takes the only one that is stored.

    Raises:
      UsageError: they contradict each other.
      BigtableError: a newer timebeam stored them.
    """
    _parsed(texts, table)
    stored = {name.removeprefix(_TABLE): text for name, text in texts.items() if name.startswith(_TABLE)}
    if not options.tables:
        if len(distinct := set(stored.values())) > 1:
            raise UsageError(f"table {table} has several declarations of tables: give --tables FILE")
        if distinct:
            options.stored_tables = distinct.pop()
            options.origins["tables"] = f"table {table}"
        return
    from timebeam.schema.declared.language.checks import contradiction
    from timebeam.schema.declared.language.loader import DeclarationError, load

    with contextlib.suppress(DeclarationError):  # the command reports it
        for layout in load(*declaration_text(options), reading=True).all_layouts:
            text = stored.get(layout.table)
            before = [] if text is None else load(text, table, reading=True).all_layouts
            option = next((contradiction(old, layout) for old in before if old.table == layout.table), "")
            if option:
                raise UsageError(
                    f"{options.tables}, from {options.origins['tables']}, declares another {option} of table "
                    f"{layout.table} than table {table} says: leave it out, choose other tables "
                    "(--table_prefix), or correct what is stored with `timebeam tables adopt`"
                )


def _agrees(name: str, value: Any, stored: Any) -> bool:
    """Whether a value does not contradict the stored one; a retention class can be added."""
    if name == "retention":
        return set(stored.split(",")) <= set(value.split(","))
    return bool(value == stored)


def _reachable_rows(options: argparse.Namespace, table: str) -> StoredRows:
    """The stored settings; none where no instance is named or no emulator runs: the command says that better.

    Without the permission to look for the table it says that nothing is compared.

    Raises:
      BigtableError: the instance does not answer.
    """
    try:
        target = target_of(options)
        check_emulator()
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
        if getattr(options, "preflight", False):
            return {}  # the preflight reports it
        raise
    return _rows(target, table)


def _rows(target: Target, table: str) -> StoredRows:
    """The stored settings of a table that exists."""
    try:
        rows = list(
            read_ranges(target, table, [WHOLE_TABLE], row_filter(), lambda: RowMerger(table, Row, Cell))
        )
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
        raise UsageError(f"table {table} has settings of {', '.join(rows)}: give --{layout}")
    if not rows:
        raise UsageError(f"the following arguments are required: --{layout}")
    return next(iter(rows))


def _parsed(texts: Mapping[str, str], table: str) -> dict[str, Any]:
    """The values of a row; raises BigtableError if a newer timebeam wrote it, or it is damaged."""
    if not texts:
        return {}
    known = {*_STORED, _VERSION_COLUMN}
    newer = [f"version {texts.get(_VERSION_COLUMN)}"] if texts.get(_VERSION_COLUMN) != VERSION else []
    newer += [f"setting {name}" for name in texts if name not in known and not name.startswith(_TABLE)]
    if newer:
        raise BigtableError(
            f"table {table} has {', '.join(newer)}, which this timebeam does not know (it knows version "
            f"{VERSION}): a newer one wrote it; upgrade this one"
        )
    try:
        return {name: _STORED[name].value_of(text) for name, text in texts.items() if name in _STORED}
    except (argparse.ArgumentTypeError, ValueError) as error:
        raise BigtableError(f"table {table} holds a damaged setting: {error}") from error


def _row(table: str, layout: str, texts: Mapping[str, str]) -> Row:
    columns = {_VERSION_COLUMN: VERSION, **texts}
    cells = [Cell(FAMILY, name.encode(), 0, text.encode()) for name, text in columns.items()]
    return Row(table, layout.encode(), cells)


def _shown(layout: str, texts: Mapping[str, str]) -> str:
    """What is stored, for people."""
    values = ", ".join(name if name.startswith(_TABLE) else f"{name} {text}" for name, text in texts.items())
    return f"settings of layout {layout}" + (f": {values}" if values else "")
