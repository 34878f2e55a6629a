"""`timebeam tables` creates the tables of a layout, stores their settings, shows and sets their retention.

`timebeam check` verifies that every row decodes, and that names and UIDs map one to one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from timebeam.pipelines.options.parameters import UsageError
from timebeam.pipelines.options.place import Place, read_config
from timebeam.pipelines.options.store_settings import (
    forget,
    hidden_points,
    settings_of,
    store_again,
    store_new,
)
from timebeam.pipelines.options.use_settings import UNPROVED, open_place, read_rows, settings_table
from timebeam.schema.core.contract import ReadableStore
from timebeam.schema.core.rows import WHOLE_TABLE, Row, TableSpec
from timebeam.schema.core.selection import Finding, Scan, Severity
from timebeam.schema.series.series_limits import counts_table
from timebeam.schema.stores import find_opentsdb
from timebeam.schema.stores.opentsdb.meta_documents import meta_table
from timebeam.transforms.bigtable.existing_tables import check_tables
from timebeam.transforms.bigtable.target import BigtableError, Target
from timebeam.transforms.opentsdb.trees.tree_table import tree_table
from timebeam.transforms.read.table_reader import ParallelReader

_FINDINGS = 10


@dataclasses.dataclass(frozen=True, slots=True)
class TablesOptions:
    """What is done to the tables, and which there are beside those of the layout."""

    action: str
    rollup_config: str | None
    meta: bool
    trees: bool
    series_limits: bool
    max_age_days: int | None
    table: str | None
    family: str | None
    rows: int
    output: str
    dry_run: bool


def run(place: Place, options: TablesOptions) -> int:
    """Creates what is missing, stores or removes settings, or sets an age; says what it did.

    Doing it again changes nothing.
    """
    from timebeam.transforms.bigtable.create_tables import create_tables  # its client takes half a second

    if options.action == "adopt":
        return _adopt(place, options)
    if options.action == "forget":
        _show(options, forget(place, options.table, dry_run=options.dry_run))
        return 0
    place = open_place(place)
    specs = list(place.table_specs(reading=options.action == "retention"))
    if options.rollup_config:
        specs += _tables_of_rollups(place, options.rollup_config)
    if options.meta:
        place.opentsdb("metadata")
        specs.append(meta_table(place.table_prefix))
    if options.trees:
        place.opentsdb("trees")
        specs.append(tree_table(place.table_prefix))
    if options.series_limits:
        specs.append(counts_table(place.table_prefix))
    if options.action == "retention":
        return _retention(place, options, specs)
    created = create_tables(place.target, specs, dry_run=options.dry_run)
    _show(options, created, store_new(place, dry_run=options.dry_run))  # these, once there are tables
    return 0


def _show(options: TablesOptions, *messages: Iterable[str]) -> None:
    """Prints each line as what it says is done; or all of them as JSON."""
    lines = itertools.chain(*messages)
    if options.output == "json":
        print(json.dumps({"dry_run": options.dry_run, "messages": list(lines)}))
        return
    for line in lines:
        print(line)


def _adopt(place: Place, options: TablesOptions) -> int:
    """Stores the settings of the options if the rows in the tables agree with them; 1 if they do not.

    Stored settings that are not given stay.

    Raises:
      UsageError: the layout, or the declaration of tables, is not given; or another layout has a table.
      BigtableError: a table is missing.
    """
    if not place.layout:
        raise UsageError("adopt needs the layout of the tables: --layout")
    target = place.target
    place = open_place(place, replaces=True)
    layout = place.any_store()
    stored = read_rows(target, settings_table(place.table_prefix).name).get(place.layout)
    try:
        check_tables(target, layout.tables(), place.create_command())
    except BigtableError as error:
        if stored is None:
            raise
        forgetting = f"timebeam tables forget --layout {place.layout}"
        raise BigtableError(
            f"{error}; if that contradicts what is stored, first remove this: {forgetting}"
        ) from error
    with contextlib.redirect_stdout(sys.stderr if options.output == "json" else sys.stdout):
        result = audit_aloud(target, layout, _FINDINGS, options.rows or None)
    if result.corrupt:
        print("these settings do not fit the rows; nothing was stored", file=sys.stderr)
        return 1
    fit = "these settings fit the rows; nothing was stored (dry run)"
    unproved = [f"{name} {text}" for name, text in settings_of(place, stored).items() if name in UNPROVED]
    warnings = [f"rows do not prove {', '.join(unproved)}: taken from the options"] if unproved else []
    if not any(result.rows.values()):
        warnings = ["there are no rows: all settings are taken from the options"]
    _show(options, [fit if options.dry_run else store_again(place)], warnings)
    return 0


def _retention(place: Place, options: TablesOptions, specs: Sequence[TableSpec]) -> int:
    """Shows the rules of garbage collection, or sets a maximum age.

    Raises:
      UsageError: the options name no such table or family, or one whose cells must not expire.
    """
    from timebeam.transforms.bigtable.create_tables import set_max_age, show_rules

    target, days = place.target, options.max_age_days
    chosen = _chosen(options, specs)
    if days is None:
        ages = (
            f"table {spec.name}: age counts from {spec.cell_time}" if spec.cell_time else _no_age(spec)
            for spec in chosen
        )
        _show(options, show_rules(target, chosen), ages)
        return 0
    ageing = [spec for spec in chosen if spec.cell_time]
    if not ageing or (options.table and len(ageing) < len(chosen)):
        raise UsageError("; ".join(map(_no_age, chosen)))
    check_tables(target, ageing, place.create_command())
    _show(options, set_max_age(target, ageing, days, dry_run=options.dry_run))
    for spec in ageing if days else ():
        print(
            f"warning: table {spec.name}: Bigtable permanently deletes older cells; "
            f"age counts from {spec.cell_time}",
            file=sys.stderr,
        )
    return 0


def _chosen(options: TablesOptions, specs: Sequence[TableSpec]) -> list[TableSpec]:
    """The tables, and of them the families, that `--table` and `--family` name; all without them."""
    chosen = [
        dataclasses.replace(
            spec, families={name: n for name, n in spec.families.items() if options.family in (None, name)}
        )
        for spec in specs
        if options.table in (None, spec.name)
    ]
    chosen = [spec for spec in chosen if spec.families]
    if not chosen:
        existing = "; ".join(f"{spec.name}, families {', '.join(spec.families)}" for spec in specs)
        raise UsageError(f"no such table or family; choose from: {existing}")
    return chosen


def _no_age(spec: TableSpec) -> str:
    return (
        f"table {spec.name} cannot have a maximum age: its cells must not expire "
        "(names, index entries, marks) or carry no time"
    )


def _tables_of_rollups(place: Place, path: str) -> list[TableSpec]:
    """The tables that the rollup configuration adds to those of the layout.

    Raises:
      UsageError: the layout has no rollups, or the configuration is wrong.
    """
    # These import Beam, which takes a second, and other tables do not need it.
    from timebeam.pipelines.rollup.roll_up_points import series_tables
    from timebeam.transforms.rollup.rollup_job import rollup_tables

    config = read_config(path)
    layout = find_opentsdb(place.store)
    if layout is not None:
        return list(rollup_tables(config, layout))
    return series_tables(place, config)


@dataclasses.dataclass(frozen=True, slots=True)
class CheckOptions:
    """How findings are listed, and how many."""

    output: str
    most: int


def check(place: Place, options: CheckOptions) -> int:
    """Lists what is wrong; exit code 1 if there is corruption."""
    target, layout = place.target, place.any_store(reading=True)
    check_tables(target, layout.tables(), place.create_command())
    findings: list[Finding] = []
    if options.output == "json":
        result = audit(target, layout, findings.append)
        print(json.dumps(_figures(result, findings[: options.most])))
    else:
        result = audit_aloud(target, layout, options.most)
    return 1 if result.corrupt else 0


class Audit(NamedTuple):
    """How many rows were read of each table, and how many findings they gave."""

    rows: dict[str, int]
    corrupt: int
    notes: int


class _EnoughRowsError(Exception):
    """As many rows were read as are to be looked at."""


def audit(
    target: Target, layout: ReadableStore, show: Callable[[Finding], object], most_rows: int | None = None
) -> Audit:
    """Looks at the rows of a layout.

    Args:
      show: takes each finding as it comes.
      most_rows: ends after about so many rows of points; all of them if None.
    """
    rows: dict[str, int] = {}
    counts = dict.fromkeys(Severity, 0)
    reader = ParallelReader(target)
    of_points = {spec.name for spec in layout.tables() if spec.holds_points}

    def read(table: str) -> Iterator[Row]:
        rows[table] = 0
        for row in reader.scan(Scan(table, (WHOLE_TABLE,))):
            if rows[table] == most_rows and table in of_points:
                raise _EnoughRowsError
            rows[table] += 1
            yield row

    with contextlib.suppress(_EnoughRowsError):
        hidden = hidden_points(target, layout)
        for finding in itertools.chain(() if hidden is None else (hidden,), layout.audit(read)):
            counts[finding.severity] += 1
            show(finding)
    return Audit(rows, counts[Severity.CORRUPT], counts[Severity.NOTE])


def audit_aloud(target: Target, layout: ReadableStore, most: int, most_rows: int | None = None) -> Audit:
    """As `audit`; prints the first `most` findings and the counts."""
    numbers = itertools.count()

    def show(finding: Finding) -> None:
        if next(numbers) < most:
            print(f"{finding.severity.value}: {finding.table} row {_key(finding.key)}: {finding.text}")

    result = audit(target, layout, show, most_rows)
    unlisted = result.corrupt + result.notes - most
    if unlisted > 0:
        print(f"and {unlisted:,} more (--most lists more)")
    read_text = ", ".join(f"{count:,} of {table}" for table, count in result.rows.items())
    print(f"rows read: {read_text}; corrupt: {result.corrupt:,}; notes: {result.notes:,}")
    return result


def _figures(result: Audit, findings: Sequence[Finding]) -> dict[str, Any]:
    """What --output json prints; row keys in hex."""
    listed = [
        {"severity": each.severity.value, "table": each.table, "key": each.key.hex(), "text": each.text}
        for each in findings
    ]
    return {"rows": result.rows, "corrupt": result.corrupt, "notes": result.notes, "findings": listed}


def _key(key: bytes) -> str:
    """A row key as text if it is plain ASCII, else in hex."""
    text = key.decode("ascii", "replace")
    return repr(text) if text.isprintable() and "\ufffd" not in text else key.hex()
