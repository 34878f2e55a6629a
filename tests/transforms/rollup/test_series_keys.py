"""Rollup rows of single series have the keys of their points; with `tag_raw` those of their names."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from tests.support.plain.rolled import interval
from timebeam.schema.core.points import Series, SeriesKey
from timebeam.schema.core.rows import Row
from timebeam.schema.core.selection import ArchiveRead, Selected
from timebeam.schema.rollup.config_json import parse_config
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.ingest.series_keys import SeriesKeys, UidOptions
from timebeam.transforms.rollup.rollup_job import RollupJob, RollupSeriesKeys

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
def test_each_key_has_a_series_and_names_are_looked_up_with_tag_raw(salt: bytes, tag_raw: bool) -> None:
    intervals = [interval("1m", "1h", table="tsdb", defaultInterval=True), interval("1h", "1d")]
    config = {"aggregationIds": {"sum": 0, "count": 1}, "intervals": intervals}
    layout = OpenTsdb(OpenTsdbOptions(salt_width=len(salt), archive=True))
    parsed = parse_config(json.dumps(config | {"timebeam": {"tagRaw": tag_raw}}))
    job = RollupJob(Target("p", "i"), layout, parsed, [], UidOptions())
    by_name = NamedKeys()
    names = RollupSeriesKeys(job, by_name)
    late = selected(TWICE, salt, 4, b"\0\0\1\0\0\3")
    row = Row("archive", salt + b"\0\0\1\1" + bytes(4) + b"\0\0\1\0\0\3", [])
    of_archive = Selected(row, TWICE, ArchiveRead([late.row], 7))
    rows = [
        selected(ALONE, salt, 1, b"\0\0\1\0\0\1"),
        selected(TWICE, salt, 1, b"\0\0\1\0\0\2"),
        selected(ALONE, salt, 2, b"\0\0\1\0\0\1"),
        selected(TWICE, salt, 2, b"\0\0\1\0\0\3"),
        selected(TWICE, salt, 3, b"\0\0\1\0\0\2"),
        of_archive,
    ]
    noted = [each for each in names.noted(rows) if isinstance(each, Selected)]
    assert [each.row for each in noted] == [each.row for each in rows]
    other = TWICE._replace(resources=(("uids", (salt + b"\0\0\1\0\0\1\0\0\3").hex()),))
    assert [each.series for each in noted] == [ALONE, TWICE, ALONE, other, TWICE, other]
    assert noted[-1].archived == ArchiveRead([late.row], 7)
    keys, rejected = names.single([ALONE, TWICE, other])
    assert not rejected
    if tag_raw:
        assert (keys, len(by_name.asked)) == ([BY_NAME] * 3, 3)
        assert by_name.asked[1] == by_name.asked[2]  # both in one row
    else:
        tails = [b"\0\0\1\0\0\1", b"\0\0\1\0\0\2", b"\0\0\1\0\0\3"]
        assert (keys, by_name.asked) == ([SeriesKey(salt + b"\0\0\1", tail) for tail in tails], [])
