"""What a declaration of tables says, as frozen records (docs/spec/bigtable-patterns.md §5).

`timebeam.schema.stores.declared.language.load_declaration` makes these from TOML; they hold what was
declared, already checked. Times are in the unit of their part unless a name says otherwise.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence

from timebeam.schema.bits.times import Span, span_of
from timebeam.schema.core.rows import ARRIVAL, TableSpec
from timebeam.schema.stores.declared.columns import Column, MapColumns, SeriesColumn, TimeQualifier
from timebeam.schema.stores.declared.parts.digest_parts import Salt
from timebeam.schema.stores.declared.parts.key_part import Field, KeyPart
from timebeam.schema.stores.declared.parts.time_part import Time
from timebeam.schema.stores.declared.read_section import Count, Options


class CellTime(enum.StrEnum):
    """Where the timestamps of cells come from; never the server's clock.

    Format: docs/spec/bigtable-patterns.md §6.5.
    """

    EVENT = "event"
    """The event time: of two messages for one cell the later event wins, in any order of arrival."""
    ARRIVAL = "arrival"
    """When the record reached us (publish time, modification time): the later correction wins."""
    REVISION = "revision"
    """Event time plus the revision number in a field: as many versions as garbage collection keeps."""
    ZERO = "zero"
    """Always 0: the last write wins."""


class Read(Options, frozen=True):
    """A read that the key must serve in one range (or one per salt)."""

    name: str
    equals: tuple[str, ...] = ()
    range: str | None = None
    scan: bool = False


COLUMN = "column"
"""The placeholder of `PointFields.metric` for the name of the value's column."""


@dataclasses.dataclass(frozen=True, slots=True)
class PointFields:
    """How the rows of a table read as points of series.

    Attributes:
      metric: what the name of the metric begins with, and all of it without `placeholder`.
      placeholder: a field of the key or of the qualifier, or `COLUMN`; None if the metric is fixed.
      suffix: what the name of the metric ends with, after the value of `placeholder`.
      values: fields of fixed columns; or the map field; or the value of the series of columns.
      tags: fields whose values are tag values, by their names.
    """

    metric: str
    placeholder: str | None
    suffix: str
    values: tuple[str, ...]
    tags: tuple[str, ...]

    def metric_of(self, text: str) -> str:
        """The metric, with the value of the placeholder."""
        return self.metric if self.placeholder is None else self.metric + text + self.suffix

    def placeholder_of(self, metric: str) -> str | None:
        """The value of the placeholder in a metric, empty without one; None if no point has this metric."""
        if self.placeholder is None:
            return "" if metric == self.metric else None
        text = metric[len(self.metric) : len(metric) - len(self.suffix)]
        return text if text and self.metric_of(text) == metric else None


class Estimate(Options, frozen=True):
    """What the loader computes sizes with; longer values are not rejected.

    Attributes:
      interval: time between two records of one series, as `15m`; None if not known.
      field_bytes, value_bytes: of the longest field of variable width, and value.
      entries: of a map field, or distinct values of the field that is a qualifier.
    """

    interval: str | None = None
    field_bytes: Count = 64
    value_bytes: Count = 32
    entries: Count = 100

    @property
    def interval_ms(self) -> int | None:
        """The interval in ms; raises ValueError if its text is none."""
        return None if self.interval is None else span_of(self.interval).ms


@dataclasses.dataclass(frozen=True, slots=True)
class TableLayout:
    """One table: its key and its columns.

    Attributes:
      name: of the section in the file.
      when: the record makes a row only if this field is present.
      event: (field, unit) of the event time; None if the layout has none.
      revision: the field with the revision number, for CellTime.REVISION.
      identity: fields that tell two events apart.
      example: fields of a record, for explanations.
      points: how its rows read as points; None if they are records only.
    """

    name: str
    table: str
    separator: bytes
    key: tuple[KeyPart, ...]
    when: str | None
    event: tuple[str, str] | None
    cell_time: CellTime
    revision: str | None
    max_versions: int
    family: str
    columns: tuple[Column, ...]
    map: MapColumns | None
    series: SeriesColumn | None
    reads: tuple[Read, ...]
    identity: tuple[str, ...]
    allow_overwrite: bool
    estimate: Estimate
    example: tuple[tuple[str, str], ...]
    points: PointFields | None = None

    @property
    def time(self) -> Time | None:
        """The time part of the key, if it has one."""
        return next((key_part for key_part in self.key if isinstance(key_part, Time)), None)

    @property
    def salt(self) -> Salt | None:
        """The salt of the key, if it has one."""
        return next((key_part for key_part in self.key if isinstance(key_part, Salt)), None)

    @property
    def key_texts(self) -> Mapping[str, Field]:
        """The parts of the key that hold a text, by their fields."""
        return {key_part.name: key_part for key_part in self.key if isinstance(key_part, Field)}

    @property
    def told_times(self) -> Sequence[tuple[int, Time]]:
        """The times that the key tells apart, also in a hash; each with the number of its part."""
        return [
            (number, source)
            for number, key_part in enumerate(self.key)
            if key_part.tells
            for source in (key_part, *key_part.sources)
            if isinstance(source, Time)
        ]

    @property
    def time_source(self) -> str:
        """Where the times of records come from: `key`, `cell`, `steps`, `column`, `start` of the bucket.

        Of the first three that have it: a row of several steps has one column for all of them.
        """
        if self.time is not None and self.time.is_exact:
            return "key"
        if self.cell_time is CellTime.EVENT and self.event is not None and self.event[1] != "us":
            return "cell"
        if self.time_qualifier:
            return "steps"
        if self.event is not None and any(column.field == self.event[0] for column in self.columns):
            return "column"
        return "start"

    @property
    def shares_rows(self) -> bool:
        """Whether the key cuts the time, and nothing else keeps records of one row apart."""
        has_tie = any(key_part.is_tie for key_part in self.key)
        return self.time is not None and not (self.time.is_exact or self.time_qualifier or has_tie)

    @property
    def time_qualifier(self) -> TimeQualifier | None:
        """The form of the qualifiers of readings that are times."""
        qualifier = self.series.qualifier if self.series is not None else None
        return qualifier if isinstance(qualifier, TimeQualifier) else None

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of a record that is read back: of the key, the time, of the columns."""
        names = [key_part.stored_field for key_part in self.key if key_part.stored_field is not None]
        names += [self.event[0]] if self.event else []
        names += [column.field for column in self.columns]
        names += [self.map.field] if self.map else []
        if self.series is not None:
            names += [self.series.qualifier] if isinstance(self.series.qualifier, str) else []
            names.append(self.series.field)
        return tuple(dict.fromkeys(names))

    @property
    def metrics(self) -> tuple[str, ...] | None:
        """The metrics that its points can have; None if the rows say which."""
        points = self.points
        if points is None or points.placeholder is None:
            return () if points is None else (points.metric,)
        fixed = {column.field for column in self.columns}
        if points.placeholder == COLUMN and fixed.issuperset(points.values):
            return tuple(map(points.metric_of, points.values))
        return None

    def may_have(self, metric: str) -> bool:
        """Whether there may be points of a metric."""
        metrics = self.metrics
        if metrics is not None:
            return metric in metrics
        return self.points is not None and self.points.placeholder_of(metric) is not None

    @property
    def stamps(self) -> str:
        """What the cell timestamps of the table are; see `TableSpec.cell_time`."""
        event = self.event[0] if self.event else ""
        return {
            CellTime.EVENT: f"{event}, the time in the record",
            CellTime.ARRIVAL: ARRIVAL,
            CellTime.REVISION: f"{event}, the time in the record, with the revision as milliseconds",
            CellTime.ZERO: "",
        }[self.cell_time]

    def contradiction(self, declared: TableLayout) -> str:
        """The option in which a declared layout contradicts this one, that of the table; empty if none.

        Columns can be added and left out, and a salt can get later entries of `since`: rows stay readable.
        """
        for option in ("separator", "event", "cell_time", "revision", "family", "map", "series"):
            if getattr(self, option) != getattr(declared, option):
                return "event_time" if option == "event" else option
        earlier = self.salt.since if self.salt else ()
        later = declared.salt.since if declared.salt else ()
        if self._key_without_since != declared._key_without_since or later[: len(earlier)] != earlier:
            return "key"
        by_field = {column.field: column for column in self.columns}
        by_qualifier = {column.qualifier: column for column in self.columns}
        for column in declared.columns:
            if {by_field.get(column.field, column), by_qualifier.get(column.qualifier, column)} != {column}:
                return f"column {column.field}"
        return ""

    @property
    def _key_without_since(self) -> list[KeyPart]:
        salt = self.salt
        return [
            dataclasses.replace(salt, since=()) if salt is not None and key_part is salt else key_part
            for key_part in self.key
        ]

    @property
    def stored(self) -> frozenset[str]:
        """Fields whose values are in the key or in qualifiers: what keeps two records apart."""
        names = {name for key_part in self.key for name in key_part.tells}
        if self.series is not None:
            names.add(self.event[0] if self.time_qualifier and self.event else str(self.series.qualifier))
        return frozenset(names)


@dataclasses.dataclass(frozen=True, slots=True)
class DayTables:
    """A table per day, filled from another layout's by a nightly job (docs/spec/bigtable-patterns.md §3).

    Attributes:
      table: its name, with `{day:...}` in it, a strftime format.
      source: the layout whose rows are copied.
      expire_days: after how many days a table may be dropped; None for never.
    """

    name: str
    table: str
    source: str
    expire_days: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class DeclaredRollup:
    """A table of rollups of a numeric column of another layout.

    See `timebeam.schema.stores.declared.filled_tables`.

    Attributes:
      target: the layout of the table; records are not ingested into it.
      source: the layout whose rows are read.
      value: the field of the numbers.
      interval, zone: of the rollups; days and months begin in that time zone.
      by: the fields of the source's key that rollups keep.
    """

    target: TableLayout
    source: str
    value: str
    interval: Span
    zone: str
    by: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Declaration:
    """A file of declared tables that passed all checks.

    Attributes:
      layouts: those that records are ingested into.
    """

    file_name: str
    layouts: tuple[TableLayout, ...]
    day_tables: tuple[DayTables, ...]
    warnings: Sequence[str]
    rollups: tuple[DeclaredRollup, ...] = ()

    @property
    def all_layouts(self) -> tuple[TableLayout, ...]:
        """The layouts of records, and those of rollups."""
        return (*self.layouts, *(rollup.target for rollup in self.rollups))

    @property
    def specs(self) -> Sequence[TableSpec]:
        """The tables, those of rollups too, without those that a job makes day by day."""
        return [
            TableSpec(
                layout.table,
                {layout.family: layout.max_versions},
                holds_points=True,
                cell_time=layout.stamps,
            )
            for layout in self.all_layouts
        ]

    def with_prefix(self, prefix: str) -> Declaration:
        """The same with a prefix before the names of all tables."""

        def prefixed(layout: TableLayout) -> TableLayout:
            return dataclasses.replace(layout, table=prefix + layout.table)

        return dataclasses.replace(
            self,
            layouts=tuple(map(prefixed, self.layouts)),
            day_tables=tuple(
                dataclasses.replace(tables, table=prefix + tables.table) for tables in self.day_tables
            ),
            rollups=tuple(
                dataclasses.replace(rollup, target=prefixed(rollup.target)) for rollup in self.rollups
            ),
        )

    def layout(self, name: str) -> TableLayout:
        """The layout of this name.

        Raises:
          ValueError: there is none.
        """
        for layout in self.all_layouts:
            if layout.name == name:
                return layout
        names = ", ".join(layout.name for layout in self.all_layouts)
        raise ValueError(f"{self.file_name} declares no layout {name!r}: choose one of {names}")
