"""Random histories of points, corrections, deletions and runs in many zones, against a plain-Python model.

After each run the tables are compared cell by cell: rollups of series and of groups, and what others wrote.
`ROLLUP_SEEDS=100-200` runs those seeds.
"""

from __future__ import annotations

import collections
import datetime
import json
import os
import random
import struct
import zoneinfo
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.cloud.bigtable.data import DeleteRangeFromColumn, RowMutationEntry, SetCell

from tests.support.data_client import open_table
from tests.support.plain.rolled import interval, rollup_at, send, with_tables
from tests.support.stored import Store
from timebeam.schema.core.points import Series
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.stores.opentsdb.keys import row_key
from timebeam.transforms.read.table_reader import scan_table
from timebeam.transforms.rollup.changed_hours import ChangedHoursWriter, read_changed_hours

HOUR, DAY = 3600, 86_400
FIRST_DAYS = {  # clocks change in some of these histories, months end in others
    "UTC": "2026-03-29",
    "America/New_York": "2026-03-06",
    "Pacific/Honolulu": "2026-02-26",
    "Asia/Kolkata": "2026-02-26",
    "Pacific/Kiritimati": "2025-12-30",
    "Europe/Berlin": "2026-10-23",
    "Australia/Lord_Howe": "2026-04-03",
}
LENGTHS = {"1m": 60, "5m": 300, "45m": 2700, "1h": HOUR, "7h": 7 * HOUR, "1d": DAY, "2d": 2 * DAY}
SPANS = {"1m": "1h", "5m": "1d", "45m": "12h", "1h": "1n", "7h": "84h", "1d": "1y", "2d": "576h"}
SERIES = [
    Series.of(metric, {"host": host, "dc": dc})
    for metric in ("sys.m0", "sys.m1")
    for host, dc in (("a", "x"), ("b", "x"), ("c", "y"))
]

Number = int | float
Interval = tuple[str, str, int]
"""Metric, interval, start in s."""
Columns = dict[tuple[str, bytes, bytes], bytes]
"""Value by table, row key and qualifier."""


def base_of(at_s: int, span: str) -> int:
    """The base time of a row: by hours from 1970, or by the calendar."""
    if span.endswith("h"):
        length = int(span[:-1]) * HOUR
        return at_s // length * length
    moment = datetime.datetime.fromtimestamp(at_s, datetime.UTC)
    month, day = {"1d": (moment.month, moment.day), "1n": (moment.month, 1), "1y": (1, 1)}[span]
    return int(datetime.datetime(moment.year, month, day, tzinfo=datetime.UTC).timestamp())


def midnight(day: datetime.date, zone: str) -> int:
    return int(datetime.datetime.combine(day, datetime.time(), zoneinfo.ZoneInfo(zone)).timestamp())


def total(values: list[Number]) -> Number:
    """Exact: all are integers or eighths."""
    return sum(values) if all(isinstance(value, int) for value in values) else float(sum(values))


NUMBERS: dict[str, Callable[[list[Number]], Number]] = {
    "sum": total,
    "count": len,
    "min": lambda values: min(values, key=lambda value: (value, isinstance(value, float))),
    "max": lambda values: max(values, key=lambda value: (value, isinstance(value, int))),
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
}


class History:
    """The tables of one seed, and what should be in them."""

    def __init__(self, seed: int, bigtable: tuple[str, str], prefix: str, folder: Path) -> None:
        self.rng = rng = random.Random(seed)
        self.folder, self.zone = folder, rng.choice(sorted(FIRST_DAYS))
        self.first = datetime.date.fromisoformat(FIRST_DAYS[self.zone])
        self.names = rng.sample(sorted(set(LENGTHS) - {"1m"}), rng.randrange(2, 5))
        computed = ["sum", "count", *rng.sample(["min", "max", "first", "last"], 3)]
        chosen = [*rng.sample(range(65, 91), 3), *rng.sample(range(6, 65), 2)]
        self.ids = dict(zip(computed, rng.sample(chosen, 5), strict=True))
        beside = {number ^ 0x20 for number in chosen} | {0, 1, 9, 127, 200}
        self.foreign_ids = sorted(beside - set(chosen))
        self.groups = [] if rng.random() < 0.3 else ["sum", *(["max"] if "max" in self.ids else [])]
        default = interval("1m", "1h", table="tsdb", defaultInterval=True)
        groups = [{"metrics": ["*"], "keepTags": ["dc"], "aggregators": self.groups}] if self.groups else []
        self.config = folder / "rollups.json"
        content = {
            "aggregationIds": self.ids,
            "intervals": [default, *(interval(name, SPANS[name]) for name in self.names)],
            "timebeam": {"preAggregates": groups},
        }
        self.config.write_text(json.dumps(content))
        self.store = Store.create(bigtable, prefix, salt_width=rng.choice([0, 0, 1]), salt_buckets=3)
        with_tables(self.store, self.config)
        send(self.store, folder, {(series, 946_684_800): 1 for series in SERIES})  # gives them names
        self.uids = self.store.uids()
        self.points: dict[Series, dict[int, Number]] = collections.defaultdict(dict)
        self.columns: dict[Interval, Columns] = {}
        self.foreign: Columns = {}

    @property
    def all_names(self) -> list[str]:
        """Of the intervals that are written."""
        return [*(["1m"] if self.groups else []), *self.names]

    def key(self, series: Series, base_s: int) -> bytes:
        layout = self.store.layout
        if not all(name in self.uids for name in layout.uids.names(series)):
            self.uids = self.store.uids()
        return row_key(
            layout.series_key(series, {n: self.uids[n] for n in layout.uids.names(series)}), base_s
        )

    def write(self, points: dict[tuple[Series, int], Number | None]) -> list[Row]:
        """Sets points, or deletes those of None; the rows that were written."""
        entries, rows = [], []
        for (series, at), value in points.items():
            key, offset = self.key(series, at // HOUR * HOUR), at % HOUR << 4
            integer, decimal = ((offset | flags).to_bytes(2, "big") for flags in (7, 15))
            mutations = [DeleteRangeFromColumn("t", name) for name in (integer, decimal)]
            name, raw = integer, b""
            if value is None:
                self.points[series].pop(at, None)
            else:
                self.points[series][at] = value
                name = decimal if isinstance(value, float) else integer
                raw = struct.pack(">d" if isinstance(value, float) else ">q", value)
                mutations.append(SetCell("t", name, raw, 1_000_000))
            entries.append(RowMutationEntry(key, mutations))
            rows.append(Row(self.store.layout.data_table, key, [Cell("t", name, 1000, raw)]))
        open_table(self.store.target, self.store.layout.data_table).bulk_mutate_rows(entries)
        return rows

    def change(self, first_s: int, now_s: int) -> dict[tuple[Series, int], Number | None]:
        """New points, corrections and deletions between two times, more of the later ones."""
        rng = self.rng
        changes: dict[tuple[Series, int], Number | None] = {}
        for _ in range(rng.randrange(5, 40)):
            start = rng.choice((first_s, max(first_s, now_s - DAY), max(first_s, now_s - 4 * HOUR)))
            at = rng.randrange(start, now_s)
            changes[rng.choice(SERIES), at] = rng.choice((rng.randrange(-99, 99), rng.randrange(-99, 99) / 8))
        present = sorted((series, at) for series, times in self.points.items() for at in times)
        for where in rng.sample(present, min(len(present), rng.randrange(12))):
            changes[where] = rng.choice((None, rng.randrange(9), rng.randrange(9) / 8))
        return changes

    def write_beside(self) -> None:
        """Cells of other aggregators, in rows of ours."""
        for (_, name, _), columns in self.rng.sample(
            sorted(self.columns.items(), key=lambda item: item[0]), min(len(self.columns), 4)
        ):
            if name == "1m" or not columns:
                continue
            table, key, qualifier = min(columns)
            foreign = bytes([self.rng.choice(self.foreign_ids)]) + qualifier[1:]
            self.foreign[table, key, foreign] = b"theirs"
            self.store.set_cell(table, key, "t", foreign, b"theirs")

    def computed(self, metric: str, name: str, start: int) -> Columns:
        """The columns of one interval, of the points that are there."""
        end = start + LENGTHS[name]
        found: Columns = {}
        by_group: dict[str, list[Number]] = collections.defaultdict(list)
        for series in SERIES:
            if series.metric != metric:
                continue
            values = [value for at, value in sorted(self.points[series].items()) if start <= at < end]
            by_group[dict(series.tags)["dc"]] += values
            if values and name != "1m":
                numbers = {self.ids[one]: NUMBERS[one](values) for one in self.ids}
                found |= self._cells(f"rollup-{name}", series, name, start, numbers)
        for dc, values in by_group.items():
            for aggregator in self.groups if values else ():
                wanted = ["sum", "count"] if aggregator == "sum" and name != "1m" else [aggregator]
                numbers = {self.ids[one]: NUMBERS[one](values) for one in wanted}
                group = Series.of(metric, {"dc": dc, "_aggregate": aggregator.upper()})
                found |= self._cells(f"preagg-{name}", group, name, start, numbers)
        return found

    def _cells(
        self, table: str, series: Series, name: str, start: int, numbers: dict[int, Number]
    ) -> Columns:
        base = base_of(start, SPANS[name])
        index = (start - base) // (1 if name == "1m" else LENGTHS[name])
        key, table = self.key(series, base), self.store.layout.options.table_prefix + table
        found: Columns = {}
        for number, value in numbers.items():
            is_float = isinstance(value, float)
            code = (index << 4 | (15 if is_float else 7)).to_bytes(2, "big")
            qualifier = code if name == "1m" else bytes([number]) + code
            found[table, key, qualifier] = struct.pack(">d" if is_float else ">q", value)
        return found

    def stored(self) -> Columns:
        """What is in the tables, of everyone."""
        tables = [f"rollup-{name}" for name in self.names]
        tables += [f"preagg-{name}" for name in self.all_names] if self.groups else []
        prefix = self.store.layout.options.table_prefix
        return {
            (prefix + table, row.key, cell.qualifier): cell.value
            for table in tables
            for row in scan_table(self.store.target, prefix + table)
            for cell in row.cells
        }

    def run(self, now_s: int, *flags: str) -> None:
        place = [*self.store.flags, "--rollup-config", self.config, "--dead-letters", self.folder / "dead"]
        ran = rollup_at(now_s, *place, *flags)
        assert ran.code == 0, ran.err

    def check(self) -> None:
        """Asserts that the tables hold the model, and nothing else."""
        expected = {name: value for columns in self.columns.values() for name, value in columns.items()}
        assert self.stored() == expected | self.foreign

    def days(self, now_s: int, last: datetime.date, lookback: int) -> None:
        """A nightly run: all intervals that meet the days, those of up to a day if they are over."""
        self.run(now_s, f"--day={last}", f"--lookback-days={lookback}", f"--zone={self.zone}")
        start_s = midnight(last - datetime.timedelta(lookback), self.zone)
        end_s = midnight(last + datetime.timedelta(1), self.zone)
        for name in self.all_names:
            length = LENGTHS[name]
            for start in range(start_s // length * length, end_s, length):
                if length > DAY or start + length <= now_s:
                    self._made(name, start)
        self.check()

    def range(self, now_s: int, start_s: int, end_s: int) -> None:
        """A run of a range: the intervals that start in it."""
        self.run(now_s, f"--start={start_s}", f"--end={end_s}")
        for name in self.all_names:
            length = LENGTHS[name]
            for start in range(-(-start_s // length) * length, end_s, length):
                if length > DAY or start + length <= now_s:
                    self._made(name, start)
        self.check()

    def _made(self, name: str, start: int) -> None:
        for metric in ("sys.m0", "sys.m1"):
            self.columns[metric, name, start] = self.computed(metric, name, start)

    def late(self, first_s: int, now_s: int) -> None:
        """Changes that are marked: every hour of which a complete interval is there."""
        changes = self.change(first_s, now_s)
        layout, target = self.store.layout, self.store.target
        hours_writer = ChangedHoursWriter(layout)
        hours_writer.mark(target, hours_writer.hours(self.write(changes)), stored=True)
        uids = {name.text: uid for name, uid in self.uids.items() if name.kind == "metrics"}
        marks = {(mark.metric, mark.start_s) for mark in read_changed_hours(target, layout)}
        for series, at in changes:
            over = [
                name
                for name in self.all_names
                if (start := at // LENGTHS[name] * LENGTHS[name]) + LENGTHS[name] <= now_s
                and (series.metric, name, start) in self.columns
            ]
            assert (uids[series.metric], at // HOUR * HOUR) in marks or not over, (at, over)

    def changed(self, now_s: int) -> None:
        """A run of what was marked: of the marked hours all that is over is made of the points there are."""
        layout, target = self.store.layout, self.store.target
        metrics = {uid: name.text for name, uid in self.uids.items() if name.kind == "metrics"}
        marks = [mark for mark in read_changed_hours(target, layout) if mark.start_s + HOUR <= now_s]
        fresh = set(self._over(((metrics[mark.metric], mark.start_s) for mark in marks), now_s))
        self.run(now_s, "--changed")
        assert all(mark.start_s + HOUR > now_s for mark in read_changed_hours(target, layout))
        stored = self.stored()
        assert self.foreign.items() <= stored.items()
        for where in sorted({*self.columns, *fresh, *self._meeting(marks, metrics, now_s)}):
            before, after = self.columns.get(where, {}), self.computed(*where)
            present = {name: stored[name] for name in before | after if name in stored}
            if where in fresh or present == after:
                self.columns[where] = after
        self.check()

    def _over(self, hours: Iterator[tuple[str, int]], now_s: int) -> Iterator[Interval]:
        for metric, hour in hours:
            for name in self.all_names:
                length = LENGTHS[name]
                for start in range(hour // length * length, hour + HOUR, length):
                    if start + length <= now_s:
                        yield metric, name, start

    def _meeting(self, marks: list, metrics: dict[bytes, str], now_s: int) -> Iterator[Interval]:
        """What a run may have made beside: all within the longest intervals that meet the marks."""
        for mark in marks:
            for name in self.all_names:
                length = LENGTHS[name]
                first = (mark.start_s - 2 * DAY) // length * length
                for start in range(first, min(mark.start_s + 2 * DAY, now_s), length):
                    yield metrics[mark.metric], name, start


def seeds() -> list[Any]:
    """Those of ROLLUP_SEEDS=FIRST-LAST; all but the first are long."""
    first, _, last = os.environ.get("ROLLUP_SEEDS", "1-2").partition("-")
    numbers = range(int(first), int(last or first) + 1)
    return [pytest.param(seed, marks=[pytest.mark.long] if seed > numbers[0] else []) for seed in numbers]


@pytest.mark.parametrize("seed", seeds())
def test_history(seed: int, bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    history = History(seed, bigtable, prefix, tmp_path)
    rng, zone = history.rng, history.zone
    begin_s = midnight(history.first, zone) - 30 * HOUR
    for night in range(rng.randrange(2, 5)):
        last = history.first + datetime.timedelta(night)
        now_s = midnight(last + datetime.timedelta(1), zone) + rng.randrange(3 * HOUR)
        history.write(history.change(begin_s, now_s))
        history.days(now_s, last, rng.choice((0, 0, 1, 2)))
        history.write_beside()
        for _ in range(rng.randrange(3)):
            now_s += rng.randrange(60, 8 * HOUR)
            step = rng.choice(("late", "late", "range", "unmarked"))
            if step == "late":
                history.late(begin_s, now_s)
                now_s += rng.randrange(2 * HOUR)
                history.changed(now_s)
            elif step == "range":
                history.write(history.change(begin_s, now_s))
                start_s = rng.randrange(begin_s, now_s - 1)
                history.range(now_s, start_s, rng.randrange(start_s + 1, now_s + 1))
            else:
                history.write(history.change(begin_s, now_s))
    days = (last - history.first).days + 2
    history.days(now_s + DAY, last, days)
