"""Stores settings: once their tables are there and were looked at, and none that contradict others.

`tables create` stores those of tables that it has created, or that are empty; a job those of empty tables,
once it has checked that they exist; `tables adopt` those that rows bear out; `tables forget` removes them.
Form: see `timebeam.pipelines.options.use_settings`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

from timebeam.pipelines.options.parameters import DECLARED, UsageError
from timebeam.pipelines.options.parsing import note
from timebeam.pipelines.options.place import Place, declared_layouts
from timebeam.pipelines.options.profiles import setting_text
from timebeam.pipelines.options.use_settings import (
    FAMILY,
    PACKAGE,
    TABLE,
    VERSION,
    VERSION_COLUMN,
    ZONE,
    StoredRows,
    agrees,
    parsed,
    read_rows,
    reject_newer,
    reject_shared,
    settings_table,
)
from timebeam.schema.archive.archive_rows import parse_key
from timebeam.schema.archive.view import ArchiveView, find_archivable
from timebeam.schema.core.contract import ReadableStore
from timebeam.schema.core.rows import Cell, Deletion, Row
from timebeam.schema.core.selection import Finding, Severity
from timebeam.schema.stores import declared_options, store_plugin
from timebeam.transforms.bigtable.compare_and_set import create_cells
from timebeam.transforms.bigtable.existing_tables import table_exists
from timebeam.transforms.bigtable.read_ranges import scan_keys
from timebeam.transforms.bigtable.target import BigtableError, Target
from timebeam.transforms.bigtable.write_rows import mutate_rows

ESCAPE = "escape"  # of the option `names`

_LOOKED_AT = 100  # rows of an archive that two layouts may have written


def settings_of(place: Place, stored: Mapping[str, str] | None = None) -> dict[str, str]:
    """The texts to be stored for the layout of a place, by name.

    Args:
      stored: the settings that they replace; a zone is stored with these, or if rollup tables are made.
    """
    if place.layout == DECLARED:
        text, name = place.declaration_text()
        return {TABLE + layout.table: text for layout in declared_layouts(text, name)}
    names = settable(place.layout)
    if any(word.startswith("--rollup-config") for word in place.also) or ZONE in (stored or {}):
        names.append(ZONE)
    settings = {name: place.settings.get(name) for name in names}
    texts = {name: setting_text(setting) for name, setting in settings.items() if setting not in (None, "")}
    plugin = store_plugin(place.layout)
    return texts | ({PACKAGE: f"{plugin.package} {plugin.version}"} if plugin else {})


def settable(layout: str) -> list[str]:
    """The names of the settings that are stored for a layout."""
    return [option.name for option in declared_options(layout) if option.stored]


def store_first(place: Place) -> None:
    """Stores the settings of a job, once its tables are checked: Terraform makes their table, but empty.

    They are stored if their table has none for the layout, or does not say that names are escaped.

    Args:
      place: of the tables that the job writes, with how it writes names (`with_names`).

    Raises:
      UsageError: see `store_new`; or the tables have rows whose names may not be escaped.
    """
    target, table = place.target, settings_table(place.table_prefix).name
    rows = read_rows(target, table)
    escapes = place.settings.get("names") == ESCAPE and _names(rows, place) != ESCAPE
    if not escapes and (place.layout in rows or not table_exists(target, table)):
        return
    for line in store_new(place, dry_run=False):
        note(line)
    if escapes and _names(read_rows(target, table), place) != ESCAPE:
        raise UsageError(
            f"the tables have rows, and table {table} has no setting names=escape for them: give "
            "--set names=refuse or names=replace, or choose other tables (--table-prefix)"
        )


def _names(rows: StoredRows, place: Place) -> str | None:
    """How the stored settings say that names are stored."""
    return rows.get(place.layout, {}).get("names")


def with_names(place: Place, *, escape: bool) -> Place:
    """The place with how a command writes names.

    Args:
      escape: whether names are escaped if nothing says otherwise.
    """
    is_open = "names" in settable(place.layout) and place.settings.get("names") is None
    return place.with_settings(names=ESCAPE) if is_open and escape else place


def store_new(place: Place, *, dry_run: bool) -> Iterator[str]:
    """Stores the settings of tables that are empty; yields a line for each thing done.

    If several programs do so at the same time, one of them stores its settings.

    Raises:
      UsageError: another program has just stored others, or those of another layout with one of the tables.
    """
    from timebeam.transforms.bigtable.create_tables import create_tables  # its client takes half a second

    target, spec = place.target, settings_table(place.table_prefix)
    texts = settings_of(place)
    stored = read_rows(target, spec.name).get(place.layout, {})
    missing = texts.keys() - stored.keys()
    if stored and not missing:
        if place.layout != DECLARED:
            _reject_others(texts, stored)
        if any(texts[name] != stored[name] for name in texts):  # `open_place` has compared declarations
            yield f"would store {_shown(place.layout, texts)}" if dry_run else store_again(place)
        return
    filled = _filled_table(place, target, stored, missing)
    if filled is not None:
        yield f"settings not stored: table {filled} has rows; `timebeam tables adopt` looks at them first"
        return
    yield from (line for line in create_tables(target, [spec], dry_run=dry_run) if " exists, " not in line)
    if dry_run:
        yield f"would store {_shown(place.layout, texts)}"
        return
    now = {
        column.qualifier.decode(): value.decode()
        for column, value in create_cells(
            target, spec.name, [_row(spec.name, place.layout, texts)], {}
        ).values.items()
    }
    _reject_others({name: texts[name] for name in missing}, now)
    _confirm(place, target, texts, stored)
    yield f"stored {_shown(place.layout, texts)}"


def _filled_table(place: Place, target: Target, stored: Mapping[str, str], missing: Set[str]) -> str | None:
    """A table with rows that no command has compared with the settings; None if there is none.

    Args:
      missing: the names of the settings that are not stored yet.
    """
    if place.layout == DECLARED:
        new = {place.table_prefix + name.removeprefix(TABLE) for name in missing}
        tables = [spec.name for spec in place.table_specs() if spec.name in new]
    else:
        tables = [] if stored else [spec.name for spec in place.table_specs()]
    return next((name for name in tables if _has_rows(target, name)), None)


def _has_rows(target: Target, table: str) -> bool:
    """Whether there is a table of this name that is not empty."""
    return table_exists(target, table) and any(scan_keys(target, table, limit=1))


def _reject_others(texts: Mapping[str, str], stored: Mapping[str, str]) -> None:
    """Raises a UsageError if another program has stored others since `open_place` compared the options."""
    for name, text in texts.items():
        if not agrees(name, text, stored.get(name, "")):
            raise UsageError(
                f"another program has just stored {name} {stored.get(name)} for these tables, where this one "
                f"says {text}: run it again with the same options"
            )


def store_again(place: Place) -> str:
    """Stores the settings of the options in the place of those that are stored; says what it did.

    Raises:
      BigtableError: the row could not be written.
      UsageError: another program has just stored those of another layout with one of the tables.
    """
    from timebeam.transforms.bigtable.create_tables import create_tables  # its client takes half a second

    target, spec = place.target, settings_table(place.table_prefix)
    list(create_tables(target, [spec], dry_run=False))
    stored = read_rows(target, spec.name).get(place.layout, {})
    if stored:
        reject_newer(stored, spec.name, place.layout)
    texts = settings_of(place, stored)
    stale = () if place.layout == DECLARED else {*settable(place.layout), ZONE} - texts.keys()
    _replace(target, spec.name, place.layout, texts, stale)
    _confirm(place, target, texts, stored)
    return f"stored {_shown(place.layout, texts)}"


def _confirm(place: Place, target: Target, texts: Mapping[str, str], before: Mapping[str, str]) -> None:
    """Looks at what is stored after settings were; puts back what was before, if it contradicts them.

    Of two programs that store settings at the same time, the later one sees those of both.

    Args:
      before: the settings of the layout that were replaced.

    Raises:
      UsageError: another program has just stored a layout with one of the tables.
    """
    table = settings_table(place.table_prefix).name
    try:
        reject_shared(read_rows(target, table), place.layout, texts, place.table_prefix)
    except UsageError as error:
        _replace(target, table, place.layout, before, texts.keys() - before.keys())
        raise UsageError(f"another program has just stored settings: {error}") from error


def _replace(target: Target, table: str, layout: str, texts: Mapping[str, str], stale: Iterable[str]) -> None:
    """Writes the row of a layout, in one mutation; without `texts` the row is deleted.

    Args:
      stale: the names of settings to delete.

    Raises:
      BigtableError: the row could not be written.
    """
    row = _row(table, layout, texts) if texts else Row(table, layout.encode(), [])
    names = {*stale} if texts else {*stale, VERSION_COLUMN}
    row = row._replace(deleted=[Deletion(FAMILY, name.encode()) for name in sorted(names)])
    failures = mutate_rows(target, table, [row])
    if failures:
        raise BigtableError(f"table {table} rejected the settings: {failures[0]}")


def hidden_points(target: Target, layout: ReadableStore) -> Finding | None:
    """The first row of an archive that a layout says it does not have; None without such rows.

    Rows of another layout, whose settings say that the archive is its own, are none.
    """
    archivable = find_archivable(layout)
    if archivable is None:
        return None
    archive = archivable.archive_view
    if archive.is_used or not table_exists(target, archive.table):
        return None
    keys = list(scan_keys(target, archive.table, limit=_LOOKED_AT))
    rows = read_rows(target, settings_table(archive.table.removesuffix("archive")).name)
    if any(name != layout.name and texts.get("archive") == "true" for name, texts in rows.items()):
        own_keys = [key for key in keys if _is_of(archive, key)]
        keys = own_keys if 2 * len(own_keys) > len(keys) else []
    if not keys:
        return None
    text = "no command reads these points, since the settings say that there is none: give --set archive=true"
    return Finding(Severity.CORRUPT, archive.table, keys[0], text)


def _is_of(archive: ArchiveView[Any], key: bytes) -> bool:
    """Whether a row of the archive can be one of its layout."""
    try:
        parse_key(archive.heads, key)
    except ValueError:
        return False
    return True


def forget(place: Place, declared_table: str | None, *, dry_run: bool) -> Iterator[str]:
    """Removes the stored settings of a layout, or of one declared table; yields a line for each thing done.

    Args:
      declared_table: the full name of that table; None for all settings of the layout.

    Raises:
      UsageError: no layout is given, or points would be hidden.
      BigtableError: a newer timebeam stored them.
    """
    if not place.layout:
        raise UsageError("forget needs the layout of the tables: --layout")
    target, table = place.target, settings_table(place.table_prefix).name
    stored = read_rows(target, table).get(place.layout, {})
    column = None if declared_table is None else TABLE + declared_table.removeprefix(place.table_prefix)
    forgotten = {name: text for name, text in stored.items() if column in (None, name)}
    if not forgotten:
        of_table = f", table {declared_table}" if column else ""
        yield f"table {table} has no settings of layout {place.layout}{of_table}"
        return
    reject_newer(stored, table, place.layout)
    command = "" if place.layout == DECLARED else _adopt_command(place, target, stored)
    if not dry_run:
        remaining = {name: stored[name] for name in stored.keys() - forgotten.keys() - {VERSION_COLUMN}}
        _replace(target, table, place.layout, remaining, forgotten)
    shown = {name: text for name, text in forgotten.items() if name != VERSION_COLUMN}
    yield f"{'would forget' if dry_run else 'forgot'} {_shown(place.layout, shown)}"
    if command:
        yield f"to store them again: {command}"
    for declaration in sorted({text for name, text in shown.items() if name.startswith(TABLE)}):
        yield f"to store them again: timebeam tables adopt --layout {DECLARED} --tables FILE, which is"
        yield declaration


def _adopt_command(place: Place, target: Target, stored: Mapping[str, str]) -> str:
    """The command that stores settings of a layout of series again; empty if one is corrupt.

    Raises:
      UsageError: the layout has an archive with rows.
    """
    try:
        values = parsed(stored, settings_table(place.table_prefix).name, place.layout)
    except BigtableError:
        return ""
    described = place.with_settings(**values)
    if values.get("archive"):
        layout = described.with_settings(archive=False).store
        hidden = hidden_points(target, layout)
        if hidden is not None:
            raise UsageError(
                f"table {hidden.table} has rows, which no command would read without these settings: correct "
                "them with `timebeam tables adopt`, or drop that table first"
            )
    is_filled = any(_has_rows(target, spec.name) for spec in described.table_specs())
    return described.create_command("adopt" if is_filled else "create")


def _row(table: str, layout: str, texts: Mapping[str, str]) -> Row:
    columns = {VERSION_COLUMN: VERSION, **texts}
    cells = [Cell(FAMILY, name.encode(), 0, text.encode()) for name, text in columns.items()]
    return Row(table, layout.encode(), cells)


def _shown(layout: str, texts: Mapping[str, str]) -> str:
    """What is stored, for people."""
    values = ", ".join(name if name.startswith(TABLE) else f"{name} {text}" for name, text in texts.items())
    return f"settings of layout {layout}" + (f": {values}" if values else "")
