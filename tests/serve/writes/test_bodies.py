"""Bodies that are parsed at the same time hold what each holds alone."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import json
import threading

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tests.support.inputs.prometheus_proto import request_1, request_2, snappy
from timebeam.pipelines.serve.writes import FORMATS, bodies
from timebeam.pipelines.serve.writes.bodies import (
    SHORT_BYTES,
    BodyContent,
    BodyParser,
    contents_of,
    parse_bodies,
)
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.formats import message_format
from timebeam.transforms.input.parse import Formats

TIME = 1_356_998_400
Body = tuple[bytes, dict[str, str]]

POINT = {"metric": "sys.cpu", "timestamp": TIME, "value": 1.5, "tags": {"host": "a"}}
SERIES = [({"__name__": "m", "host": f"web{n}"}, [(1.0, TIME * 1000 + n)]) for n in range(5)]
NAMELESS = [({"host": "a"}, [(1.0, TIME * 1000)])]


def put(*points: object) -> bytes:
    return json.dumps(points).encode()


def otlp(*times: int) -> bytes:
    """A request of points at times in s; those at 0 are rejected."""
    request = ExportMetricsServiceRequest()
    for time in times:
        metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="m")
        metric.gauge.data_points.add(time_unix_nano=time * 10**9, as_int=1)
    return request.SerializeToString()


def kairosdb(*names: str) -> bytes:
    """A body of metrics; one without a name is rejected."""
    return json.dumps(
        [{"name": name, "timestamp": TIME * 1000, "value": 1, "tags": {"host": "a"}} for name in names]
    ).encode()


TEXTS = {
    "opentsdb-json": [
        put(POINT),
        put(*[POINT | {"timestamp": TIME + n} for n in range(50)]),
        put(POINT, POINT | {"value": "x"}, POINT),
        put(POINT)[:-1],
        json.dumps([POINT, POINT], indent=1).encode(),
        json.dumps(POINT).encode() + b"\n{}\n" + put(POINT),
        put(*[POINT] * (SHORT_BYTES // 80), {}),
        b"",
        b"\xff",
    ],
    "influx": [b"cpu,host=a usage=1,idle=2i 1356998400000000000\n", b"cpu\ncpu usage=1\n"],
    "prometheus-remote-write": [
        snappy(request_1(SERIES)),
        snappy(request_1(SERIES[:2] + NAMELESS + SERIES[2:])),
        snappy(request_2(SERIES)),
        snappy(request_1(SERIES))[:-1],
    ],
    "otlp": [
        otlp(TIME),
        otlp(TIME, 0, TIME + 1),
        otlp(0),
        otlp(TIME)[:-1],
        otlp(),
        b'{"resourceMetrics":[]}',
        b"{",
    ],
    "kairosdb-json": [kairosdb("a"), kairosdb("a", ""), b"x"],
    "heroic-json": [message_format("heroic-json").example, b"x"],
}
BODIES: list[Body] = [
    *((text, {"format": form}) for form, texts in TEXTS.items() for text in texts),
    (gzip.compress(put(POINT, POINT)), {"format": "opentsdb-json", "content-encoding": "gzip"}),
    (gzip.compress(put(POINT))[:-5], {"format": "opentsdb-json", "content-encoding": "gzip"}),
    (zstandard.compress(bytes(9 << 20)), {"format": "opentsdb-json", "content-encoding": "zstd"}),
    (b"cpu usage=1 1356998400\n", {"format": "influx", "influx_precision": "s"}),
]


def plain(content: BodyContent) -> BodyContent:
    """The content without the number of its body."""
    rejected = [dataclasses.replace(each, arrival_ms=-1, envelope=None) for each in content.rejected]
    return dataclasses.replace(content, rejected=rejected)


ALONE = [plain(parse_bodies([body], Formats("", {}, FORMATS))[0]) for body in BODIES]


def test_the_bodies_are_good_and_bad() -> None:
    assert {(content.points > 0, content.rejected_points > 0) for content in ALONE} == {
        *((True, False), (True, True), (False, True), (False, False))
    }


@given(st.lists(st.integers(0, len(BODIES) - 1), max_size=40))
def test_bodies_are_told_apart(numbers: list[int]) -> None:
    bodies, alone = [BODIES[number] for number in numbers], [ALONE[number] for number in numbers]
    assert list(map(plain, parse_bodies(bodies, Formats("", {}, FORMATS)))) == alone

    async def parse_all() -> list[BodyContent]:
        parser = BodyParser({})
        try:
            return await asyncio.gather(*(parser.parse(*body) for body in bodies))
        finally:
            parser.close()

    assert list(map(plain, asyncio.run(parse_all()))) == alone


def test_a_body_is_answered_alike_beside_one_with_thousands_of_bad_records() -> None:
    """A message is read no further after a thousand of them."""
    form = {"format": "opentsdb-text"}
    many, few = (b"put m 1 x host=a\n" * 10_001, form), (b"put m 1 y host=a\nput m 1 z host=a\n", form)
    _, beside = parse_bodies([many, few], Formats("", {}, FORMATS))
    (alone,) = parse_bodies([few], Formats("", {}, FORMATS))
    assert (plain(beside), len(beside.rejected)) == (plain(alone), 2)


@pytest.mark.parametrize(
    ("form", "bad", "start", "end"),
    [
        ("opentsdb-text", b"x\n", b"", b""),
        ("influx", b"x\n", b"", b""),
        ("opentsdb-histogram", b"x\n", b"", b""),
        ("opentsdb-json", b"1,", b"[", b"1]"),
        ("opentsdb-json", b"{},", b"[", b"{}]"),
        ("kairosdb-json", b"1,", b"[", b"1]"),
        ("heroic-json", b"{}\n", b"", b""),
    ],
)
def test_a_body_is_read_until_a_thousand_records_are_rejected(
    form: str, bad: bytes, start: bytes, end: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 KB of gzip unpack to 30 million records, each of which costs a parse and an error."""
    raised = 0
    init = RejectedError.__init__

    def count(error: RejectedError, reason: Reason, message: str) -> None:
        nonlocal raised
        raised += 1
        init(error, reason, message)

    monkeypatch.setattr(RejectedError, "__init__", count)
    body = gzip.compress(start + bad * ((9 << 20) // len(bad)) + end)
    attributes = {"format": form, "content-encoding": "gzip"}
    (content,) = parse_bodies([(body, attributes)], Formats("", {}, FORMATS))
    assert (content.is_unread, content.rejected_points, content.points) == (True, 1_000, 0)
    assert "after 1,000 rejections the rest was not read" in content.rejected[0].message
    assert {rejected.payload for rejected in content.rejected} == {bad.rstrip(b",\n")}
    assert raised < 10_000


def test_a_thousand_rejected_records_are_not_too_many() -> None:
    bad, good = b"put m 1 x host=a\n", b"put m 1 1 host=a\n"
    form = {"format": "opentsdb-text"}
    until, beyond = (good + bad * 1_000 + good, form), (good + bad * 1_001 + good, form)
    read, unread = parse_bodies([until, beyond], Formats("", {}, FORMATS))
    assert (read.points, read.rejected_points, read.is_unread) == (2, 1_000, False)
    assert (unread.rejected_points, unread.is_unread) == (1_000, True)


def test_a_body_that_is_long_when_unpacked_keeps_no_short_ones_waiting() -> None:
    """It is parsed while the thread of short bodies is busy."""
    body, attributes = gzip.compress(put(*[POINT] * 5_000)), {"format": "opentsdb-json"}
    assert len(body) < SHORT_BYTES

    async def parsed() -> BodyContent:
        parser, resume = BodyParser({}), threading.Event()
        parser._lanes[0].thread.submit(resume.wait)
        try:
            return await asyncio.wait_for(parser.parse(body, attributes | {"content-encoding": "gzip"}), 30)
        finally:
            resume.set()
            parser.close()

    assert asyncio.run(parsed()).points == 5_000


@pytest.mark.parametrize("error", [LookupError, MemoryError])
def test_a_body_that_the_server_cannot_read_costs_no_other_one(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is published, so that the stream decides; the sender learns that it was not read."""
    read = bodies.parse_bodies

    def failing(given: list[Body], formats: Formats) -> list[BodyContent]:
        if any(b"poison" in body for body, _ in given):
            raise error("nobody thought of this")
        return read(given, formats)

    monkeypatch.setattr(bodies, "parse_bodies", failing)
    of_put = {"format": "opentsdb-json"}
    texts = [put(POINT), b"poison", put(POINT, POINT)]
    good, poison, both = contents_of([(text, of_put) for text in texts], Formats("", {}, FORMATS))
    assert (good.points, good.rejected_points, good.is_unread) == (1, 0, False)
    assert (both.points, both.rejected_points, both.is_unread) == (2, 0, False)
    assert (poison.points, poison.rejected_points, poison.may_have_points) == (0, 1, True)
    (rejected,) = poison.rejected
    assert (rejected.reason, rejected.payload) == (Reason.INTERNAL_ERROR, b"poison")


def test_more_digits_than_python_reads() -> None:
    long = b'{"metric":"m","timestamp":1356998400,"value":' + b"9" * 4_400_000 + b',"tags":{"h":"a"}}'
    of_put = {"format": "opentsdb-json"}
    bad, good = contents_of([(long, of_put), (put(POINT), of_put)], Formats("", {}, FORMATS))
    assert (good.points, good.rejected_points) == (1, 0)
    assert (bad.points, bad.rejected_points, bad.is_unread) == (0, 1, False)
    assert bad.rejected[0].reason is not Reason.INTERNAL_ERROR
