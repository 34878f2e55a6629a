"""A day of raw rows to rollup rows, as a job does it: read, decode, accumulate, merge, encode."""

from __future__ import annotations

import datetime
import json
import random

import numpy as np

from tests.schema.rollup.plain_rollup import Point, plain_summaries
from tests.schema.rollup.rollup_points import rows_of
from tests.schema.stores.plain_opentsdb import number
from tests.support.decoded import decode_row
from timebeam.schema.bits.times import day_range
from timebeam.schema.core.contract import pack_row
from timebeam.schema.core.point_fragments import Name, Packing
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.rows import Row
from timebeam.schema.rollup.accumulate import Accumulator
from timebeam.schema.rollup.buckets import Grouping
from timebeam.schema.rollup.config_json import parse_config
from timebeam.schema.rollup.day_plan import plan
from timebeam.schema.rollup.rollup_config import OF_GROUP
from timebeam.schema.stores.opentsdb.keys import parse_key, row_key
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.rollup_tables import Form, decode_rollups, encode_points, encode_rollups

LAYOUT = OpenTsdb()
SERIES = [Series.of("sys.cpu", {"host": host, "dc": dc}) for host, dc in ("ax", "bx", "cy")]
CONFIG = parse_config(
    json.dumps(
        {
            "aggregationIds": {"sum": 0, "count": 1, "min": 2, "max": 3, "last": 4, "first": 6},
            "intervals": [
                {
                    "table": f"tsdb{end}",
                    "preAggregationTable": f"tsdb-preagg{end}",
                    "interval": interval,
                    "rowSpan": span,
                    "defaultInterval": not end,
                }
                for end, interval, span in (
                    ("", "1m", "1h"),
                    ("-10m", "10m", "1d"),
                    ("-1h", "1h", "1n"),
                    ("-1d", "1d", "1y"),
                )
            ],
            "timebeam": {
                "preAggregates": [{"metrics": ["sys.*"], "keepTags": ["dc"], "aggregators": [*OF_GROUP]}]
            },
        }
    )
)
DAY = datetime.date(2016, 2, 29)
ZONE = "Asia/Kolkata"


def points_around(day_ms: tuple[int, int]) -> list[Point]:
    """Points of three days, with gaps, ms, integers, floats and negative numbers."""
    chance = random.Random(7)
    first, last = day_ms[0] - 86_400_000, day_ms[1] + 86_400_000
    found = {}
    for series in SERIES:
        for _ in range(1500):
            time = chance.randrange(first, last)
            time -= chance.choice((0, time % 1000))
            value = chance.choice(
                (chance.randrange(-(2**55), 2**55), chance.randrange(99), chance.gauss(0, 9))
            )
            found[series, time] = value
    return [(series, time, value) for (series, time), value in found.items()]


def uid_of(name: Name) -> bytes:
    return (sum(name.text.encode()) * 7 + len(name.kind)).to_bytes(3, "big")


def key_of(series: Series):
    return LAYOUT.series_key(series, {name: uid_of(name) for name in LAYOUT.uids.names(series)})


def raw_table(points: list[Point]) -> dict[bytes, tuple[Row, Series]]:
    batch = PointBatch.of([(series, time, True, value) for series, time, value in points], 1)
    keys = [key_of(series) for series in batch.series]
    by_key = {(key.head, key.tail): series for key, series in zip(keys, batch.series, strict=True)}
    rows = {}
    for fragment in LAYOUT.encode(batch, keys).fragments:
        row = pack_row(LAYOUT, fragment.table, fragment.key, [fragment.packed], Packing.COMPACTED)
        rows[fragment.key] = row, by_key[fragment.key[:3], fragment.key[7:]]
    return rows


def rolled_up(table: dict[bytes, tuple[Row, Series]]):
    """The rollup rows of the day: (table, row key) to cells."""
    planned = plan(CONFIG, *day_range(DAY, ZONE))
    batches: list[PointBatch] = []
    for series in SERIES:
        for base_s in planned.raw_bases():
            key = row_key(key_of(series), base_s)
            if key in table:
                batch = decode_row(LAYOUT, *table[key]).batch
                wanted = (batch.times_ms >= planned.start_ms) & (batch.times_ms < planned.end_ms)
                batches.append(batch.take(np.flatnonzero(wanted)))
    random.Random(1).shuffle(batches)
    held = Accumulator([part.interval.seconds for part in planned.intervals], ends=CONFIG.has_ends)
    for batch in batches:
        held.add(batch)
    accumulated = held.take()
    assert accumulated is not None
    by_length = accumulated.by_length()
    ids = CONFIG.aggregation_ids
    rows = {}
    for part in planned.intervals:
        interval = part.interval
        ours = by_length[interval.seconds].within(part.start_s * 1000, part.end_s * 1000)
        if not interval.is_default:
            stored = {ids[name]: name for name in CONFIG.computed}
            for row in rows_of(encode_rollups(ours, interval, stored, Form.FIXED)):
                key = row_key(key_of(CONFIG.rollup_series(ours.series[row.series])), row.base_s)
                rows[interval.table, key] = row.cells
        (groups,) = CONFIG.pre_aggregates
        grouped = ours.of_groups(Grouping.of([groups.group(series) for series in ours.series]))
        for aggregator in groups.aggregators:
            if interval.is_default:
                found = encode_points(grouped, aggregator, Form.FIXED)
            else:
                stored = {ids[name]: what for name, what in OF_GROUP[aggregator].items()}
                found = encode_rollups(grouped, interval, stored, Form.FIXED)
            for row in rows_of(found):
                series = CONFIG.group_series(grouped.series[row.series], aggregator)
                rows[interval.pre_aggregation_table, row_key(key_of(series), row.base_s)] = row.cells
    return planned, rows


def read_back(rows, table: str, series: Series, interval) -> dict[tuple[str, int], object]:
    """(aggregator, start in s) to number, of one series in one table."""
    names = {number: name for name, number in CONFIG.aggregation_ids.items()}
    key_of_series, found = key_of(series), {}
    for (one, key), cells in rows.items():
        base = parse_key(LAYOUT.options, key).base_s
        if one == table and key == row_key(key_of_series, base):
            decoded = decode_rollups(cells, base, interval, CONFIG.aggregation_ids)
            assert decoded.corruption == []
            none = decoded.bits[:0]
            values = PointBatch((), none, none, none.astype(bool), decoded.kinds, decoded.bits, none)
            for i, (which, start) in enumerate(
                zip(decoded.ids.tolist(), decoded.starts_s.tolist(), strict=True)
            ):
                found[names[which], start] = number(values.value(i))
    return found


def test_a_day_of_a_zone_is_rolled_up_from_raw_rows():
    points = points_around(day_range(DAY, ZONE))
    planned, rows = rolled_up(raw_table(points))
    assert [part.interval.interval for part in planned.intervals] == ["1m", "10m", "1h", "1d"]
    for part in planned.intervals[1:]:
        interval = part.interval
        day = [
            (series, time, value)
            for series, time, value in points
            if part.start_s <= time // 1000 // interval.seconds * interval.seconds < part.end_s
        ]
        expected = plain_summaries(day, interval.seconds)
        for series in SERIES:
            assert read_back(rows, interval.table, series, interval) == {
                (name, start // 1000): value
                for (one, start), summary in expected.items()
                if one == series
                for name, value in summary.items()
            }
        of_groups = plain_summaries(
            # Of equal times in a group only the order of first and last is open, which is not stored.
            [(Series.of("sys.cpu", {"dc": dict(s.tags)["dc"]}), time, value) for s, time, value in day],
            interval.seconds,
        )
        for group in {group for group, _ in of_groups}:
            for aggregator, numbers in OF_GROUP.items():
                series = CONFIG.group_series(group, aggregator)
                assert read_back(rows, interval.pre_aggregation_table, series, interval) == {
                    (name, start // 1000): summary[what]
                    for (one, start), summary in of_groups.items()
                    if one == group
                    for name, what in numbers.items()
                }


def test_a_second_run_writes_the_same_cells():
    points = points_around(day_range(DAY, ZONE))
    _, rows = rolled_up(raw_table(points))
    _, again = rolled_up(raw_table(random.Random(3).sample(points, len(points))))
    assert again == rows


def test_only_the_rows_of_the_plan_are_written():
    planned, rows = rolled_up(raw_table(points_around(day_range(DAY, ZONE))))
    for part in planned.intervals:
        bases = set(part.bases_s)
        tables = {part.interval.pre_aggregation_table}
        if not part.interval.is_default:
            tables.add(part.interval.table)
        written = {parse_key(LAYOUT.options, key).base_s for table, key in rows if table in tables}
        assert written == bases
    assert not [key for table, key in rows if table == "tsdb"]
