"""Scans cut into ranges that threads read: the same as one stream, whatever breaks, waits or ends early."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import grpc
import numpy as np
import pytest
from google.api_core.exceptions import PermissionDenied

from tests.support.any_store import EVER_MS, AnyStore
from tests.support.budget import long_after, long_but_every
from tests.support.commands import Ran, ingest, timebeam
from tests.support.fault_proxy import READ_ROWS, Break, Fault, every, faulty, no_faults, nth
from tests.support.points import FIRST_MS, corrections_of, put_file
from tests.support.workload import random_points
from timebeam.schema.bits.arrays import to_floats
from timebeam.schema.core.rows import KeyRange, Row
from timebeam.schema.core.selection import Scan, Selection
from timebeam.schema.query.answer import QuerySeries
from timebeam.schema.query.downsample import Downsampling, QueryRange, downsample
from timebeam.schema.query.merge_intervals import Intervals
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.query.budget import Budget, Meter
from timebeam.transforms.query.read_points import find_series
from timebeam.transforms.read import table_reader
from timebeam.transforms.read.table_reader import AT_ONCE, ParallelReader, TableReader, in_turn, scan_table

EVERYTHING = Selection(None, {}, 0, EVER_MS)
PARTS = 12


@pytest.fixture(scope="module", params=["opentsdb", "opentsdb-salted", "heroic", "kairosdb-legacy"])
def store(
    request: pytest.FixtureRequest, bigtable: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> AnyStore:
    """Tables with integers and decimals, also of one instant, where a layout keeps those apart."""
    store = AnyStore.create(bigtable, f"parallel{request.param_index}_", request.param)
    folder = tmp_path_factory.mktemp("parallel")
    points = random_points(random.Random(8), series=60, hours=4, a_row=4, corrections=0, most=9)
    points = [one._replace(arrival_ms=FIRST_MS) for one in points]
    for number, some in enumerate((points, corrections_of(points[::3]))):
        file = put_file(folder / f"{number}.txt", some, some[0].arrival_ms)
        ingest(folder, *store.flags, *store.auto_create, "--format=opentsdb-text", "--input", file)
    return store


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Scans are cut behind their first row, at every so many rows; how many ranges each was cut into."""
    counts: list[int] = []

    def cuts(target: Target, table: str, ranges: Sequence[KeyRange], *_: int) -> list[bytes]:
        keys = [row.key for row in TableReader(target).scan(Scan(table, ranges))]
        return keys[1 :: max(1, len(keys) // PARTS)]

    def counted(reads: Sequence[Callable[[], Iterable[Row]]]) -> Iterator[Row]:
        counts.append(len(reads))
        return in_turn(reads)

    monkeypatch.setattr(table_reader, "PATIENCE_SECONDS", -1e9)
    monkeypatch.setattr(table_reader, "split_keys", cuts)
    monkeypatch.setattr(table_reader, "in_turn", counted)
    return counts


def data_table(store: AnyStore) -> str:
    return next(spec.name for spec in store.layout.tables() if spec.holds_points)


def threads() -> list[str]:
    """The threads that read."""
    return [one.name for one in threading.enumerate() if one.name == "timebeam-ahead"]


def found_by(store: AnyStore, wanted: Selection = EVERYTHING) -> tuple[list[object], list[str]]:
    """What a query finds, to be compared."""
    series, corruption, _ = find_series(store.target, store.layout, wanted)
    return [(one.series, one.times_ms.tolist(), one.values.tolist()) for one in series], corruption


def test_many_ranges_give_the_rows_of_one_in_its_order(store: AnyStore, cut: list[int]) -> None:
    for spec in store.layout.tables():
        whole = list(scan_table(store.target, spec.name))
        before = len(cut)
        assert list(ParallelReader(store.target).scan(Scan(spec.name, [(b"", b"")]))) == whole
        assert len(cut) - before == (len(whole) > 2)
    assert max(cut) >= PARTS
    assert not threads()


@pytest.mark.parametrize(
    ("text", "rows_at_once"), long_but_every(2, ["1m-sum", "7m-avg", "6h-max"], [2, 1000])
)
def test_downsampling_while_reading_gives_the_same(
    store: AnyStore, text: str, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_reader, "_ROWS_AT_ONCE", rows_at_once)
    how = Downsampling.parse(text)
    series, corruption, _ = find_series(store.target, store.layout, EVERYTHING, how=how)
    assert not corruption
    found = {one.series: (one if one.downsampled else downsampled(how, one)) for one in series}
    points, _, _ = find_series(store.target, store.layout, EVERYTHING)
    assert found.keys() == {one.series for one in points}
    for one in points:
        expected = downsampled(how, one)
        assert found[one.series].times_ms.tolist() == expected.times_ms.tolist()
        assert np.asarray(found[one.series].values) == pytest.approx(np.asarray(expected.values))


def test_points_that_are_read_again_count_once(store: AnyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    once, again = Meter(Budget.of_seconds(60)), Meter(Budget.of_seconds(60))
    find_series(dataclasses.replace(store.target, stop=once), store.layout, EVERYTHING)
    monkeypatch.setattr(Intervals, "add", lambda *_: False)
    how = Downsampling.parse("1m-sum")
    find_series(dataclasses.replace(store.target, stop=again), store.layout, EVERYTHING, how=how)
    assert again.read == once.read
    assert min(again.read) > 0


def downsampled(how: Downsampling, series: QuerySeries) -> QuerySeries:
    """The same, downsampled after it was read."""
    within = QueryRange.of(how, 0, EVER_MS)
    times_ms, values = downsample(how, series.times_ms, to_floats(series.values), within)
    return QuerySeries(series.series, times_ms, values, downsampled=True)


@pytest.mark.parametrize("metric", [None, "sys.m0"])
def test_a_query_answers_the_same(
    store: AnyStore, metric: str | None, monkeypatch: pytest.MonkeyPatch, cut: list[int]
) -> None:
    wanted = Selection(metric, {}, 0, EVER_MS)
    found, corruption = found_by(store, wanted)
    assert cut
    assert not corruption
    with monkeypatch.context() as patch:
        patch.setattr(table_reader, "PATIENCE_SECONDS", 1e9)
        assert found_by(store, wanted) == (found, corruption)
    values = {
        ((series.metric, series.tags), time_ms): float(value)
        for series, times_ms, of_them in found  # type: ignore[misc]
        for time_ms, value in zip(times_ms, of_them, strict=True)
    }
    wanted_values = {at: value for at, value in store.content().items() if metric in (None, at[0][0])}
    assert values == {
        at: float(raw) if isinstance(raw, int) else struct.unpack(">d", raw)[0]
        for at, (_, raw) in wanted_values.items()
    }


def test_a_check_says_the_same(
    store: AnyStore, monkeypatch: pytest.MonkeyPatch, cut: list[int], emulator: str
) -> None:
    def check() -> Ran:
        return timebeam("check", *store.flags)

    ran = check()
    assert ran.code == 0
    assert cut
    monkeypatch.setattr(table_reader, "PATIENCE_SECONDS", 1e9)
    assert check() == ran


@pytest.mark.parametrize("messages", long_after(1, [1, 0, 3]))
def test_reads_that_break_off(store: AnyStore, cut: list[int], emulator: str, messages: int) -> None:
    whole = list(scan_table(store.target, data_table(store)))
    with faulty(emulator, every(READ_ROWS, 2, Break(messages))) as proxy:
        found = list(ParallelReader(store.target).scan(Scan(data_table(store), [(b"", b"")])))
    assert found == whole
    assert len(proxy.faults) >= PARTS // 2


def test_an_error_comes_in_its_place_and_ends_all_threads(
    store: AnyStore, cut: list[int], emulator: str
) -> None:
    whole = list(scan_table(store.target, data_table(store)))
    found: list[Row] = []
    # The first read is that of the first row, the second that of `cut`.
    plan = nth(READ_ROWS, range(5, 99), Fault(grpc.StatusCode.PERMISSION_DENIED))
    with faulty(emulator, plan), pytest.raises(PermissionDenied):
        found.extend(ParallelReader(store.target).scan(Scan(data_table(store), [(b"", b"")])))
    assert found == whole[: len(found)]
    assert 0 < len(found) < len(whole)
    assert not threads()


def test_to_stop_early_ends_all_threads(store: AnyStore, cut: list[int]) -> None:
    rows = ParallelReader(store.target).scan(Scan(data_table(store), [(b"", b"")]))
    whole = scan_table(store.target, data_table(store))
    assert list(itertools.islice(rows, 9)) == list(itertools.islice(whole, 9))
    assert cut
    del rows
    assert not threads()


def test_ranges_that_do_not_ascend_are_not_cut(store: AnyStore, cut: list[int]) -> None:
    keys = [row.key for row in scan_table(store.target, data_table(store))]
    scan = Scan(data_table(store), [(keys[40], keys[50]), (keys[10], keys[20]), (keys[15], keys[25])])
    found = [row.key for row in ParallelReader(store.target).scan(scan)]
    assert found == keys[40:50] + keys[10:20] + keys[15:25]
    assert not cut


def test_a_scan_that_does_not_wait_is_one_request(store: AnyStore, emulator: str) -> None:
    with faulty(emulator, no_faults) as proxy:
        list(ParallelReader(store.target).scan(Scan(data_table(store), [(b"", b"")])))
    assert proxy.calls == {READ_ROWS: 1}


def test_a_slow_caller_bounds_what_is_read_ahead() -> None:
    """Of eight reads of endless rows four begin, and each reads a few lists."""
    read = [0] * 8

    def rows(number: int) -> Iterator[Row]:
        while True:
            read[number] += 1
            yield Row("table", b"%d" % number, ())

    most = table_reader._LIST_ROWS * (table_reader._LISTS + 1)
    taken = in_turn([functools.partial(rows, number) for number in range(8)])
    for _ in range(10):
        assert next(taken).key == b"0"
    until = time.monotonic() + 20
    full = [most + table_reader._LIST_ROWS] + [most] * (AT_ONCE - 1)  # one list is with the caller
    while read[:AT_ONCE] != full and time.monotonic() < until:
        time.sleep(0.01)
    assert read[:AT_ONCE] == full
    assert read[AT_ONCE:] == [0] * 4
    assert len(threads()) == AT_ONCE
    taken.close()  # type: ignore[attr-defined]
    assert not threads()
