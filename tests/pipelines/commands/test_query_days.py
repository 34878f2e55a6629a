"""Points of a declared table and of its tables per day, as one table: query, series, copy, check, serve."""

from __future__ import annotations

import datetime
import json
import zoneinfo
from pathlib import Path
from typing import Any

import pytest
from google.cloud.bigtable.data import DeleteAllFromRow

import timebeam as library
from tests.support.any_store import AnyStore
from tests.support.commands import ingest, timebeam
from tests.support.data_client import open_table
from tests.support.parsed import place_of
from tests.support.servers.running_server import running
from timebeam.pipelines.serve.api import Api
from timebeam.pipelines.serve.web_application import ServerLimits
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.query.budget import Budget

DECLARATION = Path(__file__).resolve().parents[3] / "examples" / "tables" / "sensor.toml"
LOS_ANGELES = zoneinfo.ZoneInfo("America/Los_Angeles")
TODAY = datetime.datetime.now(LOS_ANGELES).date()
DAYS = [TODAY - datetime.timedelta(number) for number in (6, 5, 4, 3)]
"""The first two are in tables per day, and no longer in the table; the third is in both; the last is not."""

Points = dict[tuple[str, int], float]
"""Values by (meter, time in ms)."""


def midnight_ms(day: datetime.date) -> int:
    return int(datetime.datetime(day.year, day.month, day.day, tzinfo=LOS_ANGELES).timestamp()) * 1000


SENT: Points = {
    (str(meter), midnight_ms(day) + 900_000 * step): meter + 100 * number + step / 4
    for number, day in enumerate(DAYS)
    for meter in (7, 987654)
    for step in (0, 50, 91)
}
CORRECTED = {("7", midnight_ms(DAYS[2]) + 900_000 * 50): -1.5}
"""After the day was copied: the table has the newer value, the table of the day the older one."""
MODEL = SENT | CORRECTED


def within(points: Points, start_ms: int, end_ms: int, meter: str | None = None) -> Points:
    return {
        place: value
        for place, value in points.items()
        if start_ms <= place[1] <= end_ms and meter in (None, place[0])
    }


class Meters:
    """The tables of the declaration."""

    def __init__(self, bigtable: tuple[str, str], prefix: str, folder: Path) -> None:
        self.target, self.prefix, self.folder = Target(*bigtable), prefix, folder
        self.place = [f"--project={bigtable[0]}", f"--instance={bigtable[1]}"]
        self.names = [f"--tables={DECLARATION}", f"--table-prefix={prefix}"]
        self.flags = [*self.place, "--layout=table", *self.names]
        assert timebeam("tables", "create", *self.flags).code == 0

    def store(self, points: Points) -> None:
        path = self.folder / f"{len(list(self.folder.iterdir()))}.jsonl"
        records = [{"METER": meter, "TS": ms, "READING": value} for (meter, ms), value in points.items()]
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        assert not ingest(self.folder, *self.flags, "--format=records", "--input", path).letters

    def query(self, *flags: str) -> Points:
        ran = timebeam("query", "meter.reading", *self.flags, "--output=json-ms", "--aggregator=none", *flags)
        assert ran.code == 0, ran.err
        return points_of(json.loads(ran.out))


def points_of(results: list[dict[str, Any]]) -> Points:
    """The points of an answer of /api/query, or of `query --output json-ms`."""
    found: Points = {}
    for result in results:
        for time_ms, value in result["dps"].items():
            place = (result["tags"]["METER"].lstrip("0"), int(time_ms))
            assert place not in found, "a point comes twice"
            found[place] = value
    return found


@pytest.fixture(scope="module")
def meters(bigtable: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Meters:
    meters = Meters(bigtable, "days_", tmp_path_factory.mktemp("days"))
    meters.store(SENT)
    for day in DAYS[:3]:
        assert timebeam("rollup", *meters.flags, f"--day={day}").code == 0
    meters.store(CORRECTED)
    table = open_table(meters.target, "days_SENSOR")
    for meter in (7, 987654):
        for day in DAYS[:2]:
            key = b"%010d#%08d" % (meter, midnight_ms(day) // 100_000)
            assert table.read_row(key) is not None
            table.mutate_row(key, DeleteAllFromRow())
    return meters


@pytest.mark.parametrize(
    ("start_ms", "end_ms"),
    [
        (0, midnight_ms(TODAY)),
        (midnight_ms(DAYS[0]) + 1, midnight_ms(DAYS[1])),
        (midnight_ms(DAYS[1]) + 900_000, midnight_ms(DAYS[3]) - 1),
        (midnight_ms(DAYS[2]), midnight_ms(DAYS[3]) + 86_000_000),
    ],
)
@pytest.mark.parametrize("meter", [None, "7"])
def test_a_query_across_days(meters: Meters, start_ms: int, end_ms: int, meter: str | None) -> None:
    which = ["--full-scan"] if meter is None else [f"--tag=METER={meter}"]
    found = meters.query(f"--start={start_ms}ms", f"--end={end_ms}ms", *which)
    assert found == within(MODEL, start_ms, end_ms, meter)
    assert found


def test_series_of_days_alone(meters: Meters) -> None:
    ran = timebeam("series", "meter.reading", *meters.flags, "--output=json")
    listed = [series["tags"]["METER"] for series in json.loads(ran.out)]
    assert sorted(meter.lstrip("0") for meter in listed) == ["7", "987654"]


def test_a_copy_has_the_points_of_all_days(meters: Meters, tmp_path: Path) -> None:
    sink = AnyStore.create((meters.target.project, meters.target.instance), "days_to_", "heroic")
    flags = ["--from=table", *meters.names, "--to=heroic", *sink.layout_flags("to_"), "--start=0"]
    ran = timebeam("copy", *meters.place, *flags, "--dead-letters", tmp_path / "dead")
    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[-1].endswith("; verified")  # the daily rollups are copied too
    found = timebeam(
        *("query", "meter.reading", *sink.flags, "--start=0", "--aggregator=none", "--output=json-ms")
    )
    assert points_of(json.loads(found.out)) == MODEL


def test_the_server_reads_days(meters: Meters) -> None:
    place = place_of("serve", *meters.flags)
    api = Api(place.target, place.readable())
    budget = Budget(1_000_000, 1_000_000, 1_000_000, 1 << 30, 60.0)
    url = f"/api/query?start={midnight_ms(DAYS[0])}&ms=true&m=none:meter.reading{{METER=*}}"
    with running(api, ServerLimits(budget, 4, 8, 1 << 20)) as client:
        assert points_of(client.get(url).json()) == MODEL


def test_a_frame_of_days(meters: Meters) -> None:
    database = library.open(
        meters.target.project,
        meters.target.instance,
        store="table",
        tables=DECLARATION,
        table_prefix=meters.prefix,
    )
    table = database.query("meter.reading", start=0, full_scan=True).to_arrow()
    found = {
        (row["METER"].lstrip("0"), round(row["time"].timestamp() * 1000)): row["value"]
        for row in table.to_pylist()
    }
    assert found == MODEL
