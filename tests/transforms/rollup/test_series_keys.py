"""Rollup rows of single series have the keys of their points; of what chunks share, names decide."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from tests.support.plain.rolled import interval
from timebeam.schema.layouts import Row, Selected, SeriesKey
from timebeam.schema.layouts.opentsdb.keys import OpenTsdbOptions
from timebeam.schema.layouts.opentsdb.layout import OpenTsdb
from timebeam.schema.points import Series
from timebeam.schema.rollup.buckets import empty
from timebeam.schema.rollup.config_json import parse_config
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.ingest.assign import SeriesKeys, UidOptions
from timebeam.transforms.rollup.job import RollupJob, RollupSeriesKeys

ALONE, TWICE = Series("m", (("host", "alone"),)), Series("m", (("host", "twice"),))
BY_NAME = SeriesKey(b"\0\0\1", b"named")


class NamedKeys(SeriesKeys):
    """Gives every series one key, and notes the series."""

    def __init__(self) -> None:
        self.asked: list[Series] = []

    def series_keys(self, series: Sequence[Series], *_: object) -> list[SeriesKey]:
        self.asked += series
        return [BY_NAME for _ in series]


def selected(series: Series, salt: bytes, hour: int, tail: bytes) -> Selected:
    return Selected(Row("tsdb", salt + b"\0\0\1" + (hour * 3600).to_bytes(4, "big") + tail, []), series)


@pytest.mark.parametrize("salt", [b"", b"\7"])
@pytest.mark.parametrize("tag_raw", [False, True])
def test_names_are_looked_up_with_tag_raw_and_for_what_chunks_share(salt: bytes, tag_raw: bool) -> None:
    intervals = [interval("1m", "1h", table="tsdb", defaultInterval=True), interval("1h", "1d")]
    config = {"aggregationIds": {"sum": 0, "count": 1}, "intervals": intervals}
    layout = OpenTsdb(OpenTsdbOptions(salt_width=len(salt)))
    parsed = parse_config(json.dumps(config | {"timebeam": {"tagRaw": tag_raw}}))
    job = RollupJob(Target("p", "i"), layout, parsed, [], UidOptions())
    by_name = NamedKeys()
    names = RollupSeriesKeys(job, by_name)
    rows = [
        selected(ALONE, salt, 1, b"\0\0\1\0\0\1"),
        selected(TWICE, salt, 1, b"\0\0\1\0\0\2"),
        selected(ALONE, salt, 2, b"\0\0\1\0\0\1"),
        selected(TWICE, salt, 2, b"\0\0\1\0\0\3"),
        selected(TWICE, salt, 3, b"\0\0\1\0\0\2"),
    ]
    assert list(names.noted(rows)) == rows
    keys, refused = names.single(empty((ALONE, TWICE), 60), is_shared=False)
    assert not refused
    if tag_raw:
        assert keys == [BY_NAME, BY_NAME]
    else:
        tails = [b"\0\0\1\0\0\1", b"\0\0\1\0\0\2"]
        assert keys == [SeriesKey(salt + b"\0\0\1", tail) for tail in tails]
        assert not by_name.asked
    assert names.single(empty((ALONE, TWICE), 60), is_shared=True) == ([BY_NAME, BY_NAME], [])
    assert len(by_name.asked) == 2
