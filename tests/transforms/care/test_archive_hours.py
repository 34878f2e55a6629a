"""Archiving against the emulator: every answer stays, whatever comes between two steps."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import random
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.any_store import AnyStore
from tests.support.budget import long_after
from tests.support.commands import timebeam
from tests.support.fault_proxy import AFTER, BEFORE
from tests.support.plain.rolled import config_file, interval, with_tables
from tests.support.processes.killed import run_and_kill
from tests.support.stored import Store
from timebeam.pipelines.options.use_settings import settings_table
from timebeam.schema.archive import archive_rows
from timebeam.schema.archive.archive_rows import BLOCK_S, parse_key
from timebeam.schema.core.contract import pack_row
from timebeam.schema.core.point_fragments import Name, Packing
from timebeam.schema.core.points import PointBatch, Series, SeriesKey
from timebeam.schema.core.rows import WHOLE_TABLE, Deletion, Row
from timebeam.schema.core.selection import Selection
from timebeam.schema.query.question import NONE, Question
from timebeam.transforms.bigtable.create_tables import create_tables
from timebeam.transforms.bigtable.write_rows import write_all
from timebeam.transforms.care import archive_hours, rows_to_archive
from timebeam.transforms.care import delete_points as delete_module
from timebeam.transforms.care.archive_hours import ArchiveTally, VerifyError, archive_metric
from timebeam.transforms.care.delete_from_tables import ArchiveDeletions, PendingRemovals, interrupted_logs
from timebeam.transforms.care.delete_points import DeleteChunk, DeleteJob, DeleteTask
from timebeam.transforms.care.range_leases import Leases
from timebeam.transforms.care.rows_to_archive import ArchiveJob
from timebeam.transforms.copy.copied_points import read_points
from timebeam.transforms.query.read_points import find_series
from timebeam.transforms.read.table_reader import TableReader, scan_table
from timebeam.transforms.rollup.changed_hours import ChangedHoursWriter

START_S = 1_767_225_600 // BLOCK_S * BLOCK_S  # in December 2025
HOUR_MS, DAY_S = 3_600_000, 86_400
NOW_S = START_S + 100 * DAY_S
ARRIVAL_MS = START_S * 1000 + 40 * DAY_S * 1000
_TICKS = itertools.count()
METRIC = b"\0\0\1"

Points = dict[Series, dict[int, int | float]]


VARIANTS = ["heroic", "heroic-readable-names", "kairosdb-milliseconds", "kairosdb-legacy"]
SHORT_SEEDS = {"opentsdb": 1, **dict.fromkeys(VARIANTS, -1), "heroic-readable-names": 0, "kairosdb-legacy": 0}
each_layout_long = pytest.mark.parametrize(
    "store", long_after(1, ["opentsdb", "heroic", "kairosdb-milliseconds"]), indirect=True
)
"""The random histories take the other variants too."""


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str, request: pytest.FixtureRequest) -> Any:
    variant = getattr(request, "param", "opentsdb")
    if variant != "opentsdb":
        return AnyStore.create(bigtable, prefix, variant, archive=True)
    store = Store.create(bigtable, prefix, salt_width=1, salt_buckets=2, archive=True)
    names = {("metrics", 1): "m", ("tagk", 1): "host", ("tagv", 1): "a", ("tagv", 2): "b", ("tagv", 3): "c"}
    uid_rows = []
    for (kind, number), text in names.items():
        uid = number.to_bytes(3, "big")
        uid_rows += [
            Row(store.layout.options.uid_table, text.encode(), [archive_cell("id", kind, uid)]),
            Row(store.layout.options.uid_table, uid, [archive_cell("name", kind, text.encode())]),
        ]
    write_all(store.target, store.layout.options.uid_table, uid_rows)
    return store


def archive_cell(family: str, kind: str, value: bytes) -> Any:
    return archive_rows.Cell(family, kind.encode(), 0, value)


def put(
    store: Store, points: Points, arrival_ms: int = ARRIVAL_MS, packing: Packing = Packing.COMPACTED
) -> None:
    """Writes points of metric `m`, as one batch that arrived at this time."""
    layout = store.layout
    records = [
        (series, time_ms, time_ms % 1000 != 0, value)
        for series, values in points.items()
        for time_ms, value in values.items()
    ]
    batch = PointBatch.of(records, arrival_ms)
    uids = {Name("metrics", "m"): METRIC, Name("tagk", "host"): METRIC}
    uids |= {Name("tagv", text): number.to_bytes(3, "big") for number, text in enumerate("abc", 1)}
    keys: list[SeriesKey | None] = [layout.series_key(series, uids) for series in batch.series]
    packing = packing if packing in layout.writing.packings else layout.writing.packings[0]
    encoded = layout.encode(batch, keys)
    assert not encoded.rejected
    rows = [
        pack_row(layout, fragment.table, fragment.key, [fragment.packed], packing)
        for fragment in encoded.fragments
    ]
    write_all(store.target, layout.data_table, rows)
    index = layout.index
    for number, base_ms in index.entries(batch) if index else ():
        for row in index.rows(batch.series[number], base_ms):
            write_all(store.target, row.table, [row])


def job_of(store: Store, **changes: Any) -> ArchiveJob:
    job = ArchiveJob(
        store.target,
        store.layout,
        0,
        START_S + 60 * DAY_S,
        NOW_S * 1000,
        Leases(store.target, settings_table(""), "archive"),
        reader_ms=0,
        clock=lambda: time.time() + next(_TICKS) / 100,
    )
    return dataclasses.replace(job, **changes)


def archive_points(store: Store, **changes: Any) -> ArchiveTally:
    tallies = list(archive_metric(job_of(store, **changes), METRIC if store.layout.uids else b"m"))
    return ArchiveTally(*map(sum, zip(*tallies, strict=True))) if tallies else ArchiveTally()


def read(store: Store, start_ms: int = 0, end_ms: int = NOW_S * 1000) -> Points:
    """What a query reads."""
    selection = Selection("m", {}, start_ms, end_ms)
    found, corruption, _ = find_series(store.target, store.layout, selection)
    assert not corruption
    return {
        item.series: dict(zip(item.times_ms.tolist(), item.values.tolist(), strict=True)) for item in found
    }


def within(points: Points, start_ms: int, end_ms: int) -> Points:
    cut = {
        series: {time: value for time, value in sorted(values.items()) if start_ms <= time <= end_ms}
        for series, values in points.items()
    }
    return {series: values for series, values in cut.items() if values}


def series(host: str) -> Series:
    return Series.of("m", {"host": host})


def gauge(start_s: int, count: int, step_s: int, seed: int = 1) -> dict[int, int | float]:
    numbers = random.Random(seed)
    return {
        (start_s + step_s * i) * 1000: round(numbers.uniform(0, 100), 2)
        if seed % 2
        else numbers.randrange(1 << 52) << 10  # exact as a float
        for i in range(count)
    }


@pytest.fixture
def points(store: Store) -> Points:
    """Two series of different rates over two blocks."""
    points: Points = {
        series("a"): gauge(START_S + 29 * DAY_S, 2 * 24 * 60, 60),
        series("b"): gauge(START_S + 28 * DAY_S, 300, 1000, 2),
    }
    put(store, points)
    return points


def archive(store: Store) -> list[Row]:
    rows = scan_table(store.target, store.layout.archive_view.table)
    return [row for row in rows if any(cell.family == "t" for cell in row.cells)]


def read_all(store: Store, start_ms: int, end_ms: int) -> Points:
    """What a copy reads; asserts that each instant comes once."""
    points: Points = {}
    for batch in read_points(store.layout, TableReader(store.target), start_ms, end_ms):
        assert isinstance(batch, PointBatch)
        for name, time_ms, value in batch.points():
            assert time_ms not in points.setdefault(name, {})
            points[name][time_ms] = value  # type: ignore[assignment]
    return points


def check_reads(store: Store, points: Points) -> None:
    """Compares what queries and copies of several ranges read."""
    edges = [0, START_S * 1000 + 29 * DAY_S * 1000 + 1_234_567, (START_S + BLOCK_S) * 1000, NOW_S * 1000]
    for start_ms, end_ms in ((edges[0], edges[3]), (edges[1], edges[2]), (edges[2] - HOUR_MS, edges[2] + 7)):
        expected = within(points, start_ms, end_ms)
        assert read(store, start_ms, end_ms) == expected
        assert read_all(store, start_ms, end_ms) == expected


def test_archived_points_are_read_as_before_with_or_without_source(store: Store, points: Points) -> None:
    tally = archive_points(store)
    count = sum(map(len, points.values()))
    assert (tally.points_read, tally.points_archived, tally.rows_deleted) == (count, count, 0)
    check_reads(store, points)
    spans = {(row.key[-1], parse_key(store.layout.options, row.key).code) for row in archive(store)}
    assert spans == {(1, 4), (2, 5)}
    before = archive(store)
    tally = archive_points(store, delete_source=True)
    assert (tally.rows_written, tally.rows_waiting) == (0, 0)
    assert tally.rows_deleted == tally.rows_read > 24
    assert store.rows() == []
    assert archive(store) == before
    check_reads(store, points)
    assert archive_points(store, delete_source=True) == ArchiveTally()


def test_archive_rows_of_few_series_are_in_memory_together(
    store: Store, points: Points, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though rows are read hour by hour, of all series."""
    read_rows, most = archive_hours.read_rows, 0

    def noted(target: Any, table: str, keys: list[bytes], *columns: Any) -> dict[bytes, Row]:
        nonlocal most
        most = max(most, len({store.layout.tsuid_of(table, key) for key in keys}))
        return read_rows(target, table, keys, *columns)

    put(store, {series("c"): gauge(START_S + 29 * DAY_S, 300, 100)})
    monkeypatch.setattr(archive_hours, "read_rows", noted)
    monkeypatch.setattr(rows_to_archive, "SERIES_AT_ONCE", 1)
    archive_points(store, delete_source=True)
    assert (most, store.rows()) == (1, [])


@each_layout_long
def test_nothing_is_deleted_before_readers_have_ended(store: Store, points: Points) -> None:
    first = archive_points(store, delete_source=True, reader_ms=HOUR_MS)
    assert (first.rows_deleted, first.rows_waiting) == (0, first.rows_read)
    soon = archive_points(store, delete_source=True, reader_ms=HOUR_MS, clock=lambda: time.time() + 3500)
    assert soon.rows_deleted == 0
    later = archive_points(store, delete_source=True, reader_ms=HOUR_MS, clock=lambda: time.time() + 4000)
    assert later.rows_deleted == later.rows_read
    check_reads(store, points)


@each_layout_long
@pytest.mark.parametrize("is_deleted", [False, True])
def test_late_points_and_corrections_count_and_the_next_run_merges_them(
    store: Store, points: Points, is_deleted: bool
) -> None:
    archive_points(store, delete_source=is_deleted)
    at_a, at_b = min(points[series("a")]), max(points[series("b")])
    late: Points = {series("a"): {at_a: -1, at_a + 1: 7}, series("b"): {at_b: 0.5, at_b + HOUR_MS: 3}}
    put(store, late, ARRIVAL_MS + 1)
    older: Points = {series("a"): {at_a + 60_000: -5, at_a + 1001: 8}}
    put(store, older, ARRIVAL_MS - 1, Packing.POINTS)
    expected = {name: {**values, **late[name]} for name, values in points.items()}
    expected[series("a")][at_a + 1001] = 8  # an older correction loses, an instant of its own counts
    check_reads(store, expected)
    tally = archive_points(store, delete_source=True)
    assert tally.rows_written >= 2
    check_reads(store, expected)
    assert store.rows() == []


def hour_of(store: Store, hour: int, values: dict[int, float], arrival: int) -> None:
    """Writes points of series `a`: offsets in ms in an hour, each in a column of its own."""
    start_ms = START_S * 1000 + hour * HOUR_MS
    points: Points = {series("a"): {start_ms + offset: value for offset, value in values.items()}}
    put(store, points, ARRIVAL_MS + arrival, Packing.POINTS)


@pytest.mark.parametrize("why", ["busy", "corrupt", "earlier", "later", "not read yet"])
def test_a_correction_still_wins_when_another_hour_of_its_archive_row_is_archived(
    store: Store, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for hour in (0, 1):
        hour_of(store, hour, {0: 1, 1000: 1}, 0)
    archive_points(store, delete_source=True)
    corrected, archived = (1, 0) if why in ("later", "not read yet") else (0, 1)
    hour_of(store, corrected, {0: 2}, 50)
    hour_of(store, archived, {0: 3, 7000: 5}, 100)
    changes: dict[str, Any] = {}
    if why == "busy":
        hour_of(store, corrected, {5000: 4}, 150)
        changes = {"quiet_ms": ARRIVAL_MS + 120}
    elif why == "corrupt":
        [key] = [row.key for row in store.rows() if int.from_bytes(row.key[4:8], "big") == START_S]
        corruption = archive_rows.Cell("t", b"\0\0\0", ARRIVAL_MS, b"")
        write_all(store.target, store.layout.data_table, [Row("", key, [corruption])])
    elif why == "earlier":
        changes = {"start_s": START_S + 3600}
    elif why == "later":
        changes = {"end_s": START_S + 3600}
    else:
        monkeypatch.setattr(rows_to_archive, "BUFFER_BYTES", 1)

    def stored() -> Points:
        [found], _, _ = find_series(store.target, store.layout, Selection("m", {}, 0, NOW_S * 1000))
        return {found.series: dict(zip(found.times_ms.tolist(), found.values.tolist(), strict=True))}

    expected = stored()
    assert sorted(expected[series("a")].values())[:3] == [1, 1, 2]
    for _ in range(2):
        archive_points(store, delete_source=True, **changes)
        assert stored() == expected
    if why == "later":
        assert len(store.rows()) == 1


def test_what_is_written_between_read_and_deletion_stays(
    store: Store, points: Points, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = min(points[series("a")])
    late: Points = {series("a"): {at: 1.25, at + 1: 2}}
    delete = archive_hours._delete

    def late_delete(*args: Any) -> ArchiveTally:
        put(store, late, ARRIVAL_MS + 1, Packing.POINTS)
        return delete(*args)

    monkeypatch.setattr(archive_hours, "_delete", late_delete)
    archive_points(store, delete_source=True)
    expected = {**points, series("a"): {**points[series("a")], **late[series("a")]}}
    assert len(store.cells()) == 2
    check_reads(store, expected)


@each_layout_long
def test_two_archives_of_one_row_lose_nothing(
    store: Store, points: Points, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = min(points[series("a")])
    late: Points = {series("a"): {at + 1: 2}}
    write, rounds = archive_hours._write, iter([True])

    def other_first(*args: Any) -> list[Row]:
        if next(rounds, False):  # another program archives more, and deletes it, before this one writes
            put(store, late, ARRIVAL_MS + 1)
            archive_points(store, delete_source=True)
        return write(*args)

    monkeypatch.setattr(archive_hours, "_write", other_first)
    archive_points(store, delete_source=True)
    check_reads(store, {**points, series("a"): {**points[series("a")], **late[series("a")]}})


class KilledError(Exception):
    """Stands for the end of the process."""


@each_layout_long
@pytest.mark.parametrize("step", ["create_cells", "replace_cells", "_check_written", "_delete", "write_all"])
@pytest.mark.parametrize("is_done", [False, True])
def test_a_run_that_ends_at_any_step_is_completed_by_the_next(
    store: Store, points: Points, monkeypatch: pytest.MonkeyPatch, step: str, is_done: bool
) -> None:
    call = getattr(archive_hours, step)

    def killed(*args: Any) -> Any:
        if is_done:
            call(*args)
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(archive_hours, step, killed)
        with pytest.raises(KilledError):
            archive_points(store, delete_source=True)
    check_reads(store, points)
    archive_points(store, delete_source=True)
    check_reads(store, points)
    assert store.rows() == []


def test_busy_and_corrupt_rows_and_cells_without_points_stay(store: Store, points: Points) -> None:
    rows = store.rows()
    corrupt = rows[0]._replace(cells=[archive_rows.Cell("t", b"\0\0\0\x10", 5, b"\1")])
    annotation = rows[1]._replace(cells=[archive_rows.Cell("t", b"\1\0\0", 5, b"{}")])
    busy = rows[2]._replace(cells=[archive_rows.Cell("t", b"\1\0\1", NOW_S * 1000, b"{}")])
    write_all(store.target, store.layout.data_table, [corrupt, annotation, busy])
    tally = archive_points(store, delete_source=True)
    assert (tally.rows_busy, tally.rows_corrupt) == (1, 1)
    left = {row.key: row for row in store.rows()}
    assert left.keys() == {rows[0].key, rows[1].key, rows[2].key}
    assert [cell.qualifier for cell in left[rows[1].key].cells] == [b"\1\0\0"]
    found, corruption, _ = find_series(store.target, store.layout, Selection("m", {}, 0, NOW_S * 1000))
    assert len(corruption) == 1
    assert sum(len(item.times_ms) for item in found) == sum(map(len, points.values()))


def test_marked_hours_stay_though_their_cells_are_old(store: Store, points: Points) -> None:
    """As while old files are ingested."""
    hours_writer, marked_ms = ChangedHoursWriter(store.layout), int(time.time() * 1000)
    list(create_tables(store.target, [hours_writer.table], dry_run=False))
    hours = [START_S + 29 * DAY_S, START_S + 30 * DAY_S + 3600]
    hours_writer.mark(
        store.target, {(METRIC, hour) for hour in hours} | {(b"\0\0\2", hours[0] + 3600)}, stored=True
    )
    rows = [row for row in store.rows() if int.from_bytes(row.key[4:8], "big") in hours]
    tally = archive_points(store, delete_source=True, quiet_ms=marked_ms)
    assert tally.rows_busy == len(rows) > 1
    assert store.rows() == rows
    check_reads(store, points)
    archive_points(store, delete_source=True, quiet_ms=marked_ms + HOUR_MS)
    assert store.rows() == []


@pytest.mark.parametrize("store", ["heroic"], indirect=True)
def test_marked_hours_and_busy_and_corrupt_days_of_long_rows_stay(store: Any) -> None:
    values = gauge(START_S + 5 * DAY_S, 3 * 96, 900)
    put(store, {series("a"): values})
    hours_writer, marked_ms = ChangedHoursWriter(store.layout), int(time.time() * 1000)
    list(create_tables(store.target, [hours_writer.table], dry_run=False))
    changed_s, busy_s = START_S + 5 * DAY_S + 3600, START_S + 6 * DAY_S
    hours_writer.mark(store.target, {(b"m", changed_s), (b"mm", changed_s + 3600)}, stored=True)
    late: Points = {series("a"): {busy_s * 1000 + 1: 5}}
    put(store, late, marked_ms)
    row = store.rows()[0]
    corrupt = row.cells[-1]._replace(value=b"?")
    write_all(store.target, row.table, [Row("", row.key, [corrupt])])
    tally = archive_points(store, delete_source=True, quiet_ms=marked_ms)
    assert (tally.rows_read, tally.rows_busy, tally.rows_corrupt, tally.points_archived) == (3, 2, 1, 92)
    times = {
        time_ms
        for time_ms in values
        if time_ms >= busy_s * 1000 or changed_s * 1000 <= time_ms < (changed_s + 3600) * 1000
    }
    assert sum(len(row.cells) for row in store.rows()) == len(times) + 1
    found, corruption, _ = find_series(store.target, store.layout, Selection("m", {}, 0, NOW_S * 1000))
    assert len(corruption) == 1
    assert sum(len(item.times_ms) for item in found) == len(values)  # one corrupt, one more


def test_a_corrupt_archive_row_stops_the_run_and_is_said_by_queries(store: Store, points: Points) -> None:
    archive_points(store)
    row = archive(store)[0]
    [cell] = [cell for cell in row.cells if cell.family == "t"]
    bad = cell._replace(value=cell.value[:-1] + bytes((cell.value[-1] ^ 1,)))
    write_all(store.target, row.table, [Row(row.table, row.key, [bad], [Deletion("t", cell.qualifier)])])
    with pytest.raises(VerifyError, match="checksum"):
        archive_points(store, delete_source=True)
    assert store.rows()
    _, corruption, _ = find_series(store.target, store.layout, Selection("m", {}, 0, NOW_S * 1000))
    assert len(corruption) == 1
    assert "checksum" in corruption[0]


def test_what_differs_when_it_is_read_back_stops_the_run(
    store: Store, points: Points, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_rows = archive_hours.read_rows

    def wrong(*args: Any) -> dict[bytes, Row]:
        rows = read_rows(*args)
        if args[1] != store.layout.archive_view.table:
            return rows
        return {
            key: row._replace(
                cells=[cell._replace(timestamp_ms=1) if cell.family == "t" else cell for cell in row.cells]
            )
            for key, row in rows.items()
        }

    monkeypatch.setattr(archive_hours, "read_rows", wrong)
    with pytest.raises(VerifyError, match="not those that were written"):
        archive_points(store, delete_source=True)
    assert store.rows()


def test_the_command_archives_and_other_commands_take_the_archive_or_reject_it(
    store: Store, points: Points
) -> None:
    place = [f"--project={store.target.project}", f"--instance={store.target.instance}"]
    flags = ["--layout=opentsdb", *place, f"--table-prefix={store.layout.options.table_prefix}"]
    salted = ("--set=salt_width=1", "--set=salt_buckets=2", "--set=archive=true")
    created = timebeam("tables", "create", *flags, *salted)
    assert created.code == 0, created.err
    stored = timebeam("tables", "adopt", *flags, *salted)
    assert stored.code == 0, stored.err
    settings = f"{store.layout.options.table_prefix}timebeam"
    store.remove_row(settings, b"opentsdb")
    rejected = timebeam("archive", *store.flags, "--older-than=1d")  # another layout could say the same
    assert (rejected.code, f"table {settings} has no setting archive of layout" in rejected.err) == (
        2,
        True,
    )
    assert timebeam("archive", *store.flags, "--older-than=1d", "--dry-run").code == 0
    assert archive(store) == []
    stored = timebeam("tables", "adopt", *flags, *salted)
    assert stored.code == 0, stored.err
    wrong = timebeam("archive", *flags, "--older-than=30x")
    assert (wrong.code, wrong.err.startswith("timebeam archive: --older-than: '30x' is not a duration")) == (
        2,
        True,
    )
    ran = timebeam("archive", *flags, "--older-than=9000d")
    assert "points read" in ran.out
    assert re.search(
        r"none matches the selection: hours that ended by 2002-.*, --older-than 9000d$", ran.err.strip()
    ), ran.err
    ran = timebeam("archive", *flags, "--older-than=1d", "--delete-source=true")
    assert re.search(r"rows to be deleted later +[\d,]+, by a run that begins 1 h or more after", ran.out), (
        ran.out
    )
    ran = timebeam(
        "archive", *flags, "--older-than=1d", "--delete-source=true", "--reader-hours=0", "--summary=json"
    )
    assert ran.code == 0, ran.err
    tally: dict[str, Any] = json.loads(ran.out)
    assert tally["rows_deleted"] == tally["rows_read"] > 0
    asked = timebeam("query", "m", *flags, f"--start={START_S}", "--aggregator=none", "--output=json")
    assert asked.code == 0, asked.err
    assert sum(len(result["dps"]) for result in json.loads(asked.out)) == sum(map(len, points.values()))
    asked = timebeam("query", "m", *flags, "--start=2001-01-01", "--end=2001-01-02")
    assert (
        f"tsdb is empty, and nothing in {store.layout.archive_view.table} matches the selection" in asked.err
    )
    ran = timebeam("archive", *flags, "--older-than=1d")
    assert ran.err.endswith("tsdb is empty, all is archived\n")
    listed = timebeam("series", "m", *flags)
    assert "host=b" in listed.out, listed.err
    checked = timebeam("check", *flags)
    assert checked.code == 0, checked.out
    assert f"{len(archive(store)) + 2:,} of {store.layout.archive_view.table}" in checked.out
    row = archive(store)[0]
    [cell] = [cell for cell in row.cells if cell.family == "t"]
    other_span = row.key[:4] + b"\1" + row.key[5:]
    write_all(store.target, row.table, [Row(row.table, other_span, [cell])])
    checked = timebeam("check", *flags)
    assert checked.code == 1
    assert "checksum" in checked.out
    assert "span codes 1 and 4 in one block" in checked.out
    rejected = timebeam("cardinality", *flags)
    assert rejected.code == 2
    assert "has an archive here: this command does not read it" in rejected.err


@pytest.mark.parametrize(
    "store", [pytest.param("heroic", marks=pytest.mark.long), "kairosdb-milliseconds"], indirect=True
)
def test_the_command_archives_other_layouts_and_other_commands_read_them(store: Any, points: Points) -> None:
    flags = store.flags
    ran = timebeam(
        *("archive", *flags, "--older-than=1d", "--delete-source=true", "--reader-hours=0", "--summary=json")
    )
    assert ran.code == 0, ran.err
    tally: dict[str, Any] = json.loads(ran.out)
    count = sum(map(len, points.values()))
    assert (tally["points_archived"], tally["rows_deleted"]) == (count, tally["rows_read"])
    assert store.rows() == []
    asked = timebeam("query", "m", *flags, f"--start={START_S}", "--aggregator=none", "--output=json")
    assert sum(len(result["dps"]) for result in json.loads(asked.out)) == count
    listed = timebeam("series", "m", *flags)
    assert "host=b" in listed.out, listed.err
    checked = timebeam("check", *flags)
    assert (checked.code, "notes: 0" in checked.out) == (0, True), checked.out
    row = archive(store)[0]
    write_all(store.target, row.table, [Row("", b"other" + row.key[1:], row.cells)])
    assert timebeam("check", *flags).code == 1
    ran = timebeam("archive", *flags, "--older-than=1d")
    assert ran.err.endswith("is empty, all is archived\n")
    rejected = timebeam("reindex", *flags)
    assert (rejected.code, "has an archive here" in rejected.err) == (2, True)


def test_without_stored_settings_the_option_tells_that_there_is_an_archive(store: Store) -> None:
    """Else `names free` would take UIDs of archived points for unused ones."""
    store.remove_row(f"{store.layout.options.table_prefix}timebeam", b"opentsdb")
    for command in (["names", "free", "--yes"], ["names", "fix"]):
        rejected = timebeam(*command, *store.flags)
        assert rejected.code == 2
        assert "--set archive says that layout opentsdb has an archive here" in rejected.err


def test_a_rollup_of_archived_points_has_the_bytes_of_one_before(
    store: Store, points: Points, tmp_path: Path
) -> None:
    contents = []
    flags = [flag for flag in store.flags if "archive" not in flag]
    for name in ("before", "archived", "merged"):
        hours = interval("1h", "1d", table=f"{name}-1h", preAggregationTable=f"{name}-1h-agg")
        days = interval("1d", "1n", table=f"{name}-1d", preAggregationTable=f"{name}-1d-agg")
        config = config_file(tmp_path, [hours, days])
        with_tables(store, config)
        if name == "archived":  # late points are in the data table, the others in the archive
            archive_points(store, delete_source=True)
            at = min(points[series("a")])
            put(store, {series("a"): {at: points[series("a")][at], at + 1: 5}}, ARRIVAL_MS + 1)
        if name == "before":
            put(store, {series("a"): {min(points[series("a")]) + 1: 5}})
        ran = timebeam(
            *("rollup", *flags, "--set=archive=true", "--rollup-config", config),
            *(f"--start={START_S + 29 * DAY_S}", f"--end={START_S + 31 * DAY_S}", "--summary=json"),
        )
        assert ran.code == 0, ran.err
        assert json.loads(ran.out)["points_read"] > 3000
        contents.append(
            [
                [(row.key, [cell._replace(timestamp_ms=0) for cell in row.cells]) for row in rows]
                for length in ("1h", "1d")
                if (
                    rows := list(
                        scan_table(store.target, f"{store.layout.options.table_prefix}{name}-{length}")
                    )
                )
            ]
        )
        if name == "archived":
            archive_points(store, delete_source=True)
            assert store.rows() == []
    assert contents[0][0]
    assert contents[0] == contents[1] == contents[2]


def deletion(store: Store, host: str, start_ms: int, end_ms: int, newest_ms: int, log: str) -> DeleteJob:
    question = Question("m", {"host": frozenset({host})}, (), NONE, None, start_ms, end_ms)
    leases = Leases(store.target, settings_table(""), "delete")
    return DeleteJob(
        store.target, store.layout, [DeleteTask(question)], newest_ms, log, None, (log, ""), leases
    )


def carry_out(job: DeleteJob) -> None:
    """Deletes as `timebeam delete` does."""
    archived = delete_module._archive_deletions(job, job.tasks[0])
    pending = PendingRemovals(job.target, job.log, None, "", archived)
    for removal, of_series in [*delete_module._removals(job, DeleteChunk(0, WHOLE_TABLE))]:
        pending.add(removal, of_series)
    pending.flush()


def delete(store: Store, host: str, start_ms: int, end_ms: int, newest_ms: int = NOW_S * 1000) -> None:
    """Deletes points of a series that arrived until a time."""
    with tempfile.TemporaryDirectory() as folder:
        carry_out(deletion(store, host, start_ms, end_ms, newest_ms, f"{folder}/log"))


def delete_after_kill(store: Store, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deletes a series; the first run is killed between both tables."""

    def killed(*_: object) -> None:
        raise KilledError

    with tempfile.TemporaryDirectory() as folder:
        job = deletion(store, host, 0, NOW_S * 1000, NOW_S * 1000, f"{folder}/log")
        with monkeypatch.context() as patch, contextlib.suppress(KilledError):
            patch.setattr(ArchiveDeletions, "carry_out", killed)
            carry_out(job)
        Path(folder, "log-torn.jsonl").write_text('{"table": "t')
        delete_module._begin(job)
        resumed = dataclasses.replace(job, interrupted=interrupted_logs(*job.killed))
        assert resumed.is_begun
        assert delete_module._again(True, resumed)
        carry_out(job)


@each_layout_long
def test_points_of_a_deletion_that_is_killed_between_both_tables_do_not_come_back(
    store: Store, points: Points, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion runs again before `archive` writes what it has read."""
    write = archive_hours.replace_cells

    def paused(*args: Any) -> Any:
        monkeypatch.setattr(archive_hours, "replace_cells", write)
        delete_after_kill(store, "a", monkeypatch)
        return write(*args)

    monkeypatch.setattr(archive_hours, "replace_cells", paused)
    archive_points(store)
    check_reads(store, {series("b"): points[series("b")]})


def test_the_next_unattended_deletion_completes_one_that_was_killed_between_both_tables(
    store: Store, points: Points, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Otherwise `archive` would write points that it read before both; the log is in the current folder.

    The log stays until it is certain that the first run has ended: it could go on, and be killed then.
    """
    write = archive_hours.replace_cells
    monkeypatch.chdir(tmp_path)

    def killed(*_: object) -> None:
        raise OSError("killed")

    def paused(*args: Any) -> Any:
        monkeypatch.setattr(archive_hours, "replace_cells", write)
        command = ("delete", *store.flags, "--keep-days=30", "--unattended")
        with monkeypatch.context() as patch:
            patch.setattr(ArchiveDeletions, "carry_out", killed)
            assert timebeam(*command).code == 1
        assert [path.name[-11:] for path in tmp_path.glob("*.json")] == ["-begun.json"]
        ran = timebeam(*command)
        assert ran.code == 0, ran.err
        assert sorted(path.name[-10:] for path in tmp_path.glob("*.json")) == ["-done.json", "begun.json"]
        for path in tmp_path.iterdir():
            os.utime(path, (0, 0))
        assert timebeam(*command).code == 0
        assert {path.name[-10:] for path in tmp_path.glob("*.json")} == {"-done.json"}
        return write(*args)

    monkeypatch.setattr(archive_hours, "replace_cells", paused)
    archive_points(store)
    check_reads(store, {})


@each_layout_long
@pytest.mark.parametrize("step", ["create_cells", "replace_cells", "read_rows", "_delete", "write_all"])
@pytest.mark.parametrize("is_first", [True, False])
def test_points_that_are_deleted_while_they_are_archived_do_not_come_back(
    store: Store, points: Points, monkeypatch: pytest.MonkeyPatch, step: str, is_first: bool
) -> None:
    call, edge = getattr(archive_hours, step), START_S * 1000 + 30 * DAY_S * 1000

    def paused(*args: Any) -> Any:
        result = None if is_first else call(*args)
        delete(store, "a", edge - HOUR_MS, edge + HOUR_MS)
        delete(store, "b", 0, NOW_S * 1000)
        return call(*args) if is_first else result

    with monkeypatch.context() as patch:
        patch.setattr(archive_hours, step, paused)
        archive_points(store, delete_source=True)
    values = points[series("a")]
    expected = {
        series("a"): {each_ms: values[each_ms] for each_ms in values if abs(each_ms - edge) > HOUR_MS}
    }
    for _ in range(2):
        check_reads(store, expected)
        archive_points(store, delete_source=True)
    assert store.rows() == []


STEPS = ["create_cells", "replace_cells", "read_rows", "_delete", "write_all"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_correction_of_old_arrival_wins_whenever_it_is_stored(
    store: Store, monkeypatch: pytest.MonkeyPatch, step: str, is_first: bool
) -> None:
    """A pause before or after each step: the correction is newer than its point, older than the others."""
    start_ms = START_S * 1000
    hour_of(store, 0, {0: 1, 1000: 1}, 0)
    hour_of(store, 0, {2000: 1}, 100)
    call, values = getattr(archive_hours, step), itertools.count(2)

    def paused(*args: Any) -> Any:
        result = None if is_first else call(*args)
        value = next(values)
        hour_of(store, 0, {0: value}, 2 * value)
        hour_of(store, 0, {1000: 9}, -1)
        return call(*args) if is_first else result

    with monkeypatch.context() as patch:
        patch.setattr(archive_hours, step, paused)
        archive_points(store, delete_source=True)
    latest = next(values) - 1
    assert latest > 1
    expected: Points = {series("a"): {start_ms: latest, start_ms + 1000: 1, start_ms + 2000: 1}}
    for _ in range(2):
        assert read(store) == read_all(store, 0, NOW_S * 1000) == expected
        archive_points(store, delete_source=True)
    assert store.rows() == []


def test_a_compaction_does_not_lift_an_old_value_over_a_archived_correction(store: Store) -> None:
    hour_of(store, 0, {0: 2}, 200)
    archive_points(store, delete_source=True)
    hour_of(store, 0, {0: 1}, 100)  # delivered again
    hour_of(store, 0, {1000: 3}, 300)
    period = (f"--start={START_S}", f"--end={START_S + DAY_S}")
    assert timebeam("compact", *store.flags, *period).code == 0
    assert read(store) == {series("a"): {START_S * 1000: 2, START_S * 1000 + 1000: 3}}


class _History:
    """Random commands on one store, beside a model: points by series and time, the latest arrival wins."""

    def __init__(self, store: Any, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.rng, self.monkeypatch = store, random.Random(seed), monkeypatch
        self.points: Points = {}
        self.arrivals: dict[tuple[Series, int], int] = {}
        self.unused = self.rng.sample(range(ARRIVAL_MS, ARRIVAL_MS + 1000), 1000)
        self.starts_ms = [(START_S + day * DAY_S) * 1000 for day in (0, 29, 31)]
        if not store.layout.uids:  # rows of weeks: where one ends and the next one begins
            key = store.layout.archive_view.row_at(
                store.layout.series_key(series("a"), {}), START_S + 30 * DAY_S
            ).key
            self.starts_ms.append(store.layout.archive_view.data_row(key).start_ms - 2 * HOUR_MS)

    def put(self) -> None:
        rng, batch = self.rng, Points()
        arrival_ms = self.unused.pop()
        start_ms = rng.choice(self.starts_ms) + rng.randrange(4) * HOUR_MS
        unit = rng.choice([1000, 1, 500])
        for host in rng.sample("ab", rng.randrange(1, 3)):
            times = sorted({start_ms + rng.randrange(7200) * unit for _ in range(rng.choice([1, 5, 700]))})
            batch[series(host)] = {time: rng.choice([rng.randrange(-5, 5), rng.random()]) for time in times}
        put(self.store, batch, arrival_ms, rng.choice([Packing.COMPACTED, Packing.POINTS]))
        for name, values in batch.items():
            for time_ms, value in values.items():
                if self.arrivals.get((name, time_ms), 0) < arrival_ms:
                    self.arrivals[name, time_ms] = arrival_ms
                    self.points.setdefault(name, {})[time_ms] = value

    def delete(self) -> None:
        rng = self.rng
        start_ms = rng.choice(self.starts_ms) + rng.randrange(6 * HOUR_MS)
        end_ms = start_ms + rng.choice([0, 5000, HOUR_MS, 5 * HOUR_MS])
        host, newest_ms = rng.choice("ab"), ARRIVAL_MS + rng.choice([500, 1000])
        delete(self.store, host, start_ms, end_ms, newest_ms)
        values = self.points.get(series(host), {})
        for time_ms in [each_ms for each_ms in values if start_ms <= each_ms <= end_ms]:
            if self.arrivals[series(host), time_ms] <= newest_ms:
                del values[time_ms], self.arrivals[series(host), time_ms]
        if not values:
            self.points.pop(series(host), None)

    def killed_delete(self) -> None:
        """Between both tables, while `archive` runs; the same deletion runs again before it goes on."""
        write, host = archive_hours.replace_cells, self.rng.choice("ab")

        def beside(*args: Any) -> Any:
            self.monkeypatch.setattr(archive_hours, "replace_cells", write)
            delete_after_kill(self.store, host, self.monkeypatch)
            for name, time_ms in [*self.arrivals]:
                if name == series(host):
                    del self.arrivals[name, time_ms]
            self.points.pop(series(host), None)
            return write(*args)

        self.monkeypatch.setattr(archive_hours, "replace_cells", beside)
        self.archive_points()
        self.monkeypatch.setattr(archive_hours, "replace_cells", write)

    def archive_points(self) -> None:
        rng = self.rng
        archive_points(
            self.store,
            delete_source=rng.random() < 0.6,
            start_s=rng.choice([0, START_S + 3600, START_S + 29 * DAY_S + 3600]),
            end_s=START_S + rng.choice([7200, DAY_S, 30 * DAY_S, 60 * DAY_S]),
            quiet_ms=ARRIVAL_MS + 1000 - rng.choice([0, rng.randrange(1000)]),
        )

    def killed_archive(self) -> None:
        step = self.rng.choice(STEPS)
        call, is_done, calls_left = (
            getattr(archive_hours, step),
            self.rng.random() < 0.5,
            [self.rng.randrange(4)],
        )

        def killed(*args: Any) -> Any:
            calls_left[0] -= 1
            if calls_left[0] >= 0:
                return call(*args)
            if is_done:
                call(*args)
            raise KilledError

        with self.monkeypatch.context() as patch, contextlib.suppress(KilledError):
            patch.setattr(archive_hours, step, killed)
            self.archive_points()

    def archive_beside_other(self) -> None:
        step = self.rng.choice(STEPS)
        call, is_first = getattr(archive_hours, step), self.rng.random() < 0.5
        change = self.rng.choice([self.put, self.delete])

        def beside(*args: Any) -> Any:
            if is_first:
                change()
            result = call(*args)
            if not is_first:
                change()
            return result

        with self.monkeypatch.context() as patch:
            patch.setattr(archive_hours, step, beside)
            self.archive_points()

    def run(self, steps: int) -> None:
        self.put()
        for _ in range(steps):
            draws = [self.put, self.put, self.archive_points, self.archive_points]
            draws += [self.killed_archive, self.archive_beside_other, self.delete, self.killed_delete]
            self.rng.choice(draws)()
            check_reads(self.store, self.points)
        archive_points(self.store, delete_source=True)
        check_reads(self.store, self.points)
        assert self.store.rows() == []


@pytest.mark.parametrize(
    ("store", "seed"),
    [
        pytest.param(name, seed, marks=pytest.mark.long if seed > is_short else ())
        for name, is_short in SHORT_SEEDS.items()
        for seed in range(15)
    ],
    indirect=["store"],
)
def test_every_random_history_reads_as_its_model(
    store: Store, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    if seed % 2:
        monkeypatch.setattr(rows_to_archive, "BUFFER_BYTES", 1)
    elif seed % 3:
        monkeypatch.setattr(rows_to_archive, "SERIES_AT_ONCE", 1)
    _History(store, seed, monkeypatch).run(12)


def test_a_server_without_the_codec_is_an_error_of_one_line(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pcodec", None)
    ran = timebeam("serve", *store.flags, "--port=18765")
    assert (ran.code, ran.err) == (
        1,
        "timebeam serve: the archive needs pcodec: pip install 'timebeam[archive]'\n",
    )


@pytest.mark.long
@pytest.mark.parametrize("store", ["opentsdb", "heroic", "kairosdb-milliseconds"], indirect=True)
def test_runs_that_sigkill_ends_ten_times_lose_nothing(store: Any, points: Points, emulator: str) -> None:
    """Each is killed before or after a changing call, if it makes so many; points come between them."""
    values, first_ms = points[series("a")], min(points[series("a")])
    command = ("archive", *store.flags, "--older-than=1d", "--delete-source=true", "--reader-hours=0")
    numbers, kills = itertools.count(), 0
    while kills < 10:
        number = next(numbers)
        kills += run_and_kill(emulator, command, 1 + number % 4, AFTER if number % 2 else BEFORE).killed
        check_reads(store, points)
        late = {first_ms + 40_000 * number: number + 0.5, first_ms + 7 + number * HOUR_MS: number}
        put(store, {series("a"): late}, ARRIVAL_MS + 1 + number)
        values.update(late)
    check_reads(store, points)
    ran = timebeam(*command)
    assert ran.code == 0, ran.err
    assert store.rows() == []
    check_reads(store, points)
