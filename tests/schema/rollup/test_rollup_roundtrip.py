"""Buckets to rows to buckets, against plain loops; and a rewrite of rows leaves nothing stale behind."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schema.rollup.plain_rollup import plain_base, plain_summaries
from tests.schema.rollup.rollup_points import BASE_MS, POINTS, batch_of, rows_of
from tests.schema.stores.plain_opentsdb import number, read_value
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.rejections import Stage
from timebeam.schema.core.rows import Cell
from timebeam.schema.rollup.accumulate import accumulate
from timebeam.schema.rollup.day_plan import RowSpan
from timebeam.schema.rollup.rollup_config import RollupInterval
from timebeam.schema.stores.opentsdb.rollup_tables import (
    Form,
    decode_rollups,
    encode_points,
    encode_rollups,
    stale_qualifiers,
)

IDS = {"sum": 0, "count": 1, "min": 2, "max": 3, "last": 4, "first": 7, "p99": 127}
STORED = {number: name for name, number in IDS.items() if name != "p99"}
A = Series.of("cpu", {"host": "a"})


def interval(text: str = "1h", span: str = "1d") -> RollupInterval:
    return RollupInterval(text, RowSpan.parse(span), "rollup", "preagg")


INTERVALS = [
    interval(*pair) for pair in (("1m", "1d"), ("10s", "2h"), ("1h", "1n"), ("1d", "1y"), ("3h", "1y"))
]


@given(POINTS, st.sampled_from(INTERVALS), st.sampled_from(Form), st.integers(0, 2**32 - 10**6))
def test_cells_are_those_of_a_plain_loop_and_are_read_back(points, interval, form, shift_s):
    shifted = [(series, time - BASE_MS + shift_s * 1000 + 1000, value) for series, time, value in points]
    buckets = accumulate(batch_of(shifted), interval.seconds)
    encoded = encode_rollups(buckets, interval, STORED, form)
    assert encoded.rejected == []
    span = interval.row_span
    expected, found, read = {}, {}, {}
    for (series, start_ms), summary in plain_summaries(shifted, interval.seconds).items():
        base = plain_base(start_ms // 1000, span.count, span.unit)
        for name, value in summary.items():
            at = (start_ms // 1000 - base) // interval.seconds
            expected[series, base, IDS[name], at, start_ms] = value
    for row in rows_of(encoded):
        series = buckets.series[row.series]
        assert [cell.qualifier for cell in row.cells] == sorted(cell.qualifier for cell in row.cells)
        for cell in row.cells:
            code = int.from_bytes(cell.qualifier[1:], "big")
            assert len(cell.value) == (code & 7) + 1
            assert (code & 15) in form.value
            at = (series, row.base_s, cell.qualifier[0], code >> 4, cell.timestamp_ms)
            found[at] = read_value(code & 15, cell.value)
        decoded = decode_rollups(row.cells, row.base_s, interval, IDS)
        assert decoded.corruption == []
        none = decoded.bits[:0]
        values = PointBatch((), none, none, none.astype(bool), decoded.kinds, decoded.bits, none)
        for i, (one, start) in enumerate(zip(decoded.ids.tolist(), decoded.starts_s.tolist(), strict=True)):
            read[series, start * 1000, STORED[one]] = number(values.value(i))
    assert found == expected
    assert read == {(key[0], key[4], STORED[key[2]]): value for key, value in expected.items()}


@given(POINTS, POINTS, st.sampled_from(INTERVALS), st.sampled_from(Form))
def test_a_rewrite_leaves_nothing_of_what_was_written_before(before, after, interval, form):
    both = [accumulate(batch_of(points), interval.seconds) for points in (before, after)]
    old, new = (
        {
            (buckets.series[row.series], row.base_s): row.cells
            for row in rows_of(encode_rollups(buckets, interval, STORED, form))
        }
        for buckets in both
    )
    for key, cells in new.items():
        kept = {cell.qualifier: cell for cell in old.get(key, ())}
        for qualifier in stale_qualifiers(list(kept), [cell.qualifier for cell in cells]):
            del kept[qualifier]
        assert kept.keys() <= {cell.qualifier for cell in cells}


def test_the_last_interval_of_a_leap_year_and_of_months():
    for text, span, day, second, qualifier in (
        ("1d", "1y", 1483142400, 0, "0016df"),  # 2016-12-31: the 366th day
        ("1h", "1n", 1456700400, 0, "0029ff"),  # 2016-02-28T23:00
        ("1h", "1n", 1456786800, 0, "002b7f"),  # 2016-02-29T23:00
        ("1h", "1n", 1454281200, 0, "002e7f"),  # 2016-01-31T23:00
        ("1m", "1d", 1483228740, 59, "0059ff"),  # 2016-12-31T23:59
        ("10s", "6h", 1483228790, 9, "0086ff"),
    ):
        buckets = accumulate(batch_of([(A, (day + second) * 1000, 1.5)]), interval(text, span).seconds)
        (row,) = rows_of(encode_rollups(buckets, interval(text, span), {0: "sum"}, Form.FIXED))
        ((_, name, time_ms, value),) = row.cells
        assert (name.hex(), time_ms, value) == (qualifier, day * 1000, struct.pack(">d", 1.5))
        assert row.base_s == plain_base(day, RowSpan.parse(span).count, span[-1])


def test_old_names_are_read_in_either_case_and_the_newest_cell_wins():
    cells = [
        Cell("t", b"sum:\x00\x10", 1, b"\x05"),
        Cell("t", b"SUM:\x00\x20", 1, b"\x06"),
        Cell("t", b"Count:\x00\x11", 1, b"\x01\x00"),
        Cell("t", b"\x00\x00\x20", 3, b"\x07"),
        Cell("t", b"\x00\x00\x3f", 2, struct.pack(">d", 2.5)),
        Cell("t", b"\x00\x00\x30", 1, b"\x08"),
        Cell("t", b"\x00\x00\x41", 5, b"\x00\x09"),
        Cell("t", b"\x00\x00\x4b", 5, struct.pack(">f", 9.5)),  # of equal age: the greater qualifier
    ]
    for order in (cells, cells[::-1]):
        decoded = decode_rollups(order, 86_400, interval(), IDS)
        assert decoded.corruption == []
        assert decoded.ids.tolist() == [0, 0, 0, 0, 1]
        assert [start // 3600 - 24 for start in decoded.starts_s.tolist()] == [1, 2, 3, 4, 1]
        assert decoded.timestamps_ms.tolist() == [1, 3, 2, 5, 1]
        floats = decoded.bits.view(np.float64)
        assert [decoded.bits[0], decoded.bits[1], floats[2], floats[3], decoded.bits[4]] == [
            5,
            7,
            2.5,
            9.5,
            256,
        ]


@pytest.mark.parametrize(
    ("qualifier", "value", "why"),
    [
        (b"", b"\x05", "id or name"),
        (b"\x00\x10", b"\x05", "id or name"),  # a plain point: no rollup
        (b"\x06\x00\x10", b"\x05", "id or name"),
        (b"\x80\x00\x10", b"\x05", "id or name"),  # bit 7: reserved
        (b"avg:\x00\x10", b"\x05", "id or name"),
        (b"sum\x00\x10", b"\x05", "id or name"),
        (b"\x00\x00\x12", b"\x05\x05\x05", "flags 2"),
        (b"\x00\x00\x18", b"\x05", "flags 8"),
        (b"\x00\x00\x11", b"\x05", "1 bytes where the qualifier says 2"),
        (b"\x00\x01\x80", b"\x05", "interval 24 of a row that has 24"),
        (b"\x00\xf0\x10", b"\x05", "interval 3841"),
    ],
)
def test_cells_that_are_no_rollups_are_corruption_and_the_others_are_read(qualifier, value, why):
    cells = [Cell("t", qualifier, 1, value), Cell("t", b"\x00\x00\x00", 1, b"\x05")]
    decoded = decode_rollups(cells, 0, interval(), IDS)
    (text,) = decoded.corruption
    assert why in text
    assert text.startswith(f"column {qualifier.hex()}: ")
    assert decoded.bits.tolist() == [5]


def test_an_empty_row_has_no_rollups():
    decoded = decode_rollups([], 0, interval(), IDS)
    assert (decoded.ids.tolist(), decoded.corruption) == ([], [])


def test_a_sum_beyond_the_floats_is_rejected_and_the_rest_stored():
    points = [(A, BASE_MS + i, 1.5e308) for i in range(2)]
    buckets = accumulate(batch_of(points), 3600)
    encoded = encode_rollups(buckets, interval(), STORED, Form.FIXED)
    (rejected,) = encoded.rejected
    assert (rejected.reason, rejected.stage) == (Reason.NUMBER_OUT_OF_RANGE, Stage.ENCODE)
    assert rejected.message.startswith("sum of cpu{host=a} from 1356998400000 ms")
    (row,) = rows_of(encoded)
    assert [cell.qualifier[0] for cell in row.cells] == [1, 2, 3, 4, 7]
    alone = encode_rollups(buckets, interval(), {0: "sum"}, Form.FIXED)
    assert (rows_of(alone), len(alone.rejected)) == ([], 1)


def test_buckets_of_another_interval_are_rejected():
    buckets = accumulate(batch_of([(A, BASE_MS, 1)]), 60)
    with pytest.raises(ValueError, match="buckets of 60 s do not have the interval 1h"):
        encode_rollups(buckets, interval(), STORED, Form.FIXED)


@given(POINTS, st.sampled_from(Form))
def test_points_of_groups_stand_at_the_start_of_their_interval(points, form):
    buckets = accumulate(batch_of(points), 60)
    encoded = encode_points(buckets, "sum", form)
    found = {}
    for row in rows_of(encoded):
        assert row.base_s % 3600 == 0
        for cell in row.cells:
            assert len(cell.qualifier) == 2
            code = int.from_bytes(cell.qualifier, "big")
            start_ms = (row.base_s + (code >> 4)) * 1000
            assert cell.timestamp_ms == start_ms
            found[buckets.series[row.series], start_ms] = read_value(code & 15, cell.value)
    assert found == {at: summary["sum"] for at, summary in plain_summaries(points, 60).items()}
