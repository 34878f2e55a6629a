"""Every interval is written by the chunk that has its points alone, or by the shuffle, never by both."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.budget import examples
from tests.support.inputs.chunk_rows import DAY, HOUR, METRICS, START, TARGET, cut, row_keys
from tests.support.plain.rolled import interval
from timebeam.schema.core.rows import WHOLE_TABLE
from timebeam.schema.rollup.config_json import parse_config
from timebeam.schema.rollup.day_plan import RollupPart, plan
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions
from timebeam.transforms.ingest.series_keys import UidOptions
from timebeam.transforms.rollup.rollup_job import RollupJob
from timebeam.transforms.rollup.rollups_in_tables import shared_intervals

GROUPS = [{"metrics": ["*"], "keepTags": ["dc"], "aggregators": ["sum"]}]


def job_of(salt_width: int, start: int, end: int, *, one_table: bool = False, **ours: object) -> RollupJob:
    """A job with short and long intervals."""
    default = interval("1m", "1h", table="tsdb", defaultInterval=True)
    others = [interval("5m", "1d"), interval("1h", "1n"), interval("2h", "1n"), interval("1d", "1y")]
    if one_table:
        others = [one | {"preAggregationTable": one["table"]} for one in others]
    config = parse_config(
        json.dumps(
            {
                "aggregationIds": {"sum": 0, "count": 1},
                "intervals": [default, *others],
                "timebeam": {"preAggregates": GROUPS, **ours},
            }
        )
    )
    layout = OpenTsdb(OpenTsdbOptions(salt_width=salt_width, salt_buckets=3))
    parts = [RollupPart(plan(config, start * 1000, end * 1000))]
    return RollupJob(TARGET, layout, config, parts, UidOptions())


@given(
    st.integers(0, 2**32),
    st.sampled_from([0, 1]),
    st.sampled_from([1, 500, 5_000, 10**9]),
    st.sampled_from([(0, DAY), (1800, 26 * HOUR + 60), (HOUR, 9 * HOUR), (0, 2 * DAY)]),
)
@examples(60)
def test_each_interval_is_written_in_one_way(seed, salt_width, chunk_bytes, window):
    rng = random.Random(seed)
    job = job_of(salt_width, *(START + one for one in window))
    rows = row_keys(job.layout, 50, rng.choice([1, 8]))
    samples = [(key, rng.randrange(400)) for key in rows if rng.random() < 0.4] + [(b"", 7)]
    (part,) = job.parts
    start_s, end_s = part.plan.start_ms // 1000, part.plan.end_ms // 1000
    chunks = [
        one
        for one in cut(job.layout, samples, chunk_bytes, start_s, end_s)
        if next(iter(METRICS)) in one.metrics
    ]
    shared = shared_intervals(job, part.plan, chunks)
    for whole in part.plan.intervals:
        length = whole.interval.seconds
        for output in job.tables(whole.interval, "a"):
            own = [(chunk, job.in_place(whole, output, chunk)) for chunk in chunks]
            others = [
                one for one in shared if (one.interval, one.table) == (whole.interval.interval, output.table)
            ]
            for at in range(whole.start_s, whole.end_s, length):
                alone = [chunk for chunk, mine in own if mine.start_s <= at < mine.end_s]
                assert bool(alone) + sum(one.start_s <= at < one.end_s for one in others) == 1
                for chunk in alone:
                    assert chunk.start_s <= at
                    assert at + length <= chunk.end_s
                    assert chunk.keys == WHOLE_TABLE or (not output.of_groups and HOUR % length == 0)
                assert len(alone) <= 1 or all(chunk.keys != WHOLE_TABLE for chunk in alone)


@pytest.mark.parametrize("settings_of_job", [{"one_table": True}, {"tagRaw": True}])
def test_rows_whose_series_cannot_be_told_are_shuffled(settings_of_job):
    job = job_of(0, START, START + DAY, **settings_of_job)
    chunks = cut(job.layout, [], 10**9, START, START + DAY)[:1]
    tables = {one.table for one in shared_intervals(job, job.parts[0].plan, chunks)}
    singles = {table for table in tables if table.startswith("rollup-")}
    assert singles == {"rollup-5m", "rollup-1h", "rollup-2h", "rollup-1d"}
    assert tables == singles  # in tables of their own they are written at once
