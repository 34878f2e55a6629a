"""Random declarations of tables, records for them, and which readings share a cell, in plain Python.

A reading is a value of a record in one of its columns. Its place is written out here from the declaration,
with the keys of `plain_tables`: no numpy, no pyarrow, nothing of the proof.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from plain_tables import bucket_start_ms, key, to_ms

START_MS = 1_699_920_000_000
"""A midnight of UTC."""
BUCKETS = ["15m", "45m", "1h", "90m", "6h", "36h", "1d", "3d", "30d", "45d", "1mo", "12mo", "18mo"]
STEPS = ["1m", "15m", "90m", "1h", "6h", "1d", "2d"]
LENGTHS_MS = {"m": 60_000, "h": 3_600_000, "d": 86_400_000, "mo": 31 * 86_400_000}
TIMES_MS = [
    0,
    1,
    999,
    1000,
    *(minutes * 60_000 for minutes in (1, 7, 15, 16, 45, 60, 75, 90, 359, 360, 1380)),
]
TIMES_MS += [days * 86_400_000 for days in (1, 2, 3, 16, 17, 30, 47, 62, 366)]
TEXTS = {
    "A": ["x", "X", "x#x", "1"],
    "B": ["x", "x#x", "11", "1"],
    "C": ["plumless", "buckeroo", "1", "11"],
    "N": ["1", "11", "111"],
    "Q": ["q", "0015", "V", "1"],
}
DAY_MS = LENGTHS_MS["d"]

Layout = dict[str, Any]
Record = dict[str, Any]
Place = tuple[bytes, bytes, int]
"""Row key, qualifier, and the timestamp where there are versions."""


class Reading(NamedTuple):
    """What a value is of, where it is, and under which field it comes back."""

    of: tuple[Any, ...]
    place: Place
    field: str
    value: str


def draw(rng: random.Random) -> Layout:
    """The section of a table; not each is one that the loader takes."""
    time = _time(rng) if rng.random() < 0.85 else None
    parts = [_field(rng, name) for name in rng.sample(["A", "B", "N"], rng.choice([0, 1, 1, 1, 2]))]
    if rng.random() < 0.15:
        parts.append({"const": rng.choice(["k", "k#", "0"])})
    if time is not None and rng.random() < 0.85:
        parts.append(time)
    if rng.random() < 0.25:
        hashed = rng.choice([["A"], ["A", "B"], ["C"], [time or "A"], ["A", time or "B"], ["A", "C", "N"]])
        length = rng.choice([1, 3, 20, 20, 20, 32])
        parts.append({"hash": "md5", "of": hashed, "length": length})
    if rng.random() < 0.2:
        parts.append(
            {"suffix": rng.choice(["payload", ["C"], ["TS"], ["A", "C"]]), "width": rng.choice([2, 8])}
        )
    if rng.random() < 0.15:
        parts.insert(0, {"salt": rng.choice([["A"], ["C"], [time or "A"]]), "buckets": 3})
    if rng.random() < 0.2:
        rng.shuffle(parts)
    layout: Layout = {
        "table": "T",
        "separator": rng.choice(["#", "#", "#", "#", ""]),
        "key": parts,
        "event_time": "TS",
        "cell_time": rng.choice(["event", "event", "arrival", "zero", "revision"]),
        "gc": {"max_versions": rng.choice([1, 1, 1, 1, 3])},
        "allow_overwrite": rng.random() < 0.3,
        "columns": _columns(rng, time),
    }
    if time is not None:
        del layout["event_time"]
    if layout["cell_time"] == "revision":
        layout["revision"] = "REV"
    if rng.random() < 0.2:
        layout["identity"] = rng.sample(["A", "C", "TS"], rng.choice([1, 1, 2]))
    fixed = [column["name"] for column in layout["columns"].get("fields", [])]
    if "W" in fixed and rng.random() < 0.3:
        naming = [part["field"] for part in parts if "field" in part]
        layout["points"] = {"metric": "m", "value": "W", "tags": [*naming, *(["V"] if "V" in fixed else [])]}
    return layout


def _field(rng: random.Random, name: str) -> Record:
    if name == "N":
        return {"field": "N", "type": "uint", **rng.choice([{}, {"width": 3}])}
    return {
        "field": name,
        **rng.choice([{}, {"width": 4}, {"width": 4, "pad": "x"}, {"case": "lower"}, {"case": "upper"}]),
    }


def _time(rng: random.Random) -> Record:
    unit = rng.choice(["ms", "ms", "ms", "s", "us"])
    exact = {"width": {"s": 10, "ms": 13, "us": 16}[unit]}
    text = {"format": rng.choice(["%Y%m%d%H%M", "%Y%m%d%H", "%Y-%m-%d", "%Y%m", "%Y", "%Y%m%d%H%M%S%f"])}
    if rng.random() < 0.4:
        back = {**exact, "reverse": 10 ** exact["width"] - 1}
        return {
            "time": "TS",
            "unit": unit,
            **rng.choice([exact, exact, {"format": "be64"}, back, text, {**exact, "divide": 10}]),
        }
    bucket = rng.choice(BUCKETS)
    form = rng.choice([exact, text, text, {"format": "be64"}])
    part = {"time": "TS", "unit": unit, "bucket": bucket, **form}
    if bucket.endswith(("d", "mo")) and form.get("format") not in (
        "%Y%m%d%H%M",
        "%Y%m%d%H",
        "%Y%m%d%H%M%S%f",
    ):
        part["tz"] = rng.choice(["UTC", "America/New_York", "Asia/Kolkata"])
    return part


def _columns(rng: random.Random, time: Record | None) -> Record:
    names = rng.sample(["V", "W", "A", "TS", "Q"], rng.choice([0, 1, 1, 2]))
    fixed = [
        {"name": name, "qualifier": rng.choice([name, name, name, "0015", "0000", "1", "15", "2359"])}
        for name in names
    ]
    kind = rng.random()
    columns: Record = {"family": "f"}
    if kind < 0.45 and time is not None and "bucket" in time:
        qualifier = {"time": "TS", "within": time["bucket"], "step": rng.choice(STEPS)}
        form = rng.choice(["HHMM", "HHMMSS", "number", "be16", "be32"])
        qualifier |= {"format": form, **rng.choice([{}, {"base": 1}, {"base": 1, "width": 2}])}
        columns["series"] = {"value": "R", "qualifier": qualifier}
    elif kind < 0.6:
        columns["series"] = {"value": "R", "qualifier": {"field": "Q"}}
    elif kind < 0.75:
        template = rng.choice(["{n}", "m.{n}", "{c}/{n}", "{c}::{n}", "<{c}x{n}>"])
        columns["map"] = {"source": "M", "qualifier": template}
    if fixed or len(columns) == 1:
        columns["fields"] = fixed or [{"name": "V", "qualifier": "V"}]
    return columns


def toml(layout: Layout) -> str:
    """The file that declares the table."""
    return f"layout = {{ t = {_inline(layout)} }}\n"


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_inline(one)}" for name, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return json.dumps(value)


def records(rng: random.Random, layout: Layout, most: int) -> list[Record]:
    """Records of few values that differ in as little as one field."""
    unit = unit_of(layout)
    times = [START_MS + ms for ms in (0, 1, *rng.sample(TIMES_MS, 8))]
    if unit == "us":
        times = [ms * 1000 + us for ms in times[:6] for us in (0, 1)]
    times = [ms // 1000 for ms in times] if unit == "s" else times
    domains = {name: rng.sample(texts, 2) for name, texts in TEXTS.items()}
    combinations = list(itertools.product(sorted(set(times)), *domains.values()))
    found = []
    for number, (time, *texts) in enumerate(rng.sample(combinations, min(most, len(combinations)))):
        record: Record = {"TS": str(time), **dict(zip(domains, texts, strict=True))}
        record |= {
            "V": f"v{number}",
            "W": f"{number}",
            "R": f"r{number}",
            "REV": str(rng.choice([0, 1, 1000])),
        }
        names = rng.sample(["x", "x:", ":x", "x/", "/", "", "1", "V"], 2)
        record["M"] = (
            dict.fromkeys(names, f"m{number}")
            if map_levels(layout) == 1
            else {names[0]: {names[1]: f"a{number}"}, names[1]: {names[0]: f"b{number}"}}
        )
        for name in rng.sample(["V", "W", "R", "M"], rng.choice([0, 0, 1, 2])):
            del record[name]
        found.append(record)
    return found


def map_levels(layout: Layout) -> int:
    return 2 if layout["columns"].get("map", {}).get("qualifier", "{n}").count("{") == 2 else 1


def line(record: Record) -> bytes:
    return json.dumps(record).encode()


def time_part(layout: Layout) -> Record | None:
    return next((part for part in layout["key"] if "time" in part), None)


def unit_of(layout: Layout) -> str:
    for part in [*layout["key"], *(one for outer in layout["key"] for one in _sources(outer))]:
        if isinstance(part, dict) and "time" in part:
            return str(part["unit"])
    return "ms"


def _sources(part: Record) -> list[Any]:
    return [*part.get("of", []), *part.get("salt", [])]


def length_ms(span: str) -> int:
    count = span.rstrip("hdmo")
    return int(count) * LENGTHS_MS[span[len(count) :]]


def step_fits(layout: Layout) -> bool:
    """Whether steps lie in their bucket; those of whole days need one that begins at midnight."""
    qualifier = layout["columns"].get("series", {}).get("qualifier", {})
    if "time" not in qualifier:
        return True
    step, bucket = length_ms(qualifier["step"]), qualifier["within"]
    begins_at_midnight = bucket.endswith("mo") or length_ms(bucket) % DAY_MS == 0
    return step <= length_ms(bucket) and (step % DAY_MS != 0 or begins_at_midnight)


def readings(layout: Layout, record: Record, arrival_ms: int) -> Iterator[Reading]:
    """The readings of a record; a column that comes back from the key or a qualifier is of None."""
    row, stamp = key(layout, record, line(record)), _stamp(layout, record, arrival_ms)
    columns, told = layout["columns"], _told(layout, record)
    series = columns.get("series")
    in_key = {part["field"] for part in layout["key"] if "field" in part}
    if series is not None:
        in_key |= {series["qualifier"].get("field", "TS")}
    for column in columns.get("fields", []):
        name = column["name"]
        if name in record:
            of = (None if name in in_key else told, name)
            yield Reading(of, (row, column["qualifier"].encode(), stamp), name, record[name])
    if "map" in columns and "M" in record:
        for names, value in _entries(record["M"], map_levels(layout)):
            yield Reading(
                (told, "M", *names), (row, _entry(columns["map"]["qualifier"], names), stamp), "M", value
            )
    if series is not None and "R" in record:
        slot = _slot(layout, record)
        of = (told, "R", slot if "time" in series["qualifier"] else record["Q"])
        yield Reading(of, (row, _series_qualifier(layout, record, slot), stamp), "R", record["R"])


def _stamp(layout: Layout, record: Record, arrival_ms: int) -> int:
    if layout["gc"]["max_versions"] == 1:
        return 0
    return stamp_ms(layout, record, arrival_ms)


def stamp_ms(layout: Layout, record: Record, arrival_ms: int) -> int:
    event_ms = to_ms(int(record.get("TS", 0)), unit_of(layout))
    if layout["cell_time"] == "revision":
        return event_ms + int(record["REV"])
    return {"event": event_ms, "arrival": arrival_ms, "zero": 0}[str(layout["cell_time"])]


def _told(layout: Layout, record: Record) -> tuple[Any, ...]:
    """The fields and the time that a reading is of; with allow_overwrite only what key parts say."""
    if layout["allow_overwrite"]:
        named = {part["field"] for part in layout["key"] if "field" in part}
        hashed = [one for part in layout["key"] if part.get("length", 0) >= 20 for one in part["of"]]
        has_bucket = [
            part for part in [*layout["key"], *hashed] if isinstance(part, dict) and "bucket" in part
        ]
        return (*_texts(layout, record, named), *(_bucket_start(part, record) for part in has_bucket))
    names = told_names(layout)
    time: tuple[Any, ...] = ()
    if "TS" in names:
        steps = "time" in layout["columns"].get("series", {}).get("qualifier", {})
        time = _slot(layout, record) if steps else (record.get("TS"),)
    return (*_texts(layout, record, names - {"TS"}), *time)


def told_names(layout: Layout) -> set[str]:
    """The fields that tell readings apart, the time among them if a key holds it."""
    named = {*layout.get("identity", []), *layout.get("points", {}).get("tags", [])}
    for part in layout["key"]:
        named |= {part[kind] for kind in ("field", "time") if kind in part}
        sources = part.get("of", []) if "of" in part else part.get("suffix", [])
        for source in [] if sources == "payload" else sources:
            named.add("TS" if isinstance(source, dict) else source)
    if "field" in layout["columns"].get("series", {}).get("qualifier", {}):
        named.add("Q")
    return named


def _texts(layout: Layout, record: Record, names: set[str]) -> Iterator[tuple[str, str | None]]:
    folds = {part["field"]: part["case"] for part in layout["key"] if "case" in part}
    for name in sorted(names):
        text = record.get(name)
        yield name, getattr(text, folds[name])() if name in folds and text is not None else text


def _bucket_start(part: Mapping[str, Any], record: Record) -> int:
    return bucket_start_ms(to_ms(int(record["TS"]), part["unit"]), part["bucket"], part.get("tz", "UTC"))


def slot_of(layout: Layout, time: int) -> tuple[int, ...]:
    return _slot(layout, {"TS": str(time)})


def _slot(layout: Layout, record: Record) -> tuple[int, ...]:
    """(start of the bucket, steps since) of a reading."""
    part = time_part(layout)
    qualifier = layout["columns"]["series"]["qualifier"]
    if part is None or "bucket" not in part or "step" not in qualifier:
        return ()
    start_ms, time_ms = _bucket_start(part, record), to_ms(int(record["TS"]), part["unit"])
    step_ms = length_ms(qualifier["step"])
    if step_ms % DAY_MS:
        return start_ms, (time_ms - start_ms) // step_ms
    steps = 0
    zone = part.get("tz", "UTC")
    midnight = bucket_start_ms(time_ms, "1d", zone)
    while midnight > start_ms:
        midnight = bucket_start_ms(midnight - 1, "1d", zone)
        steps += 1
    return start_ms, steps * DAY_MS // step_ms


def _series_qualifier(layout: Layout, record: Record, slot: tuple[int, ...]) -> bytes:
    qualifier = layout["columns"]["series"]["qualifier"]
    if "field" in qualifier:
        return str(record["Q"]).encode()
    steps, form = slot[1], qualifier["format"]
    seconds = steps * length_ms(qualifier["step"]) // 1000
    if form == "HHMM":
        return b"%02d%02d" % (seconds // 3600, seconds // 60 % 60)
    if form == "HHMMSS":
        return b"%02d%02d%02d" % (seconds // 3600, seconds // 60 % 60, seconds % 60)
    count = steps + qualifier.get("base", 0)
    if form == "number":
        return b"%0*d" % (qualifier.get("width", 0), count)
    return count.to_bytes(2 if form == "be16" else 4, "big")


def _entries(entries: Mapping[str, Any], levels: int) -> Iterator[tuple[tuple[str, ...], str]]:
    for name, value in entries.items():
        if levels == 1:
            yield (name,), value
        else:
            yield from (((name, inner), one) for inner, one in value.items())


def _entry(template: str, names: tuple[str, ...]) -> bytes:
    if len(names) == 2:
        template = template.replace("{c}", names[0], 1)
        head, _, tail = template.rpartition("{n}")
        return (head + names[1] + tail).encode()
    return template.replace("{n}", names[0], 1).encode()


def collision(layout: Layout, some: list[Record], arrival_ms: int = 0) -> tuple[Record, Record] | None:
    """Two records with different readings, and other values, in one cell; None if there are none."""
    seen: dict[Place, list[tuple[Reading, Record]]] = {}
    for record in some:
        for reading in readings(layout, record, arrival_ms):
            others = seen.setdefault(reading.place, [])
            for other, other_record in others:
                if other.of != reading.of and other.value != reading.value:
                    return other_record, record
            others.append((reading, record))
    return None
