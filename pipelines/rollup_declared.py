"""`timebeam rollup` of declared tables: tables per day filled, and declared rollups made."""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Iterator, Sequence

import apache_beam as beam

from pipelines.options import create_command, declaration_of, target_of
from pipelines.parameters import UsageError
from schema.declared.days import day_of, is_expired
from schema.declared.model import DayTables, Declaration, TableLayout
from schema.declared.rows import tables
from schema.layouts import Cell, Packing, Row
from schema.query.times import parse_time
from schema.rollup.plan import day_range, last_complete_day
from transforms import coders
from transforms.bigtable.splits import Range
from transforms.bigtable.tables import check_tables, create_tables, drop_table, table_names
from transforms.bigtable.target import Target
from transforms.dead_letters import WriteDeadLetters
from transforms.declared.days import CopyDayFn, DayCopy, TableRangesFn
from transforms.declared.rollups import (
    PIECES,
    STANDING,
    AccumulateValuesFn,
    DeclaredRollupJob,
    OverwriteFn,
    RollupRowsFn,
    StandingRowsFn,
)
from transforms.rejected import REJECTED, refusing
from transforms.rollup.series import SeriesText
from transforms.write import WriteRows


def days_of(options: argparse.Namespace, zone: str, now_ms: int) -> list[datetime.date]:
    """The days, of a time zone, that the options ask for: those that the range of time meets.

    Raises:
      UsageError: they name no days, or a range and a day.
    """
    try:
        if options.start or options.end:
            if options.day or not (options.start and options.end):
                raise UsageError("give --start and --end, or --day")
            start_ms, end_ms = parse_time(options.start, now_ms), parse_time(options.end, now_ms)
            if start_ms >= end_ms:
                raise UsageError(f"the range ends, at {end_ms} ms, before it starts, at {start_ms} ms")
            day = datetime.datetime.fromtimestamp(start_ms / 1000, datetime.timezone.utc).date()
            day -= datetime.timedelta(days=1)  # the zone may be behind UTC
            found = []
            while day_range(day, zone)[0] < end_ms:
                if day_range(day, zone)[1] > start_ms:
                    found.append(day)
                day += datetime.timedelta(days=1)
            return found
        if options.day:
            last = datetime.date.fromisoformat(options.day)
        else:
            last = last_complete_day(now_ms - int(options.delay_hours * 3_600_000), zone)
        return [last - datetime.timedelta(days=back) for back in range(options.lookback_days, -1, -1)]
    except (ValueError, KeyError) as error:
        raise UsageError(str(error)) from error


def copies_of(options: argparse.Namespace, declaration: Declaration, now_ms: int) -> list[DayCopy]:
    """The days to be copied, of all tables per day, each in the time zone of its source."""
    target = target_of(options)
    found = []
    for one in declaration.day_tables:
        source = declaration.layout(one.source)
        assert source.time is not None
        found += [DayCopy(target, one, source, day) for day in days_of(options, source.time.zone, now_ms)]
    return found


def rollups_of(options: argparse.Namespace, declaration: Declaration, now_ms: int) -> list[DeclaredRollupJob]:
    """The declared rollups to be made, of the days of the time zone of each."""
    found = []
    for one in declaration.rollups:
        days = days_of(options, one.zone, now_ms)
        start_ms, end_ms = day_range(days[0], one.zone)[0], day_range(days[-1], one.zone)[1]
        source = declaration.layout(one.source)
        found.append(DeclaredRollupJob(target_of(options), one, source, start_ms, end_ms))
    return found


def expired(target: Target, declaration: Declaration, today: datetime.date) -> Iterator[str]:
    """The tables per day that may be dropped."""
    names = table_names(target)
    for one in declaration.day_tables:
        if one.expire_days is not None:
            yield from (name for name in names if _is_old(one, name, today))


def _is_old(tables: DayTables, name: str, today: datetime.date) -> bool:
    day = day_of(tables, name)
    return day is not None and is_expired(tables, day, today)


class DeclaredWork:
    """What a run of the command does for declared tables.

    Raises:
      UsageError: the options or the declaration ask for nothing that can be done.
    """

    def __init__(self, options: argparse.Namespace, now_ms: int) -> None:
        if options.touched:
            raise UsageError("--touched is not for declared tables: use --lookback_days")
        if options.rollup_config:
            raise UsageError("--rollup_config is not for declared tables: rollups are declared in --tables")
        declaration = declaration_of(options)
        if not declaration.day_tables and not declaration.rollups:
            raise UsageError(
                f"{options.tables} declares neither tables per day nor rollups: see docs/tables.md"
            )
        self.target = target_of(options)
        self.copies = copies_of(options, declaration, now_ms)
        self.rollups = rollups_of(options, declaration, now_ms)
        check_tables(self.target, tables(declaration), create_command(options))
        today = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.timezone.utc).date()
        for one in self.copies:
            if is_expired(one.tables, one.day, today):
                raise UsageError(
                    f"{one.day} is older than the {one.tables.expire_days} days after which the tables of "
                    f"layout {one.tables.name} are dropped: choose a later day, or raise expire"
                )
        self.expired = list(expired(self.target, declaration, today))

    def described(self) -> list[str]:
        """What it would do, in lines."""
        lines = [f"would copy {one.day} of {one.source.table} into {one.table}" for one in self.copies]
        for job in self.rollups:
            start, end = (
                datetime.datetime.fromtimestamp(at / 1000, datetime.timezone.utc).isoformat()
                for at in (job.start_ms, job.end_ms)
            )
            lines.append(
                f"would read {job.source.table} and write {job.rollup.target.table}, {job.rollup.interval}, "
                f"from {start} to {end}"
            )
        return lines + [f"would drop {name}, which is older than expire" for name in self.expired]

    def prepare(self) -> list[str]:
        """Creates the tables of the days, and drops expired ones; a line for each thing done."""
        specs = [one.spec for one in self.copies]
        lines = [line for line in create_tables(self.target, specs, dry_run=False) if "is there" not in line]
        for name in self.expired:
            drop_table(self.target, name)
            lines.append(f"dropped {name}, which was older than expire")
        return lines

    def build(self, root: beam.Pipeline, dead_letters: str, run_ms: int) -> None:
        """Adds the graph to a pipeline."""
        coders.register()
        refused = []
        for copy in self.copies:
            name = copy.table
            rows = _ranges(root, self.target, copy.source.table, name) | f"CopyDay[{name}]" >> refusing(
                CopyDayFn(copy), Row
            )
            writer = WriteRows(self.target, [name], "direct", Packing.POINTS)
            refused += [rows[REJECTED], rows.main | f"Write[{name}]" >> writer]
        for job in self.rollups:
            refused += _rolled_up(root, job)
        (
            refused
            | "AllRefused" >> beam.Flatten()
            | "DeadLetters" >> WriteDeadLetters(dead_letters, run_ms, bounded=True)
        )


def _ranges(root: beam.Pipeline, target: Target, table: str, name: str) -> beam.PCollection[Range]:
    return (
        root
        | f"Once[{name}]" >> beam.Create([None], reshuffle=False)
        | f"Ranges[{name}]" >> beam.ParDo(TableRangesFn(target, table)).with_output_types(Range)
        | f"Spread[{name}]" >> beam.Reshuffle()
    )


def _rolled_up(root: beam.Pipeline, job: DeclaredRollupJob) -> Sequence[beam.PCollection]:
    """The steps of one rollup; what they refuse."""
    target: TableLayout = job.rollup.target
    name = target.table
    accumulated = _ranges(root, job.target, job.source.table, name) | f"Accumulate[{name}]" >> refusing(
        AccumulateValuesFn(job), tuple[SeriesText, bytes]
    )
    made = (
        accumulated.main
        | f"GroupPerSeries[{name}]" >> beam.GroupByKey()
        | f"Rows[{name}]" >> refusing(RollupRowsFn(job), tuple[bytes, Row])
    )
    standing_fn = beam.ParDo(StandingRowsFn(job)).with_output_types(tuple[bytes, list[Cell]])
    standing = _ranges(root, job.target, name, f"{name}, standing") | f"Standing[{name}]" >> standing_fn
    rows = (
        {PIECES: made.main, STANDING: standing}
        | f"GroupPerRow[{name}]" >> beam.CoGroupByKey()
        | f"Overwrite[{name}]" >> refusing(OverwriteFn(job), Row)
    )
    written = rows.main | f"Write[{name}]" >> WriteRows(job.target, [name], "direct", Packing.POINTS)
    return [accumulated[REJECTED], made[REJECTED], rows[REJECTED], written]
