"""Format `telegraf-json`: documents as Telegraf 1.37 writes them, rejected ones, hostile ones."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.points import Series
from timebeam.schema.formats import Message, message_format
from timebeam.schema.formats.base import Parsed

T = 1_767_225_600

CPU = {
    "fields": {"usage_user": 1.5, "usage_idle": 98.25, "procs": 12},
    "name": "cpu",
    "tags": {"cpu": "cpu-total", "host": "web 01"},
    "timestamp": T,
}
MEM = {
    "fields": {"used": 1 << 40},
    "name": "mem",
    "tags": {"host": "web 01", "empty": ""},
    "timestamp": T + 1,
}

TAGS = {"cpu": "cpu-total", "host": "web 01"}
POINTS = [
    (Series.of("cpu.usage_user", TAGS), T * 1000, 1.5),
    (Series.of("cpu.usage_idle", TAGS), T * 1000, 98.25),
    (Series.of("cpu.procs", TAGS), T * 1000, 12),
    (Series.of("mem.used", {"host": "web 01"}), (T + 1) * 1000, 1 << 40),
]


def parse(text: str | bytes, **options: Any) -> Parsed:
    raw = text.encode() if isinstance(text, str) else text
    return message_format("telegraf-json", options).parse(Message(raw, 5))


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"metrics": [CPU, MEM]}),
        json.dumps(CPU) + "\n" + json.dumps(MEM) + "\n",
        json.dumps({"metrics": [CPU, MEM]}, indent=2),
    ],
)
def test_documents(text: str) -> None:
    parsed = parse(text)
    assert list(parsed.batch.points()) == POINTS
    assert [type(value) for _, _, value in parsed.batch.points()] == [float, float, int, int]
    assert not parsed.rejected
    assert not parsed.batch.in_ms.any()


def test_units_and_metrics() -> None:
    text = json.dumps({**CPU, "timestamp": T * 10**9 + 250_999_999, "fields": {"ok": True}})
    (point,) = parse(text, telegraf_precision="ns", influx_metric="{measurement}_{field}").batch.points()
    assert point == (Series.of("cpu_ok", TAGS), T * 1000 + 250, 1)


@pytest.mark.parametrize("per_second", [1, 10**3, 10**6, 10**9])
def test_units_by_magnitude(per_second: int) -> None:
    batch = parse(json.dumps({**CPU, "timestamp": T * per_second}), telegraf_precision="auto").batch
    assert set(zip(batch.times_ms.tolist(), batch.in_ms.tolist(), strict=True)) == {(T * 1000, False)}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"timestamp": None}, Reason.BAD_TIMESTAMP),
        ({"timestamp": 1.5}, Reason.BAD_TIMESTAMP),
        ({"timestamp": T * 1000}, Reason.TIMESTAMP_OUT_OF_RANGE),
        ({"name": ""}, Reason.BAD_METRIC),
        ({"tags": {"a": 5}}, Reason.BAD_TAG),
        ({"fields": [1]}, Reason.BAD_SYNTAX),
        ({"fields": {"a": "text"}}, Reason.BAD_NUMBER),
        ({"fields": {"a": True}}, Reason.BAD_NUMBER),
        ({"fields": {"a": None}}, Reason.EMPTY_VALUE),
        ({"fields": {"a": 1 << 70}}, Reason.NUMBER_OUT_OF_RANGE),
    ],
)
def test_rejected_metrics(change: dict[str, Any], reason: Reason) -> None:
    line = json.dumps({"metrics": [{**CPU, **change}, MEM]}).encode()
    parsed = parse(line, influx_booleans="reject")
    assert list(parsed.batch.points()) == POINTS[3:]
    assert [(each.reason, each.payload) for each in parsed.rejected] == [(reason, line)]


@pytest.mark.parametrize(
    "text", [b"{", b"5", b"[]", b'{"metrics":5}', b"\xff", b'{"a":' * 5000, b'{"metrics":[5]}']
)
def test_no_document(text: bytes) -> None:
    parsed = parse(text)
    assert len(parsed.batch) == 0
    assert [each.payload for each in parsed.rejected] == [text]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"metrics": [CPU, MEM]}, indent=2)[:-2],
        "# comment\n" + json.dumps(CPU, indent=1),
        json.dumps({"metrics": [CPU, MEM]}, indent=2).replace("1.5", "NaN"),
    ],
)
def test_a_broken_document_is_one_rejection(text: str) -> None:
    parsed = parse(text)
    assert len(parsed.batch) == 0
    assert [(each.reason, each.payload) for each in parsed.rejected] == [(Reason.BAD_SYNTAX, text.encode())]


@pytest.mark.parametrize("broken", ['{"fields":{"a":1},', "[", "# comment"])
def test_a_broken_first_line_costs_no_other_line(broken: str) -> None:
    text = "\n".join([broken, json.dumps(CPU), json.dumps(MEM)])
    for parsed in (parse(text), *message_format("telegraf-json").parse_all([Message(text.encode(), 5)])):
        assert list(parsed.batch.points()) == POINTS
        assert [each.payload for each in parsed.rejected] == [broken.encode()]


@given(
    st.binary(max_size=60) | st.text('{}[]",:0123456789.eE-\n \\metricsfldnag', max_size=60).map(str.encode)
)
def test_hostile_texts_never_raise(text: bytes) -> None:
    parse(text)
