"""The baseline: Beam's documentation put together, one element per point, without this project.

    BIGTABLE_EMULATOR_HOST=localhost:8086 python benchmarks/naive.py --input points.json --table naive

ReadFromText, json.loads, one DirectRow per point in OpenTSDB's layout, WriteToBigTable, on the
DirectRunner with its default options. Prints one line of JSON; times are in seconds.
"""
# ruff: noqa: E402 -- the imports are a part of what is timed

from __future__ import annotations

import time

_BEFORE_IMPORTS = time.perf_counter()

import argparse
import datetime
import json
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import apache_beam as beam
from apache_beam.io.gcp.bigtableio import WriteToBigTable
from google.cloud.bigtable import Client
from google.cloud.bigtable.column_family import MaxVersionsGCRule
from google.cloud.bigtable.data import BigtableDataClient, ReadRowsQuery
from google.cloud.bigtable.data.row_filters import StripValueTransformerFilter
from google.cloud.bigtable.row import DirectRow

_IMPORT_SECONDS = time.perf_counter() - _BEFORE_IMPORTS

PROJECT, INSTANCE, FAMILY = "local", "benchmark", "t"

# Metric, time in s, flags of the qualifier, bytes of the value, tags.
Point = tuple[str, int, int, bytes, dict[str, str]]
Uids = dict[tuple[str, str], bytes]


def integer(value: int) -> tuple[int, bytes]:
    """The flags and the bytes of an integer, on the fewest of 1, 2, 4 and 8 bytes."""
    for size in (1, 2, 4):
        if -(1 << 8 * size - 1) <= value < 1 << 8 * size - 1:
            return size - 1, value.to_bytes(size, "big", signed=True)
    return 7, value.to_bytes(8, "big", signed=True)


def from_json(line: str) -> Point:
    """A line such as a body of /api/put, whose decimals OpenTSDB keeps as float64."""
    point = json.loads(line)
    value = point["value"]
    flags, data = (0xF, struct.pack(">d", value)) if isinstance(value, float) else integer(value)
    return point["metric"], point["timestamp"], flags, data, point["tags"]


def from_text(line: str) -> Point:
    """A put command, whose decimals OpenTSDB keeps as float32 where that is exact."""
    _, metric, seconds, text, *words = line.split()
    tags = dict(word.split("=") for word in words)
    if "." not in text:
        return metric, int(seconds), *integer(int(text)), tags
    value = float(text)
    short = struct.pack(">f", value)
    exact = struct.unpack(">f", short)[0] == value
    return metric, int(seconds), *((0xB, short) if exact else (0xF, struct.pack(">d", value))), tags


PARSERS: dict[str, Callable[[str], Point]] = {"opentsdb-json": from_json, "opentsdb-text": from_text}


def to_row(point: Point, uids: Uids, arrival: datetime.datetime) -> DirectRow:
    """The mutation that stores one point: its hour in the row key, its second in the qualifier."""
    metric, seconds, flags, data, tags = point
    delta = seconds % 3600
    pairs = sorted((uids["tagk", key], uids["tagv", value]) for key, value in tags.items())
    key = uids["metric", metric] + struct.pack(">I", seconds - delta) + b"".join(k + v for k, v in pairs)
    row = DirectRow(key)
    row.set_cell(FAMILY, struct.pack(">H", delta << 4 | flags), data, timestamp=arrival)
    return row


def assign_uids(path: Path, parse: Callable[[str], Point]) -> Uids:
    """A UID of three bytes for every name of a file, counted from 1 for each kind of name."""
    uids: Uids = {}
    numbers = dict.fromkeys(("metric", "tagk", "tagv"), 0)

    def assign(kind: str, name: str) -> None:
        if (kind, name) not in uids:
            numbers[kind] += 1
            uids[kind, name] = numbers[kind].to_bytes(3, "big")

    with path.open(encoding="utf-8") as lines:
        for line in lines:
            metric, *_, tags = parse(line)
            assign("metric", metric)
            for key, value in tags.items():
                assign("tagk", key)
                assign("tagv", value)
    return uids


def create_table(table: str) -> None:
    """Creates the table; google.api_core.exceptions.AlreadyExists if there is one of that name."""
    instance = Client(project=PROJECT, admin=True).instance(INSTANCE)
    instance.table(table).create(column_families={FAMILY: MaxVersionsGCRule(1)})


def run(path: Path, parse: Callable[[str], Point], table: str, uids: Uids) -> None:
    """Builds the pipeline and runs it to its end."""
    arrival = datetime.datetime.fromtimestamp(int(path.stat().st_mtime), datetime.UTC)
    with beam.Pipeline() as pipeline:
        (
            pipeline
            | "Read" >> beam.io.ReadFromText(str(path))
            | "Parse" >> beam.Map(parse)
            | "ToRow" >> beam.Map(to_row, uids, arrival)
            | "Write" >> WriteToBigTable(PROJECT, INSTANCE, table)
        )


def count_cells(table: str) -> int:
    """How many cells the table holds."""
    query = ReadRowsQuery(row_filter=StripValueTransformerFilter(True))
    with BigtableDataClient(project=PROJECT) as client, client.get_table(INSTANCE, table) as target:
        return sum(len(row) for row in target.read_rows_stream(query))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--input", type=Path, required=True, help="as benchmarks/generate.py writes it")
    parser.add_argument("--format", choices=PARSERS, default="opentsdb-json")
    parser.add_argument("--table", required=True, help="is created, so it must not exist yet")
    options = parser.parse_args()
    if not os.environ.get("BIGTABLE_EMULATOR_HOST"):
        sys.exit("set BIGTABLE_EMULATOR_HOST: this benchmark writes to an emulator only")
    parse = PARSERS[options.format]
    uids = assign_uids(options.input, parse)
    with options.input.open("rb") as lines:
        points = sum(1 for _ in lines)
    create_table(options.table)

    start = time.perf_counter()
    run(options.input, parse, options.table, uids)
    seconds = time.perf_counter() - start

    stored = count_cells(options.table)
    if stored != points:
        sys.exit(f"{points} points were written, but {stored} cells are stored")
    figures = {
        "points": points,
        "seconds": round(seconds, 3),
        "seconds_with_imports": round(seconds + _IMPORT_SECONDS, 3),
        "points_per_second": round(points / seconds),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
