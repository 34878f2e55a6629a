"""What batch jobs read: every row in one chunk, however the service samples the table."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.inputs.chunk_rows import DAY, HOUR, METRICS, START, cut, row_keys
from timebeam.schema.core.rows import WHOLE_TABLE
from timebeam.schema.stores.opentsdb import keys
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions
from timebeam.transforms.read.chunks import Chunk, hour_chunks


def holds(layout: OpenTsdb, chunk: Chunk, key: bytes) -> bool:
    """Whether a chunk has a row, by what a chunk says of itself."""
    parts = keys.parse_key(layout.options, key)
    first = chunk.start_s - chunk.start_s % HOUR
    start, end = chunk.keys
    in_time = first <= parts.base_s < chunk.end_s
    return parts.metric in chunk.uids and in_time and start <= key and (not end or key < end)


@given(
    st.integers(0, 2**32),
    st.sampled_from([0, 1]),
    st.integers(0, 40),
    st.integers(1, 30),
    st.sampled_from([1, 500, 5_000, 10**9]),
    st.sampled_from([(0, 30 * HOUR), (1800, 26 * HOUR + 60), (0, DAY), (HOUR, 2 * HOUR)]),
    st.sampled_from([1, 2, 50]),
)
def test_every_row_is_in_one_chunk(seed, salt_width, hours, series, chunk_bytes, window, most):
    rng = random.Random(seed)
    layout = OpenTsdb(OpenTsdbOptions(salt_width=salt_width, salt_buckets=3))
    rows = row_keys(layout, hours, series)
    samples = [(key, rng.randrange(400)) for key in rows if rng.random() < 0.4] + [(b"", 7)]
    start, end = (START + one for one in window)
    found = cut(layout, samples, chunk_bytes, start, end, most)
    for key in rows:
        base_s = keys.parse_key(layout.options, key).base_s
        wanted = base_s + HOUR > start and base_s < end
        assert sum(holds(layout, chunk, key) for chunk in found) == wanted
    for chunk in found:
        assert start <= chunk.start_s < chunk.end_s <= end
        assert chunk.start_s // DAY == (chunk.end_s - 1) // DAY
        one_hour = chunk.start_s // HOUR == (chunk.end_s - 1) // HOUR
        assert chunk.keys == WHOLE_TABLE or (one_hour and len(chunk.uids) == 1)
        assert chunk.uids == tuple(METRICS[name] for name in chunk.metrics)
        assert chunk.start_s == start or chunk.start_s % HOUR == 0


def test_a_small_day_is_one_chunk_and_a_large_hour_several():
    layout = OpenTsdb()
    rows = row_keys(layout, 24, 10)
    small = cut(layout, [(key, 100) for key in rows], 10**6, START, START + DAY)
    assert small == [Chunk(tuple(METRICS), tuple(METRICS.values()), START, START + DAY, WHOLE_TABLE)]
    larger = cut(layout, [(key, 100) for key in rows], 10**5, START, START + DAY)
    assert larger == [
        Chunk((name,), (uid,), START, START + DAY, WHOLE_TABLE) for name, uid in METRICS.items()
    ]
    large = cut(layout, [(key, 100) for key in rows], 300, START, START + DAY)
    of_an_hour = [one for one in large if (one.metrics, one.start_s) == (("a",), START + 5 * HOUR)]
    assert len(of_an_hour) == 4  # ten rows of a hundred bytes, three of them to a chunk


def test_small_metrics_of_one_kind_share_chunks():
    many = {f"m{number:03}": number.to_bytes(3, "big") for number in range(1, 121)}

    def cuts(days: int, **options: Any) -> list[tuple[int, int]]:
        found = hour_chunks([(b"", 10**7)], OpenTsdb(), many, START, START + days * DAY, **options)
        return [(one.start_s, len(one.metrics)) for one in found]

    assert cuts(1) == [(START, 50), (START, 50), (START, 20)]
    assert cuts(2)[:3] == [(START, 50), (START + DAY, 50), (START, 50)]
    assert sorted(size for _, size in cuts(1, kind_of=lambda name: name < "m031")) == [30, 40, 50]


@pytest.mark.parametrize("salt", [b"", b"\0"])
def test_metrics_between_two_samples_that_are_far_apart_are_not_small(salt):
    """A hundred metrics, and two samples: one behind the first ten, with a gigabyte, one at the end."""
    many = {f"m{number:03}": number.to_bytes(3, "big") for number in range(1, 101)}
    layout = OpenTsdb(OpenTsdbOptions(salt_width=len(salt), salt_buckets=1))
    key = salt + many["m010"] + START.to_bytes(4, "big") + bytes(6)
    samples = [(key, 10**9), (b"", 10**6)]
    found = [chunk.metrics for chunk in hour_chunks(samples, layout, many, START, START + DAY)]
    alone = {names[0] for names in found if len(names) == 1}
    assert alone == set(list(many)[:10])
    assert sorted(len(names) for names in found if len(names) > 1) == [40, 50]
    assert {name for names in found for name in names} == set(many)


def test_of_a_long_table_a_day_counts():
    """Two metrics of 400 MB, in a table that has a hundred days: a day of theirs is four megabytes."""
    keys_of = [
        uid + at.to_bytes(4, "big") + bytes(6) for uid in METRICS.values() for at in (START, START + 99 * DAY)
    ]
    samples = [(key, 200_000_000) for key in keys_of]
    (found,) = hour_chunks(samples, OpenTsdb(), METRICS, START + DAY, START + 2 * DAY)
    assert found.metrics == tuple(METRICS)
    larger = [(key, 2_000_000_000) for key in keys_of]
    assert len(list(hour_chunks(larger, OpenTsdb(), METRICS, START + DAY, START + 2 * DAY))) == 2
