"""`timebeam rollup` of declared tables: tables per day filled, and declared rollups made."""

from __future__ import annotations

import dataclasses
import datetime
import functools
from collections.abc import Iterator, Sequence

import apache_beam as beam
import numpy as np
from apache_beam.pvalue import PCollection
from apache_beam.runners.runner import PipelineResult

from timebeam.pipelines.jobs.job import Run
from timebeam.pipelines.options.parameters import UsageError
from timebeam.pipelines.options.period import RollupRangeOptions, days_of, range_of_day
from timebeam.pipelines.options.place import Place
from timebeam.pipelines.output.progress_and_summary import PointsSummary
from timebeam.pipelines.rollup.roll_up_points import DescribedRollup, RollupRunOptions, summary_of
from timebeam.schema.bits.times import bucket_starts
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.core.rows import EncodedRow, KeyRange
from timebeam.schema.stores.declared.declaration import Declaration
from timebeam.schema.stores.declared.filled_tables import day_of, is_expired
from timebeam.transforms.bigtable.create_tables import create_tables, drop_table
from timebeam.transforms.bigtable.existing_tables import table_names
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.flow.steps import REJECTED, rejecting
from timebeam.transforms.ingest.write_packed_rows import StoreRows
from timebeam.transforms.read.chunks import spread_chunks, table_ranges
from timebeam.transforms.rollup.roll_up_records import DayCopy, DeclaredRollupJob, copy_day
from timebeam.transforms.rollup.rollup_graph import add_rollup


def copies_of(
    target: Target, options: RollupRangeOptions, declaration: Declaration, now_ms: int
) -> list[DayCopy]:
    """The days to be copied, of all tables per day, each in the time zone of its source."""
    copies = []
    for day_tables in declaration.day_tables:
        source = declaration.layout(day_tables.source)
        assert source.time is not None
        copies += [
            DayCopy(target, day_tables, source, day) for day in days_of(options, source.time.zone, now_ms)
        ]
    return copies


def rollups_of(
    target: Target, options: RollupRangeOptions, declaration: Declaration, now_ms: int
) -> list[DeclaredRollupJob]:
    """The declared rollups to be made: all intervals with a part in the days of the time zone of each."""
    jobs = []
    for rollup in declaration.rollups:
        days = days_of(options, rollup.zone, now_ms)
        first_ms, end_ms = range_of_day(days[0], rollup.zone)[0], range_of_day(days[-1], rollup.zone)[1]
        # An interval that begins before the first day has a part in it, and is made of all its points.
        start_ms = int(bucket_starts(np.array([first_ms], np.int64), rollup.interval, rollup.zone)[0])
        source = declaration.layout(rollup.source)
        jobs.append(DeclaredRollupJob(target, rollup, source, start_ms, end_ms))
    return jobs


@dataclasses.dataclass(frozen=True, slots=True)
class DeclaredRollups(DescribedRollup):
    """Fills tables per day, makes declared rollups, and drops expired tables per day.

    Attributes:
      today: the day, in UTC, from which the age of tables per day is counted.
    """

    declaration: Declaration
    copies: Sequence[DayCopy]
    rollups: Sequence[DeclaredRollupJob]
    today: datetime.date

    def describe(self) -> list[str]:
        lines = [f"would copy {copy.day} of {copy.source.table} into {copy.table}" for copy in self.copies]
        for rollup in self.rollups:
            start, end = (
                datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC).isoformat()
                for time_ms in (rollup.start_ms, rollup.end_ms)
            )
            lines.append(
                f"would read {rollup.source.table} and write {rollup.rollup.target.table}, "
                f"{rollup.rollup.interval}, from {start} to {end}"
            )
        return lines + [f"would drop {name}, which is older than expire" for name in self._expired()]

    def prepare(self, run: Run) -> None:
        """Creates the tables of the days, and drops expired ones; prints a line for each."""
        specs = [copy.spec for copy in self.copies]
        for line in create_tables(self.target, specs, dry_run=False):
            if "is there" not in line:
                print(line)
        for name in list(self._expired()):
            drop_table(self.target, name)
            print(f"dropped {name}, which was older than expire")

    def build(self, root: beam.Pipeline) -> Sequence[PCollection[Rejected]]:
        rejected: list[PCollection[Rejected]] = []
        for copy in self.copies:
            name = copy.table
            plan = functools.partial(table_ranges, self.target, copy.source.table)
            ranges = spread_chunks(root, "Ranges", plan, KeyRange, f"[{name}]")
            rows = ranges | f"CopyDay[{name}]" >> rejecting(copy_day, EncodedRow, copy)
            writer = StoreRows(self.target, [name], "direct")
            rejected += [rows[REJECTED], rows.main | f"Write[{name}]" >> writer]
        for rollup in self.rollups:
            (name,) = rollup.tables
            once = root | f"Once[{name}]" >> beam.Create([None], reshuffle=False)
            rejected += add_rollup(once, rollup, name=name)
        return rejected

    def summarize(self, result: PipelineResult, run: Run) -> PointsSummary:
        return summary_of(result, run)

    def _expired(self) -> Iterator[str]:
        """The tables per day that may be dropped."""
        names = table_names(self.target)
        for day_tables in self.declaration.day_tables:
            for name in names if day_tables.expire_days is not None else ():
                day = day_of(day_tables, name)
                if day is not None and is_expired(day_tables, day, self.today):
                    yield name


def declared_rollups(place: Place, options: RollupRunOptions, now_ms: int) -> DeclaredRollups:
    """The job that the options describe.

    Raises:
      UsageError: the options or the declaration ask for nothing that can be done.
    """
    if options.changed:
        raise UsageError("--changed is not for declared tables: use --lookback-days")
    if options.rollup_config:
        raise UsageError("--rollup-config is not for declared tables: rollups are declared in --tables")
    declaration = place.declaration()
    if not declaration.day_tables and not declaration.rollups:
        raise UsageError(
            f"{declaration.file_name} declares neither tables per day nor rollups: see "
            "docs/reference/tables.md"
        )
    target = place.target
    copies = copies_of(target, options, declaration, now_ms)
    rollups = rollups_of(target, options, declaration, now_ms)
    today = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC).date()
    for copy in copies:
        if is_expired(copy.tables, copy.day, today):
            raise UsageError(
                f"{copy.day} is older than the {copy.tables.expire_days} days after which the tables of "
                f"layout {copy.tables.name} are dropped: choose a later day, or raise expire"
            )
    return DeclaredRollups(target, declaration.specs, declaration, copies, rollups, today)
