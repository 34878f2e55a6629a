"""`timebeam query` of a declared table: its records, as a table, JSON or CSV."""

from __future__ import annotations

import dataclasses
import itertools
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from timebeam.pipelines.options.parameters import UsageError, flag, usage_errors
from timebeam.pipelines.options.period import time_of
from timebeam.pipelines.options.place import Place
from timebeam.pipelines.output.printable import printable
from timebeam.pipelines.output.write_results import Readable, csv_cell, csv_line, json_array
from timebeam.schema.bits.times import ends_before
from timebeam.schema.core.selection import Finding, Scan, Severity
from timebeam.schema.stores.declared.declaration import DayTables, Declaration, TableLayout
from timebeam.schema.stores.declared.filled_tables import day_of, tables_within
from timebeam.schema.stores.declared.layout import scan_reason
from timebeam.schema.stores.declared.read_records import ReadPlan, Record, RecordSelection, json_text
from timebeam.transforms.bigtable.existing_tables import check_tables, table_names
from timebeam.transforms.bigtable.read_ranges import scan_keys
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.read.table_reader import ParallelReader

if TYPE_CHECKING:
    from timebeam.pipelines.query.query_points import QueryOptions

OUTPUTS = ("table", "json", "csv")

_OF_POINTS = (
    "tag",
    "explicit_tags",
    "tsuid",
    "rate",
    "max_seconds",
    "downsample",
    "group_by",
    "rollup_config",
    "histogram",
    "percentiles",
    "global_annotations",
)
_WIDTH_RECORDS = 1000
"""Records that the widths of the columns of a table are taken from."""
_SHOWN_FINDINGS = 10


class RecordTable(NamedTuple):
    """A layout that records are read from.

    Attributes:
      days: the tables per day that hold its rows; None for the table of the layout itself.
      day_table: one of them, by its full name; None for all.
    """

    layout: TableLayout
    days: DayTables | None = None
    day_table: str | None = None


def record_table(declaration: Declaration, prefix: str, name: str) -> RecordTable | None:
    """The table of a declaration that has a name, of its layout or in Bigtable; None if there is none.

    Args:
      prefix: of the tables, which the name may lack.
    """
    for layout in declaration.all_layouts:
        if name in (layout.name, layout.table, layout.table.removeprefix(prefix)):
            return RecordTable(layout)
    for days in declaration.day_tables:
        source = declaration.layout(days.source)
        if name in (days.name, days.table):
            return RecordTable(source, days)
        for full_name in (name, prefix + name):
            if day_of(days, full_name) is not None:
                return RecordTable(source, days, full_name)
    return None


def query_records(place: Place, options: QueryOptions, declaration: Declaration, table: RecordTable) -> int:
    """Prints the records that the options select; returns the exit code.

    Raises:
      UsageError: the options cannot go together, or the read is a full scan without `--full-scan`.
      UnknownNameError: `--where` names no field of the table.
    """
    target, layout = place.target, table.layout
    selection = _selection(options)
    with usage_errors():
        plan = selection.plan(layout)
    if plan.rejected:
        raise UsageError(*plan.rejected[:_SHOWN_FINDINGS])
    is_declared_scan = not selection.where and any(read.scan for read in layout.reads)
    if plan.ranges and not plan.served and not (options.full_scan or is_declared_scan):
        reason = scan_reason(layout, [*selection.where])
        raise UsageError(f"{reason}: give --where for it, or --full-scan")
    if table.days is None:
        check_tables(target, declaration.specs, place.create_command())
        names = [layout.table]
    else:
        days = tables_within(table.days, layout, table_names(target), selection.start_ms, selection.end_ms)
        names = [name for name in days if table.day_table in (None, name)]
    if options.explain:
        _explain(plan, names)
    records = Readable[Record](_records(target, layout, names, selection, plan), dict)
    lines = {
        "json": json_array(json_text(layout, record) for record in records),
        "csv": _csv(records, layout, options.csv_guard),
        "table": _table(records, layout),
    }
    for line in lines[options.output]:
        print(line)
    for finding in records.unreadable[:_SHOWN_FINDINGS]:
        print(f"skipped: {finding.table} row {finding.key!r}: {finding.text}", file=sys.stderr)
    if len(records.unreadable) > _SHOWN_FINDINGS:
        print(f"and {len(records.unreadable) - _SHOWN_FINDINGS:,} more rows", file=sys.stderr)
    if not records.count:
        print(f"nothing found: {_why_nothing(target, names, table)}", file=sys.stderr)
    return 0


def _records(
    target: Target, layout: TableLayout, tables: Sequence[str], selection: RecordSelection, plan: ReadPlan
) -> Iterator[Record | Finding]:
    """The selected records of tables of one layout, in the order of the keys; and rows that cannot be read.

    Args:
      tables: names of Bigtable tables; several for tables per day.
      plan: of the selection, by the layout.
    """
    reader = ParallelReader(target)
    for table in tables if plan.ranges else ():
        stored = dataclasses.replace(layout, table=table)
        for row in reader.scan(Scan(table, plan.ranges, key_pattern=plan.key_pattern)):
            try:
                yield from selection.records(stored, row)
            except ValueError as error:
                yield Finding(Severity.CORRUPT, table, row.key, str(error))


def _selection(options: QueryOptions) -> RecordSelection:
    """What the options select.

    Raises:
      UsageError: a time or a filter is none, or an option is for points.
    """
    for name in _OF_POINTS:
        if getattr(options, name) not in (None, [], False):
            raise UsageError(
                f"{flag(name)} is for points, and {options.metric} is a table: its records are selected by "
                "--where, --start and --end"
            )
    if options.output not in OUTPUTS:
        raise UsageError(f"--output {options.output}: records are shown as {', '.join(OUTPUTS)}")
    now_ms = int(time.time() * 1000)
    start_ms = None if options.start is None else time_of(options.start, now_ms, options.timezone)
    is_open = options.start is None and options.end == "now"
    end_ms = None if is_open else time_of(options.end, now_ms, options.timezone)
    if start_ms is not None and end_ms is not None and start_ms > end_ms:
        raise UsageError(ends_before(start_ms, end_ms))
    return RecordSelection(field_filters(options.where), start_ms, end_ms)


def field_filters(texts: Iterable[str]) -> Mapping[str, Sequence[str]]:
    """The values that records must have, by field.

    Raises:
      UsageError: a text is not FIELD=VALUE.
    """
    filters: dict[str, Sequence[str]] = {}
    for text in texts:
        field, equals, values = text.partition("=")
        if not field or not equals or field in filters:
            raise UsageError(f"--where {text}: give each field once, as FIELD=V or FIELD=V|W")
        filters[field] = list(dict.fromkeys(values.split("|")))
    return filters


def _explain(plan: ReadPlan, names: Sequence[str]) -> None:
    """Says on standard error what is read."""
    by = f" by {', '.join(sorted(plan.served))}" if plan.served else ", all rows"
    count = len(plan.ranges)
    for name in names:
        print(f"{name}: {count:,} range{'' if count == 1 else 's'} of keys{by}", file=sys.stderr)


def _why_nothing(target: Target, names: Sequence[str], table: RecordTable) -> str:
    """Why there are no records."""
    if not names:
        assert table.days is not None
        return f"there is no table {table.day_table or table.days.table} for this time"
    if all(next(scan_keys(target, name, limit=1), None) is None for name in names):
        return f"table {' and '.join(names[:3])} {'is' if len(names) == 1 else 'are'} empty"
    return f"no record of {' and '.join(names[:3])} matches the selection"


def _text(layout: TableLayout, record: Record, name: str) -> str:
    """The value of a field in tables and CSV; of a map its entries as JSON."""
    value = record.get(name)
    if isinstance(value, dict):
        return json_text(layout, {name: value})[len(f'{{"{name}":') : -1]
    return "" if value is None else str(value)


def _csv(records: Iterable[Record], layout: TableLayout, guard: bool) -> Iterator[str]:
    """A heading, and a line for each record."""
    yield csv_line(csv_cell(name, guard) for name in layout.fields)
    for record in records:
        yield csv_line(csv_cell(_text(layout, record, name), guard) for name in layout.fields)


def _table(records: Iterable[Record], layout: TableLayout) -> Iterator[str]:
    """Columns as wide as the values of the first records need."""
    rows = ([printable(_text(layout, record, name)) for name in layout.fields] for record in records)
    first = list(itertools.islice(rows, _WIDTH_RECORDS))
    if not first:
        yield "no records"
        return
    widths = [max(map(len, column)) for column in zip(layout.fields, *first, strict=True)]
    for values in itertools.chain([layout.fields], first, rows):
        yield "  ".join(value.ljust(width) for value, width in zip(values, widths, strict=True)).rstrip()
