"""SimpleHistogram: what a real TSD stored, and a second writing of Kryo's numbers."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden.cases import Case, cases
from timebeam.schema.core.histograms import Histogram, NotASimpleHistogramError, decode, encode, merged
from timebeam.schema.core.points import Series
from timebeam.schema.query.answer import answer_histograms, check_percentiles
from timebeam.schema.query.question import Question

floats = st.floats(width=32, allow_nan=False)
counts = st.integers(0, (1 << 63) - 1) | st.integers(0, 300)


def kryo(number: int) -> bytes:
    """A positive long of Kryo: Output.writeVarLong, step by step."""
    found = bytearray()
    for _ in range(8):
        if number < 0x80:
            return bytes((*found, number))
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*found, number))


def encoded(histogram: Histogram, codec: int = 42) -> bytes:
    """What a TSD stores."""
    raw = struct.pack(">Bh", codec, len(histogram.buckets))
    for (low, high), count in histogram.buckets.items():
        raw += struct.pack(">ff", low, high) + kryo(count)
    return raw + kryo(histogram.underflow) + kryo(histogram.overflow)


def sent(case: Case) -> Histogram:
    """The histogram that was put."""
    (point,) = case.steps[0]["http"][2]
    buckets = {
        tuple(float(bound) for bound in key.split(",")): count for key, count in point["buckets"].items()
    }
    return Histogram(buckets, point["underflow"], point["overflow"])  # type: ignore[arg-type]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in cases("histogram")])
def test_what_a_tsd_stored(case: Case) -> None:
    ((_, column, value),) = case.cells
    assert column[0] == 6
    assert decode(value) == sent(case)
    assert encoded(sent(case)) == value


@given(st.dictionaries(st.tuples(floats, floats), counts, max_size=4), counts, counts)
def test_round_trip(buckets: dict[tuple[float, float], int], underflow: int, overflow: int) -> None:
    histogram = Histogram(dict(sorted(buckets.items())), underflow, overflow)
    assert decode(encoded(histogram)) == histogram
    assert encode(histogram, 42) == encoded(histogram)


@given(st.binary(max_size=40))
def test_any_bytes_decode_or_are_none(value: bytes) -> None:
    try:
        histogram = decode(value)
    except NotASimpleHistogramError:
        return
    assert len(histogram.buckets) == int.from_bytes(value[1:3], "big")


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x2a",
        b"\x2a\x00\x00",
        b"\x2a\x00\x00\x01",
        b"\x2a\x00\x00\x01\x02\x03",
        b"\x2a\xff\xff\x01\x02",
        b"\x2a\x00\x01" + struct.pack(">ff", 1, 2) + b"\x80",
        b"\x2a\x00\x02" + (struct.pack(">ff", 1, 2) + b"\x01") * 2 + b"\x00\x00",
        b"\x2a\x00\x01" + struct.pack(">ff", math.nan, 2) + b"\x01\x00\x00",
    ],
)
def test_what_is_none(value: bytes) -> None:
    with pytest.raises(NotASimpleHistogramError):
        decode(value)


def test_percentiles_are_the_middle_of_the_bucket_that_reaches_them() -> None:
    histogram = Histogram({(0.0, 1.75): 12, (1.75, 3.5): 16, (3.5, 3.5): 0}, 2, 1)
    assert [histogram.percentile(percent) for percent in (1, 42.8, 42.9, 100)] == [0.875, 0.875, 2.625, 2.625]
    assert math.isnan(Histogram({(0.0, 1.0): 0}, 5, 5).percentile(50))
    assert math.isnan(Histogram({}, 5, 5).percentile(50))


def test_sums() -> None:
    a, b = Histogram({(0.0, 1.0): 1, (1.0, 2.0): 2}, 1, 0), Histogram({(1.0, 2.0): 3, (2.0, 3.0): 4}, 0, 7)
    assert merged([a, b]) == Histogram({(0.0, 1.0): 1, (1.0, 2.0): 5, (2.0, 3.0): 4}, 1, 7)


def test_results_by_bucket_and_by_percentile() -> None:
    a, b = Series.of("m", {"host": "a", "dc": "x"}), Series.of("m", {"host": "b", "dc": "x"})
    found = {
        a: {1000: Histogram({(0.0, 1.5): 1}, 0, 0), 2000: Histogram({(0.0, 1.5): 2}, 1, 0)},
        b: {1000: Histogram({(1.5, 3.0): 5}, 0, 9)},
    }

    def shown(group_by: list[str], aggregator: str, percentiles: list[float]) -> list[Any]:
        return [
            (one.metric, one.tags, dict(zip(one.times_ms.tolist(), one.values.tolist(), strict=True)))
            for one in answer_histograms(
                Question("m", {}, group_by, aggregator, None, 0, 9999),
                found,
                percentiles,
                has_buckets=not percentiles,
                add_points=lambda _: None,
            )
        ]

    assert shown([], "sum", []) == [
        ("m_0.0_1.5", {"dc": "x"}, {1000: 1, 2000: 2}),
        ("m_1.5_3.0", {"dc": "x"}, {1000: 5}),
        ("m_UNDERFLOW", {"dc": "x"}, {1000: 0, 2000: 1}),
        ("m_OVERFLOW", {"dc": "x"}, {1000: 9, 2000: 0}),
    ]
    assert shown(["host"], "sum", [50]) == [
        ("m_pct_50.0", {"dc": "x", "host": "a"}, {1000: 0.75, 2000: 0.75}),
        ("m_pct_50.0", {"dc": "x", "host": "b"}, {1000: 2.25}),
    ]
    assert shown([], "none", [50]) == shown(["host"], "sum", [50])
    assert shown([], "max", []) == shown([], "sum", [])  # as in a TSD
    with pytest.raises(ValueError, match="1 to 100"):
        check_percentiles([0.5])


def test_the_points_of_percentiles_are_counted_one_result_after_the_other() -> None:
    """A request may ask for so many that the budget must end it meanwhile."""
    counted: list[int] = []

    def add_points(count: int) -> None:
        counted.append(count)
        if len(counted) == 3:
            raise InterruptedError

    found = {Series.of("m", {}): {1000: Histogram({(0.0, 1.0): 1}, 0, 0), 2000: Histogram({}, 0, 0)}}
    question = Question("m", {}, [], "sum", None, 0, 9999)
    with pytest.raises(InterruptedError):
        answer_histograms(question, found, [50.0] * 10_000, has_buckets=False, add_points=add_points)
    assert counted == [2, 2, 2]
