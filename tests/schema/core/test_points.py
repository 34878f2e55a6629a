"""Series, batches of points and rejections."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from tests.support.rejections import rejected_point
from timebeam.schema.bits.arrays import Kind
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.rejections import Origins, Rejected, Stage

A, B = Series.of("m", {"host": "a"}), Series.of("m", {"host": "b"})


def test_series_are_equal_whatever_the_order_of_their_tags() -> None:
    one, other = Series.of("m", {"b": "2", "a": "1"}), Series.of("m", {"a": "1", "b": "2"})
    assert one == other
    assert hash(one) == hash(other)
    assert str(one) == "m{a=1,b=2}"
    assert str(Series.of("m", {})) == "m{}"


POINTS = [
    (A, 1_000, False, 5),
    (B, 1_250, True, -0.0),
    (A, 2_000, False, -(1 << 63)),
    (A, 3_000, False, (1 << 63) - 1),
    (B, 3_000, False, 5e-324),
    (B, 4_000, False, math.inf),
]


def test_a_batch_holds_every_bit_of_its_points() -> None:
    batch = PointBatch.of(POINTS, 77)
    assert batch.series == (A, B)
    assert batch.index.tolist() == [0, 1, 0, 0, 1, 1]
    assert batch.in_ms.tolist() == [False, True, False, False, False, False]
    assert batch.kinds.tolist() == [
        Kind.INTEGER,
        Kind.FLOAT,
        Kind.INTEGER,
        Kind.INTEGER,
        Kind.FLOAT,
        Kind.FLOAT,
    ]
    assert batch.arrivals_ms.tolist() == [77] * 6
    found = [(series, time, type(value), repr(value)) for series, time, value in batch.points()]
    assert found == [(series, time, type(value), repr(value)) for series, time, _, value in POINTS]
    assert (batch.index.dtype, batch.times_ms.dtype, batch.bits.dtype) == (np.int32, np.int64, np.int64)


def test_floats_are_the_values_rounded() -> None:
    batch = PointBatch.of([(A, 0, False, (1 << 53) + 1), (A, 1, False, 0.1), (A, 2, False, -3)], 0)
    assert batch.floats.tolist() == [float(1 << 53), 0.1, -3.0]


def test_an_empty_batch() -> None:
    batch = PointBatch.of([], 0)
    assert (len(batch), list(batch.points()), batch.floats.tolist()) == (0, [], [])


@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1, 1 << 200])
def test_integers_beyond_64_bits_do_not_fit(value: int) -> None:
    with pytest.raises(OverflowError):
        PointBatch.of([(A, 0, False, value)], 0)


def test_take_selects_points_and_their_origins() -> None:
    text = b"first\nsecond\nthird\n"
    origins = Origins(text, np.array([0, 6, 13]), np.array([5, 12, 18]), "f", 1000)
    batch = PointBatch.of([(A, 1, True, 1), (B, 2, True, 2.5), (A, 3, True, 3)], 9, origins)
    taken = batch.take(np.array([2, 1]))
    assert list(taken.points()) == [(A, 3, 3), (B, 2, 2.5)]
    assert taken.series == batch.series
    rejected = rejected_point(taken, 0, Reason.BAD_TAG, Stage.ASSIGN)
    assert rejected == Rejected(b"third", Reason.BAD_TAG, "why", Stage.ASSIGN, "f", 1013, 9)
    assert PointBatch.of([(A, 1, True, 1)], 9).take(np.array([0])).origins is None


def test_a_rejection_says_why() -> None:
    error = RejectedError(Reason.NO_TAGS, "Missing tags")
    assert (error.reason, error.message, str(error)) == (Reason.NO_TAGS, "Missing tags", "Missing tags")
    assert isinstance(error, ValueError)


def test_reason_values_are_their_names_in_kebab_case() -> None:
    for reason in Reason:
        assert reason.value == reason.name.lower().replace("_", "-")


def test_a_point_without_origins_is_rejected_as_json() -> None:
    """In s or ms as it was given; what is no number, and resources, cannot be taken for what they are not."""
    series = Series.of("m", {"a": "b"})
    with_resources = Series.of("m", {"a": "b"}, {"pod": "p"})
    batch = PointBatch.of(
        [
            (series, 7000, False, 1.5),
            (series, 7001, True, 1 << 60),
            (series, 1, True, "12"),
            (with_resources, 1, True, b"\x0c"),
            (series, 1, True, math.nan),
        ],
        9,
    )
    found = [rejected_point(batch, i, Reason.BAD_NUMBER) for i in range(5)]
    assert {(one.offset, one.arrival_ms) for one in found} == {(-1, 9)}
    assert [json.loads(one.payload) for one in found] == [
        {"metric": "m", "timestamp": 7, "value": 1.5, "tags": {"a": "b"}},
        {"metric": "m", "timestamp": 7001, "value": 1 << 60, "tags": {"a": "b"}},
        {"metric": "m", "timestamp": 1, "value": {"text": "12"}, "tags": {"a": "b"}},
        {
            "metric": "m",
            "timestamp": 1,
            "value": {"hex": "0c"},
            "tags": {"tags": {"a": "b"}, "resources": {"pod": "p"}},
        },
        {"metric": "m", "timestamp": 1, "value": {"text": "nan"}, "tags": {"a": "b"}},
    ]
