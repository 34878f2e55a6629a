"""Commands that rewrite what they read: their arguments, and what each does to a dict of points.

The points lie in four hours, two of one day and two of the next:

| series | hour 0 | hour 1 | hour 2 | hour 3 |
|---|---|---|---|---|
| `m host=a` | points | 3,600 points | compacted, 3,600 points | append, 3,600 points |
| `m host=b` | compacted | append | points | compacted |
| `m host=c` | | compacted | points, some corrected | |
| `m host=d` | | points, append | compacted | |
| `m.old host=a` | | compacted | | |
| `n host=a` | | points | | |

These are the packings of `timebeam ingest`; the long columns have more than 8,000 bytes. No two series have a
point at the same instant, so that merges lose none.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

from tests.schema.stores.plain_opentsdb import number
from tests.support.any_store import AnyStore
from tests.support.model import Content, SeriesName
from tests.system import steps
from tests.system.steps import DAY_S, HOUR_S

START_S = steps.START_S + DAY_S - 2 * HOUR_S
HOURS = 4
METRICS = ("m", "m.old", "n")
MAIN, OTHER = "main", "other"


def at_ms(hour: int, second: float = 0) -> int:
    """A time in ms, in one of the hours."""
    return int((START_S + hour * HOUR_S + second) * 1000)


class Filling(NamedTuple):
    """Points of a row, one every `step_ms` from `offset_ms` on."""

    series: SeriesName
    hour: int
    packing: str
    step_ms: int
    offset_ms: int = 0
    are_corrections: bool = False

    def times_ms(self) -> range:
        """The times of its points."""
        return range(at_ms(self.hour) + self.offset_ms, at_ms(self.hour + 1), self.step_ms)


def _series(metric: str, host: str) -> SeriesName:
    return metric, (("host", host),)


def fillings(step_ms: int) -> list[Filling]:
    """All points of the main tables.

    Args:
      step_ms: between the points of the longest rows; a second for rows of 3,600 points.
    """
    a, b, c, d = (_series("m", host) for host in "abcd")
    return [
        Filling(a, 0, "points", 90_000),
        Filling(a, 1, "points", step_ms),
        Filling(a, 2, "compacted", step_ms),
        Filling(a, 3, "append", step_ms),
        Filling(b, 0, "compacted", 3 * step_ms, 500),
        Filling(b, 1, "append", 3 * step_ms, 500),
        Filling(b, 2, "points", 120_000, 500),
        Filling(b, 3, "compacted", 3 * step_ms, 500),
        Filling(c, 1, "compacted", 36_000, 250),
        Filling(c, 2, "points", 36_000, 250),
        Filling(c, 2, "points", 108_000, 250, are_corrections=True),
        Filling(d, 1, "points", 120_000, 750),
        Filling(d, 1, "append", 60_000, 30_750),
        Filling(d, 2, "compacted", 12_000, 750),
        Filling(_series("m.old", "a"), 1, "compacted", 12_000, 125),
        Filling(_series("n", "a"), 1, "points", 180_000),
    ]


OTHERS = [
    Filling(_series("m", "a"), 1, "compacted", 6_000, 625),
    Filling(_series("m", "a"), 2, "append", 6_000, 625),
]
"""The points of the tables that are copied into."""


@dataclasses.dataclass
class Contents:
    """What the tables hold.

    Attributes:
      points: by `MAIN` and `OTHER`, which is copied into.
      gone: (kind, name) that a merge took away.
    """

    points: dict[str, Content]
    gone: set[tuple[str, str]]

    def copy(self) -> Contents:
        """The same, to be changed."""
        return Contents({name: dict(content) for name, content in self.points.items()}, set(self.gone))

    def delete(self, tables: str, first_ms: int, last_ms: int, host: str = "") -> None:
        """Deletes the points of metric m, of all hosts or one, in [first_ms, last_ms]."""
        if ("tagv", host) in self.gone:
            return
        content = self.points[tables]
        for key in [
            (series, time_ms)
            for series, time_ms in content
            if series[0] == "m" and first_ms <= time_ms <= last_ms and host in ("", dict(series[1])["host"])
        ]:
            del content[key]

    def add(self, late: Filling) -> None:
        """Adds points that arrive during the race."""
        self.points[MAIN] |= {(late.series, time_ms): number(_LATE) for time_ms in late.times_ms()}

    def merge(self, kind: str, old: str, new: str) -> None:
        """Moves the points of a name to another; nothing if one of the names is gone."""
        if self.gone & {(kind, old), (kind, new)}:
            return
        self.gone.add((kind, old))
        moved: Content = {}
        for ((metric, tags), time_ms), value in self.points[MAIN].items():
            if kind == "metrics":
                series = new if metric == old else metric, tags
            else:
                series = metric, tuple((key, new if text == old else text) for key, text in tags)
            assert (series, time_ms) not in moved
            moved[series, time_ms] = value
        self.points[MAIN] = moved

    def copy_to_other(self) -> None:
        """Copies all points."""
        self.points[OTHER] |= self.points[MAIN]


class Stores(NamedTuple):
    """The tables of a race, by name, and a folder for what commands write."""

    by_name: Mapping[str, AnyStore]
    folder: Path


LATE = {
    "points": Filling(_series("m", "c"), 2, "points", 36_000, 1_800_375),
    "append": Filling(_series("m", "a"), 3, "append", 36_000, 1_800_375),
}
"""What is ingested during a race, by its packing: other instants of rows that have points already."""
_LATE = -1


def undecided(jobs: Collection[str], series: SeriesName, time_ms: int) -> bool:
    """Whether a point may be there or not, since it is in a row with points that arrive during a deletion.

    Cells that are newer than a deletion stay. An old point can be in one, because a compaction gives points
    the arrival of the newest, and an append gives its time to the whole column.
    """
    hour, host = (time_ms - at_ms(0)) // (HOUR_S * 1000), dict(series[1])["host"]
    if "ingest" in jobs and (host, hour) == ("c", 2):
        return "delete-overlap" in jobs or any(name.startswith("compact") for name in jobs)
    return "ingest-append" in jobs and (host, hour) == ("a", 3)


Arguments: TypeAlias = "Callable[[Stores], list[str]]"


class Job(NamedTuple):
    """A command that may run beside others.

    Attributes:
      has_token: it is run with the token of a dry run.
      needs: `uids`, `archive`, `no archive`: what the tables must have.
    """

    arguments: Arguments
    changes: Callable[[Contents], None]
    has_token: bool = False
    needs: frozenset[str] = frozenset()


def _compact(form: str) -> Job:
    def arguments(stores: Stores) -> list[str]:
        span = f"--start={START_S}", f"--end={START_S + HOURS * HOUR_S}"
        return ["compact", *stores.by_name[MAIN].flags, *span, f"--form={form}"]

    return Job(arguments, lambda contents: None, needs=frozenset({"uids"}))


def _delete(name: str, first_ms: int, last_ms: int, tables: str = MAIN, host: str = "") -> Job:
    def arguments(stores: Stores) -> list[str]:
        store = stores.by_name[tables]
        return [
            *("delete", "m", *store.flags, f"--start={first_ms}", f"--end={last_ms}"),
            *(f"--tag=host={host}" if host else "--full-scan", f"--log={stores.folder / name}"),
            "--summary=json",
        ]

    def changes(contents: Contents) -> None:
        contents.delete(tables, first_ms, last_ms, host)

    return Job(arguments, changes, has_token=True)


def _expire() -> Job:
    last_day = START_S // DAY_S

    def arguments(stores: Stores) -> list[str]:
        days = int(time.time()) // DAY_S - last_day - 1
        return [
            *("delete", *stores.by_name[MAIN].flags, f"--keep-days=m={days}", "--unattended"),
            *(f"--log={stores.folder / 'expire'}", "--summary=json"),
        ]

    def changes(contents: Contents) -> None:
        contents.delete(MAIN, 0, (last_day + 1) * DAY_S * 1000 - 1)

    return Job(arguments, changes)


def _archive_some(*, delete_source: bool) -> Job:
    def arguments(stores: Stores) -> list[str]:
        hours = (int(time.time()) - START_S) // HOUR_S - HOURS
        return [
            *("archive", *stores.by_name[MAIN].flags, f"--start={START_S}", f"--older-than={hours}h"),
            *("--quiet-hours=0", "--reader-hours=0", f"--delete-source={delete_source}".lower()),
        ]

    return Job(arguments, lambda contents: None, needs=frozenset({"archive"}))


def _merge(kind: str, old: str, new: str) -> Job:
    def arguments(stores: Stores) -> list[str]:
        return ["names", "merge", kind, old, new, *stores.by_name[MAIN].flags, "--yes"]

    return Job(
        arguments, lambda contents: contents.merge(kind, old, new), needs=frozenset({"uids", "no archive"})
    )


def _copy() -> Job:
    def arguments(stores: Stores) -> list[str]:
        main, other = stores.by_name[MAIN], stores.by_name[OTHER]
        letters = stores.folder / f"letters-{time.monotonic_ns()}"
        letters.mkdir()
        return [
            *("copy", f"--from={main.layout.name}", f"--to={other.layout.name}", *main.place),
            *(*main.layout_flags(), *other.layout_flags("to_"), f"--dead-letters={letters / 'dead'}"),
            *(f"--start={at_ms(0)}", f"--end={at_ms(HOURS) - 1}", *other.auto_create),
        ]

    return Job(arguments, Contents.copy_to_other)


def _ingest(packing: str) -> Job:
    late = LATE[packing]
    (host,) = late.series[1]

    def arguments(stores: Stores) -> list[str]:
        path = stores.folder / f"late-{packing}"
        times = (time_ms if time_ms % 1000 else time_ms // 1000 for time_ms in late.times_ms())
        path.write_text("".join(f"put m {each} {_LATE} host={host[1]}\n" for each in times))
        store = stores.by_name[MAIN]
        return [
            *("ingest", *store.flags, *store.auto_create, "--format=opentsdb-text"),
            *(f"--input={path}", f"--packing={packing}"),
        ]

    return Job(arguments, lambda contents: contents.add(late), needs=frozenset({"uids"}))


JOBS: Mapping[str, Job] = {
    "compact": _compact("compacted"),
    "compact-append": _compact("append"),
    "delete-early": _delete("early", at_ms(0, 1800), at_ms(1, 600)),
    "delete-late": _delete("late", at_ms(1, 1800), at_ms(2, 600)),
    "delete-overlap": _delete("overlap", at_ms(1, 300), at_ms(3, 1200)),
    "delete-tag": _delete("tag", at_ms(1, 1200), at_ms(2, 1200), host="a"),
    "delete-other": _delete("other", at_ms(1, 1200), at_ms(2, 1200), OTHER),
    "expire": _expire(),
    "archive": _archive_some(delete_source=True),
    "archive-keep": _archive_some(delete_source=False),
    "merge": _merge("tagv", "b", "a"),
    "merge-too": _merge("tagv", "d", "c"),
    "merge-back": _merge("tagv", "a", "b"),
    "merge-on": _merge("tagv", "a", "c"),
    "merge-metric": _merge("metrics", "m.old", "m"),
    "copy": _copy(),
    "ingest": _ingest("points"),
    "ingest-append": _ingest("append"),
}
"""The deletions of early and late are of different times of the rows of hour 1."""

MERGES = frozenset(name for name in JOBS if name.startswith("merge"))


def runnable(store_has: frozenset[str]) -> Iterator[str]:
    """The names of the jobs that tables allow."""
    return (name for name, job in JOBS.items() if job.needs <= store_has)
