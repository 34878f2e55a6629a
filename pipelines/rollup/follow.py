"""`timebeam rollup --follow`: rounds that roll up marked hours, as long as the process runs.

read marks ─► lease the rows of their days ─► roll up, one pipeline ─► delete marks, give leases back

Why an answer through rollups is that of the points: docs/use/rollups.md.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import apache_beam as beam
from apache_beam.metrics import Metrics

from timebeam.pipelines.jobs.job import AnyJob, Needs, Run, dead_letters_of
from timebeam.pipelines.jobs.run import build, clock_ms, run_with_progress
from timebeam.pipelines.jobs.run_input import Signals
from timebeam.pipelines.options.parameters import UsageError
from timebeam.pipelines.options.period import Period
from timebeam.pipelines.output.printable import printable
from timebeam.pipelines.rollup.roll_up_points import LayoutRollup, RollupRunOptions, summary_of
from timebeam.schema.bits.times import DAY_S, HOUR_MS, HOUR_S, ceil_to, floor_to, hours_between
from timebeam.schema.core.rows import Cell, Deletion
from timebeam.schema.stores import as_opentsdb, find_opentsdb
from timebeam.transforms.flow.metrics import counted
from timebeam.transforms.opentsdb.stored_series import metric_names
from timebeam.transforms.read.table_reader import TableReader
from timebeam.transforms.rollup.changed_hours import (
    ChangedDay,
    ChangedHour,
    ChangedHoursWriter,
    ChangedRange,
    changed_hours_table,
    changed_ranges,
    day_key,
    hour_cell,
    hour_deletions,
    hours_note,
    read_days,
)
from timebeam.transforms.rollup.row_leases import Lease, claim, deletion_of, give_up, release

_PATIENCE = 10
"""An hour that is marked all the time is rolled up after so many quiet times."""

_FIRST_WAIT_MS, _LONGEST_WAIT_MS = 60_000, HOUR_MS
"""How long a day waits after Bigtable refused one of its rows: at first, and at most; the wait doubles."""

_COUNTERS = "timebeam-follow"
"""The namespace of a round's counters: `lost`, and the UID of each metric with unwritten rows, in hex."""


class DueDay(NamedTuple):
    """The hours of a day that a round can roll up.

    Attributes:
      hours: with the marks that are to be deleted; none where only a dead holder may have changed rollups.
      since_ms: since when each hour could be rolled up.
      dead: lost or ended leases whose holders write no more.
    """

    day: ChangedDay
    hours: Sequence[ChangedHour]
    since_ms: Sequence[int]
    dead: Sequence[Lease]


@dataclasses.dataclass(slots=True)
class Rounds:
    """The work of each round.

    Remembers when it first saw each marked hour, and how long and until when days with rejected rows wait.

    Attributes:
      rollup: the job, without its parts.
      quiet_ms: an hour is rolled up so long after its end and its last mark.
      lease_seconds: until another process may take over what this one has leased.
      most_hours: of all metrics together, in one round.
    """

    rollup: LayoutRollup
    quiet_ms: int
    lease_seconds: float
    most_hours: int
    _seen_ms: dict[tuple[bytes, int], int] = dataclasses.field(default_factory=dict, init=False)
    _waits_ms: dict[bytes, tuple[int, int]] = dataclasses.field(default_factory=dict, init=False)

    @property
    def table(self) -> str:
        """The table of marks."""
        return changed_hours_table(self.rollup.work.layout).name

    def due(self, now_ms: int) -> list[DueDay]:
        """All days with hours that can be rolled up, the longest waiting first."""
        days, seen_ms = [], dict[tuple[bytes, int], int]()
        for day in read_days(TableReader(self.rollup.target), self.rollup.work.layout):
            for mark in day.hours:
                hour = mark.metric, mark.start_s
                seen_ms[hour] = self._seen_ms.get(hour, now_ms)
            lease = day.leases.lease
            if lease is None or lease.end_ms <= now_ms:
                dead = [each for each in (*day.leases.lost, lease) if each is not None and each.is_dead]
                since_ms = dict(self._due_hours(day, dead, seen_ms, now_ms))
                days += [DueDay(day, list(since_ms), list(since_ms.values()), dead)] if since_ms else []
        self._seen_ms = seen_ms
        return sorted(days, key=lambda day: min(day.since_ms))

    def _due_hours(
        self, day: ChangedDay, dead: Iterable[Lease], seen_ms: Mapping[tuple[bytes, int], int], now_ms: int
    ) -> Iterator[tuple[ChangedHour, int]]:
        """(an hour that can be rolled up, since when)."""
        for mark in day.hours:
            end_ms = (mark.start_s + HOUR_S) * 1000 + self.quiet_ms
            quiet_ms = max(time_ms for _, time_ms in mark.times_ms) + self.quiet_ms
            impatient_ms = seen_ms[mark.metric, mark.start_s] + _PATIENCE * self.quiet_ms
            since_ms, settled = max(end_ms, min(quiet_ms, impatient_ms)), mark.settled(now_ms)
            if since_ms <= now_ms and settled.times_ms:
                yield settled, since_ms
        marked = {mark.start_s for mark in day.hours}
        for start_s in {start_s for lost in dead for start_s in day.noted(lost)} - marked:
            yield ChangedHour(day.metric, start_s, ()), now_ms

    def taken(self, due: Iterable[DueDay], now_ms: int) -> dict[Lease, DueDay]:
        """Leases the rows of days for one round, except days that wait after a rejection.

        Leaves out days that another process has leased meanwhile.
        """
        chosen, hours = dict[bytes, DueDay](), 0
        for day in due:
            if self._waits_ms.get(day.day.leases.key, (0, 0))[1] > now_ms:
                continue
            hours += len(day.hours)
            if chosen and hours > self.most_hours:
                break
            chosen[day.day.leases.key] = day
        starts_s = collections.defaultdict[bytes, set[int]](set)
        for changed in self._ranges(chosen.values(), now_ms):
            for metric in changed.metrics:
                for start_s in hours_between(changed.start_s * 1000, changed.end_s * 1000):
                    starts_s[day_key(metric, start_s)].add(start_s)
        notes = {key: hours_note(starts) for key, starts in starts_s.items()}
        rows = [day.day.leases for day in chosen.values()]
        leases = claim(self.rollup.target, self.table, rows, self.lease_seconds, notes)
        return {lease: chosen[lease.key] for lease in leases}

    def _ranges(self, days: Iterable[DueDay], now_ms: int) -> list[ChangedRange]:
        lengths = [interval.seconds for interval in self.rollup.work.config.intervals]
        hours = [mark for day in days for mark in day.hours]
        return changed_ranges(hours, lengths, (now_ms - self.quiet_ms) // 1000)

    def job(self, leased: Mapping[Lease, DueDay], now_ms: int) -> LayoutRollup:
        """The job that rolls up leased days, and gives their leases back."""
        ending = _EndFn(dataclasses.replace(self), dict(leased), now_ms)
        rollup = dataclasses.replace(self.rollup, complete_ms=now_ms - self.quiet_ms, ending=ending)
        return rollup.of_ranges(self._ranges(leased.values(), now_ms))

    def end(self, leased: Mapping[Lease, DueDay], now_ms: int, unwritten: Collection[bytes] = ()) -> int:
        """Deletes the marks that were read and gives the leases back; returns how many leases were lost.

        Args:
          now_ms: as for `job`.
          unwritten: the metrics of rows that were not written; their marks stay.
        """
        written = {lease: day for lease, day in leased.items() if day.day.metric not in unwritten}
        deleted = {lease.key: list(_deletions(day)) for lease, day in written.items()}
        cells = {lease.key: self._later(day, now_ms) for lease, day in written.items()}
        released = set(release(self.rollup.target, self.table, list(leased), deleted, cells))
        lost = [lease for lease in leased if lease not in released]
        hours = {lease.key: list(map(hour_cell, leased[lease].day.noted(lease))) for lease in lost}
        give_up(self.rollup.target, self.table, lost, hours)
        return len(lost)

    def rejected(self, days: Iterable[DueDay], unwritten: Collection[bytes], now_ms: int) -> None:
        """Lets the days of a round wait if Bigtable refused rows of their metrics."""
        for day in days:
            key = day.day.leases.key
            before_ms, _ = self._waits_ms.pop(key, (0, 0))
            if day.day.metric in unwritten:
                wait_ms = min(max(2 * before_ms, _FIRST_WAIT_MS), _LONGEST_WAIT_MS)
                self._waits_ms[key] = wait_ms, now_ms + wait_ms

    def _later(self, day: DueDay, now_ms: int) -> list[Cell]:
        """Marks of the last hours of intervals that are not over yet, so that they are written then."""
        complete_s = (now_ms - self.quiet_ms) // 1000
        ends_s = {
            ceil_to(mark.start_s + HOUR_S, interval.seconds)
            for mark in day.hours
            for interval in self.rollup.work.config.written
        }
        return [hour_cell(floor_to(end_s - 1, HOUR_S)) for end_s in sorted(ends_s) if end_s > complete_s]


class _EndFn(beam.DoFn):
    """Anything in, with the metrics of rows that were not written; ends a round, see `Rounds.end`.

    A step of the pipeline, since the counters of some runners are too low.
    """

    def __init__(self, rounds: Rounds, leased: Mapping[Lease, DueDay], now_ms: int) -> None:
        self._rounds, self._leased, self._now_ms = rounds, leased, now_ms

    def process(self, _: object, unwritten: Sequence[bytes]) -> None:
        lost = self._rounds.end(self._leased, self._now_ms, unwritten)
        Metrics.counter(_COUNTERS, "lost").inc(lost)
        for metric in unwritten:
            Metrics.counter(_COUNTERS, metric.hex()).inc()


def _deletions(day: DueDay) -> Iterator[Deletion]:
    """The marks that were read, and the notes of dead holders."""
    for mark in day.hours:
        yield from hour_deletions(mark)
    yield from map(deletion_of, day.dead)


class Figures(NamedTuple):
    """What a round did.

    Attributes:
      hours: rolled up, of all metrics together.
      waiting: hours that could have been rolled up too.
      lost: leases that another process took over.
      unwritten: by metric, the hours that stay marked because Bigtable refused rows of the metric.
      rejected: dead letters by reason.
      lag_seconds: how long the hour that could be rolled up first has waited, at the end of the round.
    """

    round: int
    hours: int
    waiting: int
    points_read: int
    rows: int
    lost: int
    unwritten: dict[str, int]
    rejected: dict[str, int]
    seconds: float
    lag_seconds: float

    def text(self) -> str:
        """One line for people."""
        rejected = "".join(f"; rejected {count:,} {reason}" for reason, count in self.rejected.items())
        rejected += "".join(
            f"; {count:,} hours of {printable(metric)} stay marked"
            for metric, count in self.unwritten.items()
        )
        lost = f"; {self.lost:,} leases lost" if self.lost else ""
        return (
            f"round {self.round}: {self.hours:,} hours of metrics from {self.points_read:,} points in "
            f"{self.seconds:.1f} s, {self.waiting:,} wait; lag {self.lag_seconds:.0f} s{lost}{rejected}"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class FollowedRollup(AnyJob):
    """Rounds until the process is stopped.

    Attributes:
      every_seconds: from the end of a round to the next one, unless hours wait.
      most_rounds: then it ends; None for never.
      marked_first: the starts, in s, of hours that it marks for all metrics before the first round.
    """

    rounds: Rounds
    every_seconds: float
    most_rounds: int | None
    marked_first: range

    def needs(self) -> Needs:
        why = "--follow runs on this machine: leave --runner out"
        return dataclasses.replace(self.rounds.rollup.needs(), local_only=why)

    def planned(self, run: Run) -> int:
        """Runs the rounds, and prints a line for each; see `AnyJob.planned`."""
        if self.marked_first and not run.dry_run:
            self._mark_first()
        stopping = threading.Event()
        with Signals(stopping.set, "after this round"):
            for number in itertools.count(1):
                figures = self._round(run, number)
                print(json.dumps(figures._asdict()) if run.as_json else figures.text(), flush=True)
                if stopping.is_set() or number == self.most_rounds or run.dry_run:
                    break
                if not (figures.waiting and (figures.hours or figures.unwritten)):
                    stopping.wait(self.every_seconds)
        return 0

    def _mark_first(self) -> None:
        layout = as_opentsdb(self.rounds.rollup.work.layout, "UID tables")
        uids = layout.metric_uids(TableReader(self.target)).values()
        hours_writer = ChangedHoursWriter(layout)
        for start_s in self.marked_first:
            hours_writer.mark(self.target, [(uid, start_s) for uid in uids], stored=True)

    def _round(self, run: Run, number: int) -> Figures:
        now_ms, rounds = clock_ms(), self.rounds
        due = rounds.due(now_ms)
        leased = {} if run.dry_run else rounds.taken(due, now_ms)
        points, rows, lost, unwritten, rejected = 0, 0, 0, dict[str, int](), dict[str, int]()
        if leased:
            place = run.dead_letters_option or ""
            run = dataclasses.replace(run, run_ms=now_ms, dead_letters=dead_letters_of(place, now_ms))
            pipeline = run.runner.pipeline()
            build(pipeline, rounds.job(leased, now_ms), run)
            result = run_with_progress(pipeline)
            summary, counters = summary_of(result, run), counted(result, _COUNTERS)
            points, rows, rejected = summary.points_read, summary.rows, summary.rejected
            lost = counters.pop("lost", 0)
            uids = set(map(bytes.fromhex, counters))
            rounds.rejected(leased.values(), uids, now_ms)
            unwritten = self._hours_by_name(day for day in leased.values() if day.day.metric in uids)
        hours = sum(len(day.hours) for day in leased.values()) - sum(unwritten.values())
        ended_ms = clock_ms()
        lag_ms = max((ended_ms - since_ms for day in due for since_ms in day.since_ms), default=0)
        waiting = sum(len(day.hours) for day in due) - hours
        seconds = (ended_ms - now_ms) / 1000
        return Figures(
            number, hours, waiting, points, rows, lost, unwritten, rejected, seconds, lag_ms / 1000
        )

    def _hours_by_name(self, days: Iterable[DueDay]) -> dict[str, int]:
        """The number of hours of each metric, by name."""
        hours = collections.Counter[bytes]()
        for day in days:
            hours[day.day.metric] += len(day.hours)
        names = metric_names(self.target, self.rounds.rollup.work.layout, hours)
        return dict(sorted((names[uid], count) for uid, count in hours.items()))


def followed_rollup(
    options: RollupRunOptions, rollup: LayoutRollup, since_s: int | None, marked: Period | None
) -> FollowedRollup:
    """The rounds that the options describe.

    Args:
      since_s: all writers mark from this time on; None if some may not.
      marked: the hours that are marked before the first round; None for none.

    Raises:
      UsageError: the options make no sense together.
    """
    layout = rollup.work.layout
    if find_opentsdb(layout) is None:
        raise UsageError(f"--follow is not for layout {layout.name}: run --changed regularly")
    if options.delay_hours:
        raise UsageError("--follow waits for --quiet-seconds: leave out --delay-hours")
    if since_s is None:
        raise UsageError(
            "--follow needs tables with marked_since: store the day from which on all writers mark with "
            f"`timebeam tables adopt --layout {layout.name} --marked-since DAY` (docs/use/rollups.md)"
        )
    crossing = [each.interval for each in rollup.work.config.intervals if DAY_S % each.seconds]
    if crossing:
        raise UsageError(
            f"--follow: intervals of {crossing[0]} do not divide a day, but a lease is for a UTC day: two "
            "rounds could write the same interval; remove it from the configuration"
        )
    marked_first = range(0)
    if marked is not None:
        marked_first = hours_between(marked.start_ms, marked.end_ms)
    rounds = Rounds(rollup, int(options.quiet_seconds * 1000), options.lease_seconds, options.most_hours)
    return FollowedRollup(
        rollup.target, rollup.tables, rounds, options.every_seconds, options.rounds, marked_first
    )
