"""Points to fragments to cells and back, against a dictionary: the newest arrival of each instant wins."""

from __future__ import annotations

import random
import struct
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schema.stores.plain_opentsdb import Number, number, split_append, split_column
from tests.schema.stores.sent_batches import Sent, newest, sent_batches
from tests.support.budget import examples
from tests.support.decoded import decode_row
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.contract import pack_row
from timebeam.schema.core.point_fragments import Name, Packing, SlotPoints
from timebeam.schema.core.points import PointBatch, Series, SeriesKey
from timebeam.schema.core.rejections import Origins, Stage
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.stores import make_store
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.options import Decimals, OpenTsdbOptions

SERIES = [
    Series.of("cpu", {"host": "a"}),
    Series.of("cpu", {"host": "b", "dc": "x"}),
    Series.of("mem", {"host": "a"}),
]
LAST_MS = (1 << 32) * 1000 - 1


class Put(NamedTuple):
    """One point of a batch."""

    series: int
    time_ms: int
    in_ms: bool
    value: float


def narrowed(value: float, decimals: Decimals) -> float:
    """What is stored of a value."""
    if decimals is not Decimals.FLOAT or not isinstance(value, float):
        return value
    try:
        return struct.unpack(">f", struct.pack(">f", value))[0]
    except OverflowError:
        return value


def model(batches: Sequence[Sent[Put]], decimals: Decimals) -> dict[tuple[int, int], tuple[int, Number]]:
    """(arrival, value) by (series, instant)."""
    return {
        slot: (arrival, number(narrowed(put.value, decimals)))
        for slot, (arrival, put) in newest(batches, lambda put: (put.series, put.time_ms)).items()
    }


def keys_of(layout: OpenTsdb, series: Sequence[Series]) -> list[SeriesKey]:
    """Keys from UIDs given out in the order of the names of all series."""
    uids: dict[Name, bytes] = {}
    counts: dict[str, int] = defaultdict(int)
    for one in SERIES:
        for name in layout.uids.names(one):
            if name not in uids:
                counts[name.kind] += 1
                uids[name] = counts[name.kind].to_bytes(layout.options.uid_width(name.kind), "big")
    return [layout.series_key(one, uids) for one in series]


def pieces_of(layout: OpenTsdb, batches: Sequence[Sent[Put]]) -> dict[bytes, list[bytes]]:
    """The fragments of all batches by row."""
    rows = defaultdict(list)
    for sent in batches:
        puts = [(SERIES[put.series], put.time_ms, put.in_ms, put.value) for put in sent.puts]
        batch = PointBatch.of(puts, 0, sent.origins)
        batch.arrivals_ms[:] = sent.arrivals
        encoded = layout.encode(batch, keys_of(layout, batch.series))
        assert not encoded.rejected
        times = {(put.series, put.time_ms, at) for put, at in zip(sent.puts, sent.arrivals, strict=True)}
        assert encoded.duplicates == len(puts) - len(times)
        for fragment in encoded.fragments:
            assert fragment.table == "tsdb"
            rows[fragment.key].append(fragment.packed)
    return rows


def read(layout: OpenTsdb, rows: dict[bytes, Row]) -> dict[tuple[int, int], tuple[int, Number]]:
    """All rows decoded, as `model` has them; also asserts that each series' rows stand in time order."""
    heads = {(key.head, key.tail): i for i, key in enumerate(keys_of(layout, SERIES))}
    size = layout.options.salt_width + 3
    found: dict[tuple[int, int], tuple[int, Number]] = {}
    latest: dict[int, int] = {}
    for key in sorted(rows):
        series = heads[key[:size], key[size + 4 :]]
        decoded = decode_row(layout, rows[key], SERIES[series])
        assert (decoded.corruption, decoded.skipped) == ([], 0)
        for (_, time_ms, value), arrival in zip(
            decoded.batch.points(), decoded.batch.arrivals_ms.tolist(), strict=True
        ):
            assert time_ms > latest.get(series, -1)
            latest[series] = time_ms
            found[series, time_ms] = arrival, number(value)
    return found


def check_columns(row: Row, packing: Packing) -> None:
    """Asserts that columns are ascending, and that compacted ones end in the byte that a TSD expects."""
    for cell in row.cells:
        if packing is Packing.APPEND:
            assert cell.qualifier == b"\5\0\0"
            assert [element.offset_ms for element in split_append(cell.value)] == sorted(
                {element.offset_ms for element in split_append(cell.value)}
            )
            continue
        points = split_column(cell.qualifier, cell.value)
        assert [point.offset_ms for point in points] == sorted({point.offset_ms for point in points})
        trailer = cell.value[sum(len(point.value) for point in points) :]
        mixed = len({point.in_ms for point in points}) == 2
        assert trailer == (b"" if len(points) == 1 else b"\1" if mixed else b"\0")
        assert packing is Packing.COMPACTED or len(points) == 1


SECONDS = st.integers(0, 4_294_967_295) | st.integers(1_356_998_398, 1_356_998_403)
TIMES = SECONDS.map(lambda s: (s * 1000, False)) | (
    (st.integers(0, LAST_MS) | st.integers(1_356_998_399_990, 1_356_998_401_010)).map(lambda ms: (ms, True))
)
VALUES = (
    st.integers(-(1 << 63), (1 << 63) - 1)
    | st.integers(-300, 300)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(
        [-0.0, 0.0, 5e-324, 1.5, 0.1, 3.4028235e38, 3.4028235677973366e38, 1e39, 16777217.0, 1e-46]
    )
)
PUTS = st.builds(lambda series, time, value: Put(series, *time, value), st.integers(0, 2), TIMES, VALUES)


@pytest.mark.parametrize("packing", Packing)
@pytest.mark.parametrize(
    "options",
    [
        OpenTsdbOptions(),
        OpenTsdbOptions(decimals=Decimals.DOUBLE, salt_width=1),
        OpenTsdbOptions(decimals=Decimals.FLOAT),
    ],
    ids=lambda options: options.decimals.value,
)
@given(batches=sent_batches(PUTS), seed=st.integers(0, 1 << 32))
@examples(70)
def test_what_is_read_is_what_was_sent(
    options: OpenTsdbOptions, packing: Packing, batches: list[Sent[Put]], seed: int
) -> None:
    layout = OpenTsdb(options)
    rows = pieces_of(layout, batches)
    packed = {key: pack_row(layout, "tsdb", key, parts, packing) for key, parts in rows.items()}
    expected = model(batches, options.decimals)
    found = read(layout, packed)
    assert {at: value for at, (_, value) in found.items()} == {
        at: value for at, (_, value) in expected.items()
    }
    newest: dict[tuple[int, int], int] = defaultdict(int)
    for put, arrival in (
        (put, at) for sent in batches for put, at in zip(sent.puts, sent.arrivals, strict=True)
    ):
        hour = put.series, put.time_ms // 3_600_000
        newest[hour] = max(newest[hour], arrival)
    for at, (arrival, _) in found.items():  # an append column is as new as the newest of its points
        own = newest[at[0], at[1] // 3_600_000] if packing is Packing.APPEND else expected[at][0]
        assert arrival == own
    for row in packed.values():
        check_columns(row, packing)
    together = layout.cells([*rows], SlotPoints.of(rows.values()), packing)
    assert [together.cells(number) for number in range(len(rows))] == [row.cells for row in packed.values()]
    for key, parts in rows.items():
        random.Random(seed).shuffle(parts)
        assert pack_row(layout, "tsdb", key, parts, packing) == packed[key]


def test_pieces_that_nothing_tells_apart_are_packed_alike_in_any_order() -> None:
    layout = OpenTsdb()
    batches = [Sent([Put(0, 1_356_998_400_000, False, value)], [1], 0) for value in (1, 2, 3.5)]
    for packing in Packing:
        ((key, parts),) = pieces_of(layout, batches).items()
        rows = {
            pack_row(layout, "tsdb", key, order, packing).cells[0]
            for order in (parts, parts[::-1], parts[1:] + parts[:1])
        }
        assert len(rows) == 1


def test_a_corrected_point_keeps_both_forms_and_the_newer_one_is_read() -> None:
    layout = OpenTsdb()
    batches = [Sent([Put(0, 1_356_998_405_000, False, value)], [at], 0) for value, at in ((1.5, 2), (1, 1))]
    ((key, parts),) = pieces_of(layout, batches).items()
    row = pack_row(layout, "tsdb", key, parts, Packing.POINTS)
    assert [(cell.qualifier.hex(), cell.timestamp_ms, cell.value.hex()) for cell in row.cells] == [
        ("0050", 1, "01"),
        ("005b", 2, "3fc00000"),
    ]
    assert list(decode_row(layout, row, SERIES[0]).batch.points()) == [(SERIES[0], 1_356_998_405_000, 1.5)]


def test_a_correction_wins_over_a_point_that_is_packed_beside_a_newer_one() -> None:
    layout = OpenTsdb()
    base = 1_356_998_400_000
    old = Sent([Put(0, base, False, 300), Put(0, base + 1000, False, 5)], [1, 1], 0, "a")
    correction = Sent([Put(0, base, False, 1)], [2], 0, "b")
    newer = Sent([Put(0, base + 2000, False, 7)], [3], 0, "c")
    for runs in ([[old, newer], [correction]], [[correction], [old, newer]], [[old, newer, correction]]):
        cells: dict[bytes, Cell] = {}
        for run in runs:
            ((key, parts),) = pieces_of(layout, run).items()
            for cell in pack_row(layout, "tsdb", key, parts, Packing.COMPACTED).cells:
                if cell.qualifier not in cells or cells[cell.qualifier].timestamp_ms <= cell.timestamp_ms:
                    cells[cell.qualifier] = cell
        decoded = decode_row(layout, Row("tsdb", key, list(cells.values())), SERIES[0])
        assert [value for _, _, value in decoded.batch.points()] == [1, 5, 7]


def test_a_corrected_point_of_two_batches_of_one_arrival_is_in_one_column() -> None:
    """A TSD refuses rows with an instant in two compacted columns, unless it repairs duplicates."""
    layout = OpenTsdb()
    base = 1_356_998_400_000
    seconds = [(1, (0, 10)), (1, (20, 25, 30)), (2, (15, 25))]
    batches = [
        Sent([Put(0, base + second * 1000, False, arrival) for second in each], [arrival] * len(each), offset)
        for offset, (arrival, each) in enumerate(seconds)
    ]
    ((key, parts),) = pieces_of(layout, batches).items()
    row = pack_row(layout, "tsdb", key, parts, Packing.COMPACTED)
    assert [(cell.timestamp_ms, cell.qualifier.hex()) for cell in row.cells] == [
        (1, "000000a0014001e0"),
        (2, "00f00190"),
    ]


@pytest.mark.parametrize("later", [0, 1, 9_000])
def test_a_row_with_more_points_than_a_qualifier_holds_is_cut_into_columns(later: int) -> None:
    layout = OpenTsdb()
    base = 1_356_998_400_000
    arrivals = [7] * (10_000 - later) + [8] * later
    batches = [Sent([Put(0, base + i * 10, True, i) for i in range(10_000)], arrivals, 0)]
    ((key, parts),) = pieces_of(layout, batches).items()
    row = pack_row(layout, "tsdb", key, parts, Packing.COMPACTED)
    sizes = [(cell.timestamp_ms, len(cell.qualifier) // 4) for cell in row.cells]
    assert sizes == [
        (arrival, min(4096, count - first))
        for arrival, count in ((7, 10_000 - later), (8, later))
        for first in range(0, count, 4096)
    ]
    assert max(len(cell.qualifier) for cell in row.cells) <= 16 * 1024
    assert [value for _, _, value in decode_row(layout, row, SERIES[0]).batch.points()] == list(range(10_000))


@pytest.mark.parametrize(
    ("time_ms", "value", "reason"),
    [
        (-1, 5, Reason.TIMESTAMP_OUT_OF_RANGE),
        (LAST_MS + 1, 5, Reason.TIMESTAMP_OUT_OF_RANGE),
        (1, float("inf"), Reason.NUMBER_OUT_OF_RANGE),
        (1, float("-inf"), Reason.NUMBER_OUT_OF_RANGE),
        (1, float("nan"), Reason.NUMBER_OUT_OF_RANGE),
    ],
)
def test_points_that_cannot_be_stored_are_rejected(time_ms: int, value: float, reason: Reason) -> None:
    layout = OpenTsdb()
    points = [(SERIES[0], 1, True, 1), (SERIES[0], time_ms, True, value), (SERIES[0], 3, True, 3)]
    origins = Origins(b"one,two,three", np.array([0, 4, 8]), np.array([3, 7, 13]), "f", 100)
    encoded = layout.encode(PointBatch.of(points, 1, origins), keys_of(layout, SERIES[:1]))
    (rejected,) = encoded.rejected
    assert (rejected.payload, rejected.reason, rejected.stage) == (b"two", reason, Stage.ENCODE)
    assert (rejected.source, rejected.offset) == ("f", 104)
    (fragment,) = encoded.fragments
    row = pack_row(layout, fragment.table, fragment.key, [fragment.packed], Packing.COMPACTED)
    assert [value for _, _, value in decode_row(layout, row, SERIES[0]).batch.points()] == [1, 3]
    only = PointBatch.of(points[1:2], 1)
    (without,) = layout.encode(only, keys_of(layout, SERIES[:1])).rejected
    assert (without.payload, without.offset) == (only.as_json(0), -1)


def test_an_empty_batch_has_no_pieces() -> None:
    encoded = OpenTsdb().encode(PointBatch.of([], 1), [])
    assert (encoded.fragments, encoded.rejected, encoded.duplicates) == ([], [], 0)


def test_many_series_and_hours_in_one_batch() -> None:
    layout = OpenTsdb()
    r = random.Random(1)
    puts = [Put(r.randrange(3), r.randrange(LAST_MS), True, r.randrange(100)) for _ in range(3_000)]
    batches = [Sent(puts, [r.randrange(1 << 40) for _ in puts], 0)]
    rows = {
        key: pack_row(layout, "tsdb", key, parts, Packing.COMPACTED)
        for key, parts in pieces_of(layout, batches).items()
    }
    assert {at: value for at, (_, value) in read(layout, rows).items()} == {
        at: value for at, (_, value) in model(batches, Decimals.EXACT).items()
    }


def test_the_tables_of_the_layout() -> None:
    assert make_store("opentsdb", {}) == OpenTsdb()
    layout = OpenTsdb(OpenTsdbOptions(table_prefix="x-", uid_width_metric=4))
    assert [(table.name, dict(table.families), table.holds_points) for table in layout.tables()] == [
        ("x-tsdb", {"t": 1}, True),
        ("x-tsdb-uid", {"id": 1, "name": 1}, False),
    ]
    assert layout.uids.table == "x-tsdb-uid"
    assert dict(layout.uids.widths) == {"metrics": 4, "tagk": 3, "tagv": 3}
    assert set(layout.writing.packings) == set(Packing)
