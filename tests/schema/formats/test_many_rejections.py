"""Messages of many rejected records: into how many rejections, of how many bytes, and what is read again."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest

from timebeam.schema.bits.protobuf import encoded_bytes as field
from timebeam.schema.bits.protobuf import encoded_varint as varint
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.rejections import MOST_RECORDS, Rejected, Stage, records_of
from timebeam.schema.formats import Message, base, message_format
from timebeam.schema.formats.base import SINGLE, Parsed

T = 1_356_998_400
MS = varint(15 << 3) + varint(T * 1000)
BAD, GOOD = "bad", "good"


def otlp(kinds: list[str]) -> bytes:
    """A histogram for each kind: a bad one has bounds that do not ascend."""
    points = []
    for number, kind in enumerate(kinds):
        bounds = (2.0, 1.0) if kind == BAD else (1.0, 2.0)
        time = varint(3 << 3 | 1) + struct.pack("<Q", (T + number) * 10**9)
        counts = field(6, struct.pack("<QQQ", 1, 1, 1))
        count = varint(4 << 3 | 1) + struct.pack("<Q", 3)
        points.append(field(1, time + count + counts + field(7, struct.pack("<dd", *bounds))))
    return field(1, field(2, field(2, field(1, b"m") + field(9, b"\x10\x02" + b"".join(points)))))


def remote_write_2(kinds: list[str]) -> bytes:
    """A series for each kind: a bad one has a histogram of five buckets without counts."""
    histogram = field(11, varint(1 << 3) + varint(0) + varint(2 << 3) + varint(5)) + MS
    sample = varint(1 << 3 | 1) + struct.pack("<d", 1.5) + varint(2 << 3) + varint(T * 1000)
    parts = [field(3, histogram) if kind == BAD else field(2, sample) for kind in kinds]
    symbols = field(4, b"") + field(4, b"__name__") + field(4, b"m")
    return symbols + b"".join(field(5, field(1, b"\1\2") + part) for part in parts)


def remote_write_1(kinds: list[str]) -> bytes:
    """One series with a histogram for each kind."""
    bad = field(11, varint(1 << 3) + varint(0) + varint(2 << 3) + varint(5)) + MS
    good = varint(1 << 3) + varint(7) + MS
    label = field(1, field(1, b"__name__") + field(2, b"m"))
    return field(1, label + b"".join(field(4, bad if kind == BAD else good) for kind in kinds))


WHOLE: dict[str, Callable[[list[str]], bytes]] = {"otlp": otlp, "prometheus-remote-write": remote_write_2}


def parse(name: str, message: Message) -> Parsed:
    return message_format(name, {}).parse(message)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("otlp", otlp([BAD] * 300)),
        ("prometheus-remote-write", remote_write_2([BAD] * 300)),
        ("prometheus-remote-write", remote_write_1([BAD] * 300)),
    ],
)
def test_rejected_records_of_a_message_share_one_rejection(name: str, text: bytes) -> None:
    """Each was one, with the whole message: 82 KB became 124 MB."""
    (rejected,) = parse(name, Message(text, 1)).rejected
    assert (rejected.payload, rejected.points, rejected.reason) == (text, 300, Reason.VALUE_NOT_STORABLE)


@pytest.mark.parametrize("name", WHOLE)
def test_a_rejection_lists_its_records_and_no_others_are_read_again(name: str) -> None:
    text = WHOLE[name]([GOOD, BAD, BAD, GOOD, BAD])
    parsed = parse(name, Message(text, 1, "s", 100))
    assert len(parsed.batch)
    (rejected,) = parsed.rejected
    assert (rejected.payload, rejected.offset, rejected.points) == (text, 100, 3)
    assert len(rejected.records) == 2
    again = parse(name, Message(text, 1, "s", 100, records=rejected.records))
    assert (len(again.batch), again.rejected) == (0, [rejected])
    fixed = parse(name, Message(text, 1, records=records_of_good(name, text)))
    assert list(fixed.batch.points()) == list(parsed.batch.points())
    assert not fixed.rejected
    beside = message_format(name, {}).parse_all(
        [Message(text, 1), Message(text, 2, records=rejected.records), Message(text, 3)]
    )
    (together,) = beside
    assert set(together.batch.arrivals_ms.tolist()) == {1, 3}
    assert [(each.arrival_ms, each.points) for each in together.rejected] == [(1, 3), (2, 3), (3, 3)]


def records_of_good(name: str, text: bytes) -> tuple[tuple[int, int], ...]:
    """The records of a message whose points are good, as a later step lists them."""
    batch = parse(name, Message(text, 1)).batch
    (rejected,) = reject_all(batch)
    return rejected.records


def reject_all(batch: PointBatch, *reasons: Reason) -> list[Rejected]:
    """The rejections of all points, for each of the reasons in turn."""
    chosen = reasons or (Reason.UNKNOWN_NAME,)
    return batch.reject(
        np.arange(len(batch)), lambda point: RejectedError(chosen[point % len(chosen)], "why"), Stage.ASSIGN
    )


def test_points_of_a_line_that_two_reasons_reject_by_turns_are_two_rejections() -> None:
    """Each was one with the whole line, which is quadratic."""
    fields = ",".join(f"f{number}=1" for number in range(1000))
    batch = parse("influx", Message(f"m,h=a {fields} {T}000000000".encode(), 1)).batch
    assert len(batch) == 1000
    rejected = reject_all(batch, Reason.UNKNOWN_NAME, Reason.BAD_METRIC)
    assert [(each.reason, each.points, each.records) for each in rejected] == [
        (Reason.UNKNOWN_NAME, 500, ()),
        (Reason.BAD_METRIC, 500, ()),
    ]


@pytest.mark.parametrize("name", WHOLE)
def test_points_of_a_message_that_a_later_step_rejects_share_a_rejection(name: str) -> None:
    text = WHOLE[name]([GOOD] * 50 + [BAD] * 50)
    batch = parse(name, Message(text, 1)).batch
    (rejected,) = reject_all(batch)
    assert (rejected.payload, rejected.points) == (text, len(batch))
    again = parse(name, Message(rejected.payload, 1, records=rejected.records))
    assert list(again.batch.points()) == list(batch.points())
    assert not again.rejected


def test_no_record_is_missing_in_a_list_that_is_too_long() -> None:
    starts = np.arange(MOST_RECORDS + 5) * 10
    records = records_of(starts, starts + 3, (0, 99_999))
    assert len(records) == MOST_RECORDS
    assert records[:2] == ((0, 3), (10, 3))
    assert sum(records[-1]) == starts[-1] + 3


def test_rejections_beyond_a_number_share_one_for_each_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only adjacent ones did: two reasons by turns became a million."""
    monkeypatch.setattr(base, "SINGLE", 4)
    lines = [b"{}", b"1", b'"', b'{"metric":"m","timestamp":1356998400,"value":1,"tags":{"h":"a"}}'] * 30
    parsed = parse("opentsdb-json", Message(b"\n".join(lines), 1))
    assert len(parsed.batch) == 30
    assert sum(each.points for each in parsed.rejected) == 90
    assert len(parsed.rejected) == 4 + len({each.reason for each in parsed.rejected})
    payloads = [line for each in parsed.rejected for line in each.payload.split(b"\n")]
    assert sorted(payloads) == sorted(line for line in lines if len(line) < 9)
    again = [parse("opentsdb-json", Message(each.payload, 1)) for each in parsed.rejected]
    assert [sum(each.points for each in one.rejected) for one in again] == [
        each.points for each in parsed.rejected
    ]


@pytest.mark.parametrize("between", [b",", b",\n ", b"\n,"])
def test_elements_of_a_document_that_share_a_rejection_are_read_again(
    monkeypatch: pytest.MonkeyPatch, between: bytes
) -> None:
    """A comma between two objects of one line made the second surplus text."""
    monkeypatch.setattr(base, "SINGLE", 2)
    point = b'{"metric":\n"m","timestamp":1356998400,"value":"x","tags":{"h":"a"}}'
    parsed = parse("opentsdb-json", Message(b"[" + between.join([point] * 9) + b"]", 1))
    assert [each.points for each in parsed.rejected] == [1, 1, 7]
    fixed = parsed.rejected[-1].payload.replace(b'"x"', b"1")
    assert len(parse("opentsdb-json", Message(fixed, 1)).batch) == 7


def test_series_of_remote_write_with_one_rejection_are_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(base, "SINGLE", 2)
    series = remote_write_1([BAD]) + remote_write_1([GOOD])
    parsed = parse("prometheus-remote-write", Message(series * 9, 1))
    assert [each.points for each in parsed.rejected] == [1, 1, 7]
    assert parsed.rejected[-1].payload == remote_write_1([BAD]) * 7


def test_resources_of_otlp_that_share_a_rejection_list_their_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "SINGLE", 2)
    parsed = parse("otlp", Message(otlp([GOOD, BAD]) * 9, 1))
    assert [each.points for each in parsed.rejected] == [1, 1, 7]
    last = parsed.rejected[-1]
    assert last.payload == otlp([GOOD, BAD]) * 7
    assert len(last.records) == 7
    again = parse("otlp", Message(last.payload, 1, records=last.records))
    assert (len(again.batch), sum(each.points for each in again.rejected)) == (0, 7)


def test_a_message_that_quotes_a_long_name_is_short() -> None:
    """Of each of many points it held the name of a megabyte."""
    error = RejectedError(Reason.BAD_TAG, "begin" + "x" * (1 << 20) + "end")
    assert len(error.message) == 1000
    assert (error.message[:5], error.message[-3:]) == ("begin", "end")
    assert SINGLE > MOST_RECORDS
