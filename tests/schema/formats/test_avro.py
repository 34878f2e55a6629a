"""Format `avro`: single records, containers, other people's schemas; what is rejected and why.

The bytes of the vectors are made by hand from Avro's specification: longs in zigzag order, 7 bits a
byte; texts with their length before them; maps and arrays as counted blocks that an empty one ends.
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import pytest

from tests.support.inputs.avro_bytes import container, integer, long, point, tag_map, text
from tests.support.rejections import rejected_point
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.points import Series
from timebeam.schema.core.rejections import Stage
from timebeam.schema.formats import Framing, Message, Parsed, message_format
from timebeam.schema.formats.avro.avro_format import Avro
from timebeam.schema.formats.avro.schema import own_schema

SERIES = Series.of("sys.cpu", {"host": "web01"})


def double(value: float) -> bytes:
    return b"\x02" + struct.pack("<d", value)


def parse(raw: bytes, offset: int = 0, **options: str) -> Parsed:
    named = {f"avro_{name}": value for name, value in options.items()}
    return message_format("avro", named).parse(Message(raw, 5, "gs://b/f", offset))


def points(parsed: Parsed) -> list[tuple[Series, int, int | float]]:
    return list(parsed.batch.points())


def rejections(parsed: Parsed) -> list[tuple[bytes, Reason, int]]:
    assert all((one.stage, one.source) == (Stage.PARSE, "gs://b/f") for one in parsed.rejected)
    assert all(len(one.message) < 260 for one in parsed.rejected)
    return [(one.payload, one.reason, one.offset) for one in parsed.rejected]


def test_the_example() -> None:
    assert points(parse(Avro.example)) == [(SERIES, 1_356_998_400_000, 42.5)]


@pytest.mark.parametrize(
    ("record", "time_ms", "in_ms", "value"),
    [
        (point(1_356_998_400, integer(5)), 1_356_998_400_000, False, 5),
        (point(1_356_998_400, double(5)), 1_356_998_400_000, False, 5.0),
        (point(1_356_998_400_250, integer(-5)), 1_356_998_400_250, True, -5),
        (point((1 << 32) - 1, double(-0.0)), 4_294_967_295_000, False, -0.0),
        (point(1 << 32, integer((1 << 63) - 1)), 4_294_967_296, True, (1 << 63) - 1),
        (point(1, integer(-(1 << 63))), 1000, False, -(1 << 63)),
        (point(4_294_967_295_999, double(5e-324)), 4_294_967_295_999, True, 5e-324),
    ],
)
def test_binary_points(record: bytes, time_ms: int, in_ms: bool, value: float) -> None:
    for parsed in (parse(record, encoding="binary"), parse(container([record]))):
        ((series, time, found),) = points(parsed)
        assert (series, time, type(found), repr(found)) == (SERIES, time_ms, type(value), repr(value))
        assert (parsed.batch.in_ms.tolist(), parsed.batch.arrivals_ms.tolist()) == ([in_ms], [5])
        assert rejected_point(parsed.batch, 0).payload == record


def batch(times: list[int], values: list[bytes]) -> bytes:
    """A record of point_batch.avsc; the values as in `point`."""
    stamps = long(len(times)) + b"".join(map(long, times)) + b"\0" if times else b"\0"
    numbers = long(len(values)) + b"".join(values) + b"\0" if values else b"\0"
    return text("sys.cpu") + tag_map(host="web01") + stamps + numbers


def test_batches() -> None:
    both = batch([1_356_998_400, 1_356_998_401_500], [integer(7), double(-8)])
    in_parts = batch([1_356_998_403], []).removesuffix(b"\0") + long(-1) + long(9) + double(0.5) + b"\0"
    empty = batch([], [])
    wanted = [
        (SERIES, 1_356_998_400_000, 7),
        (SERIES, 1_356_998_401_500, -8.0),
        (SERIES, 1_356_998_403_000, 0.5),
    ]
    parsed = parse(container([both, empty], [in_parts], schema=own_schema("point_batch")))
    assert (points(parsed), rejections(parsed)) == (wanted, [])
    assert [type(value) for _, _, value in points(parsed)] == [int, float, float]
    assert parsed.batch.in_ms.tolist() == [False, True, False]
    parsed = parse(both, encoding="binary", schema="point_batch")
    assert (points(parsed), rejections(parsed)) == (wanted[:2], [])
    line = (
        b'{"metric":"sys.cpu","tags":{"host":"web01"},"timestamps":[1356998400,1356998401500],'
        b'"values":[{"long":7},{"double":-8}]}'
    )
    parsed = parse(line, encoding="json", schema="point_batch")
    assert (points(parsed), rejections(parsed)) == (wanted[:2], [])


def test_a_container_of_both_kinds_of_record() -> None:
    union = f"[{own_schema('point')},{own_schema('point_batch')}]"
    one = b"\0" + point(1_356_998_400, integer(5))
    many = b"\x02" + batch([1_356_998_401], [integer(6)])
    assert [value for _, _, value in points(parse(container([one, many, one], schema=union)))] == [5, 6, 5]


def test_rejected_records_leave_the_others() -> None:
    good = point(1_356_998_400, integer(5))
    bad = [
        (point(0, integer(5)), Reason.BAD_TIMESTAMP),
        (point(-1, integer(5)), Reason.BAD_TIMESTAMP),
        (point(-(1 << 63), integer(5)), Reason.BAD_TIMESTAMP),
        (point(4_294_967_296_000, integer(5)), Reason.TIMESTAMP_OUT_OF_RANGE),
        (point((1 << 63) - 1, integer(5)), Reason.TIMESTAMP_OUT_OF_RANGE),
        (point(1_356_998_400, double(math.nan)), Reason.BAD_NUMBER),
        (point(1_356_998_400, double(math.inf)), Reason.BAD_NUMBER),
        (point(1_356_998_400, double(-math.inf)), Reason.BAD_NUMBER),
        (point(1_356_998_400, integer(5), metric=""), Reason.BAD_METRIC),
        (point(1_356_998_400, integer(5), metric=b"\xff"), Reason.BAD_ENCODING),
        (
            point(1_356_998_400, integer(5), tags=long(1) + text("host") + text(b"\xc3") + b"\0"),
            Reason.BAD_ENCODING,
        ),
    ]
    for record, reason in bad:
        raw = container([good, record, good], [good])
        parsed = parse(raw, offset=100)
        assert len(parsed.batch) == 3
        assert parsed.batch.series == (SERIES,)
        assert rejections(parsed) == [(record, reason, 100 + raw.index(good) + len(good))]
        parsed = parse(record, encoding="binary")
        assert (len(parsed.batch), rejections(parsed)) == (0, [(record, reason, 0)])
        assert parsed.batch.series == ()


def test_rejected_points_of_a_batch_leave_its_others_and_are_one_dead_letter_for_each_reason() -> None:
    values = [double(number) for number in (1.0, math.nan, 3.0, math.inf, 5.0)]
    record = batch([1_356_998_400, 1_356_998_401, 0, 1_356_998_403, 1_356_998_404], values)
    parsed = parse(record, encoding="binary", schema="point_batch")
    assert points(parsed) == [(SERIES, 1_356_998_400_000, 1.0), (SERIES, 1_356_998_404_000, 5.0)]
    assert rejections(parsed) == [(record, Reason.BAD_NUMBER, 0), (record, Reason.BAD_TIMESTAMP, 0)]
    assert parsed.rejected[0].message == "value is NaN or Infinite: nan (and 1 more of the record's points)"


def test_points_without_tags_are_taken() -> None:
    parsed = parse(point(1_356_998_400, integer(5), tags=tag_map()), encoding="binary")
    assert points(parsed) == [(Series.of("sys.cpu", {}), 1_356_998_400_000, 5)]


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", Reason.BAD_SYNTAX),
        (point(1_356_998_400, integer(5))[:-1], Reason.BAD_SYNTAX),
        (point(1_356_998_400, integer(5)) + b"\0", Reason.BAD_SYNTAX),
        (point(1_356_998_400, b"\x04"), Reason.BAD_SYNTAX),
        (b"\xff" * 20, Reason.BAD_SYNTAX),
        (batch([1, 2], [integer(7), integer(-8)]), Reason.BAD_SYNTAX),
    ],
)
def test_bytes_that_are_no_record(raw: bytes, reason: Reason) -> None:
    assert rejections(parse(raw, encoding="binary")) == [(raw, reason, 0)]


def test_arrays_of_different_lengths() -> None:
    record = batch([1_356_998_400], [integer(7), integer(-8)])
    parsed = parse(record, encoding="binary", schema="point_batch")
    assert (len(parsed.batch), rejections(parsed)) == (0, [(record, Reason.BAD_SYNTAX, 0)])


JSON = '{"metric":"sys.cpu","timestamp":1356998400,"value":{"double":42.5},"tags":{"host":"web01"}}'


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (JSON, 42.5),
        (JSON.replace('{"double":42.5}', '{"double":42}'), 42.0),
        (JSON.replace('{"double":42.5}', '{"long":42}'), 42),
        (JSON.replace('{"double":42.5}', '{"long":-9223372036854775808}'), -(1 << 63)),
        (JSON.replace(":", " : ") + "\r", 42.5),
    ],
)
def test_json_points(line: str, value: float) -> None:
    ((series, time_ms, found),) = points(parse(line.encode(), encoding="json"))
    assert (series, time_ms, type(found), found) == (SERIES, 1_356_998_400_000, type(value), value)


JSON_REJECTED = [
    (JSON.replace('{"double":42.5}', "42.5"), Reason.BAD_SYNTAX, "not a value of a union"),
    (JSON.replace('{"double":42.5}', "null"), Reason.BAD_SYNTAX, "not a value of a union"),
    (JSON.replace('{"double":42.5}', '{"int":5}'), Reason.BAD_SYNTAX, "not a value of a union"),
    (JSON.replace('{"double":42.5}', '{"long":5,"double":5}'), Reason.BAD_SYNTAX, "not a value of a union"),
    (JSON.replace('{"double":42.5}', '{"long":5.5}'), Reason.BAD_SYNTAX, "'5.5' is not a long"),
    (JSON.replace('{"double":42.5}', '{"long":true}'), Reason.BAD_SYNTAX, "'True' is not a long"),
    (JSON.replace('{"double":42.5}', '{"long":"5"}'), Reason.BAD_SYNTAX, "'5' is not a long"),
    (JSON.replace('{"double":42.5}', '{"long":9223372036854775808}'), Reason.BAD_SYNTAX, "is not a long"),
    (JSON.replace('{"double":42.5}', '{"double":"x"}'), Reason.BAD_SYNTAX, "'x' is not a double"),
    (JSON.replace('{"double":42.5}', f'{{"double":{"9" * 400}}}'), Reason.BAD_SYNTAX, "is not a double"),
    (JSON.replace('{"double":42.5}', '{"double":NaN}'), Reason.BAD_NUMBER, "NaN or Infinite"),
    (JSON.replace('{"double":42.5}', '{"double":1e400}'), Reason.BAD_NUMBER, "NaN or Infinite"),
    (JSON.replace("1356998400", "1356998400.0"), Reason.BAD_SYNTAX, "is not a long"),
    (JSON.replace("1356998400", '"1356998400"'), Reason.BAD_SYNTAX, "is not a long"),
    (JSON.replace("1356998400", "0"), Reason.BAD_TIMESTAMP, "above 0"),
    (JSON.replace('"sys.cpu"', "5"), Reason.BAD_SYNTAX, "'5' is not a string"),
    (JSON.replace('"sys.cpu"', '""'), Reason.BAD_METRIC, "must be a string"),
    (JSON.replace('"sys.cpu"', '"\\ud800"'), Reason.BAD_ENCODING, "not UTF-8"),
    (JSON.replace('"web01"', "null"), Reason.BAD_SYNTAX, "is not a string"),
    (JSON.replace('{"host":"web01"}', "[]"), Reason.BAD_SYNTAX, "is not a map"),
    (JSON.replace('"tags"', '"labels"'), Reason.BAD_SYNTAX, "the field 'labels'"),
    (JSON.replace('"metric"', '"x":1,"metric"'), Reason.BAD_SYNTAX, "the field 'x'"),
    (JSON.replace('"metric"', '"tags":{},"metric"'), Reason.BAD_SYNTAX, "duplicate key"),
    (JSON + "x", Reason.BAD_SYNTAX, "not JSON"),
    (JSON[:-1], Reason.BAD_SYNTAX, "not JSON"),
    ("[" * 100_000, Reason.BAD_SYNTAX, "not JSON"),
    ("1" * 5000, Reason.BAD_SYNTAX, "is not a record"),
    ("5", Reason.BAD_SYNTAX, "'5' is not a record"),
]


@pytest.mark.parametrize(("line", "reason", "why"), JSON_REJECTED)
def test_json_lines_that_are_rejected(line: str, reason: Reason, why: str) -> None:
    parsed = parse(f"{JSON}\n\n{line}\n{JSON}".encode(), offset=100, encoding="json")
    assert len(parsed.batch) == 2
    assert rejections(parsed) == [(line.encode(), reason, 100 + len(JSON) + 2)]
    assert why in parsed.rejected[0].message


def test_json_that_is_not_utf8() -> None:
    assert rejections(parse(b"\xff", encoding="json")) == [(b"\xff", Reason.BAD_ENCODING, 0)]


# Other people's schemas.


def record_schema(**fields: Any) -> str:
    return json.dumps(
        {
            "type": "record",
            "name": "Reading",
            "fields": [{"name": name, "type": kind} for name, kind in fields.items()],
        }
    )


READING = record_schema(
    name="string", ts="long", reading="double", labels={"type": "map", "values": "string"}
)
MAPPED = "metric=name,timestamp=ts,value=reading,tags=labels"


def test_fields_by_other_names() -> None:
    record = text("sys.cpu") + long(1_356_998_400) + struct.pack("<d", 1.5) + tag_map(host="web01")
    wanted = [(SERIES, 1_356_998_400_000, 1.5)]
    assert points(parse(record, encoding="binary", schema=READING, fields=MAPPED)) == wanted
    assert points(parse(container([record], schema=READING), fields=MAPPED)) == wanted
    line = b'{"name":"sys.cpu","ts":1356998400,"reading":1.5,"labels":{"host":"web01"}}'
    assert points(parse(line, encoding="json", schema=READING, fields=MAPPED)) == wanted


def test_tags_that_are_fields_and_fixed_texts() -> None:
    schema = record_schema(
        time="int",
        load="float",
        site=["null", "string"],
        rack="int",
        up="boolean",
        other={"type": "array", "items": "int"},
    )
    mapping = "metric:=sys.load,timestamp=time,value=load,tag:site=site,tag:rack=rack,tag:up=up,tag:dc:=lga=1"
    rest = struct.pack("<f", 0.5)
    site = long(1_356_998_400) + rest + b"\x02" + text("a") + long(-7) + b"\x01" + b"\0"
    none = long(1_356_998_400) + rest + b"\0" + long(8) + b"\0" + b"\0"
    tags = {"dc": "lga=1", "rack": "-7", "up": "true", "site": "a"}
    without = {"dc": "lga=1", "rack": "8", "up": "false"}
    for parsed in (
        parse(container([site, none], schema=schema), fields=mapping),
        parse(
            b'{"time":1356998400,"load":0.5,"site":{"string":"a"},"rack":-7,"up":true,"other":[]}\n'
            b'{"time":1356998400,"load":0.5,"site":null,"rack":8,"up":false,"other":[3]}',
            encoding="json",
            schema=schema,
            fields=mapping,
        ),
    ):
        assert points(parsed) == [
            (Series.of("sys.load", tags), 1_356_998_400_000, 0.5),
            (Series.of("sys.load", without), 1_356_998_400_000, 0.5),
        ]


def test_a_tag_of_a_field_beside_the_same_of_the_map() -> None:
    schema = record_schema(
        m="string", t="long", v="long", tags={"type": "map", "values": "string"}, host="string"
    )
    record = text("sys.cpu") + long(1_356_998_400) + long(5) + tag_map(host="web01")
    mapping = "metric=m,timestamp=t,value=v,tags=tags,tag:host=host"
    options = {"encoding": "binary", "schema": schema, "fields": mapping}
    assert points(parse(record + text("web01"), **options)) == [(SERIES, 1_356_998_400_000, 5)]
    other = record + text("web02")
    assert rejections(parse(other, **options)) == [(other, Reason.DUPLICATE_TAG, 0)]


def timed(logical: str) -> str:
    return record_schema(m="string", t={"type": "long", "logicalType": logical}, v="long")


@pytest.mark.parametrize(
    ("logical", "time", "time_ms"),
    [
        ("timestamp-millis", 1_356_998_400_250, 1_356_998_400_250),
        ("timestamp-millis", 5, 5),
        ("timestamp-micros", 1_356_998_400_250_999, 1_356_998_400_250),
        ("timestamp-nanos", 1_356_998_400_250_999_999, 1_356_998_400_250),
    ],
)
def test_logical_types_tell_the_unit_of_times(logical: str, time: int, time_ms: int) -> None:
    record = text("m") + long(time) + long(5)
    line = f'{{"m":"m","t":{time},"v":5}}'.encode()
    for parsed in (
        parse(container([record], schema=timed(logical)), fields="metric=m,timestamp=t,value=v"),
        parse(line, encoding="json", schema=timed(logical), fields="metric=m,timestamp=t,value=v"),
    ):
        assert points(parsed) == [(Series.of("m", {}), time_ms, 5)]
        assert parsed.batch.in_ms.tolist() == [True]


@pytest.mark.parametrize(
    ("logical", "time", "reason"),
    [
        ("timestamp-millis", 4_294_967_296_000, Reason.TIMESTAMP_OUT_OF_RANGE),
        ("timestamp-millis", (1 << 63) - 1, Reason.TIMESTAMP_OUT_OF_RANGE),
        ("timestamp-micros", 999, Reason.BAD_TIMESTAMP),
        ("timestamp-micros", -1, Reason.BAD_TIMESTAMP),
        ("local-timestamp-millis", 1_356_998_400_250, Reason.BAD_TIMESTAMP),
        ("time-micros", 5, Reason.BAD_TIMESTAMP),
    ],
)
def test_times_of_logical_types_that_are_rejected(logical: str, time: int, reason: Reason) -> None:
    record = text("m") + long(time) + long(5)
    parsed = parse(record, encoding="binary", schema=timed(logical), fields="metric=m,timestamp=t,value=v")
    assert (len(parsed.batch), rejections(parsed)) == (0, [(record, reason, 0)])


@pytest.mark.parametrize(
    ("kind", "raw", "reason"),
    [
        ("string", text("5"), Reason.BAD_NUMBER),
        ("boolean", b"\x01", Reason.BAD_NUMBER),
        ("bytes", text("5"), Reason.BAD_NUMBER),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4}, text("5"), Reason.BAD_NUMBER),
        ("null", b"", Reason.EMPTY_VALUE),
        ({"type": "array", "items": "long"}, b"\0", Reason.BAD_SYNTAX),
    ],
)
def test_values_that_are_no_numbers(kind: object, raw: bytes, reason: Reason) -> None:
    record = text("m") + long(1_356_998_400) + raw
    schema = record_schema(metric="string", timestamp="long", value=kind)
    parsed = parse(container([record], schema=schema), fields="metric=metric,timestamp=timestamp,value=value")
    assert [reason for _, reason, _ in rejections(parsed)] == [reason]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ("metric=m,timestamp=t,value=v,tags=nested", Reason.BAD_TAG),
        ("metric=m,timestamp=t,value=v,tag:x=nested", Reason.BAD_TAG),
        ("metric=m,timestamp=t,value=v,tag:x=d", Reason.BAD_TAG),
        ("metric=m,timestamp=t,value=v,tags=m", Reason.BAD_TAG),
        ("metric=t,timestamp=t,value=v", Reason.BAD_METRIC),
        ("metric=m,timestamp=m,value=v", Reason.BAD_TIMESTAMP),
        ("metric=m,timestamp=d,value=v", Reason.BAD_TIMESTAMP),
        ("metric=m,timestamp=t,value=none", Reason.BAD_SYNTAX),
        (None, Reason.BAD_SYNTAX),
    ],
)
def test_fields_of_wrong_types_and_none(fields: str | None, reason: Reason) -> None:
    nested = {"type": "map", "values": {"type": "array", "items": "long"}}
    schema = record_schema(m="string", t="long", v="long", d="double", nested=nested)
    record = text("m") + long(1_356_998_400) + long(5) + bytes(8) + long(1) + text("a") + b"\0\0"
    parsed = parse(container([record], schema=schema), **({"fields": fields} if fields else {}))
    assert rejections(parsed)[0][:2] == (record, reason)


def test_a_tag_of_a_map_that_is_null() -> None:
    tags = {"type": "map", "values": ["null", "string"]}
    schema = record_schema(metric="string", timestamp="long", value="long", tags=tags)
    record = text("m") + long(1_356_998_400) + long(5) + long(1) + text("host") + b"\0\0"
    assert rejections(parse(container([record], schema=schema)))[0][:2] == (record, Reason.BAD_TAG)


def test_a_container_of_what_are_no_records() -> None:
    assert rejections(parse(container([long(5)], schema='"long"')))[0][:2] == (long(5), Reason.BAD_SYNTAX)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"encoding": "xml"}, "avro_encoding must be one of container, binary, json, not 'xml'"),
        ({"schema": "point"}, "avro_schema: a container holds its own schema"),
        ({"encoding": "json", "schema": "{"}, "no Avro schema"),
        ({"encoding": "json", "schema": '"strange"'}, "no Avro schema"),
        ({"encoding": "json", "schema": '"long"'}, "the schema has no field metric, tags, timestamp, value"),
        ({"encoding": "json", "schema": READING}, "the schema has no field metric, tags, timestamp, value"),
        ({"encoding": "json", "schema": READING, "fields": MAPPED + ",tag:a=b"}, "the schema has no field b"),
        ({"fields": "metric=a,timestamp=b"}, "avro_fields lacks value"),
        ({"fields": "metric=a,metric=b"}, "avro_fields: duplicate metric"),
        ({"fields": "metric"}, "avro_fields: 'metric' is not one of"),
        ({"fields": "metric=a,host=b"}, "'host=b' is not one of"),
        ({"fields": "metric=a,timestamp:=5,value=v"}, "'timestamp:=5' is not one of"),
        ({"fields": "metric=,timestamp=b,value=c"}, "'metric=' is not one of"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match="vro") as error:
        parse(b"", **options)
    assert why in str(error.value)


def test_how_files_are_cut() -> None:
    framings = {"container": Framing.AVRO, "binary": Framing.NONE, "json": Framing.LINES}
    for encoding, framing in framings.items():
        assert message_format("avro", {"avro_encoding": encoding}).framing is framing


def test_the_message_of_a_short_record_is_the_same_each_time() -> None:
    text = b"\x0esys.cpu\x80\x9c\x91\x8e\n\x02\0\0\0\0\x000"
    (rejected,) = message_format("avro", {"avro_encoding": "binary"}).parse(Message(text, 1)).rejected
    assert rejected.message == "no record of the schema: EOFError('cannot read double')"
