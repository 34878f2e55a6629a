"""Messages in their packings, and formats that are told by attributes and content."""

from __future__ import annotations

import base64
import gzip
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest
import zstandard

from tests.support.rejections import rejected_point
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.rejections import Envelope
from timebeam.schema.formats import AUTO, FORMATS, Message, format_class
from timebeam.schema.formats.influx.influx_format import Influx
from timebeam.transforms.input.parse import Formats, ParseMessagesFn

TEXT = format_class("influx").example

PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": zstandard.compress,
    "base64": base64.b64encode,
}


def message(text: bytes, attributes: Mapping[str, str] | None = None) -> Message:
    return Message(text, 5, "sub", 0, Envelope("1", 5, attributes or {}))


def opened(text: bytes, form: str, attributes: Mapping[str, str] | None = None) -> Message:
    return Formats(form, {}).open(message(text, attributes))


@pytest.mark.parametrize(
    "form", ["influx", "opentsdb-text", "opentsdb-json", "telegraf-json", "otlp", "prometheus-remote-write"]
)
@pytest.mark.parametrize(
    "packings", [(), *((name,) for name in PACKINGS), *itertools.permutations(PACKINGS, 2)]
)
def test_packings_that_nothing_announces(form: str, packings: tuple[str, ...]) -> None:
    text = format_class(form).example
    for name in packings:
        text = PACKINGS[name](text)
    assert opened(text, form).text == format_class(form).example


def test_more_than_two_packings() -> None:
    thrice = gzip.compress(gzip.compress(gzip.compress(TEXT)))
    assert opened(thrice, "influx").text == gzip.compress(TEXT)
    with pytest.raises(RejectedError):
        opened(thrice, "influx", {"content-encoding": "gzip, gzip, gzip"})


def test_packings_of_attributes() -> None:
    packed = gzip.compress(base64.b64encode(TEXT))
    plain = opened(packed, "influx", {"content-encoding": "base64, gzip", "k": "v"})
    assert plain.text == TEXT
    assert plain.envelope is not None
    assert plain.envelope.attributes == {"k": "v"}
    single = message(gzip.compress(TEXT), {"content-encoding": "gzip"})
    assert Formats("influx", {}).open(single) is single  # undone while it is read, in blocks
    snappy = pa.compress(TEXT, codec="snappy", asbytes=True)
    assert opened(gzip.compress(snappy), "influx", {"content-encoding": "snappy,gzip"}).text == TEXT


def test_bytes_of_any_kind_are_not_opened() -> None:
    packed = message(gzip.compress(format_class("heroic-proto").example))
    assert Formats("heroic-proto", {}).open(packed) is packed


@pytest.mark.parametrize("text", [b"abcdefgh", b"AAAAAAAA", b"put m 1 1 a=b", b"", b"rubbish!"])
def test_what_is_not_packed_stays(text: bytes) -> None:
    assert opened(text, "influx").text == text


def test_bombs_are_rejected() -> None:
    for bomb in (gzip.compress(bytes(65 << 20)), gzip.compress(gzip.compress(bytes(64 << 20)))):
        with pytest.raises(RejectedError) as rejected:
            opened(bomb, "influx")
        assert rejected.value.reason is Reason.CORRUPT_MESSAGE
    with pytest.raises(RejectedError):
        opened(gzip.compress(TEXT)[:-5], "influx")


def test_many_members_of_gzip() -> None:
    """Each is unpacked by itself: 300,000 without content once took minutes."""
    assert opened(gzip.compress(b"") * 300_000 + gzip.compress(TEXT), "influx").text == TEXT


@pytest.mark.parametrize("frames", [1, 2])
def test_zstd_that_ends_early_and_does_not_say_its_size(frames: int) -> None:
    compressor = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    frame = compressor.compress(TEXT + b"\n") + compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    early = zstandard.compress(TEXT + b"\n") * (frames - 1) + frame
    with pytest.raises(RejectedError, match="corrupt zstd: the compressed data end before"):
        opened(early, "influx")


NOT_BY_CONTENT = "avro", "parquet", "opentsdb-annotations", "kairosdb-text", "heroic-proto"
CHOSEN = [name for name in FORMATS if name not in NOT_BY_CONTENT]
"""Formats of messages of which no one reads what another one means."""


@pytest.mark.parametrize("name", CHOSEN)
@pytest.mark.parametrize("packing", ["", *PACKINGS])
def test_formats_by_content(name: str, packing: str) -> None:
    text = format_class(name).example
    formats = Formats(AUTO, {}, CHOSEN)
    plain = formats.open(message(PACKINGS[packing](text) if packing else text))
    assert formats.key(plain) == (name, "")
    assert len(formats[name, ""].parse(plain).batch) == 1


def test_formats_by_attributes() -> None:
    formats = Formats(AUTO, {}, ["influx", "otlp", "prometheus-remote-write"])
    written = "application/x-protobuf;proto=io.prometheus.write.v2.Request"
    for attributes, name in (
        ({"ce-type": "org.opentelemetry.otlp.metrics.v1"}, "otlp"),
        (
            {"content-type": written},
            "prometheus-remote-write",
        ),
        ({"format": "influx"}, "influx"),
    ):
        assert formats.key(formats.open(message(b"x", attributes)))[0] == name
    packed = message(gzip.compress(TEXT), {"content-encoding": "gzip"})
    assert formats.key(formats.open(packed))[0] == "influx"


def test_what_no_format_reads_is_rejected() -> None:
    formats = Formats(AUTO, {}, ["influx", "otlp"])
    with pytest.raises(RejectedError, match="begins with b'put m 1 1 a=b': none of influx, otlp") as rejected:
        formats.open(message(b"put m 1 1 a=b"))
    assert rejected.value.reason is Reason.UNKNOWN_FORMAT


def test_some_bad_lines_do_not_hide_a_format() -> None:
    formats = Formats(AUTO, {}, ["opentsdb-text", "influx"])
    plain = formats.open(message(TEXT + b"\nrubbish"))
    assert formats.key(plain)[0] == "influx"


def test_messages_whose_content_tells_their_format_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were read to find the format, and then again."""
    texts: list[bytes] = []
    read = Influx.columnar

    def counted(form: Influx, lines: Message, *spans: Any) -> Any:
        texts.append(lines.text)
        return read(form, lines, *spans)

    monkeypatch.setattr(Influx, "columnar", counted)
    fn = ParseMessagesFn(AUTO, {}, ["influx", "otlp"])
    fn.setup()
    good = [TEXT, b"cpu,host=b user=1 1700000000000000000\nrubbish", base64.b64encode(TEXT)]
    messages = [Message(text, 7 + n, "topic", 0, Envelope(str(n), 7 + n, {})) for n, text in enumerate(good)]
    batch, rejected = sorted(fn.process(messages), key=lambda output: not isinstance(output, PointBatch))
    fn.teardown()
    assert texts == [TEXT, good[1], TEXT]
    assert isinstance(batch, PointBatch)
    assert batch.arrivals_ms.tolist() == [7, 8, 9]
    assert batch.origins is not None
    spans = zip(batch.origins.starts.tolist(), batch.origins.ends.tolist(), strict=True)
    assert [batch.origins.text[start:end] for start, end in spans] == [TEXT, good[1][:-8], TEXT]
    again = rejected_point(batch, 2)
    assert (again.payload, again.offset, again.arrival_ms) == (TEXT, 0, 9)
    assert again.envelope == Envelope("2", 9, {"format": "influx"})
    assert (rejected.value.payload, rejected.value.offset, rejected.value.arrival_ms) == (b"rubbish", 38, 8)
