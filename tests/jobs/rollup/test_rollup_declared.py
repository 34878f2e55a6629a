"""`timebeam rollup` of declared tables: tables per day, and declared rollups, against the emulator."""

from __future__ import annotations

import collections
import datetime
import json
import random
import struct
import zoneinfo
from pathlib import Path
from typing import Any

import pytest

from tests.support.plain.rollup_declared import DECLARATION, Place
from timebeam.transforms.bigtable.existing_tables import table_names

ZONE = "America/Los_Angeles"
TODAY = datetime.datetime.now(zoneinfo.ZoneInfo(ZONE)).date()


def at(day: datetime.date, hour: int, minute: int = 0) -> int:
    """ms of a local time."""
    local = datetime.datetime.combine(day, datetime.time(hour, minute), zoneinfo.ZoneInfo(ZONE))
    return int(local.timestamp() * 1000)


@pytest.fixture
def place(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> Place:
    return Place(bigtable, prefix, tmp_path)


def test_a_day_is_copied_and_late_readings_arrive(place: Place) -> None:
    day, before = TODAY - datetime.timedelta(1), TODAY - datetime.timedelta(2)
    place.send(
        [
            {"METER": meter, "TS": at(one, hour), "REV": 0, "READING": f"{meter}.{hour}0"}
            for meter in (7, 8)
            for one in (before, day, TODAY)
            for hour in (0, 12, 23)
        ]
    )
    assert place.rollup().code == 0  # yesterday, in Los Angeles
    name = f"SENSOR_{day:%Y%m%d}"
    piece = b"#%d" % (at(day, 0) // 100_000)
    wanted = {key: cells for key, cells in place.rows("SENSOR").items() if key.endswith(piece)}
    assert len(wanted) == 2
    assert place.rows(name) == wanted
    # A late reading, and a correction of another one by a higher revision.
    place.send([{"METER": 7, "TS": at(day, 5), "REV": 0, "READING": "late"}], 2)
    place.send([{"METER": 8, "TS": at(day, 12), "REV": 1, "READING": "corrected"}], 3)
    assert place.rollup(f"--day={day}").code == 0
    found = place.rows(name)
    assert found == {key: cells for key, cells in place.rows("SENSOR").items() if key.endswith(piece)}
    texts = {value for cells in found.values() for _, _, value in cells}
    assert {b"late", b"corrected"} <= texts
    assert place.prefix + f"SENSOR_{before:%Y%m%d}" not in table_names(place.target)
    assert place.rollup(f"--day={day}", "--lookback-days=1").code == 0
    assert len(place.rows(f"SENSOR_{before:%Y%m%d}")) == 2


def test_tables_of_old_days_are_dropped_and_no_others(place: Place) -> None:
    old, young = TODAY - datetime.timedelta(40), TODAY - datetime.timedelta(20)
    text = DECLARATION.replace('expire = "30d"\n', "")
    place.file.write_text(text)
    for day in (old, young):
        assert place.rollup(f"--day={day}").code == 0
    place.file.write_text(DECLARATION)
    dry = place.rollup("--dry-run")
    assert f"would drop {place.prefix}SENSOR_{old:%Y%m%d}" in dry.out
    assert place.prefix + f"SENSOR_{old:%Y%m%d}" in table_names(place.target)
    ran = place.rollup()
    assert (ran.code, f"dropped {place.prefix}SENSOR_{old:%Y%m%d}" in ran.out) == (0, True)
    mine = {name for name in table_names(place.target) if name.startswith(place.prefix)}
    yesterday = TODAY - datetime.timedelta(1)
    days = {f"{place.prefix}SENSOR_{day:%Y%m%d}" for day in (young, yesterday)}
    assert mine == {f"{place.prefix}{name}" for name in ("SENSOR", "EVENT", "EVENT_1D", "timebeam")} | days
    ran = place.rollup(f"--day={old}")
    assert (ran.code, "older than the 30 days" in ran.err) == (2, True), ran.err


def sums(records: list[dict[str, Any]], day: datetime.date) -> dict[bytes, dict[bytes, float]]:
    """What the table of rollups holds for a day, by key and qualifier."""
    values = collections.defaultdict(list)
    start, end = at(day, 0), at(day + datetime.timedelta(1), 0)
    for record in records:
        if start <= record["TS"] < end:
            values[f"{record['SITE']}#{start}".encode()].append(record["WEIGHT"])
    return {
        key: {b"sum": sum(some), b"count": len(some), b"min": min(some), b"max": max(some)}
        for key, some in values.items()
    }


def stored(place: Place) -> dict[bytes, dict[bytes, float]]:
    found: dict[bytes, dict[bytes, float]] = {}
    for key, cells in place.rows("EVENT_1D").items():
        for qualifier, timestamp_ms, value in cells:
            number = struct.unpack(">d", value)[0] if qualifier == b"max" else float(value)
            assert timestamp_ms == int(key.split(b"#")[1])
            assert qualifier not in found.setdefault(key, {})
            found[key][qualifier] = number
    return found


def test_declared_rollups_of_local_days(place: Place) -> None:
    day = datetime.date(2026, 3, 8)  # of 23 hours in Los Angeles
    rng = random.Random(1)
    start, end = at(day - datetime.timedelta(1), 0), at(day + datetime.timedelta(2), 0)
    records = [
        {
            "SITE": f"s{n % 3}",
            "KIND": f"k{n % 2}",
            "TS": rng.randrange(start, end),
            "WEIGHT": rng.randrange(-50, 50) / 4,
        }
        for n in range(400)
    ]
    records += [{**records[0], "WEIGHT": 1000.25}]  # of the same series and instant
    place.file.write_text(DECLARATION.replace('expire = "30d"\n', ""))
    place.send([{**record, "METER": 1, "REV": 0} for record in records])
    assert at(day + datetime.timedelta(1), 0) - at(day, 0) == 23 * 3_600_000
    assert place.rollup(f"--day={day}").code == 0
    assert stored(place) == sums(records, day)
    assert place.rollup(f"--day={day}").code == 0
    assert stored(place) == sums(records, day)
    # A stray rollup of the day goes, one of another day stays; so do the others' rows.
    place.send([{"SITE": "s0", "KIND": "late", "TS": at(day, 22), "WEIGHT": -99, "METER": 1, "REV": 0}], 2)
    place.send([{"SITE": "s0", "KIND": "odd", "TS": at(day, 21), "WEIGHT": "heavy", "METER": 1, "REV": 0}], 3)
    late = [*records, {"SITE": "s0", "TS": at(day, 22), "WEIGHT": -99}]
    ran = place.rollup(f"--start={at(day, 0)}", f"--end={at(day, 23)}", "--summary=json")
    assert (ran.code, json.loads(ran.out.splitlines()[-1])["rejected"]) == (0, {"bad-number": 1}), ran.out
    assert stored(place) == sums(late, day)


def test_nothing_to_do_is_wrong_usage(place: Place) -> None:
    place.file.write_text(DECLARATION[: DECLARATION.index("[layout.sensor_day]")])
    ran = place.rollup()
    assert (ran.code, "declares neither tables per day nor rollups" in ran.err) == (2, True)
    ran = place.rollup("--changed")
    assert (ran.code, "--lookback-days" in ran.err) == (2, True)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ('source = "event"', 'source = "nothing"', "source = 'nothing' is not a layout of this file"),
        ('value = "WEIGHT"', 'value = "HEIGHT"', "value = 'HEIGHT' is not a column of layout event: WEIGHT"),
        (
            'by = ["SITE"]',
            'by = ["WEIGHT"]',
            "by: WEIGHT is not a field in the key of layout event: KIND, SITE",
        ),
        ('by = ["SITE"]', 'by = ["SITE", "KIND"]', "by: KIND must be in the key"),
        ('"sum", "count"', '"sum", "median"', "field median is in no rollup"),
        ('interval = "1d"', 'interval = "often"', "often"),
        ('interval = "1d"', 'interval = "1d"\nmore = 1', "unknown option 'more'"),
    ],
)
def test_wrong_declarations(place: Place, old: str, new: str, text: str) -> None:
    place.file.write_text(DECLARATION.replace(old, new))
    ran = place.rollup()
    assert (ran.code, text in ran.err) == (2, True), ran.err
