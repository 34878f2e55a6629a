"""Checks of a declaration beyond its syntax, and which reads a key serves (§6.1).

Format: docs/spec/bigtable-patterns.md §6; the numbers are those of its list.

Checks 2 and 3 (order of times, widths, padding, salts' digits) are made where parts are read, and that
readings are told apart (check 4) in `ambiguities`.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence

from timebeam.schema.bits.times import DAY_MS
from timebeam.schema.core.rows import KEY_BYTES, QUALIFIER_BYTES, ROW_BYTES_ADVISED
from timebeam.schema.stores.declared import filled_tables
from timebeam.schema.stores.declared.declaration import COLUMN, DayTables, DeclaredRollup, TableLayout
from timebeam.schema.stores.declared.filled_tables import problems
from timebeam.schema.stores.declared.parts.key_part import KeyPart
from timebeam.schema.stores.declared.read_section import Location, ProblemError


def served(layout: TableLayout, equals: Collection[str], time: str | None) -> int:
    """In how many ranges the key serves a read by these fields, and by an interval of this time.

    Raises:
      ValueError: it does not; the message says what prevents it.
    """
    if time is not None and not any(time in key_part.inputs for key_part in layout.key):
        raise ValueError(f"{time} is not a time part of the key")
    ranges = 1
    used: set[str] = set()
    for key_part in layout.key:
        if key_part is layout.time and key_part.stored_field == time:
            break
        if key_part.follows(equals):
            used |= key_part.inputs
        elif key_part.choices:
            ranges *= key_part.choices
        elif time is None and used >= set(equals):
            return ranges
        else:
            raise ValueError(_obstacle(key_part, time))
    else:
        if time is not None:
            raise ValueError(f"{time} is not a time part of the key")
    unused = sorted(set(equals) - used)
    if unused:
        raise ValueError(f"{unused[0]} is not in the key" + (f" before {time}" if time else ""))
    return ranges


def derived(layout: TableLayout) -> list[tuple[tuple[str, ...], str | None]]:
    """(equals, range) of every read that the key serves in ranges, from coarse to fine."""
    reads: list[tuple[tuple[str, ...], str | None]] = []
    equals: list[str] = []
    for key_part in layout.key:
        if key_part.is_tie:
            break
        if key_part is layout.time:
            reads.append((tuple(equals), key_part.stored_field))
        if key_part.stored_field is not None:
            equals.append(key_part.stored_field)
        else:
            equals += [name for name in sorted(key_part.hashed) if name not in equals]
        if key_part.stored_field is not None or key_part.hashed:
            reads.append((tuple(equals), None))
    return reads


def _obstacle(key_part: KeyPart, time: str | None) -> str:
    label = key_part.label
    if time in key_part.hashed:
        return f"{time} is hashed, so that an interval of it lies all over the table: use a time part"
    if key_part.stored_field is not None:
        return f"{label} comes before it in the key: add {label} to equals, or put it after"
    return f"{label} comes before it in the key"


def check_layout(layout: TableLayout, place: Location, is_rollup: bool) -> Iterator[ProblemError]:
    """The warnings about a layout.

    Args:
      is_rollup: it is filled by a job, so that no two records of one row come; how its key tells intervals
        apart is checked by `timebeam.schema.stores.declared.filled_tables.problems`.

    Raises:
      ProblemError: it must not be used.
    """
    _key(layout, place)
    _reads(layout, place)
    _sizes(layout, place)
    return _warnings(layout, place, is_rollup)


def check_declaration(
    layouts: Sequence[TableLayout], day_tables: Sequence[DayTables], rollups: Sequence[DeclaredRollup]
) -> Iterator[ProblemError]:
    """What is wrong between the layouts of a file."""
    all_layouts = [*layouts, *(rollup.target for rollup in rollups)]
    seen: dict[str, str] = {}
    for layout in all_layouts:
        if layout.table in seen:
            text = (
                f"table {layout.table} is also that of layout {seen[layout.table]}: one table has one layout"
            )
            yield ProblemError(("layout", layout.name, "table"), text)
        seen.setdefault(layout.table, layout.name)
    by_name = {layout.name: layout for layout in layouts}
    yield from _day_names(day_tables, all_layouts)
    for tables in day_tables:
        source = by_name.get(tables.source)
        time = source.time if source else None
        if source is None:
            yield ProblemError(
                ("layout", tables.name, "source"), f"source = {tables.source!r} is not a layout of this file"
            )
        elif time is None or time.bucket is None or (time.bucket.ms, time.bucket.months) != (DAY_MS, 0):
            yield ProblemError(
                ("layout", tables.name, "source"),
                f'layout {tables.source} has no day in its key: it needs a time with bucket = "1d"',
            )

    for rollup in rollups:
        for text in problems(rollup, by_name):
            yield ProblemError(("layout", rollup.target.name, "rollup"), text)


def _day_names(day_tables: Sequence[DayTables], layouts: Sequence[TableLayout]) -> Iterator[ProblemError]:
    """Tables per day whose name could be that of another table: a job fills and drops them by name."""
    for number, tables in enumerate(day_tables):
        for layout in layouts:
            if filled_tables.day_of(tables, layout.table) is not None:
                yield ProblemError(
                    ("layout", tables.name, "table"),
                    f"a day's name, {layout.table} is also the table of layout {layout.name}: rename one",
                )
        for other in day_tables[:number]:
            if filled_tables.may_meet(tables, other):
                yield ProblemError(
                    ("layout", tables.name, "table"),
                    f"table = {tables.table!r} may give a day the name of a table of layout {other.name}, "
                    f"{other.table!r}: rename one",
                )


def _key(layout: TableLayout, place: Location) -> None:
    """Check 3: a key can be split into its parts again."""
    separator = layout.separator.decode()
    for number, key_part in enumerate(layout.key):
        names = ", ".join(sorted(key_part.inputs))
        if key_part.size is None and not separator and number < len(layout.key) - 1:
            text = f"{names} has no fixed width, and no separator ends it: give a width or a separator"
            raise place.problem("key", text, number)
        if key_part.size is not None and separator and getattr(key_part, "pad", None) == separator:
            text = f"{names} is padded with the separator: use another pad"
            raise place.problem("key", text, number)
    if all(key_part.follows(()) for key_part in layout.key):
        raise place.problem("key", "all records would share one row: add a field or a time")
    kinds = [key_part.kind for key_part in layout.key]
    if max(kinds.count("time"), kinds.count("salt")) > 1:
        raise place.problem("key", "a key has one time and one salt at most")
    if layout.salt and layout.salt.since and layout.event is None:
        raise place.problem("key", 'since needs a time to compare with: add event_time = "FIELD"')
    fields = [key_part.stored_field for key_part in layout.key if key_part.stored_field is not None]
    if len(fields) > len(set(fields)):
        raise place.problem("key", "a field is repeated in the key")


def _reads(layout: TableLayout, place: Location) -> None:
    """Check 1: every declared read is served."""
    for number, read in enumerate(layout.reads):
        if not read.scan:
            try:
                served(layout, read.equals, read.range)
            except ValueError as error:
                raise place.problem("read", f"read {read.name} is not served: {error}", number) from None


def _sizes(layout: TableLayout, place: Location) -> None:
    """Check 6, in so far as Bigtable would refuse rows."""
    size = key_bytes(layout)
    if size > KEY_BYTES:
        raise place.problem(
            "key", f"keys may have {size} bytes, Bigtable takes at most {KEY_BYTES}: shorten parts"
        )
    longest = max([len(column.qualifier) for column in layout.columns] + [_qualifier_bytes(layout)])
    if longest > QUALIFIER_BYTES:
        raise place.problem(
            "columns", f"qualifiers may have {longest} bytes, Bigtable takes {QUALIFIER_BYTES}"
        )


def key_bytes(layout: TableLayout) -> int:
    """Bytes of the longest key, by the layout's estimate for parts without width."""
    size = sum(
        layout.estimate.field_bytes if key_part.size is None else key_part.size for key_part in layout.key
    )
    return size + len(layout.separator) * (len(layout.key) - 1)


def row_bytes(layout: TableLayout) -> int:
    """Bytes of the largest row, by the layout's estimate: keys and values of all cells and versions."""
    estimate = layout.estimate
    overhead = key_bytes(layout) + len(layout.family) + 8  # of each cell: key, family, timestamp
    fixed = sum(len(column.qualifier) + estimate.value_bytes + overhead for column in layout.columns)
    dynamic = _dynamic_cells(layout) * (_qualifier_bytes(layout) + estimate.value_bytes + overhead)
    versions = layout.max_versions
    time = layout.time
    if versions > 1 and time and time.bucket and estimate.interval_ms:
        versions = min(versions, max(1, time.bucket.ms // estimate.interval_ms))
    return (fixed + dynamic) * versions


def _dynamic_cells(layout: TableLayout) -> int:
    """Columns of a row whose qualifier the record makes."""
    form = layout.time_qualifier
    if form is None:
        return 0 if layout.map is None and layout.series is None else layout.estimate.entries
    assert layout.time is not None
    assert layout.time.bucket is not None
    step = max(form.step.ms, layout.estimate.interval_ms or 1)
    return -(-layout.time.bucket.ms // step)


def _qualifier_bytes(layout: TableLayout) -> int:
    if layout.map is not None:
        levels = len(layout.map.literals) - 1
        return sum(map(len, layout.map.literals)) + levels * layout.estimate.field_bytes
    if layout.series is None:
        return 0
    return 4 if layout.time_qualifier is not None else layout.estimate.field_bytes


def _warnings(layout: TableLayout, place: Location, is_rollup: bool) -> Iterator[ProblemError]:
    """Checks 4, 6 and 7: what may be meant so."""
    first = next((key_part for key_part in layout.key if not key_part.follows(())), None)
    if layout.time is not None and first is layout.time:
        yield place.problem(
            "key",
            f"hot spot: keys begin with {layout.time.name}, so that all writes go to the end of the "
            "table (or the front of it): put a field before the time (field promotion), or a salt",
            layout.key.index(layout.time),
        )
    in_columns = layout.series is not None
    has_suffix = any(key_part.is_tie for key_part in layout.key)
    if layout.told_times and not (in_columns or has_suffix or layout.allow_overwrite or is_rollup):
        assert layout.event is not None
        fields = ", ".join(sorted(layout.stored - {layout.event[0]}))
        condition = f"with the same {fields} " if fields else ""
        yield place.problem(
            "key",
            f"ties: two records {condition}within one {layout.event[1]} share a row, and one overwrites the "
            'other: add { suffix = "payload" } to the key, or say allow_overwrite = true',
        )
    size = row_bytes(layout)
    if size > ROW_BYTES_ADVISED:
        yield place.problem(
            "key",
            f"rows may grow to {size / 1e6:,.0f} MB, and should stay below "
            f"{ROW_BYTES_ADVISED // 1_000_000} MB: a "
            'smaller bucket, fewer versions, or (if records are rarer) an estimate = { interval = "1m" }',
        )


def overlaps(layouts: Sequence[TableLayout]) -> Iterator[ProblemError]:
    """Pairs of layouts that may hold points of the same metric: a query reads a metric from one table."""
    readable = [layout for layout in layouts if layout.points is not None]
    for earlier, later in itertools.combinations(readable, 2):
        if _may_meet(earlier, later):
            yield ProblemError(
                ("layout", later.name, "points", "metric"),
                f"layout {earlier.name} may have points of the same metric: begin one of them with another "
                f'name, as metric = "{later.name}.{{{COLUMN}}}"',
            )


def _may_meet(first: TableLayout, second: TableLayout) -> bool:
    """Whether two layouts may have the same metric."""
    for layout, other in ((first, second), (second, first)):
        metrics = layout.metrics
        if metrics is not None:
            return any(other.may_have(metric) for metric in metrics)
    assert first.points is not None
    assert second.points is not None
    shorter, longer = sorted((first.points.metric, second.points.metric), key=len)
    short_end, long_end = sorted((first.points.suffix, second.points.suffix), key=len)
    return longer.startswith(shorter) and long_end.endswith(short_end)
