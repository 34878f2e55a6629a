"""Avro's object containers: any writer, any codec, any cut, and what of a corrupt one is kept."""

from __future__ import annotations

import bz2
import io
import itertools
import json
import lzma
import zlib
from collections.abc import Callable
from typing import Any

import fastavro
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.support.inputs.avro_bytes import SYNC, block, container, integer, long, point, text
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.points import Series
from timebeam.schema.formats import Message, Parsed, message_format
from timebeam.schema.formats.avro import container as avro_container
from timebeam.schema.formats.avro.container import ContainerCutter, EarlyEndError, read_header
from timebeam.schema.formats.avro.schema import own_schema

POINT, POINT_BATCH = (
    fastavro.parse_schema(json.loads(own_schema(name))) for name in ("point", "point_batch")
)


def parse(raw: bytes) -> Parsed:
    return message_format("avro").parse(Message(raw, 5, "gs://b/f", 1000))


def _deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(data) + compressor.flush()


def _snappy(data: bytes) -> bytes:
    return pa.compress(data, codec="snappy", asbytes=True) + zlib.crc32(data).to_bytes(4, "big")


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "deflate": _deflate,
    "snappy": _snappy,
    "zstandard": zstandard.ZstdCompressor().compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
}
RECORDS = [point(1_356_998_400 + i, integer(i)) for i in range(6)]
BLOCKS = [RECORDS[:3], RECORDS[3:5], RECORDS[5:]]


def packed(codec: str, records: list[bytes]) -> bytes:
    """A block of records by a codec."""
    data = COMPRESS[codec](b"".join(records))
    return long(len(records)) + long(len(data)) + data + SYNC


def compressed(codec: str) -> list[bytes]:
    """The header of a container by a codec, and its blocks."""
    return [container(codec=codec.encode()), *(packed(codec, records) for records in BLOCKS)]


def values(parsed: Parsed) -> list[float]:
    return [value for _, _, value in parsed.batch.points()]


@pytest.mark.parametrize("codec", COMPRESS)
def test_codecs(codec: str) -> None:
    raw = b"".join(compressed(codec))
    parsed = parse(raw)
    assert (values(parsed), list(parsed.rejected)) == ([0, 1, 2, 3, 4, 5], [])
    origins = parsed.batch.origins
    assert origins is not None
    found = [origins.text[start:end] for start, end in zip(origins.starts, origins.ends, strict=True)]
    assert found == RECORDS
    # Offsets count as if the container were not compressed (and said so in no more than a schema).
    assert origins.text == container(*BLOCKS)
    assert origins.offset == 1000


def test_the_codec_null_may_be_named() -> None:
    raw = container(*BLOCKS, codec=b"null")
    parsed = parse(raw)
    assert values(parsed) == [0, 1, 2, 3, 4, 5]
    assert parsed.batch.origins is not None
    assert parsed.batch.origins.text == raw


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_containers_of_fastavro(codec: str) -> None:
    records = [
        {
            "metric": f"m{i % 3}",
            "timestamp": 1_356_998_400 + i,
            "value": i * 0.5,
            "tags": {"host": f"web{i % 7}"},
        }
        for i in range(500)
    ]
    file = io.BytesIO()
    fastavro.writer(file, POINT, records, codec=codec, sync_interval=1000)
    parsed = parse(file.getvalue())
    assert not parsed.rejected
    assert list(parsed.batch.points()) == [
        (Series.of(one["metric"], one["tags"]), one["timestamp"] * 1000, one["value"]) for one in records
    ]


@given(st.data())
def test_a_container_in_any_portions_and_pieces(data: st.DataObject) -> None:
    codec = data.draw(st.sampled_from(["null", *COMPRESS]))
    raw = container(*BLOCKS) if codec == "null" else b"".join(compressed(codec))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=5)))
    cutter = ContainerCutter(data.draw(st.integers(1, 300)))
    pieces = []
    for start, end in itertools.pairwise([0, *cuts, len(raw)]):
        pieces += list(cutter.add(raw[start:end]))
    pieces += list(cutter.finish())
    assert (cutter.corruption, cutter.rest, cutter.offset) == (None, b"", len(raw))
    plain = container(*BLOCKS)
    header = container()
    for offset, piece in pieces:
        assert read_header(piece).plain == header == piece[: len(header)]
        at = offset + len(header)
        assert plain[at : at + len(piece) - len(header)] == piece[len(header) :]
    assert header + b"".join(piece[len(header) :] for _, piece in pieces) == plain


@pytest.mark.parametrize("codec", ["null", *COMPRESS])
def test_truncated_anywhere_whole_blocks_are_kept(codec: str) -> None:
    parts = [container(), *map(block, BLOCKS)] if codec == "null" else compressed(codec)
    raw = b"".join(parts)
    ends = list(itertools.accumulate(map(len, parts)))
    for cut in range(len(raw)):
        parsed = parse(raw[:cut])
        whole = sum(end <= cut for end in ends) - 1  # blocks
        assert values(parsed) == list(range(sum(map(len, BLOCKS[:whole]))) if whole > 0 else [])
        if cut in ends:
            assert not parsed.rejected
            continue
        (rejected,) = parsed.rejected
        start = max([0, *(end for end in ends if end <= cut)])
        assert (rejected.reason, rejected.offset) == (Reason.TRUNCATED_FILE, 1000 + start)
        assert rejected.payload == raw[start:cut]


@pytest.mark.parametrize("codec", COMPRESS)
def test_corrupt_compressed_data(codec: str) -> None:
    header, first, _, third = compressed(codec)
    payload = COMPRESS[codec](b"".join(RECORDS[3:5]))
    for bad in (b"", payload[:-1], b"\xff" * len(payload), payload[:5]):
        corrupt = long(2) + long(len(bad)) + bad + SYNC
        parsed = parse(header + first + corrupt + third)
        assert values(parsed) == [0, 1, 2]
        (rejected,) = parsed.rejected
        assert (rejected.reason, rejected.offset) == (Reason.CORRUPT_FILE, 1000 + len(header) + len(first))
        assert rejected.payload == corrupt + third
        assert "these bytes are not" in rejected.message


HEADER = container()


@pytest.mark.parametrize(
    ("raw", "reason", "why"),
    [
        (b"", Reason.TRUNCATED_FILE, "inside its header"),
        (b"Ob", Reason.TRUNCATED_FILE, "inside its header"),
        (b"Obj\x02" + HEADER[4:], Reason.CORRUPT_FILE, "does not begin with Obj 01"),
        (b'{"metric":"m"}', Reason.CORRUPT_FILE, "does not begin with Obj 01"),
        (b"Obj\x01" + b"\xff" * 20, Reason.CORRUPT_FILE, "more than 64 bits"),
        (b"Obj\x01" + long(1) + long(1 << 40), Reason.CORRUPT_FILE, "metadata"),
        (b"Obj\x01" + long(1) + long(-5), Reason.CORRUPT_FILE, "metadata"),
        (b"Obj\x01\0" + SYNC, Reason.CORRUPT_FILE, "no avro.schema"),
        (
            container(BLOCKS[0], codec=b"lzo"),
            Reason.CORRUPT_FILE,
            "the codec 'lzo' is not one of null, snappy",
        ),
        (container(BLOCKS[0], schema='"strange"'), Reason.CORRUPT_FILE, "no Avro schema"),
        (container(BLOCKS[0], schema="{"), Reason.CORRUPT_FILE, "no Avro schema"),
        (HEADER + long(1) + long(1 << 40), Reason.CORRUPT_FILE, "corrupt block: 1 records in 1099511627776"),
        (HEADER + long(1) + long(-1) + SYNC, Reason.CORRUPT_FILE, "corrupt block: 1 records in -1"),
        (HEADER + long(-1) + long(0) + SYNC, Reason.CORRUPT_FILE, "corrupt block: -1 records"),
        (HEADER + long(1 << 60) + long(0) + SYNC, Reason.CORRUPT_FILE, "corrupt block"),
        (HEADER + block(BLOCKS[0])[:-1] + b"x", Reason.CORRUPT_FILE, "no sync marker"),
    ],
)
def test_what_is_no_container(raw: bytes, reason: Reason, why: str) -> None:
    parsed = parse(raw)
    (rejected,) = parsed.rejected
    assert (len(parsed.batch), rejected.reason) == (0, reason)
    assert why in rejected.message
    assert raw.endswith(rejected.payload)
    assert rejected.offset == 1000 + len(raw) - len(rejected.payload)


def test_a_header_whose_map_comes_in_parts_with_sizes() -> None:
    pair = text("avro.schema") + text(own_schema("point"))
    other = text("writer") + text("x")
    header = b"Obj\x01" + long(-1) + long(len(pair)) + pair + long(1) + other + b"\0" + SYNC
    assert values(parse(header + block(BLOCKS[0]))) == [0, 1, 2]


def test_corrupt_records_cost_the_rest_of_their_block_only() -> None:
    bad_branch = RECORDS[1].replace(integer(1), b"\x06\x02")
    raw = container([RECORDS[0], bad_branch, RECORDS[2]], RECORDS[3:5])
    parsed = parse(raw)
    assert values(parsed) == [0, 3, 4]
    (rejected,) = parsed.rejected
    assert (rejected.reason, rejected.payload) == (Reason.CORRUPT_FILE, bad_branch + RECORDS[2])
    assert rejected.offset == 1000 + raw.index(bad_branch)


@pytest.mark.parametrize("records", [1, 3])
def test_blocks_with_another_number_of_records_than_they_say(records: int) -> None:
    data = RECORDS[0] + RECORDS[1]
    raw = HEADER + long(records) + long(len(data)) + data + SYNC + block(RECORDS[3:5])
    parsed = parse(raw)
    assert values(parsed) == [*range(min(records, 2)), 3, 4]
    (rejected,) = parsed.rejected
    assert (rejected.reason, rejected.payload) == (Reason.CORRUPT_FILE, RECORDS[1] if records == 1 else b"")


@pytest.mark.parametrize("codec", COMPRESS)
def test_little_data_that_expand_to_much_are_rejected(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_container, "LARGEST", 100_000)
    raw = container(codec=codec.encode()) + packed(codec, [bytes(1_000_000)])
    (rejected,) = parse(raw).rejected
    assert rejected.reason is Reason.CORRUPT_FILE
    assert "100000" in rejected.message


BEGINNINGS = {
    b"": (0, b""),
    b"Obj\x01": (0, b""),
    HEADER: (0, HEADER),
    HEADER + block(BLOCKS[0])[:20]: (0, HEADER),
    container(BLOCKS[0]): (3, container(BLOCKS[0])),
}
"""Beginnings of a container, with the points in them and the bytes that are read without a rejection."""


@given(st.binary(max_size=300), st.sampled_from([*BEGINNINGS]))
def test_any_bytes_are_read_or_rejected(raw: bytes, beginning: bytes) -> None:
    """What is read and the payloads cover the input: no byte of it is in neither, and none in both."""
    points, read = BEGINNINGS[beginning]
    parsed = parse(beginning + raw)
    assert len(parsed.batch) == points  # no bytes drawn are a block: they would have to hold `SYNC`
    assert read + b"".join(rejected.payload for rejected in parsed.rejected) == beginning + raw


@given(st.binary(max_size=300))
def test_any_bytes_of_a_message_are_rejected(raw: bytes) -> None:
    binary, text = (
        message_format("avro", {"avro_encoding": encoding}).parse(Message(raw, 5))
        for encoding in ("binary", "json")
    )
    assert (len(binary.batch), [rejected.payload for rejected in binary.rejected]) == (0, [raw])
    assert len(text.batch) == 0
    assert b"\n".join(rejected.payload for rejected in text.rejected).split() == raw.split()


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_byte_never_changes_the_number_of_points_unnoticed(position: int, change: int) -> None:
    raw = bytearray(container(*BLOCKS))
    raw[position % len(raw)] ^= change
    parsed = parse(bytes(raw))
    assert len(parsed.batch) == 6 or parsed.rejected


def test_an_early_end_is_told_from_corruption() -> None:
    cutter = ContainerCutter(1)
    list(cutter.add(HEADER[:10]))
    assert cutter.corruption is None
    list(cutter.finish())
    assert isinstance(cutter.corruption, EarlyEndError)


# Round trips: written by fastavro, read back equal.

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
TAGS = st.dictionaries(NAMES, NAMES, max_size=3)
TIMES = st.integers(1, (1 << 32) * 1000 - 1)
LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
DOUBLES = st.floats(allow_nan=False, allow_infinity=False)
ONE = st.fixed_dictionaries({"metric": NAMES, "timestamp": TIMES, "value": LONGS | DOUBLES, "tags": TAGS})


@st.composite
def batches(draw: st.DrawFn) -> dict[str, Any]:
    times = draw(st.lists(TIMES, max_size=5))
    numbers = draw(st.sampled_from([LONGS, DOUBLES, LONGS | DOUBLES]))
    values = [draw(numbers) for _ in times]
    return {"metric": draw(NAMES), "tags": draw(TAGS), "timestamps": times, "values": values}


def flat(record: dict[str, Any]) -> list[tuple[Series, int, float]]:
    """The points of a record of either schema."""
    series = Series.of(record["metric"], record["tags"])
    times = record.get("timestamps", [record.get("timestamp")])
    values = record.get("values", [record.get("value")])
    milliseconds = [time if time >= 1 << 32 else time * 1000 for time in times]
    return [(series, time, value) for time, value in zip(milliseconds, values, strict=True)]


@given(
    st.data(), st.sampled_from([(ONE, POINT), (batches(), POINT_BATCH)]), st.sampled_from(["null", "deflate"])
)
def test_what_fastavro_writes_is_read_back(
    data: st.DataObject, kind: tuple[st.SearchStrategy[dict[str, Any]], Any], codec: str
) -> None:
    strategy, schema = kind
    records = data.draw(st.lists(strategy, min_size=1, max_size=6))
    file = io.BytesIO()
    fastavro.writer(file, schema, records, codec=codec, sync_interval=data.draw(st.integers(1, 200)))
    wanted = [point for record in records for point in flat(record)]
    parsed = parse(file.getvalue())
    assert not parsed.rejected
    found = list(parsed.batch.points())
    assert [(*one, repr(one[2])) for one in found] == [(*one, repr(one[2])) for one in wanted]
    assert (
        len(set(parsed.batch.series)) == len(parsed.batch.series) == len({series for series, _, _ in wanted})
    )
    name = "point" if schema is POINT else "point_batch"
    lines = io.StringIO()
    fastavro.json_writer(lines, schema, records)
    options = {"avro_encoding": "json", "avro_schema": name}
    parsed = message_format("avro", options).parse(Message(lines.getvalue().encode(), 5))
    assert (list(parsed.batch.points()), list(parsed.rejected)) == (wanted, [])
    for record in records:
        file = io.BytesIO()
        fastavro.schemaless_writer(file, schema, record)
        options = {"avro_encoding": "binary", "avro_schema": name}
        parsed = message_format("avro", options).parse(Message(file.getvalue(), 5))
        assert (list(parsed.batch.points()), list(parsed.rejected)) == (flat(record), [])
