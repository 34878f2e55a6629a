"""Limits of new series: how they are written, and the counts that they are compared with."""

from __future__ import annotations

import itertools

import pytest

from timebeam.schema.core.points import Series
from timebeam.schema.core.rows import Cell
from timebeam.schema.series.series_limits import (
    FAMILY,
    MOST_KEYS,
    SHOWN_VALUES,
    SeriesCount,
    hash_of,
    metric_row,
)
from timebeam.schema.series.series_patterns import MetricLimit, limit_of, parse_limits


def series(numbers: range) -> list[Series]:
    return [Series.of("m", {"user": f"u{number}", "dc": f"d{number % 3}"}) for number in numbers]


def counted(numbers: range, most_values: int = 10_000) -> SeriesCount:
    count = SeriesCount(most_values)
    for one in series(numbers):
        count.add(one)
    return count


def row_of(count: SeriesCount) -> list[Cell]:
    return [cell for _, cell in count.cells(())]


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("10", [("*", 10)]),
        ("app.*=5", [("app.*", 5)]),
        ("app.*=5,0", [("app.*", 5), ("*", 0)]),
        ("a=b=7", [("a=b", 7)]),
    ],
)
def test_limits_are_numbers_with_patterns(text: str, limits: list[tuple[str, int]]) -> None:
    assert parse_limits([text]) == tuple(MetricLimit(*limit) for limit in limits)


@pytest.mark.parametrize("text", ["", "a=", "=5", "-1", "1.5", "a=b", "1,", "٣", "9" * 19])
def test_anything_else_is_no_limit(text: str) -> None:
    with pytest.raises(ValueError, match="neither a whole number nor"):
        parse_limits([text])


def test_the_first_pattern_that_matches_applies() -> None:
    limits = parse_limits(["app.web.*=1", "app.*=2,3"])
    assert [limit_of(limits, metric) for metric in ("app.web.x", "app.y", "z")] == [1, 2, 3]
    assert limit_of(limits[:2], "z") is None


def test_a_hash_is_blake2b_of_64_bits() -> None:
    """b2sum -l 64 of the four bytes, as a little-endian number."""
    assert hash_of("u123").to_bytes(8, "little").hex() == "0acc974bd639dfcf"


def test_small_counts_are_exact_and_large_ones_near() -> None:
    assert [counted(range(n)).series for n in (0, 1, 100, 300)] == [0, 1, 100, 300]
    assert abs(counted(range(50_000)).series - 50_000) < 50_000 * 0.05
    assert len(row_of(counted(range(50_000)))[0].value) < 5_000


def test_counts_merge_in_any_order() -> None:
    """The sketch and the values of the union, whatever was counted twice."""
    parts = [range(120), range(100, 200), range(50, 150)]
    rows = set()
    for order in itertools.permutations(parts):
        union = SeriesCount(10_000)
        for numbers in order:
            union.merge(row_of(counted(numbers)))
        assert union.series == 200
        assert {key: len(values) for key, values in union.values.items()} == {"user": 200, "dc": 3}
        rows.add(tuple(cell.value for cell in sorted(row_of(union)) if cell.qualifier != b"series"))
    assert len(rows) == 1


def test_only_changed_cells_are_written_and_their_revisions_ascend() -> None:
    first = row_of(counted(range(10)))
    assert {(cell.family, cell.qualifier, cell.timestamp_ms) for cell in first} == {
        (FAMILY, b"series", 1),
        (FAMILY, b"vuser", 1),
        (FAMILY, b"vdc", 1),
    }
    count = SeriesCount(10_000)
    count.merge(first)
    assert count.cells(first) == []
    count.add(series(range(10, 11))[0])
    assert sorted((new.qualifier, new.timestamp_ms) for _, new in count.cells(first)) == [
        (b"series", 2),
        (b"vuser", 2),
    ]


def test_values_without_a_limit_are_counted_up_to_some() -> None:
    count = counted(range(SHOWN_VALUES + 50), SHOWN_VALUES)
    assert count.series == SHOWN_VALUES + 50
    assert count.largest_key() == f"tag key user has {SHOWN_VALUES} or more values"


def test_tag_keys_are_counted_up_to_some() -> None:
    """The others of a process are left out where counts are merged, too."""
    counts = [SeriesCount(), SeriesCount()]
    for number in range(MOST_KEYS + 50):
        for count, name in zip(counts, "ab", strict=True):
            count.add(Series.of("m", {f"{name}{number}": "v"}))
    assert counts[0].series == MOST_KEYS + 50
    keys = set(counts[0].values)
    assert keys == {f"a{number}" for number in range(MOST_KEYS)}
    counts[0].merge(row_of(counts[1]))
    assert set(counts[0].values) == keys
    assert counts[0].counts_key("a0")
    assert not counts[0].counts_key("b0")


@pytest.mark.parametrize("qualifier", [b"series", b"vuser"])
def test_a_corrupt_cell_is_an_error(qualifier: bytes) -> None:
    with pytest.raises(ValueError, match="corrupt count"):
        SeriesCount().merge([Cell(FAMILY, qualifier, 1, b"\xff\x01\x02")])


def test_keys_of_rows_fit_bigtable() -> None:
    assert metric_row("sys.cpu") == b"msys.cpu"
    assert len(metric_row("é" * 4096)) < 100
