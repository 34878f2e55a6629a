"""The tables of a race: filled once for each kind of tables, then copied cell by cell."""

from __future__ import annotations

import functools
import itertools
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from google.cloud.bigtable.data import RowMutationEntry, SetCell

from tests.schema.stores.plain_opentsdb import number
from tests.support.any_store import AnyStore
from tests.support.commands import timebeam
from tests.support.data_client import open_table
from tests.support.model import Content
from tests.system.model import as_stored
from tests.system.race_jobs import HOURS, MAIN, OTHER, OTHERS, START_S, Contents, Filling, Stores, fillings
from tests.system.steps import DAY_S, HOUR_S
from timebeam.pipelines.store import closed_hours, delete
from timebeam.schema.core.rows import Row
from timebeam.transforms.read.table_reader import scan_table

_NUMBERS = itertools.count(1)
_ARRIVAL_S = START_S + 7 * DAY_S
_MUTATIONS_AT_ONCE = 20_000


class Kind(NamedTuple):
    """What tables a race has.

    Attributes:
      variant: of `any_store.VARIANTS`.
      archive: whether they have one.
      is_archived: the first two hours are in the archive and in the data table.
      step_ms: see `fillings`.
    """

    variant: str = "opentsdb"
    archive: bool = False
    is_archived: bool = False
    step_ms: int = 1000

    @property
    def has(self) -> frozenset[str]:
        """What jobs may need of them."""
        return frozenset(
            ({"uids"} if self.variant.startswith("opentsdb") else set())
            | {"archive" if self.archive else "no archive"}
        )


class _Filled(NamedTuple):
    """The rows of filled tables, by the end of the table's name, and their points."""

    rows: Mapping[str, Sequence[Row]]
    points: Content


def settle_at_once() -> None:
    """Cells are as old as each job needs them to be."""
    delete.SETTLED_MS = closed_hours.SETTLED_MS = 0


def create(kind: Kind, place: tuple[str, str], prefix: str, folder: Path) -> tuple[Stores, Contents]:
    """New tables with all points, and those to be copied into; and what they hold."""
    stores, points = {}, {}
    for name in (MAIN, OTHER):
        filled = _filled(kind, name, place, os.environ["BIGTABLE_EMULATOR_HOST"])
        stores[name] = _empty(kind, name, place, f"{prefix}{name}-")
        for table, rows in filled.rows.items():
            for some in _requests(rows):
                open_table(stores[name].target, f"{prefix}{name}-{table}").bulk_mutate_rows(some)
        points[name] = filled.points
    return Stores(stores, folder), Contents(points, set()).copy()


def _empty(kind: Kind, name: str, place: tuple[str, str], prefix: str) -> AnyStore:
    archive = {"archive": "true"} if kind.archive and name == MAIN else {}
    return AnyStore.create(place, prefix, kind.variant, **archive)


def _requests(rows: Sequence[Row]) -> Iterator[list[RowMutationEntry]]:
    """The mutations that write rows, a request at a time."""
    request, size = list[RowMutationEntry](), 0
    for row in rows:
        if size and size + len(row.cells) > _MUTATIONS_AT_ONCE:
            yield request
            request, size = [], 0
        cells = [SetCell(*cell[:2], cell.value, cell.timestamp_ms * 1000) for cell in row.cells]
        request.append(RowMutationEntry(row.key, cells))
        size += len(cells)
    if request:
        yield request


@functools.cache
def _filled(kind: Kind, name: str, place: tuple[str, str], _emulator: str) -> _Filled:
    """The rows of tables of a kind, made by ingests and perhaps of the archive."""
    prefix = f"filled{next(_NUMBERS)}_{os.getpid()}-"
    store = _empty(kind, name, place, prefix)
    points: Content = {}
    with tempfile.TemporaryDirectory() as folder:
        values = itertools.count(1)
        of_file = sorted(fillings(kind.step_ms) if name == MAIN else OTHERS, key=_file)
        for (corrections, packing), some in itertools.groupby(of_file, _file):
            path = Path(folder) / f"{packing}-{corrections}"
            path.write_text("\n".join(_lines(some, values, points, store.layout.name)))
            os.utime(path, (_ARRIVAL_S + corrections * DAY_S,) * 2)
            _run(
                *("ingest", *store.flags, "--format=opentsdb-text", f"--input={path}", *store.auto_create),
                *([f"--packing={packing}"] if store.layout.uids else []),
            )
    if kind.is_archived and name == MAIN:
        with mock.patch.object(closed_hours, "SETTLED_MS", 0):
            _run(
                *("archive", *store.flags, f"--start={START_S}", "--quiet-hours=0", "--delete-source=false"),
                f"--older-than={(int(time.time()) - START_S) // HOUR_S - HOURS // 2}h",
            )
    assert store.content() == points
    rows = {
        spec.name.removeprefix(prefix): list(scan_table(store.target, spec.name))
        for spec in store.layout.tables()
    }
    return _Filled(rows, points)


def _file(filling: Filling) -> tuple[bool, str]:
    return filling.are_corrections, filling.packing


def _lines(some: Iterator[Filling], values: Iterator[int], points: Content, layout: str) -> Iterator[str]:
    """The lines of points, each of another value; adds them to a dict."""
    for filling in some:
        metric, tags = filling.series
        words = " ".join(f"{key}={text}" for key, text in tags)
        for time_ms in filling.times_ms():
            value = next(values)
            shown: int | float = value + 0.1 if filling.packing == "compacted" else value
            points[filling.series, time_ms] = number(as_stored(layout, shown))
            yield f"put {metric} {time_ms if time_ms % 1000 else time_ms // 1000} {shown!r} {words}"


def _run(*arguments: str) -> None:
    ran = timebeam(*arguments)
    assert ran.code == 0, ran.err
