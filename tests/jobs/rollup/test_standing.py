"""Which columns of rollup tables a run answers for: of every aggregation id, and beside foreign cells.

The model is plain Python over the qualifiers that were written into the table.
"""

from __future__ import annotations

import dataclasses
import json
import random
import struct

import pytest
from google.cloud.bigtable.data import SetCell

from tests.support.budget import long_after
from tests.support.data_client import open_table
from tests.support.plain.rolled import interval
from tests.support.stored import Store
from timebeam.schema.core.rows import WHOLE_TABLE
from timebeam.schema.rollup.config_json import parse_config
from timebeam.schema.rollup.day_plan import RollupPart, plan
from timebeam.schema.rollup.rollup_config import COMPUTED
from timebeam.transforms.bigtable.create_tables import create_tables
from timebeam.transforms.ingest.series_keys import UidOptions
from timebeam.transforms.read.chunks import Chunk
from timebeam.transforms.read.table_reader import TableReader
from timebeam.transforms.rollup.rollup_graph import ExistingRange
from timebeam.transforms.rollup.rollup_job import RollupJob, rollup_tables
from timebeam.transforms.rollup.rollups_in_tables import LATER, STANDING, TablesEncoder
from timebeam.transforms.rollup.stale_cells import ChunkExisting

DAY, HOUR = 1_772_236_800, 3600  # 2026-02-28
METRIC = b"\0\0\1"
KEY = METRIC + struct.pack(">I", DAY) + b"\0\0\1\0\0\1"
FIRST, LAST = 3, 8
"""The hours of the day that are rolled up are those from FIRST to LAST - 1."""

IDS = [number for number in range(128) if number != 5]
NAMES = [*COMPUTED, "dev", "p99"]


def config_text(ids: dict[str, int]) -> str:
    default = interval("1m", "1h", table="tsdb", defaultInterval=True)
    return json.dumps({"aggregationIds": ids, "intervals": [default, interval("1h", "1d")]})


def code(hour: int, flags: int = 7) -> bytes:
    return (hour << 4 | flags).to_bytes(2, "big")


def columns(rng: random.Random) -> set[bytes]:
    """Cells of every first byte, in the range, at its ends and outside; names in each case; other widths."""
    hours = (FIRST - 1, FIRST, LAST - 1, LAST)
    names = {bytes([first]) + code(rng.choice(hours), rng.choice((0, 7, 15))) for first in range(256)}
    names |= {bytes([first]) + code(FIRST) for first in range(256)}
    for name in NAMES:
        for text in (name, name.upper(), name.title()):
            names |= {f"{text}:".encode() + code(hour) for hour in (FIRST, LAST)}
    return names | {b"sum" + code(FIRST), b"AB" + code(FIRST), b":" + code(FIRST), code(FIRST), b"\x07"}


def model(names: set[bytes], ids: dict[str, int]) -> set[bytes]:
    """The columns of the computed aggregators in the range."""
    computed = {ids[name] for name in COMPUTED if name in ids}
    old = {f"{name}:" for name in COMPUTED if name in ids}
    return {
        name
        for name in names
        if len(name) > 2
        and FIRST <= int.from_bytes(name[-2:], "big") >> 4 < LAST
        and (name[0] in computed if len(name) == 3 else name[:-2].decode("latin-1").lower() in old)
    }


@pytest.fixture
def job(bigtable: tuple[str, str], prefix: str) -> RollupJob:
    store = Store.create(bigtable, prefix)
    config = parse_config(config_text({"sum": 0, "count": 1}))
    parts = [RollupPart(plan(config, (DAY + FIRST * HOUR) * 1000, (DAY + LAST * HOUR) * 1000))]
    job = RollupJob(store.target, store.layout, config, parts, UidOptions())
    for _ in create_tables(job.target, rollup_tables(config, job.layout), dry_run=False):
        pass
    return job


def with_ids(job: RollupJob, ids: dict[str, int]) -> RollupJob:
    return dataclasses.replace(job, config=parse_config(config_text(ids)))


def read_at_once(job: RollupJob) -> set[bytes]:
    """By the worker that reads the chunk."""
    chunk = Chunk(("m",), (METRIC,), DAY, DAY + 24 * HOUR, WHOLE_TABLE)
    (whole,) = job.parts[0].plan.intervals
    existing = ChunkExisting(job, whole, "rollup-1h", chunk, TableReader(job.target))
    return {name for _, names in existing.unwritten() for name in names}


def shuffled(job: RollupJob) -> set[bytes]:
    """By the shuffle."""
    start_s, end_s = DAY + FIRST * HOUR, DAY + LAST * HOUR
    shared = ExistingRange((METRIC,), "m", "1h", "rollup-1h", start_s, end_s)
    names = set()
    for _, (which, packed) in TablesEncoder(job).existing(shared):
        while packed:
            size = packed[0]
            name = packed[1 : 1 + size]
            assert which == (LATER if name[0] % 2 else STANDING)
            names.add(name)
            packed = packed[1 + size :]
    return names


@pytest.mark.parametrize("read", long_after(1, [read_at_once, shuffled]))
def test_every_aggregation_id(job: RollupJob, read) -> None:
    """Each id in turn is that of one aggregator, beside others; what is not of theirs is not named."""
    rng = random.Random(5)
    names = columns(rng)
    table = open_table(job.target, job.table("rollup-1h"))
    for key in (KEY, KEY[:7], KEY[:10]):  # the last two are corrupt, and must end nothing
        cells = [
            SetCell("t", name, bytes(8), (1, 2 * DAY)[name[0] % 2] * 1_000_000) for name in sorted(names)
        ]
        table.mutate_row(key, cells)
    for number in IDS:
        numbers = [number, *rng.sample([one for one in IDS if one != number], 7)]
        chosen = dict(zip(rng.sample(NAMES, 8), numbers, strict=True))
        chosen = {name: chosen[name] for name in chosen if name in ("sum", "count") or rng.random() < 0.8}
        assert read(with_ids(job, chosen)) == model(names, chosen), chosen
