"""Parquet files with changed bytes: each is read or rejected, as message and file, and ends no process."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.budget import long_after
from tests.support.inputs.confined import Outcome, parsed

ROWS = 60
FIELDS = {"parquet_fields": "metric=metric,timestamp=timestamp,value=value,tags=tags"}
TAGGED = {"parquet_fields": "metric=metric,timestamp=timestamp,value=value,tag:host=host"}
EXPORTED: dict[str, Any] = {}


def rows() -> pa.Table:
    hosts = [[("host", f"h{n % 7}"), ("site", "lab")] for n in range(ROWS)]
    return pa.table(
        {
            "metric": [f"sys.cpu{n // 20}" for n in range(ROWS)],
            "timestamp": pa.array(range(1_356_998_400, 1_356_998_400 + ROWS)),
            "value": [n / 4 for n in range(ROWS)],
            "tags": pa.array(hosts, pa.map_(pa.string(), pa.string())),
        }
    )


def columns() -> pa.Table:
    host = [None if n % 9 == 0 else f"host{n % 7}" for n in range(ROWS)]
    extra = pa.array([[n, n + 1] for n in range(ROWS)])
    return rows().drop_columns(["tags"]).append_column("host", pa.array(host)).append_column("extra", extra)


def exported() -> pa.Table:
    return pa.table(
        {
            "metric": ["m"] * ROWS,
            "tag_host": ["a"] * ROWS,
            "time": pa.array(np.arange(ROWS) + 1_700_000_000_000, pa.timestamp("ms", "UTC")),
            "kind": ["double"] * (ROWS - 1) + ["text"],
            "int_value": pa.nulls(ROWS, pa.int64()),
            "double_value": [0.5] * (ROWS - 1) + [None],
            "bytes_value": pa.array([None] * (ROWS - 1) + [b"text"], pa.binary()),
        }
    )


def written(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


DELTA = {
    "use_dictionary": False,
    "column_encoding": {"metric": "DELTA_BYTE_ARRAY", "timestamp": "DELTA_BINARY_PACKED"},
}
SEEDS: dict[str, tuple[dict[str, Any], bytes]] = {
    "snappy": (FIELDS, written(rows())),
    "row groups": (FIELDS, written(rows(), row_group_size=20, compression="zstd")),
    "plain": (FIELDS, written(rows(), use_dictionary=False, compression="none")),
    "pages 2.0": (
        FIELDS,
        written(rows(), data_page_version="2.0", compression="gzip", write_page_index=True),
    ),
    "deltas": (TAGGED, written(columns(), compression="none", **DELTA)),
    "deltas 2.0": (TAGGED, written(columns(), compression="lz4", data_page_version="2.0", **DELTA)),
    "lengths": (
        FIELDS,
        written(
            rows(),
            use_dictionary=False,
            compression="brotli",
            column_encoding={"metric": "DELTA_LENGTH_BYTE_ARRAY", "value": "BYTE_STREAM_SPLIT"},
        ),
    ),
    "checksums": (TAGGED, written(columns(), write_page_checksum=True, row_group_size=30)),
    "many pages": (TAGGED, written(columns(), write_batch_size=4, data_page_size=16, compression="none")),
    "exported": (EXPORTED, written(exported(), store_schema=False, compression="zstd", row_group_size=45)),
}


def _changed(text: bytes, start: int, end: int, draw: random.Random) -> bytes:
    """Some bytes of [start, end) changed."""
    new = bytearray(text)
    for _ in range(draw.choice((1, 1, 1, 2, 8))):
        position = draw.randrange(start, end)
        new[position] = draw.choice((new[position] ^ 1 << draw.randrange(8), draw.randrange(256), 0, 255))
    return bytes(new)


def _footer(text: bytes, draw: random.Random) -> bytes:
    return _changed(text, _footer_start(text), len(text) - 8, draw)


def _footer_start(text: bytes) -> int:
    return len(text) - 8 - int.from_bytes(text[-8:-4], "little")


def _data(text: bytes, draw: random.Random) -> bytes:
    return _changed(text, 4, _footer_start(text), draw)


def _page_header(text: bytes, draw: random.Random) -> bytes:
    groups = pq.ParquetFile(io.BytesIO(text)).metadata
    group = groups.row_group(draw.randrange(groups.num_row_groups))
    column = group.column(draw.randrange(group.num_columns))
    starts = [
        column.data_page_offset,
        *([column.dictionary_page_offset] if column.has_dictionary_page else []),
    ]
    start = draw.choice(starts)
    return _changed(text, start, start + 24, draw)


def _truncated(text: bytes, draw: random.Random) -> bytes:
    if draw.random() < 0.3:
        return text[: draw.randrange(1, len(text))]  # an empty message holds nothing
    start, end = sorted(draw.randrange(4, len(text) - 8) for _ in range(2))  # its end stays
    return text[:start] + text[min(end, start + draw.randrange(1, 64)) :]


def _spliced(text: bytes, draw: random.Random) -> bytes:
    """A piece of another file, or of this one, in place of as many bytes or between two."""
    other = draw.choice([each for _, each in SEEDS.values()])
    start = draw.randrange(len(other))
    piece = other[start : start + draw.randrange(1, 200)]
    place = draw.randrange(4, len(text) - 8)
    return text[:place] + piece + text[place + draw.choice((0, len(piece))) :]


def _wrong_length(text: bytes, draw: random.Random) -> bytes:
    length = int.from_bytes(text[-8:-4], "little") + draw.choice((-1, 1, -7, 300, 1 << 20, -200))
    return text[:-8] + max(0, length).to_bytes(4, "little") + text[-4:]


MUTATIONS: list[Callable[[bytes, random.Random], bytes]] = [
    *(_footer, _footer, _footer, _data, _page_header, _page_header, _truncated, _spliced, _wrong_length)
]


def case(number: int) -> tuple[dict[str, Any], bytes]:
    """(options, a file that is changed)."""
    draw = random.Random(number)
    options, text = list(SEEDS.values())[number % len(SEEDS)]
    return options, draw.choice(MUTATIONS)(text, draw)


def complaint(number: int) -> str:
    """What is wrong with how a changed file is read; empty for nothing."""
    options, text = case(number)
    for name in ("parquet", "parquet-file"):
        outcome = parsed(name, options, text)
        if outcome.code:
            return f"{name}: exit code {outcome.code}"
        if not outcome.rejected and outcome.points != ROWS:
            return f"{name}: {outcome.points} of {ROWS} points, and no rejection"
        if name == "parquet" and not _is_whole(outcome, text):
            return f"{name}: {outcome.points} points, and {len(outcome.rejected)} rejections"
    return ""


def _is_whole(outcome: Outcome, text: bytes) -> bool:
    """Whether each row of a message is a point or in a rejection, or one has all bytes of the message."""
    payloads = [payload for _, payload in outcome.rejected]
    return text in payloads or outcome.points + sum(map(_rows_in, payloads)) == ROWS


def _rows_in(payload: bytes) -> int:
    return int(pa.ipc.open_stream(payload).read_all().num_rows)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_not_changed_is_read(seed: str) -> None:
    options, text = SEEDS[seed]
    for name in ("parquet", "parquet-file"):
        assert parsed(name, options, text) == Outcome(0, ROWS, [])


@pytest.mark.parametrize("first", long_after(1, range(0, 2000, 40)))
def test_changed_files_are_read_or_rejected(first: int) -> None:
    complaints = {number: complaint(number) for number in range(first, first + 40)}
    assert not {number: text for number, text in complaints.items() if text}
