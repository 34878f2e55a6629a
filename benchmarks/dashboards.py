"""The points of dashboards, and the queries of them that serving.py measures.

| metric | points |
|---|---|
| `web.load` | 100 series of 6 hours at 10 s, decimals |
| `net.bytes` | 1,000 series of 6 hours at 1 s, integers |
| `room.temperature` | a year of minutes of one series, decimals, rolled up too |

A scale below 1 has fewer series of `net.bytes` and fewer days. Rows are packed.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

from benchmarks.bench import TARGET, run_child
from timebeam.schema.core.selection import Selection

START_S = 1_420_070_400  # 2015-01-01
HOUR_S, _DAY_S = 3600, 86_400
_HOURS = 6
_FILE_POINTS = 5_000_000
_ROLLUPS = {
    "aggregationIds": {"sum": 0, "count": 1, "min": 2, "max": 3},
    "intervals": [
        {"table": "tsdb", "preAggregationTable": "preagg", "interval": "1m", "rowSpan": "1h"}
        | {"defaultInterval": True},
        {"table": "rollup-1h", "preAggregationTable": "preagg-1h", "interval": "1h", "rowSpan": "1n"},
        {"table": "rollup-1d", "preAggregationTable": "preagg-1d", "interval": "1d", "rowSpan": "1y"},
    ],
}


@dataclasses.dataclass(frozen=True)
class Query:
    """A query, as a command and as a request.

    Attributes:
      seconds: of its range, from `start_s` on.
      tags: `key=value`, which group.
      turns: how many times as often as the others, since it is short.
    """

    name: str
    metric: str
    seconds: int
    aggregator: str
    downsample: str = ""
    tags: tuple[str, ...] = ()
    rollups: bool = False
    turns: int = 1
    start_s: int = START_S

    @property
    def end_s(self) -> int:
        """Its last second."""
        return self.start_s + self.seconds - 1

    @property
    def arguments(self) -> list[str]:
        """The command, without its layout."""
        words = ["query", self.metric, "--start", str(self.start_s), "--end", str(self.end_s)]
        words += ["--aggregator", self.aggregator, "--output", "json"]
        words += ["--downsample", self.downsample] if self.downsample else []
        words += [f"--tag={tag}" for tag in self.tags]
        return words + [f"--group-by={tag.partition('=')[0]}" for tag in self.tags]

    @property
    def target(self) -> str:
        """The target of the request."""
        usage = "" if self.rollups else "rollup_raw"
        braces = f"{{{','.join(self.tags)}}}" if self.tags else ""
        m = ":".join(filter(None, (self.aggregator, self.downsample, usage, self.metric + braces)))
        return "/api/query?" + urlencode({"start": self.start_s, "end": self.end_s, "m": m})

    @property
    def selection(self) -> Selection:
        """The points that it reads."""
        tags = dict(tag.split("=") for tag in self.tags)
        values = {key: frozenset() if value == "*" else frozenset({value}) for key, value in tags.items()}
        return Selection(self.metric, values, self.start_s * 1000, self.end_s * 1000 + 999)


HOSTS, SECONDS, YEAR = "web.load", "net.bytes", "room.temperature"
HOST_COUNT = 100
"""Series of the metric `HOSTS`."""


def queries(series: int, days: int) -> list[Query]:
    """The queries; `series` of the metric `SECONDS`, so many days of a year.

    Those of an hour ask for the last one: of an earlier one, as a TSD's, the points of the hour behind it are
    read too, for interpolation and for the tags of the answer.
    """
    many, last_s = f"{series:,} series", START_S + (_HOURS - 1) * HOUR_S
    return [
        Query("5m-avg by host, 6 h", HOSTS, _HOURS * HOUR_S, "sum", "5m-avg", ("host=*",), turns=3),
        Query("one series, raw, 6 h", HOSTS, _HOURS * HOUR_S, "sum", tags=("host=h000",), turns=10),
        Query("1m-avg sum by dc, 6 h", HOSTS, _HOURS * HOUR_S, "sum", "1m-avg", ("dc=*",), turns=3),
        Query(f"{many}, 1m-avg sum, 1 h", SECONDS, HOUR_S, "sum", "1m-avg", start_s=last_s),
        Query(
            f"{many}, 10m-max by host, 1 h", SECONDS, HOUR_S, "sum", "10m-max", ("host=*",), start_s=last_s
        ),
        Query("year of one series, 1d-avg", YEAR, days * _DAY_S, "sum", "1d-avg"),
        Query("the same with rollups", YEAR, days * _DAY_S, "sum", "1d-avg", rollups=True, turns=10),
        Query(f"{many}, 10m-avg sum, 6 h", SECONDS, _HOURS * HOUR_S, "sum", "10m-avg"),
    ]


def _lines(series: int, days: int) -> Iterator[str]:
    """The points as `put` lines."""
    chance = random.Random(1)
    for metric, count, step in ((HOSTS, HOST_COUNT, 10), (SECONDS, series, 1)):
        tails = [f" host=h{number:03} dc=d{number % 4}\n" for number in range(count)]
        values = [f"{chance.randrange(1_000_000)}" for _ in range(9973)]
        if metric == HOSTS:
            values = [f"{value[:-3] or 0}.{value[-3:]}" for value in values]
        number = 0
        for time_s in range(START_S, START_S + _HOURS * HOUR_S, step):
            for tail in tails:
                number = (number + 7) % len(values)
                yield f"put {metric} {time_s} {values[number]}{tail}"
    for time_s in range(START_S, START_S + days * _DAY_S, 60):
        yield f"put {YEAR} {time_s} {chance.randrange(4000) / 100} site=a\n"


def load(folder: Path, series: int, days: int) -> list[str]:
    """Stores the points and the rollups of the year; returns the options of the layout."""
    place = ["--layout=opentsdb", f"--project={TARGET.project}", f"--instance={TARGET.instance}"]
    config = folder / "rollups.json"
    config.write_text(json.dumps(_ROLLUPS))
    run_child(["-m", "timebeam", "tables", "create", *place, f"--rollup-config={config}"])
    path, dead = folder / "points.txt", f"--dead-letters={folder / 'dead'}"
    ingest = ["ingest", *place, "--format=opentsdb-text", "--bigtable-writer=direct", "--auto-create-metrics"]
    lines = _lines(series, days)
    while True:
        with path.open("w") as stream:
            count = 0
            for count, line in enumerate(lines, 1):
                stream.write(line)
                if count == _FILE_POINTS:
                    break
        if not count:
            break
        run_child(["-m", "timebeam", *ingest, f"--input={path}", dead])
        path.unlink()
    period = [f"--start={START_S}", f"--end={START_S + days * _DAY_S}"]
    run_child(["-m", "timebeam", "rollup", *place, f"--rollup-config={config}", *period, dead])
    return place
