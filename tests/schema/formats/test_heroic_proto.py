"""Format `heroic-proto`: Heroic's own messages, messages made by hand, corrupt ones, several at once."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rejections import rejected_point
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.points import Series
from timebeam.schema.core.rejections import Envelope, Stage
from timebeam.schema.formats import Framing, Message
from timebeam.schema.formats.base import Parsed
from timebeam.schema.formats.heroic.proto_format import HeroicProto

FILE = Path(__file__).parents[2] / "golden" / "heroic" / "heroic.json"
VECTORS = [v for v in json.loads(FILE.read_text())["vectors"] if v["kind"] == "spotify100_proto"]
TIME = 1_300_000_000_000


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number % 128 + 128]) + varint(number // 128)


def field(number: int, content: bytes | str) -> bytes:
    """A field of bytes, a text or a message."""
    raw = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def integer(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value % (1 << 64))


def double(number: int, value: float) -> bytes:
    return varint(number << 3 | 1) + struct.pack("<d", value)


def entry(number: int, key: str, value: str) -> bytes:
    return field(number, field(1, key) + field(2, value))


def metric(*fields: bytes) -> bytes:
    """A metric of a batch."""
    return field(1, b"".join(fields))


def snappy(batch: bytes) -> bytes:
    return pa.compress(batch, codec="snappy", asbytes=True)


def parse(batch: bytes, offset: int = 0) -> Parsed:
    return HeroicProto().parse(Message(snappy(batch), 5, "topic", offset))


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["id"])
def test_messages_that_heroic_made(vector: dict[str, Any]) -> None:
    batch, message = bytes.fromhex(vector["batch_hex"]), bytes.fromhex(vector["message_snappy_hex"])
    assert pa.decompress(message, len(batch), codec="snappy", asbytes=True) == batch
    parsed = HeroicProto().parse(Message(message, 5))
    expected, rejected = [], []
    for one in vector["metrics"]:
        series = Series.of(one["key"], one["tags"], one["resource"])
        if "dropped" in one:
            rejected.append(Reason.EMPTY_VALUE)
        elif one["time"] <= 0:
            rejected.append(Reason.BAD_TIMESTAMP)
        elif "distribution_hex" in one:
            expected.append((series, one["time"], bytes.fromhex(one["distribution_hex"])))
        else:
            expected.append((series, one["time"], one["value"]))
    assert list(parsed.batch.points()) == expected
    assert [(rejected.reason, rejected.payload) for rejected in parsed.rejected] == [
        (reason, batch) for reason in rejected
    ]
    assert parsed.batch.in_ms.all()
    assert set(parsed.batch.arrivals_ms.tolist()) <= {5}


def test_the_seven_messages_are_met() -> None:
    assert len(VECTORS) == 7
    assert HeroicProto.framing is Framing.NONE
    assert HeroicProto.example.hex() in {vector["message_snappy_hex"] for vector in VECTORS}


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=4) | st.just("x" * 200)
MAPS = st.dictionaries(TEXT, TEXT, max_size=3)
VALUES = st.floats(allow_nan=False, allow_infinity=False) | st.binary(max_size=200)
POINT = st.tuples(TEXT, MAPS, MAPS, st.integers(1, 4_294_967_295_999), VALUES)
UNKNOWN = st.sampled_from(
    [integer(9, 1 << 40), double(900, 1.0), field(7, "x"), varint(8 << 3 | 5) + b"1234"]
)


@given(st.lists(POINT, max_size=5), st.data())
def test_metrics_in_any_order_of_fields(points: list[Any], data: st.DataObject) -> None:
    batch = b""
    for key, tags, resources, time, value in points:
        fields = [field(1, key)] if key or data.draw(st.booleans()) else []
        fields.append(integer(2, time))
        if isinstance(value, bytes):
            fields.append(field(6, field(2, value)))
        elif data.draw(st.booleans()):
            fields += [field(6, double(1, value)), double(3, 7.0)]  # `value` is for readers of old
        elif value or math.copysign(1, value) < 0:
            fields.append(double(3, value))
        fields += [entry(4, *pair) for pair in tags.items()] + [entry(5, *pair) for pair in resources.items()]
        fields += data.draw(st.lists(UNKNOWN, max_size=2))
        batch += metric(*data.draw(st.permutations(fields)))
    parsed = parse(batch)
    assert parsed.rejected == []
    assert list(parsed.batch.points()) == [
        (Series.of(key, tags, resources), time, value) for key, tags, resources, time, value in points
    ]
    assert parsed.batch.origins is not None
    spans = zip(parsed.batch.origins.starts, parsed.batch.origins.ends, strict=True)
    assert b"".join(batch[start:end] for start, end in spans) == batch


GOOD = metric(field(1, "m"), integer(2, TIME), double(3, 1.5))


@pytest.mark.parametrize(
    ("fields", "reason", "text"),
    [
        ([integer(2, 0)], Reason.BAD_TIMESTAMP, "time must be a positive number: 0"),
        ([], Reason.BAD_TIMESTAMP, "time must be a positive number: 0"),
        ([integer(2, -5)], Reason.BAD_TIMESTAMP, "time must be a positive number: -5"),
        ([integer(2, 1 << 62)], Reason.TIMESTAMP_OUT_OF_RANGE, "after 2106"),
        ([integer(2, TIME), double(3, math.nan)], Reason.BAD_NUMBER, "NaN"),
        ([integer(2, TIME), field(6, double(1, math.inf))], Reason.BAD_NUMBER, "Infinite"),
        ([integer(2, TIME), field(6, b"")], Reason.EMPTY_VALUE, "neither a double nor a distribution"),
        ([integer(2, TIME), field(6, b"\x09")], Reason.CORRUPT_MESSAGE, "corrupt metric"),
        ([integer(2, TIME), field(6, b"\x12\x05a")], Reason.CORRUPT_MESSAGE, "corrupt metric"),
        ([field(1, b"\xff"), integer(2, TIME)], Reason.BAD_ENCODING, "not UTF-8"),
        ([entry(4, "a", "1"), entry(4, "a", "2"), integer(2, TIME)], Reason.DUPLICATE_TAG, "duplicate tag"),
        ([field(4, b"\x0a\x09a"), integer(2, TIME)], Reason.CORRUPT_MESSAGE, "corrupt metric"),
        ([integer(2, TIME), b"\x1b"], Reason.CORRUPT_MESSAGE, "a field of type 3"),
        ([integer(2, TIME), b"\x02\x00"], Reason.CORRUPT_MESSAGE, "a field of number 0"),
        ([integer(2, TIME), b"\x19\x00"], Reason.CORRUPT_MESSAGE, "do not end where it ends"),
        ([integer(2, TIME), b"\x0a"], Reason.CORRUPT_MESSAGE, "corrupt metric"),
        ([integer(2, TIME), b"\x0a\x7f"], Reason.CORRUPT_MESSAGE, "do not end where it ends"),
        ([b"\x10" + b"\xff" * 11 + b"\x01"], Reason.CORRUPT_MESSAGE, "a number of more than 64 bits"),
    ],
)
def test_a_bad_metric_is_rejected_and_the_others_taken(
    fields: list[bytes], reason: Reason, text: str
) -> None:
    bad = metric(*fields)
    parsed = parse(GOOD + bad + GOOD, 100)
    (rejected,) = parsed.rejected
    assert (rejected.payload, rejected.reason, rejected.stage) == (bad, reason, Stage.PARSE)
    assert (rejected.source, rejected.offset) == ("topic", 100 + len(GOOD))
    assert text in rejected.message
    assert list(parsed.batch.points()) == [(Series.of("m", {}), TIME, 1.5)] * 2
    assert len(parsed.batch.series) == 1


def test_later_fields_win_as_protobuf_has_it() -> None:
    fields = [field(1, "no"), field(1, "m"), integer(2, 1), integer(2, TIME), double(3, 1.0), double(3, 2.0)]
    typed = [field(6, field(2, b"x") + double(1, 3.0)), field(6, b"")]
    (first, second) = parse(metric(*fields) + metric(*fields, *typed)).batch.points()
    assert first == (Series.of("m", {}), TIME, 2.0)
    assert second == (Series.of("m", {}), TIME, 3.0)


@pytest.mark.parametrize("tail", [b"\x0a", b"\x0a\x05abc", b"\x0b", b"\x80", b"\xff" * 12])
def test_metrics_before_corruption_are_taken(tail: bytes) -> None:
    parsed = parse(GOOD + tail)
    (rejected,) = parsed.rejected
    assert (rejected.payload, rejected.reason) == (tail, Reason.CORRUPT_MESSAGE)
    assert "corrupt batch" in rejected.message
    assert len(parsed.batch) == 1


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x80",
        b"no snappy",
        snappy(GOOD)[:-1],
        snappy(GOOD) + b"x",
        varint((64 << 20) + 1) + b"\0x",
        b"\xff" * 20,
    ],
)
def test_what_is_no_snappy_block_is_rejected_whole(raw: bytes) -> None:
    parsed = HeroicProto().parse(Message(raw, 5, "topic", 9))
    (rejected,) = parsed.rejected
    assert (rejected.payload, rejected.reason, rejected.offset) == (raw, Reason.CORRUPT_MESSAGE, 9)
    assert "no raw Snappy block" in rejected.message
    assert len(parsed.batch) == 0


@given(POINT)
def test_the_payload_of_a_rejection_is_read_alone(point: tuple[Any, ...]) -> None:
    """Whatever its first bytes say to Snappy."""
    key, tags, resources, time, value = point
    typed = field(6, field(2, value) if isinstance(value, bytes) else double(1, value))
    maps = [entry(4, *pair) for pair in tags.items()] + [entry(5, *pair) for pair in resources.items()]
    payload = metric(field(1, key), integer(2, time), typed, *maps)
    parsed = HeroicProto().parse(Message(payload, 5))
    assert (list(parsed.batch.points()), parsed.rejected) == (
        [(Series.of(key, tags, resources), time, value)],
        [],
    )


def test_a_batch_may_be_empty() -> None:
    parsed = parse(b"")
    assert (len(parsed.batch), parsed.rejected) == (0, [])


@given(st.binary(max_size=60))
def test_any_bytes_are_read_without_an_error(raw: bytes) -> None:
    for parsed in (HeroicProto().parse(Message(raw, 5)), parse(raw), parse(metric(raw))):
        assert all(
            rejected.payload in (raw, metric(raw)) or rejected.payload in raw for rejected in parsed.rejected
        )


def test_several_messages_become_one_batch() -> None:
    bad = metric(integer(2, 0))
    bodies = [snappy(GOOD), b"no snappy", snappy(GOOD + bad + GOOD)]
    messages = [
        Message(body, 10 + i, "topic", 0, Envelope(str(i), 10 + i, {})) for i, body in enumerate(bodies)
    ]
    (parsed,) = HeroicProto().parse_all(messages)
    assert parsed.batch.arrivals_ms.tolist() == [10, 12, 12]
    assert [time for _, time, _ in parsed.batch.points()] == [TIME] * 3
    assert [(r.payload, r.offset, r.arrival_ms, r.envelope) for r in parsed.rejected] == [
        (b"no snappy", 0, 11, messages[1].envelope),
        (bad, len(GOOD), 12, messages[2].envelope),
    ]
    later = rejected_point(parsed.batch, 2, Reason.VALUE_NOT_STORABLE)
    assert (later.payload, later.offset, later.envelope) == (GOOD, len(GOOD + bad), messages[2].envelope)
    (nothing,) = HeroicProto().parse_all(messages[1:2])
    assert (len(nothing.batch), len(nothing.rejected)) == (0, 1)
