"""Points written in each format by the plainest means, and lines that each format must reject."""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import fastavro
import pyarrow.parquet as pq
import zstandard

from tests.schema.stores.plain_opentsdb import number
from tests.support.model import Content
from tests.system.steps import SERIES, File, Point

_SCHEMA = {
    "type": "record",
    "name": "Point",
    "fields": [
        {"name": "metric", "type": "string"},
        {"name": "timestamp", "type": "long"},
        {"name": "value", "type": ["long", "double"]},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
    ],
}

HISTOGRAMS = "opentsdb-histogram"
CODEC = 7
"""The id of a codec that timebeam does not know: its histograms are stored as they are."""

BROKEN: Mapping[str, list[str]] = {
    "opentsdb-json": [
        "garbage",
        '{"metric":"sys.cpu","timestamp":"x","value":1,"tags":{"host":"a"}}',
        '{"metric":"sys.cpu","timestamp":1772236800,"value":NaN,"tags":{"host":"a"}}',
    ],
    "opentsdb-text": ["garbage", "put sys.cpu 12x 5 host=a", "put sys.cpu 1772236800 nine host=a"],
    HISTOGRAMS: ["garbage", "histogram sys.cpu 1772236800 7 !!! host=a"],
    "influx": ["garbage", 'sys,host=a cpu="text" 1772236800000000000', "sys,host=a cpu=1 x"],
    "avro": [],
    "heroic-json": ["garbage", '{"series":{"key":"k","tags":{}},"data":{"type":"points","data":[["x",1]]}}'],
    "kairosdb-json": ["garbage", '{"name":"cpu","tags":{"host":"a"},"datapoints":[["x",5]]}'],
    "kairosdb-text": ["garbage", "putm sys.cpu 12x 5 host=a"],
}
"""By format, records of which nothing can be stored in any layout."""

_COMPRESS: Mapping[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.compress,
}


def write(path: Path, file: File) -> Path:
    """Writes a file of a history; its modification time is its arrival."""
    if file.format == "avro":
        content = _avro(file.points)
    else:
        lines = [_LINE[file.format](point) for point in file.points]
        for number, line in enumerate(file.broken):
            lines.insert((number * 7) % (len(lines) + 1), line)
        content = "".join(f"{line}\n" for line in lines).encode()
    target = path.with_name(f"{path.name}.{file.format}{file.suffix}")
    target.write_bytes(_COMPRESS[file.suffix](content))
    os.utime(target, ns=(file.arrival_ms * 1_000_000,) * 2)
    return target


def stamp(point: Point) -> int:
    """The time as it is written: seconds below 2^32, or milliseconds."""
    return point.time_ms if point.in_ms else point.time_ms // 1000


def _avro(points: list[Point]) -> bytes:
    out = io.BytesIO()
    records = [
        {
            "metric": SERIES[point.series][0],
            "timestamp": stamp(point),
            "value": point.value,
            "tags": dict(SERIES[point.series][1]),
        }
        for point in points
    ]
    fastavro.writer(out, _SCHEMA, records, codec="deflate")
    return out.getvalue()


def _opentsdb_json(point: Point) -> str:
    metric, tags = SERIES[point.series]
    return json.dumps(
        {"metric": metric, "timestamp": stamp(point), "value": point.value, "tags": dict(tags)},
        ensure_ascii=False,
    )


def _opentsdb_text(point: Point) -> str:
    metric, tags = SERIES[point.series]
    words = " ".join(f"{key}={value}" for key, value in tags)
    return f"put {metric} {stamp(point)} {point.value!r} {words}"


def _opentsdb_histogram(point: Point) -> str:
    """A histogram whose bytes are the text of the value."""
    metric, tags = SERIES[point.series]
    content = base64.b64encode(repr(point.value).encode()).decode()
    histogram = {"metric": metric, "timestamp": stamp(point), "id": CODEC, "value": content}
    return json.dumps({**histogram, "tags": dict(tags)}, ensure_ascii=False)


def _influx(point: Point) -> str:
    metric, tags = SERIES[point.series]
    measurement, _, field = metric.partition(".")
    words = ",".join(f"{key}={value}" for key, value in tags)
    number = repr(point.value) if isinstance(point.value, float) else f"{point.value}i"
    return f"{measurement},{words} {field}={number} {point.time_ms * 1_000_000}"


def _heroic_json(point: Point) -> str:
    metric, tags = SERIES[point.series]
    data = {"type": "points", "data": [[point.time_ms, point.value]]}
    return json.dumps({"series": {"key": metric, "tags": dict(tags)}, "data": data})


def _kairosdb_json(point: Point) -> str:
    metric, tags = SERIES[point.series]
    return json.dumps({"name": metric, "tags": dict(tags), "datapoints": [[point.time_ms, point.value]]})


def _kairosdb_text(point: Point) -> str:
    metric, tags = SERIES[point.series]
    words = " ".join(f"{key}={value}" for key, value in tags)
    verb = "putm" if point.in_ms else "put"
    return f"{verb} {metric} {stamp(point)} {point.value!r} {words}"


_LINE: Mapping[str, Callable[[Point], str]] = {
    "opentsdb-json": _opentsdb_json,
    "opentsdb-text": _opentsdb_text,
    HISTOGRAMS: _opentsdb_histogram,
    "influx": _influx,
    "heroic-json": _heroic_json,
    "kairosdb-json": _kairosdb_json,
    "kairosdb-text": _kairosdb_text,
}


def exported(folder: Path) -> Content:
    """The points in all Parquet files of an export, whose tags are maps."""
    content: Content = {}
    for path in folder.rglob("*.parquet"):
        for row in pq.ParquetFile(path).read().to_pylist():
            value = row["int_value"] if row["kind"] == "integer" else row["double_value"]
            series = row["metric"], tuple(sorted(row["tags"]))
            content[series, round(row["time"].timestamp() * 1000)] = number(value)
    return content
