"""The arithmetic of a plan, by hand; the layouts' rows, found by looking, by their specifications."""

from __future__ import annotations

import dataclasses
import functools
import json

import pytest

from timebeam.pipelines.sizing.estimate import COSTS, NODES, Costs, Sizes, SizingPlan, plan, row_writes
from timebeam.pipelines.sizing.measure import START_MS, Case, SizingLoad, Values, measure, row_span
from timebeam.schema.bits.reasons import RejectedError
from timebeam.schema.core.contract import Store
from timebeam.schema.core.point_fragments import Packing
from timebeam.schema.stores import STORES, make_store

LOAD = SizingLoad(
    series=1_000_000,
    interval_ms=10_000,
    retention_s=30 * 86_400,
    metrics=100,
    tags=4,
    tag_values=10_003,
    name_length=12,
    values=Values.MIXED,
    together=1,
    flush_s=30,
)
SSD = NODES["ssd"]


@functools.cache
def layout(name: str, **options: object) -> Store:
    return make_store(name, options)


@functools.cache
def planned(of: Store, load: SizingLoad) -> SizingPlan:
    """The plan of a load, which several tests look at."""
    return plan(of, load, SSD)


def sizes(of: Store, load: SizingLoad, packing: Packing, *, stream: bool) -> Sizes:
    """What a plan says of one case."""
    (found,) = (one for one in planned(of, load).sizes if one.case == Case(packing, stream))
    return found


@pytest.mark.parametrize(
    ("name", "span_ms"),
    [("opentsdb", 3_600_000), ("heroic", 1 << 32), ("heroic-readable", 1 << 32), ("kairosdb", 1_814_400_000)],
)
def test_a_row_is_as_long_as_the_specification_says(name: str, span_ms: int) -> None:
    start_ms, found_ms = row_span(layout(name), LOAD)
    assert found_ms == span_ms
    assert start_ms % span_ms == 0
    assert start_ms > START_MS


def test_every_packing_of_every_layout_is_planned() -> None:
    for name in STORES:
        found = planned(layout(name), LOAD).sizes
        assert {one.case.packing for one in found} == set(layout(name).writing.packings)
        assert all(one.nodes >= 1 and one.stored_bytes > 0 for one in found)


def test_points_of_a_stream_by_hand() -> None:
    """100,000 points/s: as many rows and cells; a cell is key 31, family 1, qualifier 2, time 8, value."""
    found = sizes(layout("opentsdb"), LOAD, Packing.POINTS, stream=True)
    assert found.row_writes == pytest.approx(100_000)
    assert found.cell_writes == pytest.approx(100_000)
    assert found.measured.key_bytes == 3 + 4 + 4 * (3 + 3)
    assert 31 + 1 + 2 + 8 + 1 <= found.measured.bytes_per_point <= 31 + 1 + 2 + 8 + 8
    assert found.stored_bytes == pytest.approx(100_000 * 30 * 86_400 * found.measured.bytes_per_point)
    assert found.month_bytes == pytest.approx(found.stored_bytes)
    assert found.shuffled_bytes == 0
    assert (found.nodes, found.nodes_for) == (11, "writes")  # 100,000 / 14,000 / 0.7 = 10.2


def test_compacted_files_by_hand() -> None:
    """A row an hour and series; 360 points, of which all have one qualifier of 720 bytes."""
    found = sizes(layout("opentsdb"), LOAD, Packing.COMPACTED, stream=False)
    assert found.row_writes == pytest.approx(1_000_000 / 3600)
    assert found.cell_writes == pytest.approx(found.row_writes)
    assert found.measured.qualifier_bytes == 2 * 360
    assert found.measured.row_cells == pytest.approx(1)
    assert found.shuffled_bytes > found.written_bytes / 2
    assert (found.nodes, found.nodes_for) == (1, "storage")


def test_a_flush_joins_what_came_since_the_last_one() -> None:
    measured = measure(layout("opentsdb"), LOAD, Case(Packing.COMPACTED, stream=True))
    assert row_writes(LOAD, Case(Packing.COMPACTED, stream=True), measured) == pytest.approx(1_000_000 / 30)
    rarer = dataclasses.replace(LOAD, together=6)
    assert row_writes(rarer, Case(Packing.COMPACTED, stream=True), measured) == pytest.approx(1_000_000 / 60)
    assert row_writes(rarer, Case(Packing.POINTS, stream=True), measured) == pytest.approx(1_000_000 / 60)


def test_messages_of_many_points_make_fewer_columns() -> None:
    one = sizes(layout("opentsdb"), LOAD, Packing.COMPACTED, stream=True).measured
    six = sizes(
        layout("opentsdb"), dataclasses.replace(LOAD, together=6), Packing.COMPACTED, stream=True
    ).measured
    assert one.cells_per_point == 1
    assert six.cells_per_point == pytest.approx(1 / 6)
    assert six.bytes_per_point < one.bytes_per_point / 2


def test_an_index_is_stored_once_for_each_row() -> None:
    """KairosDB's `row_keys` has the key of each data row; names are the same from row to row."""
    found = sizes(layout("kairosdb"), LOAD, Packing.POINTS, stream=True)
    rows_kept = 30 * 86_400_000 / 1_814_400_000
    index = found.stored_bytes - 100_000 * 30 * 86_400 * found.measured.bytes_per_point
    assert found.measured.index_bytes > found.measured.index_bytes_per_span >= found.measured.key_bytes
    expected = found.measured.index_bytes + (rows_kept - 1) * found.measured.index_bytes_per_span
    assert index == pytest.approx(1_000_000 * expected, rel=1e-3)


def test_a_metric_without_salt_is_one_range_and_with_salt_as_many_as_there_are_buckets() -> None:
    hot = dataclasses.replace(LOAD, metrics=2)
    bare = sizes(layout("opentsdb"), hot, Packing.POINTS, stream=True)
    assert bare.measured.busiest_head == 1
    assert any("50,000 row writes/s" in text and "6 buckets" in text for text in bare.warnings)
    salted = sizes(layout("opentsdb", salt_width=1, salt_buckets=20), hot, Packing.POINTS, stream=True)
    assert 1 / 20 <= salted.measured.busiest_head < 2 / 20
    assert not any("hot spot" in text for text in salted.warnings)
    spread = sizes(layout("heroic"), hot, Packing.POINTS, stream=True)
    assert spread.measured.busiest_head < 0.01


@pytest.mark.parametrize(
    ("interval_ms", "said"), [(1000, "should stay below 100 MB"), (250, "cannot read them"), (10_000, None)]
)
def test_rows_that_grow_too_large_are_warned_of(interval_ms: int, said: str | None) -> None:
    """Heroic: 4.29 million cells a row at a point a second, of some 26 bytes each."""
    load = dataclasses.replace(LOAD, interval_ms=interval_ms)
    warnings = sizes(layout("heroic"), load, Packing.POINTS, stream=True).warnings
    if said is None:
        assert not warnings
    else:
        assert any(said in text for text in warnings)
        assert any("cells" in text for text in warnings)


def test_uids_that_run_out_are_warned_of() -> None:
    def warnings(values: int, width: int = 3) -> tuple[str, ...]:
        load = dataclasses.replace(LOAD, tag_values=values)
        return plan(layout("opentsdb", uid_width_tagv=width), load, SSD).warnings

    assert warnings(10_000_000) == ()
    assert "13,500,000 of 16,777,215 UIDs of kind tagv are used" in warnings(13_500_000)[0]
    assert "do not fit" in warnings(16_777_216)[0]
    assert warnings(16_777_216, 4) == ()


def test_keys_and_qualifiers_near_their_limits() -> None:
    long_names = dataclasses.replace(LOAD, name_length=390)
    assert any("row keys have" in text for text in _warned("heroic-readable", long_names))
    milliseconds = dataclasses.replace(LOAD, interval_ms=100)
    found = sizes(layout("opentsdb"), milliseconds, Packing.COMPACTED, stream=False)
    assert found.measured.qualifier_bytes == 16_384
    assert found.measured.row_cells == pytest.approx(9)  # 36,000 qualifiers of 4 bytes
    assert any("further columns" in text for text in found.warnings)


def _warned(name: str, load: SizingLoad) -> tuple[str, ...]:
    return sizes(layout(name), load, Packing.POINTS, stream=True).warnings


def test_a_load_that_the_layout_cannot_hold_is_rejected() -> None:
    with pytest.raises(RejectedError, match="Too many tags"):
        plan(layout("opentsdb"), dataclasses.replace(LOAD, tags=31), SSD)
    with pytest.raises(ValueError, match="metrics are more than"):
        dataclasses.replace(LOAD, metrics=2_000_000)
    with pytest.raises(ValueError, match="too short"):
        dataclasses.replace(LOAD, name_length=3)


def test_the_same_load_gives_the_same_plan() -> None:
    once, again = (
        json.dumps(dataclasses.asdict(plan(layout("opentsdb"), LOAD, SSD)), sort_keys=True) for _ in range(2)
    )
    assert once == again


MESSAGES = {"points": {"1": 20.0, "1000": 10.01}, "compacted": {"1": 30.0, "10": 12.0, "1000": 3.0}}
FILES = {"opentsdb compacted": 1.0, "opentsdb points": 6.0, "opentsdb append": 2.5, "heroic points": 7.0}


@pytest.mark.parametrize(
    ("name", "case", "together", "seconds"),
    [
        ("opentsdb", Case(Packing.COMPACTED, False), 1, 1.0),
        ("heroic", Case(Packing.POINTS, False), 1, 7.0),
        # 10 for the point and 10 for the message.
        ("opentsdb", Case(Packing.POINTS, True), 1, 20.0),
        ("opentsdb", Case(Packing.POINTS, True), 10, 11.0),
        # One more than opentsdb from files.
        ("heroic", Case(Packing.POINTS, True), 10, 12.0),
        ("opentsdb", Case(Packing.APPEND, True), 1, 31.5),
    ],
)
def test_the_cost_of_a_million_points(name: str, case: Case, together: int, seconds: float) -> None:
    costs = Costs("2026-11-22", "cpu", FILES, {}, MESSAGES)
    assert costs.of_case(name, case, together) == pytest.approx(seconds)


def test_cores_are_for_the_cost_of_all_points_and_have_headroom() -> None:
    for case in planned(layout("opentsdb"), LOAD).sizes:
        cost = COSTS.of_case("opentsdb", case.case, LOAD.together)
        assert case.cores - 1 < 0.1 * cost / 0.7 <= case.cores
