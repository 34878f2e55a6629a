"""Points to fragments to cells and back, against a dictionary: the newest arrival of each instant wins."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schema.stores.plain_heroic import PERIOD, Value, qualifier, row_key, stored
from tests.schema.stores.sent_batches import Sent, newest
from tests.support.decoded import decode_row
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.contract import pack_row
from timebeam.schema.core.point_fragments import Packing
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.rejections import Origins, Stage
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.stores.heroic.layout import Heroic
from timebeam.schema.stores.heroic.options import HeroicOptions, HeroicReadableOptions

SERIES = [
    Series.of("cpu", {"host": "a"}),
    Series.of("cpu", {"host": "a"}, {"pod": "p"}),
    Series.of("mem", {"host": "a", "dc": "x"}),
]
LAST_MS = (1 << 63) - 1
LAYOUTS = pytest.mark.parametrize(
    "layout", [Heroic(), Heroic(HeroicReadableOptions())], ids=lambda layout: layout.name
)

Slot = tuple[int, int, bool]
"""(number of the series, time in ms, whether it is a distribution)."""


Put = tuple[int, int, int | float | bytes]
"""A point: (number of the series, time in ms, value)."""


def batch_of(sent: Sent[Put]) -> PointBatch:
    puts = [(SERIES[i], time, True, value) for i, time, value in sent.puts]
    batch = PointBatch.of(puts, 0, sent.origins)
    batch.arrivals_ms[:] = sent.arrivals
    return batch


def pieces_of(layout: Heroic, batches: Sequence[Sent[Put]]) -> tuple[dict[bytes, list[bytes]], int]:
    """The fragments by row, and the duplicates."""
    rows, duplicates = defaultdict(list), 0
    for sent in batches:
        batch = batch_of(sent)
        encoded = layout.encode(batch, [layout.series_key(series, {}) for series in batch.series])
        assert encoded.rejected == []
        duplicates += encoded.duplicates
        keys = [fragment.key for fragment in encoded.fragments]
        assert len(keys) == len(set(keys))
        for fragment in encoded.fragments:
            assert fragment.table == "metrics"
            rows[fragment.key].append(fragment.packed)
    return rows, duplicates


def model(batches: Sequence[Sent[Put]]) -> tuple[dict[Slot, tuple[int, Value]], int]:
    """(arrival, value) by slot; and the duplicates."""

    def slot(put: Put) -> Slot:
        series, time, value = put
        return series, time, isinstance(value, bytes)

    duplicates = sum(len(sent.puts) - len(set(map(slot, sent.puts))) for sent in batches)
    best = newest(batches, slot)
    return {each: (arrival, stored(put[2])) for each, (arrival, put) in best.items()}, duplicates


VALUES = (
    st.floats(width=64)
    | st.integers(-(1 << 53), 1 << 53)
    | st.sampled_from([-(1 << 63), 1 << 62, (1 << 63) - 1024])
    | st.binary(max_size=3)
)
TIMES = st.sampled_from([0, 1, PERIOD - 1, PERIOD, PERIOD + 1, 1300000000000, LAST_MS]) | st.integers(
    0, LAST_MS
)
POINT = st.tuples(st.integers(0, 2), TIMES, VALUES)


@st.composite
def sent(draw: st.DrawFn) -> list[Sent[Put]]:
    """Batches of three sources; each source hands its batches on with rising offsets."""
    found = []
    for number in range(draw(st.integers(1, 4))):
        points = draw(st.lists(POINT, min_size=1, max_size=12))
        few, n = st.integers(0, 3) | st.integers(0, 1 << 41), len(points)
        arrivals = draw(st.lists(few, min_size=n, max_size=n)) if draw(st.booleans()) else [draw(few)] * n
        found.append(Sent(points, arrivals, number * 1000, draw(st.sampled_from("abc"))))
    return found


@LAYOUTS
@given(batches=sent(), seed=st.integers(0, 99))
def test_rows_hold_the_newest_point_of_each_instant(
    layout: Heroic, batches: list[Sent[Put]], seed: int
) -> None:
    expected, duplicates = model(batches)
    rows, left_out = pieces_of(layout, batches)
    assert left_out == duplicates
    cells: dict[bytes, set[Cell]] = defaultdict(set)
    for (series, time, opaque), (arrival, (_, value)) in expected.items():
        family = "distributionPoints" if opaque else "points"
        key = row_key(layout.name, SERIES[series], time - time % PERIOD)
        cells[key].add(Cell(family, qualifier(layout.name, time % PERIOD), arrival, value))
    packed = {key: pack_row(layout, "metrics", key, parts, Packing.POINTS) for key, parts in rows.items()}
    assert {key: set(row.cells) for key, row in packed.items()} == cells
    for key, row in packed.items():
        assert (row.table, row.key) == ("metrics", key)
        assert len(row.cells) == len(cells[key])
        assert all(type(cell) is Cell for cell in row.cells)
        parts = rows[key]
        random.Random(seed).shuffle(parts)
        assert pack_row(layout, "metrics", key, parts, Packing.POINTS) == row
        check_decoded(layout, row, expected)


def check_decoded(layout: Heroic, row: Row, expected: dict[Slot, tuple[int, Value]]) -> None:
    """The points of a row are those of the model, in the order of time."""
    for number, series in enumerate(SERIES):
        content = decode_row(layout, row, series)
        assert (content.corruption, content.skipped) == ([], 0)
        times = content.batch.times_ms.tolist()
        assert times == sorted(times)
        if row.key not in {row_key(layout.name, series, time - time % PERIOD) for time in times}:
            continue
        found = {}
        for i, (_, time, value) in enumerate(content.batch.points()):
            found[number, time, isinstance(value, bytes)] = (int(content.batch.arrivals_ms[i]), stored(value))
        base = times[0] - times[0] % PERIOD
        assert found == {
            slot: known
            for slot, known in expected.items()
            if slot[0] == number and slot[1] - slot[1] % PERIOD == base
        }


@LAYOUTS
def test_many_series_and_periods_in_one_batch(layout: Heroic) -> None:
    r = random.Random(1)
    for span in (1 << 33, LAST_MS):
        points = [(r.randrange(3), r.randrange(span), r.random()) for _ in range(3_000)]
        batches = [Sent(points + points[:50], [r.randrange(5) for _ in range(3_050)], 0)]
        expected, duplicates = model(batches)
        rows, left_out = pieces_of(layout, batches)
        assert left_out == duplicates > 0
        packed = [pack_row(layout, "metrics", key, parts, Packing.POINTS) for key, parts in rows.items()]
        assert sum(len(row.cells) for row in packed) == len(expected)
        for row in packed[:5]:
            check_decoded(layout, row, expected)


def test_more_rows_than_fit_one_integer_with_offset_and_place() -> None:
    layout, r = Heroic(), random.Random(2)
    series = [Series.of("cpu", {"host": str(n)}) for n in range(3_000)]
    points = []
    for n, one in enumerate(series):
        base = r.randrange(1 << 31) * PERIOD
        points += [(one, base + offset, True, float(n)) for offset in (0, 1, PERIOD - 1, 0)]
    r.shuffle(points)
    points += [(one, time, True, -value) for one, time, _, value in points if time % PERIOD == 1]
    encoded = layout.encode(
        PointBatch.of(points, 1), [layout.series_key(one, {}) for one in dict.fromkeys(p[0] for p in points)]
    )
    assert (len(encoded.fragments), encoded.duplicates) == (3_000, 6_000)
    found = {}
    for fragment in encoded.fragments:
        row = pack_row(layout, fragment.table, fragment.key, [fragment.packed], Packing.POINTS)
        for one, time, value in decode_row(layout, row, layout.index.entry_of(row.key)[0]).batch.points():
            found[one, time] = value
    assert found == {(one, time): value for one, time, _, value in points}


def test_pieces_are_small() -> None:
    points = [(series, time, 1.5) for series in (0, 2) for time in range(100)]
    rows, _ = pieces_of(Heroic(), [Sent(points, [1] * 100 + [2] * 100, 0)])
    assert {len(fragment) for fragments in rows.values() for fragment in fragments} == {24 + 8 + 1 + 10 * 100}


def test_pieces_that_nothing_tells_apart_are_packed_alike_in_any_order() -> None:
    layout = Heroic()
    rows, _ = pieces_of(
        layout, [Sent([(0, 5, value), (0, 6, b"x" * i)], [1, 1], 0) for i, value in enumerate((1, 2, 3.5))]
    )
    ((key, parts),) = rows.items()
    found = {
        tuple(pack_row(layout, "metrics", key, order, Packing.POINTS).cells)
        for order in (parts, parts[::-1], parts[1:] + parts[:1])
    }
    assert len(found) == 1


@pytest.mark.parametrize(
    ("time_ms", "value", "reason"),
    [
        (-1, 5, Reason.TIMESTAMP_OUT_OF_RANGE),
        (-(1 << 63), b"", Reason.TIMESTAMP_OUT_OF_RANGE),
        (1, (1 << 53) + 1, Reason.VALUE_NOT_STORABLE),
        (1, -(1 << 53) - 1, Reason.VALUE_NOT_STORABLE),
        (1, (1 << 63) - 1, Reason.VALUE_NOT_STORABLE),
        (1, "text", Reason.VALUE_NOT_STORABLE),
    ],
)
def test_points_that_cannot_be_stored_are_rejected(
    time_ms: int, value: int | str | bytes, reason: Reason
) -> None:
    layout = Heroic()
    points = [(SERIES[0], 1, True, 1), (SERIES[0], time_ms, True, value), (SERIES[0], 3, True, b"3")]
    origins = Origins(b"one,two,three", np.array([0, 4, 8]), np.array([3, 7, 13]), "f", 100)
    batch = PointBatch.of(points, 1, origins)
    encoded = layout.encode(batch, [layout.series_key(SERIES[0], {})])
    (rejected,) = encoded.rejected
    assert (rejected.payload, rejected.reason, rejected.stage) == (b"two", reason, Stage.ENCODE)
    assert (rejected.source, rejected.offset) == ("f", 104)
    (fragment,) = encoded.fragments
    row = pack_row(layout, fragment.table, fragment.key, [fragment.packed], Packing.POINTS)
    assert [value for _, _, value in decode_row(layout, row, SERIES[0]).batch.points()] == [1.0, b"3"]
    assert layout.index.entries(batch) == [(0, 0)]
    only = PointBatch.of(points[1:2], 1)
    (without,) = layout.encode(only, [layout.series_key(SERIES[0], {})]).rejected
    assert (without.payload, without.offset) == (only.as_json(0), -1)
    assert layout.index.entries(only) == []


def test_an_empty_batch_has_no_pieces() -> None:
    encoded = Heroic().encode(PointBatch.of([], 1), [])
    assert (encoded.fragments, encoded.rejected, encoded.duplicates) == ([], [], 0)
    assert Heroic().index.entries(PointBatch.of([], 1)) == []


def test_a_series_without_points_needs_no_key() -> None:
    layout = Heroic()
    batch = PointBatch.of([(SERIES[0], 1, True, 1), (SERIES[2], 1, True, 2)], 1).take(np.array([1]))
    (fragment,) = layout.encode(batch, [None, layout.series_key(SERIES[2], {})]).fragments
    assert fragment.key == row_key("heroic", SERIES[2], 0)
    assert layout.index.entries(batch) == [(1, 0)]


@LAYOUTS
def test_corrupt_cells_are_told_and_the_others_read(layout: Heroic) -> None:
    key = row_key(layout.name, SERIES[0], PERIOD)
    good, other = qualifier(layout.name, 5), qualifier(layout.name, 7)
    cells = [
        Cell("points", good, 9, bytes.fromhex("4045000000000000")),
        Cell("points", other, 9, b"123"),
        Cell("points", good + b"0", 9, bytes(8)),
        Cell("distributionPoints", b"", 9, b"x"),
        Cell("distributionPoints", other, 8, b""),
        Cell("events", b"e", 9, b"{}"),
    ]
    content = decode_row(layout, Row("metrics", key, cells), SERIES[0])
    assert [(time, value) for _, time, value in content.batch.points()] == [
        (PERIOD + 5, 42.0),
        (PERIOD + 7, b""),
    ]
    assert content.batch.arrivals_ms.tolist() == [9, 8]
    assert content.skipped == 1
    assert [text.split(":")[1][:20] for text in content.corruption] == [
        " a double of 3 bytes",
        " not an offset from ",
        " not an offset from ",
    ]


def test_a_readable_qualifier_that_is_no_number() -> None:
    key = row_key("heroic-readable", SERIES[0], 0)
    cells = [Cell("points", b"99999999999"[:10], 1, bytes(8)), Cell("points", b"0000000001", 1, bytes(8))]
    content = decode_row(Heroic(HeroicReadableOptions()), Row("metrics", key, cells), SERIES[0])
    assert content.batch.times_ms.tolist() == [1]
    assert len(content.corruption) == 1


def test_the_tables_of_the_layouts() -> None:
    for layout in (
        Heroic(HeroicOptions.of({"table_prefix": "x-", "resource_names": True, "salt_width": 1})),
        Heroic(HeroicReadableOptions.of({"table_prefix": "x-", "resource_names": True})),
    ):
        assert [(t.name, dict(t.families), t.holds_points, t.is_index) for t in layout.tables()] == [
            ("x-metrics", {"points": 1, "distributionPoints": 1}, True, False),
            ("x-series", {"series": 1}, False, True),
        ]
        assert layout.uids is None
        assert layout.writing.packings == (Packing.POINTS,)
    assert Heroic(HeroicReadableOptions.of({})) == Heroic(HeroicReadableOptions())
    key = Heroic(HeroicReadableOptions.of({"resource_names": True})).series_key(SERIES[1], {})
    assert key.tail == b",pod=p"
