"""Input for whole ingests: points of a seed, written as files, ingested, and compared with the model."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import os
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from google.cloud.bigtable.data import ReadRowsQuery
from google.cloud.bigtable.data.row_filters import CellsColumnLimitFilter

from tests.support import model
from tests.support.commands import Ran, timebeam
from tests.support.data_client import open_table
from tests.support.model import Point, SeriesName, StoredCell
from tests.support.pubsub_server import Published
from tests.support.stored import Store
from timebeam.schema.bits.reasons import Reason
from timebeam.transforms.dead_letters.letter import from_json

HOUR_S = 3600
START_S = 1_767_225_600  # 2026-01-01
FIRST_MS, SECOND_MS = 1_790_000_000_000, 1_790_000_600_000
"""Modification times of the first file and of the one with corrections."""

PACKINGS = ("compacted", "points")
WRITERS = ("beam", "direct")


class Letter(NamedTuple):
    """A dead letter, as it was read back."""

    payload: bytes
    reason: Reason
    source: str
    offset: int


@dataclasses.dataclass(frozen=True)
class Workload:
    """Points, and the files that hold them as lines in a random order."""

    points: Sequence[Point]
    files: Sequence[Path]
    format_name: str

    @classmethod
    def write(
        cls,
        folder: Path,
        seed: int,
        *,
        series: int,
        hours: int,
        a_row: int,
        format_name: str = "opentsdb-text",
    ) -> Workload:
        """About series * hours * a_row points; every twentieth is corrected by a second, newer file."""
        rng = random.Random(seed)
        first = list(_points(rng, series, hours, a_row))
        second = [
            point._replace(value=_value(rng), arrival_ms=SECOND_MS)
            for point in rng.sample(first, len(first) // 20)
        ]
        files = []
        for name, points in (("first.txt", first), ("second.txt", second)):
            lines = [_LINES[format_name](point) for point in points]
            rng.shuffle(lines)
            files.append(folder / name)
            files[-1].write_text("".join(lines))
            os.utime(files[-1], (points[0].arrival_ms // 1000,) * 2)
        return cls([*first, *second], files, format_name)

    def mix_in(self, lines: Iterable[bytes], rng: random.Random) -> None:
        """Puts more lines at random places of the first file, which keeps its age."""
        found = self.files[0].read_bytes().splitlines()
        for line in lines:
            found.insert(rng.randrange(len(found) + 1), line)
        age = self.files[0].stat()
        self.files[0].write_bytes(b"\n".join(found) + b"\n")
        os.utime(self.files[0], ns=(age.st_atime_ns, age.st_mtime_ns))


def run(work: Workload, store: Store, *flags: str | Path) -> Ran:
    """Ingests the files of a workload into the tables of a store."""
    letters = work.files[0].parent / "letters" / "dead"
    return timebeam(
        *("ingest", *store.flags, f"--format={work.format_name}", "--auto-create-metrics", "--summary=json"),
        *("--dead-letters", letters, *flags, "--input", *work.files),
    )


def letters(work: Workload) -> list[Path]:
    """The files of dead letters that runs of a workload have left."""
    folder = work.files[0].parent / "letters"
    return sorted(path for path in folder.glob("*") if path.is_file())


def read_letters(work: Workload) -> list[Letter]:
    """The dead letters that runs of a workload have left."""
    lines = [line for path in letters(work) for line in path.read_text("utf-8").splitlines()]
    found = [from_json(line).rejected for line in lines]
    return [Letter(one.payload, one.reason, one.source, one.offset) for one in found]


def check_equal(
    store: Store, points: Iterable[Point], packing: str, *, corrected_in_place: bool = False
) -> None:
    """Asserts that the data table holds these points, each cell once, for `points` byte for byte.

    The versions of append columns, one for each append, are not looked at, nor those that a correction
    in another flush leaves below it until garbage collection.
    """
    points = list(points)
    cells = versions(store, newest=packing == "append" or corrected_in_place)
    twice = [cell for cell, n in collections.Counter(cell[:3] for cell in cells).items() if n > 1]
    assert not twice, f"{len(twice)} columns with several versions, the first {twice[0]}"
    found = model.read_content(cells, store.names(), store.layout.options)
    _check_same(model.content(points).items(), found.items())
    if packing == "points":
        _check_same(model.point_cells(points, store.uids(), store.layout.options), cells)


def holds(store: Store, points: Iterable[Point], packing: str) -> bool:
    """Whether `check_equal` passes."""
    try:
        check_equal(store, points, packing)
    except (AssertionError, KeyError):
        return False
    return True


def versions(store: Store, *, newest: bool = False) -> list[StoredCell]:
    """Every version of every cell of the data table, or only the newest of each."""
    query = ReadRowsQuery(row_filter=CellsColumnLimitFilter(1) if newest else None)
    return [
        StoredCell(row.row_key, cell.family, cell.qualifier, cell.timestamp_micros // 1000, cell.value)
        for row in open_table(store.target, store.layout.data_table).read_rows(query)
        for cell in row.cells
    ]


def _check_same(expected: Iterable[object], found: Iterable[object]) -> None:
    """Asserts that two collections are the same set, with a message of some lines if not."""
    expected, found = set(expected), set(found)
    missing, surplus = expected - found, found - expected
    assert not missing, f"{len(missing)} of {len(expected)} missing, the first {list(missing)[:3]}"
    assert not surplus, f"{len(surplus)} too many, the first {list(surplus)[:3]}"


def _points(rng: random.Random, series: int, hours: int, a_row: int) -> Iterable[Point]:
    """Points at distinct times; every third series in milliseconds."""
    for number in range(series):
        name: SeriesName = (
            f"sys.m{number % 5}",
            (("dc", f"dc{number % 3}"), ("host", f"web-{number // 5:03}")),
        )
        for hour in range(hours):
            start = START_S + hour * HOUR_S
            for offset in rng.sample(range(HOUR_S), a_row):
                time = (start + offset) * 1000 + rng.randrange(1000) if number % 3 == 0 else start + offset
                yield Point(name, time, _value(rng), FIRST_MS)


def random_points(
    rng: random.Random, *, series: int, hours: int, a_row: int, corrections: float, most: int
) -> list[Point]:
    """About series * hours * a_row points in the order in which they are published, then corrections.

    Messages have one to `most` points, and each message arrives in a millisecond of its own.
    """
    points = list(_points(rng, series, hours, a_row))
    rng.shuffle(points)
    again = rng.sample(points, int(len(points) * corrections))
    points += [point._replace(value=_value(rng)) for point in again]
    found: list[Point] = []
    arrival_ms = FIRST_MS
    while len(found) < len(points):
        part = points[len(found) : len(found) + rng.randint(1, most)]
        times = {(point.series, point.time) for point in part}
        part = part if len(times) == len(part) else part[:1]
        found += [point._replace(arrival_ms=arrival_ms) for point in part]
        arrival_ms += 1
    return found


def as_messages(points: Iterable[Point]) -> list[Published]:
    """Messages of the points that arrive together, as JSON lines, published when they arrive."""
    return [
        Published("".join(map(_json, together)).encode(), arrival_ms)
        for arrival_ms, together in itertools.groupby(points, key=lambda point: point.arrival_ms)
    ]


def _value(rng: random.Random) -> int | float:
    """An integer of 1 to 8 bytes, a decimal that fits four bytes, or one that needs eight."""
    kind = rng.randrange(3)
    if kind == 0:
        return rng.choice((-1, 1)) * rng.getrandbits(rng.choice((4, 7, 12, 30, 62)))
    return rng.randrange(-8000, 8000) / 8 if kind == 1 else rng.uniform(-1e6, 1e6)


def _text(point: Point) -> str:
    metric, tags = point.series
    words = " ".join(f"{key}={value}" for key, value in tags)
    return f"put {metric} {point.time} {point.value!r} {words}\n"


def _json(point: Point) -> str:
    metric, tags = point.series
    record = {"metric": metric, "timestamp": point.time, "value": point.value, "tags": dict(tags)}
    return json.dumps(record) + "\n"


_LINES = {"opentsdb-text": _text, "opentsdb-json": _json}
