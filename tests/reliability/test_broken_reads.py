"""Reads that break off in the middle of an answer (test 14)."""

from __future__ import annotations

import collections
import json
from pathlib import Path

import pytest
from google.cloud.bigtable_v2.types import ReadRowsRequest

from tests.support.budget import long_after
from tests.support.commands import timebeam
from tests.support.fault_proxy import READ_ROWS, Break, Call, FaultProxy, Plan, faulty
from tests.support.stored import Store
from tests.support.workload import HOUR_S, START_S, Workload, run
from timebeam.transforms.bigtable import read_ranges

BUCKETS, HOURS = 4, 4
METRIC = "sys.m0"


def query(store: Store, emulator: str, plan: Plan) -> tuple[str, FaultProxy]:
    """What `timebeam query` prints of all series of the metric, and the proxy that it read through."""
    with faulty(emulator, plan) as proxy:
        ran = timebeam(
            *("query", METRIC, *store.flags, "--aggregator=none", "--output=json-ms"),
            *(f"--start={START_S}", f"--end={START_S + HOURS * HOUR_S}"),
        )
    assert ran.code == 0
    assert not ran.err
    return ran.out, proxy


def expected(work: Workload) -> dict[tuple[frozenset[tuple[str, str]], int], int | float]:
    """The values of the metric by tags and time in ms, integers exact beside decimals."""
    by_age = sorted(work.points, key=lambda point: point.arrival_ms)
    return {
        (frozenset(point.series[1]), point.time_ms): point.value
        for point in by_age
        if point.series[0] == METRIC
    }


Read = tuple[str, bytes, str]
"""Table, what is read last, which stays the same when a read goes on behind the rows that have come, and
the filter: points and annotations of the same rows are read apart."""


def breaks_once(messages: int | None, seen: set[Read]) -> Plan:
    """Each read breaks off after some messages (None: does not), but goes through when it is resumed."""

    def plan(call: Call) -> Break | None:
        if call.method != READ_ROWS:
            return None
        request = ReadRowsRequest.deserialize(call.request)
        ranges, keys = request.rows.row_ranges, request.rows.row_keys
        read = request.table_name, ranges[-1].end_key_open if ranges else keys[-1], str(request.filter)
        if read in seen:
            return None
        seen.add(read)
        return None if messages is None else Break(messages)

    return plan


@pytest.mark.parametrize("ranges", long_after(1, [500, 1]))
def test_reads_that_break_at_every_message(
    bigtable: tuple[str, str],
    prefix: str,
    emulator: str,
    tmp_path: Path,
    seed: int,
    ranges: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Test 14, with the ranges of a query in a request each, or all in one.

    A query over salted rows, in which every read breaks off once, after k messages, for every k up to
    the longest answer: equal to the unbroken one, which is equal to the model."""
    monkeypatch.setattr(read_ranges, "_RANGES_A_REQUEST", ranges)
    store = Store.create(bigtable, prefix, salt_width=1, salt_buckets=BUCKETS)
    work = Workload.write(tmp_path, seed, series=60, hours=HOURS, a_row=10)
    assert run(work, store).code == 0
    reads: set[Read] = set()
    whole, _ = query(store, emulator, breaks_once(None, reads))
    assert len(reads) > (BUCKETS if ranges == 1 else 2)
    found = {
        (frozenset(series["tags"].items()), int(time_ms)): value
        for series in json.loads(whole)
        for time_ms, value in series["dps"].items()
    }
    assert found == expected(work)
    rows = collections.Counter(row.key[0] for row in store.rows() if row.key[1:4] == uid(store))
    assert len(rows) == BUCKETS
    for messages in range(max(rows.values()) + 1):
        broken, proxy = query(store, emulator, breaks_once(messages, set()))
        assert len(proxy.faults) == len(reads)
        assert broken == whole


def uid(store: Store) -> bytes:
    """The UID of the metric."""
    return next(uid for name, uid in store.uids().items() if (name.kind, name.text) == ("metrics", METRIC))
