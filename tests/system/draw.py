"""A random history of a seed.

What the documents say does not hold is not drawn: corrections that arrive out of order where rows are
compacted (docs/operate/maintenance.md, "One case loses").
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

import msgspec

from tests.system.files import BROKEN, HISTOGRAMS
from tests.system.steps import (
    HOUR_S,
    HOURS,
    METRICS,
    SERIES,
    START_S,
    Again,
    Archive,
    ChangedRange,
    Compact,
    Copy,
    Delete,
    Expire,
    Export,
    File,
    History,
    Ingest,
    MetaSync,
    Point,
    Reindex,
    Remove,
    Rename,
    Replay,
    Rollup,
    Setup,
    Step,
    Trouble,
    Value,
)

FIRST_ARRIVAL_MS = 1_780_000_000_123
_SPACING_MS = 60_000
_BUSY_HOURS = (0, 1, 22, 23, 24, 25, 47)
_BUSY_SECONDS = (0, 1, 59, 600, 1799, 3599)
_INTERVALS = ([600, 3600, 86_400], [600, 3600], [1800, 7200], [3600, 86_400])
_EXTREMES: tuple[Value, ...] = (2**63 - 1, -(2**63), -0.0, 0.1, 123_456_789.123_456_78)
_OPENTSDB: tuple[dict[str, str], ...] = (
    {},
    {"salt_width": "1", "salt_buckets": "3"},
    {"salt_width": "2", "salt_buckets": "5"},
    {"uid_width_metric": "2", "uid_width_tagk": "4", "uid_width_tagv": "4"},
    {"decimals": "double"},
)
_LAYOUTS = (
    *[("opentsdb", options) for options in _OPENTSDB],
    ("heroic", {}),
    ("heroic-readable", {}),
    ("heroic-readable", {"resource_names": "true"}),
    ("kairosdb", {"row_spec": "legacy"}),
    ("kairosdb", {"row_spec": "milliseconds"}),
    ("kairosdb", {"retention": "7,90", "retention_class": "90"}),
)


def history_of(seed: int) -> History:
    """The history of a seed; the same on every machine."""
    return _Draw(seed).history()


class _Draw:
    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._seed = seed
        weights = [3, 2, 1, 2, 1, 2, 1, 1, 2, 2, 1]
        self._layout, self._options = self._rng.choices(_LAYOUTS, weights)[0]
        self._copy_layout, self._copy_options = self._rng.choice(_LAYOUTS)
        self._archives = self._rng.random() < 0.4
        if self._archives:
            self._options = {**self._options, "archive": "true"}
        opentsdb = self._layout == "opentsdb"
        self._appends = opentsdb and self._rng.random() < 0.3
        self._compacts = opentsdb and self._rng.random() < 0.6
        self._marks = self._rng.random() < 0.6
        self._arrivals = self._arrival_times()

    def history(self) -> History:
        """The first step is an ingest of points of all names; what follows is drawn."""
        setup = Setup(
            self._layout, self._options, self._copy_layout, self._copy_options, self._rng.choice(_INTERVALS)
        )
        steps: list[Step] = [self._ingest("first", create=True)]
        count = self._rng.randint(3, 6)
        while len(steps) < count:
            steps.append(self._step(steps))
        return History(self._seed, setup, steps)

    def _step(self, before: list[Step]) -> Step:
        draws: dict[Callable[[list[Step]], Step], int]
        draws = {self._another_ingest: 5, self._again: 1, self._replay: 1}
        draws |= {self._remove: 3, self._expire: 2}
        draws |= {self._rollup: 3, self._copy: 2, self._export: 2}
        if self._marks:
            draws[self._changed] = 2
        if self._compacts:
            draws[self._compact] = 3
        if self._archives:
            draws[self._archive_some] = 9
            return self._rng.choices(list(draws), list(draws.values()))[0](before)
        draws[self._delete] = 2  # these do not read an archive
        if self._layout == "opentsdb":
            draws[self._meta_sync] = 1
            draws[self._rename] = 2
        if self._layout in ("heroic", "kairosdb"):
            draws[self._reindex] = 1
        return self._rng.choices(list(draws), list(draws.values()))[0](before)

    def _arrival_times(self) -> Iterator[int]:
        """Of files in the order of their ingest: ascending where rows are compacted."""
        numbers = itertools.count()
        while True:
            chunk = [FIRST_ARRIVAL_MS + next(numbers) * _SPACING_MS for _ in range(4)]
            if not self._compacts and not self._appends:
                self._rng.shuffle(chunk)
            yield from chunk

    def _another_ingest(self, before: list[Step]) -> Step:
        step = self._ingest(f"ingest{len(before)}", create=self._rng.random() < 0.75)
        rejects = step.trouble is not None and step.trouble.kind == "refuse"  # then a replay has no limit
        limited = self._layout == "opentsdb" and not rejects and self._rng.random() < 0.25
        return msgspec.structs.replace(step, limited=limited)

    def _ingest(self, name: str, *, create: bool) -> Ingest:
        appends = self._appends and self._rng.random() < 0.7
        packing: str | None = None
        if self._layout == "opentsdb":
            packing = "append" if appends else self._rng.choice(("points", "compacted"))
        forms = BROKEN if self._layout == "opentsdb" else BROKEN.keys() - {HISTOGRAMS}
        form = self._rng.choice(sorted(forms))
        files = [self._file(form) for _ in range(1 if appends or self._rng.random() < 0.7 else 2)]
        writer = self._rng.choice(("beam", "direct"))
        kinds = ["pass", "abort", "kill"]
        if writer == "direct" and not (appends or self._marks):
            kinds.append("refuse")
        return Ingest(name, files, packing, writer, create, self._marks, self._trouble(kinds))

    def _trouble(self, kinds: list[str]) -> Trouble | None:
        if self._rng.random() < 0.7:
            return None
        weights = [1 if kind == "kill" else 5 for kind in kinds]  # a child imports Beam first
        kind = self._rng.choices(kinds, weights)[0]
        return Trouble(kind, self._rng.choice((1, 1, 2, 2, 3, 4, 5, 7)), self._rng.randrange(1000))

    def _file(self, form: str) -> File:
        suffix = "" if form == "avro" else self._rng.choice(("", "", ".gz", ".bz2", ".zst"))
        points = [self._point() for _ in range(self._rng.choice((1, 3, 8, 20, 40)))]
        points += [self._rng.choice(points) for _ in range(self._rng.choice((0, 0, 3)))]
        if self._rng.random() < 0.3:  # corrections in the same file
            chosen = self._rng.sample(points, max(1, len(points) // 4))
            points += [
                Point(point.series, point.time_ms, point.in_ms or self._rng.random() < 0.3, self._value())
                for point in chosen
            ]
        if self._rng.random() < 0.5:
            self._rng.shuffle(points)
        broken = self._rng.choices(BROKEN[form], k=self._rng.choice((0, 0, 1, 2))) if BROKEN[form] else []
        return File(form, suffix, next(self._arrivals), points, broken)

    def _point(self) -> Point:
        hour = self._rng.choice(_BUSY_HOURS) if self._rng.random() < 0.8 else self._rng.randrange(HOURS)
        second = self._rng.choice(_BUSY_SECONDS) if self._rng.random() < 0.7 else self._rng.randrange(HOUR_S)
        in_ms = self._rng.random() < 0.3
        ms = self._rng.choice((0, 0, 1, 250, 999)) if in_ms else 0
        time_ms = (START_S + hour * HOUR_S + second) * 1000 + ms
        return Point(self._rng.randrange(len(SERIES)), time_ms, in_ms, self._value())

    def _value(self) -> Value:
        kind = self._rng.randrange(8)
        if self._rng.random() < 0.04:
            return self._rng.choice(_EXTREMES)
        if kind < 3:
            return self._rng.randrange(-100, 300)
        if kind == 3:
            return self._rng.choice((-1, 1)) * self._rng.getrandbits(self._rng.choice((15, 31, 50)))
        if kind == 4:
            return self._rng.choice((-1, 1)) * (2**53 + self._rng.randrange(100))
        if kind < 7:
            return self._rng.randrange(-800, 800) / 8
        return round(self._rng.uniform(-1e6, 1e6), 6)

    def _again(self, before: list[Step]) -> Step:
        return Again(self._rng.choice([step.name for step in before if isinstance(step, Ingest)]))

    def _replay(self, before: list[Step]) -> Step:
        return Replay(self._rng.choice([step.name for step in before if isinstance(step, Ingest)]))

    def _delete(self, before: list[Step]) -> Step:
        points = [
            point
            for step in before
            if isinstance(step, Ingest)
            for file in step.files
            for point in file.points
        ]
        point = self._rng.choice(points)
        return Delete(point.series, (point.time_ms // 1000 - START_S) // HOUR_S)

    def _remove(self, before: list[Step]) -> Step:
        """Ends at points, as often as between them: so that columns are rewritten."""
        ingests = [step for step in before if isinstance(step, Ingest)]
        points = [point for step in ingests for file in step.files for point in file.points]
        point = self._rng.choice(points)
        times = [point.time_ms, *(other.time_ms for other in points if other.series == point.series)]
        first_ms, last_ms = sorted((point.time_ms, self._rng.choice(times) + self._rng.choice((0, 0, -1, 7))))
        if self._rng.random() < 0.2:
            first_ms, last_ms = START_S * 1000, (START_S + HOURS * HOUR_S) * 1000
        trouble = self._trouble(["pass", "abort", "kill"])
        all_of_it = not self._archives and self._rng.random() < 0.3
        return Remove(point.series, first_ms, last_ms, all_of_it, trouble)

    def _expire(self, _: list[Step]) -> Step:
        rollup_days = (None, -1, 0, 1, 2) if self._layout == "opentsdb" else (None, -1)
        trouble = self._trouble(["pass", "abort", "kill"])
        return Expire(
            self._rng.choice(METRICS), self._rng.choice((0, 1, 1, 2)), self._rng.choice(rollup_days), trouble
        )

    def _span(self, whole: float) -> tuple[int, int]:
        """[first, end) in hours; all of them with this probability."""
        if self._rng.random() < whole:
            return 0, HOURS
        start = self._rng.choice((0, 0, 22, 23, 24, 24))
        return start, self._rng.choice([end for end in (1, 2, 24, 25, HOURS) if end > start])

    def _rollup(self, _: list[Step]) -> Step:
        return Rollup(*self._span(0.6), self._trouble(["pass", "abort", "kill"]))

    def _changed(self, _: list[Step]) -> Step:
        return ChangedRange()

    def _compact(self, _: list[Step]) -> Step:
        form = self._rng.choice(("compacted", "compacted", "append"))
        return Compact(*self._span(0.6), form, self._trouble(["pass", "abort", "kill"]))

    def _archive_some(self, _: list[Step]) -> Step:
        trouble = self._trouble(["pass", "abort", "kill"])
        return Archive(*self._span(0.6), self._rng.random() < 0.6, trouble)

    def _copy(self, _: list[Step]) -> Step:
        return Copy(*self._span(0.7), self._trouble(["pass", "abort", "kill"]))

    def _export(self, _: list[Step]) -> Step:
        first, end = self._rng.choice(((0, 1), (1, 2), (0, 2), (0, 2)))
        return Export(first, end, self._trouble(["pass"]))

    def _rename(self, before: list[Step]) -> Step:
        values = sorted({value for _, tags in SERIES for _, value in tags})
        ingests = [step.name for step in before if isinstance(step, Ingest)]
        return Rename(
            self._rng.choice(values), self._rng.choice(ingests), self._trouble(["pass", "abort", "kill"])
        )

    def _meta_sync(self, _: list[Step]) -> Step:
        return MetaSync()

    def _reindex(self, _: list[Step]) -> Step:
        return Reindex(self._rng.random() < 0.7)
