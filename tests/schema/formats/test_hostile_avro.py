"""Hostile Avro, and Heroic's protobuf: bombs, cycles, counts, wrong types; in a child with little memory."""

from __future__ import annotations

import bz2
import json
import lzma
import zlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import zstandard

from tests.support.budget import long_after, long_but_every
from tests.support.inputs.avro_bytes import SYNC, long, text
from tests.support.inputs.confined import parsed
from timebeam.schema.formats.avro.schema import own_schema

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "deflate": lambda data: zlib.compress(data)[2:-4],
    "zstandard": zstandard.ZstdCompressor().compress,
    "snappy": lambda data: pa.compress(data, "snappy", asbytes=True) + zlib.crc32(data).to_bytes(4, "big"),
    "bzip2": bz2.compress,
    "xz": lambda data: lzma.compress(data, preset=0),
}


def block(data: bytes, records: int) -> bytes:
    return long(records) + long(len(data)) + data + SYNC


def container(schema: Any, *blocks: bytes, codec: str = "null") -> bytes:
    written = schema if isinstance(schema, str) else json.dumps(schema)
    pairs = text("avro.schema") + text(written) + text("avro.codec") + text(codec)
    return b"Obj\x01" + long(2) + pairs + b"\0" + SYNC + b"".join(blocks)


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "P", "fields": [{"name": n, "type": t} for n, t in fields.items()]}


POINT = text("m") + long(1_356_998_400) + b"\0" + long(5) + long(1) + text("host") + text("a") + b"\0"
FORMS: dict[str, dict[str, Any]] = {"avro": {}, "records": {"encoding": "avro"}}


def rejected(
    form: str, raw: bytes, points: int = 0, options: dict[str, Any] | None = None
) -> list[tuple[str, bytes]]:
    """The rejections of a text in a child that ended well, with as many points."""
    outcome = parsed(form, options or FORMS[form], raw)
    assert (outcome.code, outcome.points) == (0, points)
    return outcome.rejected


def nested(levels: int) -> Any:
    """Records within records."""
    schema: Any = "long"
    for level in range(levels):
        schema = {"type": "record", "name": f"R{level}", "fields": [{"name": "f", "type": schema}]}
    return schema


def doubling(levels: int) -> Any:
    """Ten fields of ten fields, by name: a few lines, and 10^levels values in no bytes."""
    fields: list[dict[str, Any]] = []
    before: Any = "null"
    for level in range(levels):
        inner = [{"name": f"f{i}", "type": before if i == 0 else f"R{level - 1}"} for i in range(10)]
        if level == 0:
            inner = [{"name": f"f{i}", "type": "null"} for i in range(10)]
        before = {"type": "record", "name": f"R{level}", "fields": inner}
        fields = inner
    return {"type": "record", "name": "P", "fields": fields}


SCHEMAS: dict[str, Any] = {
    "a record in itself": record(next="P"),
    "perhaps a record in itself": record(next=["null", "P"]),
    "an array of itself": record(next={"type": "array", "items": "P"}),
    "a map of itself": record(next={"type": "map", "values": "P"}),
    "deep records": nested(200),
    "deep arrays": '{"type":"array","items":' * 300 + '"int"' + "}" * 300,
    "deep beyond JSON": "[" * 100_000,
    "ten of ten of ten": doubling(8),
    "an array of nothing": record(a={"type": "array", "items": "null"}),
    "an array of empty records": record(
        a={"type": "array", "items": {"type": "record", "name": "E", "fields": []}}
    ),
    "an array of empty bytes": record(
        a={"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}
    ),
    "a large schema": record(**{f"field{i}": "long" for i in range(20_000)}),
    "a negative size": record(a={"type": "fixed", "name": "F", "size": -5}),
    "a huge size": record(a={"type": "fixed", "name": "F", "size": 1 << 62}),
    "an odd type": record(a={"type": 5}),
    "no type": record(a={}),
}


@pytest.mark.parametrize(("form", "schema"), long_but_every(2, FORMS, SCHEMAS))
def test_schemas_that_are_rejected_when_read(form: str, schema: str) -> None:
    for data in (b"", b"\x02" * 20_000, long(1 << 40) + b"\0"):
        raw = container(SCHEMAS[schema], block(data, 1))
        ((reason, payload),) = rejected(form, raw)
        assert (reason, payload) == ("corrupt-file", raw)


@pytest.mark.parametrize(("form", "codec"), long_but_every(3, FORMS, COMPRESS))
def test_blocks_that_are_small_one_by_one(form: str, codec: str) -> None:
    """A good block, then others that become 60 MiB each; with Snappy each has 3 MB, so three."""
    others = 3 if codec == "snappy" else 60
    bomb = block(COMPRESS[codec](bytes(60 << 20)), 1)
    good = block(COMPRESS[codec](POINT), 1)
    raw = container(own_schema("point"), good, *[bomb] * others, codec=codec)
    rejections = rejected(form, raw, points=1 if form == "avro" else 2)  # zeros are a record
    assert rejections[0] == ("corrupt-file", bomb * (others - 1))


@pytest.mark.parametrize("codec", long_after(1, ["zstandard", "deflate", "snappy", "bzip2", "xz"]))
def test_a_block_that_becomes_hundreds_of_mebibytes(codec: str) -> None:
    data = b"\x80\x80\x80\x80\x04" + b"\x00" * 100 if codec == "snappy" else COMPRESS[codec](bytes(256 << 20))
    bomb = block(data, 1)
    for form in FORMS:
        assert rejected(form, container(own_schema("point"), bomb, codec=codec)) == [("corrupt-file", bomb)]


def test_xz_that_asks_for_a_dictionary_of_gibibytes() -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 20}]
    data = bytearray(lzma.compress(POINT, filters=filters))
    data[16] = 40  # of the largest dictionary
    data[20:24] = zlib.crc32(bytes(data[12:20])).to_bytes(4, "little")
    bomb = block(bytes(data), 1)
    raw = container(own_schema("point"), bomb, codec="xz")
    assert rejected("avro", raw) == [("corrupt-file", bomb)]


LONGS = record(
    metric="string", timestamps={"type": "array", "items": "long"}, values={"type": "array", "items": "long"}
)
NULLS = record(
    a={
        "type": "array",
        "items": {
            "type": "record",
            "name": "R",
            "fields": [
                {"name": "b", "type": "boolean"},
                *({"name": f"n{i}", "type": "null"} for i in range(500)),
            ],
        },
    }
)
DATA: dict[str, tuple[Any, bytes]] = {
    "a huge count of an array": (LONGS, text("m") + long(1 << 40) + b"\x02" * 100),
    "the least count of an array": (LONGS, text("m") + b"\xff" * 9 + b"\x01" + b"\x02" * 100),
    "a huge text": (LONGS, long(1 << 40) + b"m"),
    "a text of negative length": (LONGS, long(-5) + b"mmmmmmm"),
    "a count without end": (LONGS, text("m") + b"\xff" * 5_000_000),
    "large records of small values": (LONGS, text("m") + long(8_000_000) + b"\x13" * 8_000_000),
    "records of nothing but one byte": (NULLS, long(4_000_000) + b"\0" * 4_000_000),
    "union index -1": (own_schema("point"), POINT.replace(b"\0" + long(5), b"\x01" + bytes(8))),
    "union index -2": (own_schema("point"), POINT.replace(b"\0" + long(5), b"\x03" + long(5))),
    "enum index -1": (record(metric={"type": "enum", "name": "E", "symbols": ["a", "b"]}), b"\x01"),
    "enum index 2": (record(metric={"type": "enum", "name": "E", "symbols": ["a", "b"]}), b"\x04"),
}


@pytest.mark.parametrize(("form", "name"), long_but_every(2, FORMS, DATA))
def test_records_that_are_none(form: str, name: str) -> None:
    schema, data = DATA[name]
    rejections = rejected(form, container(schema, block(data, 1)))
    assert [payload for _, payload in rejections] == [data]


@pytest.mark.parametrize(
    "name", ["a huge count of an array", "union index -1", "enum index -1", "a huge text"]
)
def test_messages_that_are_no_record(name: str) -> None:
    schema, data = DATA[name]
    written = schema if isinstance(schema, str) else json.dumps(schema)
    options = {"avro_encoding": "binary", "avro_schema": written, "avro_fields": ""}
    if "timestamps" in written or "enum" in written:
        options["avro_fields"] = "metric=metric,timestamp=metric,value=metric"
    assert rejected("avro", data, options=options) == [("bad-syntax", data)]


def test_more_records_than_a_container_may_have() -> None:
    many = 3 << 20
    schema = record(timestamp="int", value="int")
    options = {"avro_fields": "metric:=m,timestamp=timestamp,value=value"}
    good, bomb = block(b"\x02\x02", 1), block(b"\x02\x02" * many, many)
    ((reason, payload),) = rejected("avro", container(schema, good, bomb), points=1, options=options)
    assert (reason, payload) == ("corrupt-file", b"\x02\x02" * many + SYNC)


HEROIC: dict[str, bytes] = {
    "a declared size without end": b"\xff" * 9 + b"\x01" + b"\0" * 10,
    "a declared size of a tebibyte": b"\x80\x80\x80\x80\x80\x20" + b"\0" * 10,
    "nothing": pa.compress(bytes(64 << 20), "snappy", asbytes=True),
    "groups": pa.compress(b"\x0b" * (8 << 20), "snappy", asbytes=True),
    "metrics of no bytes": pa.compress(b"\x0a\0" * 100_000, "snappy", asbytes=True),
    "a metric longer than the batch": pa.compress(
        b"\x0a\xff\xff\xff\xff\x0f" + b"a" * 50, "snappy", asbytes=True
    ),
    "a number without end": pa.compress(b"\xff" * 1_000_000, "snappy", asbytes=True),
}


@pytest.mark.parametrize("raw", HEROIC.values(), ids=HEROIC)
def test_heroic_protobuf(raw: bytes) -> None:
    outcome = parsed("heroic-proto", {}, raw)
    assert (outcome.code, outcome.points) == (0, 0)
    assert outcome.rejected


def test_heroic_protobuf_of_wrong_wire_types() -> None:
    """A key that is a number is an unknown field, as to any reader of protobuf; the time is one."""
    raw = pa.compress(b"\x0a\x04\x08\x01\x10\x01" * 1000, "snappy", asbytes=True)
    assert parsed("heroic-proto", {}, raw)[:2] == (0, 1000)
