"""A layout in words and bytes, as `timebeam layout check` prints it, and how evenly a sample would spread.

Format: docs/spec/bigtable-patterns.md §6.7 and §6.8.

What Key Visualizer shows after the fact, here before: the keys of the sample are cut into ranges that
hold as many writes each; a hot spot is a minute that writes into one of them only.
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from timebeam.schema.bits.arrays import Int64s
from timebeam.schema.bits.times import HOUR_MS, floor_to
from timebeam.schema.core.rows import ROW_BYTES_ADVISED, Row
from timebeam.schema.stores.declared import keys
from timebeam.schema.stores.declared.declaration import DayTables, Declaration, DeclaredRollup, TableLayout
from timebeam.schema.stores.declared.language.check_declaration import derived, key_bytes, row_bytes, served
from timebeam.schema.stores.declared.parts.time_part import one_from_ms
from timebeam.schema.stores.declared.records import RecordBatch
from timebeam.schema.stores.declared.write_records import layout_rows

MOST_RANGES = 32
MOST_MINUTES = 31 * 1440
LEAST_MINUTES = 4
"""A shorter sample cannot tell a hot spot from a small table."""

_HOT = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class Heat:
    """Writes by key range and minute.

    Attributes:
      starts: the first key of each of k ranges, ascending.
      first_minute: minutes since 1970 of the first column.
      counts: int64[k, m] writes.
    """

    starts: Sequence[bytes]
    first_minute: int
    counts: np.ndarray[tuple[int, int], np.dtype[np.int64]]

    @property
    def share(self) -> float:
        """The part of a minute's writes that goes to its busiest range; the mean over all writes."""
        return float(self.counts.max(axis=0).sum() / self.counts.sum())

    @property
    def is_hot(self) -> bool:
        """Whether one range takes most of a minute's writes."""
        return self.counts.shape[1] >= LEAST_MINUTES and self.share > _HOT

    def verdict(self) -> str:
        """The result in words."""
        minutes = self.counts.shape[1]
        ranges = f"{len(self.starts)} key range{'s' if len(self.starts) > 1 else ''}"
        verdict = (
            f"{self.counts.sum():,} writes in {minutes:,} minute{'s' if minutes > 1 else ''}, {ranges}: "
            f"the busiest takes {self.share:.0%} of a minute's writes"
        )
        if minutes < LEAST_MINUTES:
            return f"{verdict}; a sample of at least {LEAST_MINUTES} minutes tells more"
        return verdict + (": a hot spot" if self.is_hot else "")


def heat(keys: Sequence[bytes], times_ms: Int64s) -> Heat:
    """The heat of writes of these keys at these times; half as many ranges as minutes, 2 to 32.

    Raises:
      ValueError: there are none, or they are spread over more than a month.
    """
    if not keys:
        raise ValueError("no writes to count")
    minutes = times_ms // 60_000
    first = int(minutes.min())
    width = int(minutes.max()) - first + 1
    if width > MOST_MINUTES:
        raise ValueError(
            f"the sample spans {width // 1440} days: give one of {MOST_MINUTES // 1440} days at most"
        )
    ranges = max(2, min(MOST_RANGES, width // 2))
    ordered = sorted(keys)
    starts = sorted({ordered[i * len(ordered) // ranges] for i in range(ranges)})
    rows = np.fromiter((bisect_right(starts, key) - 1 for key in keys), np.int64, len(keys))
    counts = np.bincount(rows * width + (minutes - first), minlength=len(starts) * width)
    return Heat(starts, first, counts.reshape(len(starts), width).astype(np.int64))


EXAMPLE_MS = 1_426_535_612_045
"""The time of examples that name none: 2015-03-16T19:53:32.045Z."""

_SHOWN_CELLS = 8
_SHOWN_RANGES = 4


def explain(declaration: Declaration) -> str:
    """Every table of a declaration: key, cells, reads, sizes, and how to create it; then the warnings."""
    blocks = ["\n".join(_layout(layout)) for layout in declaration.all_layouts]
    blocks += ["\n".join(_days(tables)) for tables in declaration.day_tables]
    blocks += ["\n".join(_rollup(rollup)) for rollup in declaration.rollups]
    if declaration.warnings:
        blocks.append("\n".join(["Warnings", *(f"  {warning}" for warning in declaration.warnings)]))
    else:
        blocks.append("No warnings")
    return "\n\n".join(blocks) + "\n"


def figures(declaration: Declaration) -> dict[str, Any]:
    """What `timebeam layout check --summary json` prints: keys in hex, sizes in bytes."""
    return {
        "tables": [
            {
                "table": layout.table,
                "layout": layout.name,
                "example_key": example_row(layout).key.hex(),
                "fields": layout.fields,
                "reads": [
                    {
                        "by": equals,
                        "time": time,
                        "ranges": served(layout, equals, time) if equals or time else 1,
                    }
                    for _, equals, time in _questions(layout)
                ],
                "key_bytes": key_bytes(layout),
                "row_bytes": row_bytes(layout),
                "create": create_commands(layout),
            }
            for layout in declaration.all_layouts
        ],
        "warnings": list(declaration.warnings),
    }


def example_record(layout: TableLayout) -> RecordBatch:
    """One record for examples: the layout's own fields, and made-up ones for those it does not name."""
    fields = dict(layout.example)
    if layout.event is not None:
        time = one_from_ms(EXAMPLE_MS, layout.event[1])
        fields.setdefault(layout.event[0], str(time))
    for key_part in layout.key:
        for source in key_part.sources or (key_part,):
            for name, text in source.example().items():
                fields.setdefault(name, text)
    names = [column.field for column in layout.columns]
    if layout.series is not None:
        names.append(layout.series.field)
        if isinstance(layout.series.qualifier, str):
            fields.setdefault(layout.series.qualifier, layout.series.qualifier.lower())
    if layout.revision is not None:
        names.append(layout.revision)
    for name in names:
        fields.setdefault(name, "1")
    quoted = {}
    if layout.map is not None:
        entry = '{"name": 1}' if len(layout.map.literals) == 2 else '{"category": {"name": 1}}'
        fields.setdefault(layout.map.field, entry)
        quoted[layout.map.field] = np.zeros(1, np.bool_)
    columns = {name: pa.array([value], pa.string()) for name, value in fields.items()}
    return RecordBatch(columns, np.full(1, EXAMPLE_MS, np.int64), None, quoted)


def example_row(layout: TableLayout) -> Row:
    """The row of the example record.

    Raises:
      ValueError: the layout's example does not fit its key or columns.
    """
    rows, rejections = layout_rows(layout, example_record(layout))
    if not rows:
        raise ValueError(f"layout {layout.name}: the example is rejected: {rejections.by_record[0][1]}")
    return rows[0]


def create_commands(layout: TableLayout) -> list[str]:
    """The commands that create the table, with each of Google's two tools."""
    rule = f"{layout.family}:maxversions={layout.max_versions}"
    return [
        f"cbt createtable {layout.table} families={rule}",
        f'gcloud bigtable tables create {layout.table} --instance=INSTANCE --column-families="{rule}"',
    ]


def _layout(layout: TableLayout) -> Iterator[str]:
    row = example_row(layout)
    yield f"Table {layout.table}  (layout {layout.name})"
    if layout.when:
        yield f"  a row for each record that has {layout.when}"
    yield f"  key     {_shown(row.key)}  ({len(row.key)} bytes)"
    yield from _picture(layout, row.key)
    yield f"  cells   family {layout.family}, timestamps: {_cell_time(layout)}"
    for cell in row.cells[:_SHOWN_CELLS]:
        yield f"            {_shown(cell.qualifier)} = {_shown(cell.value)}  @ {cell.timestamp_ms}"
    if len(row.cells) > _SHOWN_CELLS:
        yield f"            ... {len(row.cells) - _SHOWN_CELLS} more"
    yield "  reads"
    yield from _reads(layout)
    if layout.points is not None:
        points = layout.points
        metric = points.metric_of(f"{{{points.placeholder}}}")
        yield f"  points  {metric} of {', '.join(points.values)} by {', '.join(points.tags) or 'no tags'}"
    yield f"  sizes   key up to {key_bytes(layout):,} bytes, row up to {_size(row_bytes(layout))}"
    yield f"          (computed with {_estimate(layout)}; rows should stay below {_size(ROW_BYTES_ADVISED)})"
    yield "  create  " + "\n          ".join(create_commands(layout))


def _picture(layout: TableLayout, key: bytes) -> Iterator[str]:
    """The bytes of each part of a key."""
    offset = 0
    for key_part, piece in zip(layout.key, keys.split(layout, key), strict=True):
        last = offset + len(piece) - 1
        where = f"{offset}-{last}" if last > offset else f"{offset}"
        yield f"            bytes {where:<7} {_shown(piece):<24} {key_part.explain()}"
        offset = last + 1 + len(layout.separator)


def _cell_time(layout: TableLayout) -> str:
    event = layout.event[0] if layout.event else ""
    return {
        "event": f"{event}, so that of two values of a cell that of the later event is read",
        "arrival": "arrival of the record, so that a later correction is read",
        "revision": f"{event} + {layout.revision}: a version per revision",
        "zero": "always 0, so that the last write is read",
    }[layout.cell_time.value]


def _reads(layout: TableLayout) -> Iterator[str]:
    """The reads with the ranges of the example record."""
    batch = example_record(layout)
    for name, equals, time in _questions(layout):
        if not equals and time is None:
            yield f"    {name or 'all'}: the whole table, one scan"
            continue
        count = served(layout, equals, time)
        ranges = "one range" if count == 1 else f"{count} ranges, one per salt; merge them by time"
        question = ", ".join([*equals, *([f"{time} from .. to"] if time else [])])
        yield f"    {name + ': ' if name else ''}by {question}: {ranges}"
        fixed = {field: str(batch.texts(field)[0].as_py()) for field in equals}
        hour = (floor_to(EXAMPLE_MS, HOUR_MS), floor_to(EXAMPLE_MS, HOUR_MS) + HOUR_MS)
        key_ranges = keys.ranges(layout, fixed, hour if time else None)
        for start, end in key_ranges[:_SHOWN_RANGES]:
            yield f"            {_range(start, end)}"
        if len(key_ranges) > _SHOWN_RANGES:
            yield f"            ... {len(key_ranges) - _SHOWN_RANGES} more"


def _questions(layout: TableLayout) -> list[tuple[str, tuple[str, ...], str | None]]:
    """(name, fields with a value, field with a range) of each declared read, else of what the key serves."""
    if layout.reads:
        return [(read.name, read.equals, read.range) for read in layout.reads]
    return [("", equals, time) for equals, time in derived(layout)]


def _range(start: bytes, end: bytes) -> str:
    if end == start + b"\0":
        return f"row {_shown(start)}"
    return f"[{_shown(start)}, {_shown(end) if end else 'end of table'})"


def _estimate(layout: TableLayout) -> str:
    estimate = layout.estimate
    sentences = [f"values of {estimate.value_bytes} bytes, fields of {estimate.field_bytes}"]
    if layout.map is not None or (layout.series and not layout.time_qualifier):
        sentences.append(f"{estimate.entries} entries")
    if estimate.interval_ms:
        sentences.append(f"a record every {estimate.interval_ms / 1000:g} s")
    return ", ".join(sentences)


def _days(tables: DayTables) -> Iterator[str]:
    yield f"Tables {tables.table}  (layout {tables.name})"
    expire = f", dropped after {tables.expire_days} days" if tables.expire_days else ""
    yield f"  one a day, with the day's rows of layout {tables.source}, filled by a job{expire}"


def _rollup(rollup: DeclaredRollup) -> Iterator[str]:
    yield f"Rollups {rollup.target.table}  (layout {rollup.target.name})"
    yield (
        f"  every {rollup.interval} ({rollup.zone}) sum, count, min and max of {rollup.value} of layout "
        f"{rollup.source} by {', '.join(rollup.by) or 'nothing'}, filled by a job"
    )


def _shown(raw: bytes) -> str:
    """Bytes as text where they are printable ASCII, else in hex."""
    text = raw.decode("ascii", "replace")
    return text if text.isprintable() and "\ufffd" not in text else "0x" + raw.hex()


def _size(number: int) -> str:
    units = ("bytes", "kB", "MB", "GB", "TB")
    power = min(int(math.log10(max(number, 1)) // 3), len(units) - 1)
    return f"{number / 1000**power:.3g} {units[power]}"
