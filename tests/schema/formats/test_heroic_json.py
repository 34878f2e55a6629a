"""Format `heroic-json`: bodies of POST /write, consumers' messages, rejections, and both paths alike."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timebeam.schema.bits.arrays import Kind
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.points import Series
from timebeam.schema.core.rejections import Envelope, Stage
from timebeam.schema.formats import Message
from timebeam.schema.formats.base import Parsed
from timebeam.schema.formats.heroic import json_format as module
from timebeam.schema.formats.heroic.json_format import HeroicJson

TIME = 1_300_000_000_000
V1: dict[str, Any] = {
    "version": "1.0.0",
    "key": "system",
    "time": TIME,
    "value": 42.5,
    "attributes": {"what": "cpu"},
    "resource": {"pod": "p"},
}
V2 = V1 | {"version": "2.1.0", "value": {"doubleValue": 42.5}}
SERIES = Series.of("system", {"what": "cpu"}, {"pod": "p"})
IDENTITY = {"key": "system", "tags": {"what": "cpu"}, "resource": {"pod": "p"}}


def text(document: object) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")


def write(points: object, kind: str = "points", series: object = IDENTITY) -> dict[str, Any]:
    return {"series": series, "data": {"type": kind, "data": points}}


def parse(raw: bytes | dict[str, Any], offset: int = 0) -> Parsed:
    return HeroicJson().parse(Message(raw if isinstance(raw, bytes) else text(raw), 5, "f", offset))


def points(raw: bytes | dict[str, Any]) -> list[tuple[Series, int, object]]:
    """The points of a text of which nothing is rejected."""
    parsed = parse(raw)
    assert parsed.rejected == []
    assert parsed.batch.in_ms.all()
    return list(parsed.batch.points())


def test_the_example() -> None:
    ((series, time, value),) = points(HeroicJson.example)
    assert series == Series.of("system", {"what": "cpu-idle-percentage"}, {"host": "database.example.com"})
    assert (time, value) == (TIME, 42.0)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (V1, (SERIES, TIME, 42.5)),
        (V1 | {"value": 42}, (SERIES, TIME, 42)),
        (V1 | {"value": -(1 << 63)}, (SERIES, TIME, -(1 << 63))),
        (V1 | {"version": "1.22.333"}, (SERIES, TIME, 42.5)),
        (V1 | {"unknown": {"time": 1}, "hosts": 1}, (SERIES, TIME, 42.5)),
        (V1 | {"series": 1, "data": 2}, (SERIES, TIME, 42.5)),
        (V1 | {"attributes": None, "resource": {}}, (Series.of("system", {}), TIME, 42.5)),
        (
            V1 | {"attributes": {"a": None, "b": ""}},
            (Series.of("system", {"b": ""}, {"pod": "p"}), TIME, 42.5),
        ),
        (V1 | {"resource": {"a": None}}, (Series.of("system", {"what": "cpu"}), TIME, 42.5)),
        (V1 | {"host": "h"}, (Series.of("system", {"what": "cpu", "host": "h"}, {"pod": "p"}), TIME, 42.5)),
        (
            V1 | {"host": "a:b", "attributes": {"host": "c"}},
            (Series.of("system", {"host": "a:b"}, {"pod": "p"}), TIME, 42.5),
        ),
        (
            V1 | {"host": "h", "attributes": None},
            (Series.of("system", {"host": "h"}, {"pod": "p"}), TIME, 42.5),
        ),
        (V1 | {"host": None}, (SERIES, TIME, 42.5)),
        (V1 | {"key": ""}, (SERIES._replace(metric=""), TIME, 42.5)),
        (V1 | {"key": 'a:"\\\n é'}, (SERIES._replace(metric='a:"\\\n é'), TIME, 42.5)),
        (V2, (SERIES, TIME, 42.5)),
        (V2 | {"value": {"doubleValue": 3}}, (SERIES, TIME, 3)),
        (V2 | {"value": {"distributionValue": "AQID/w=="}}, (SERIES, TIME, b"\1\2\3\xff")),
        (V2 | {"value": {"doubleValue": 1.5, "distributionValue": ""}}, (SERIES, TIME, b"")),
        (V2 | {"value": {"doubleValue": 1.5, "distributionValue": None}}, (SERIES, TIME, 1.5)),
    ],
)
def test_consumers_messages(document: dict[str, Any], expected: tuple[Series, int, object]) -> None:
    assert points(document) == [expected]
    assert [type(value) for _, _, value in points(document)] == [type(expected[2])]


def test_bodies_of_writes() -> None:
    assert points(write([[TIME, 1.5], [TIME + 1, 2], [0, -0.0]])) == [
        (SERIES, TIME, 1.5),
        (SERIES, TIME + 1, 2),
        (SERIES, 0, -0.0),
    ]
    distributions = [{"timestamp": TIME, "value": base64.b64encode(b"\0\1").decode()}]
    assert points(write(distributions, "distributionPoints")) == [(SERIES, TIME, b"\0\1")]
    for series in (None, {}, {"key": ""}, {"key": "", "tags": None}):
        assert points(write([[TIME, 1]], series=series)) == [(Series.of("", {}), TIME, 1)]
    assert points({"data": write([[TIME, 1]])["data"]}) == [(Series.of("", {}), TIME, 1)]
    assert points(write([[TIME, 1]]) | {"range": {"a": 1}}) == [(SERIES, TIME, 1)]


@pytest.mark.parametrize(
    ("document", "reason", "message"),
    [
        (b"{", Reason.BAD_SYNTAX, "not JSON"),
        (b"[" * 100_000, Reason.BAD_SYNTAX, "not JSON"),
        (b"[]", Reason.BAD_SYNTAX, "must be a JSON object"),
        (b"1", Reason.BAD_SYNTAX, "must be a JSON object"),
        (text(V1) + b"x", Reason.BAD_SYNTAX, "not JSON"),
        (b"\xef\xbb\xbf" + text(V1), Reason.BAD_SYNTAX, "not JSON"),
        (text(V1).replace(b"cpu", b"\xff"), Reason.BAD_ENCODING, "not UTF-8 at byte"),
        (text(V1).replace(b"cpu", b"\\ud800"), Reason.BAD_ENCODING, "half a surrogate pair"),
        ({}, Reason.BAD_SYNTAX, "neither a write"),
        ({k: v for k, v in V1.items() if k != "version"}, Reason.BAD_SYNTAX, "neither a write"),
        (V1 | {"version": "3.0.0"}, Reason.BAD_SYNTAX, "three numbers"),
        (V1 | {"version": "1.0"}, Reason.BAD_SYNTAX, "three numbers"),
        (V1 | {"version": "1.0.0 "}, Reason.BAD_SYNTAX, "three numbers"),
        (V1 | {"version": 1}, Reason.BAD_SYNTAX, "three numbers"),
        (V1 | {"key": None}, Reason.BAD_METRIC, "must be a string"),
        (V1 | {"key": 5}, Reason.BAD_METRIC, "must be a string"),
        (V1 | {"attributes": []}, Reason.BAD_TAG, "a JSON object of strings"),
        (V1 | {"attributes": {"a": 1}}, Reason.BAD_TAG, "attributes: a must be a string"),
        (V1 | {"resource": {"a": True}}, Reason.BAD_TAG, "resource: a must be a string"),
        (V1 | {"host": 1}, Reason.BAD_TAG, "host must be a string"),
        (V1 | {"time": None}, Reason.BAD_TIMESTAMP, "time missing"),
        (V1 | {"time": 0}, Reason.BAD_TIMESTAMP, "must be a positive number: 0"),
        (V1 | {"time": -1}, Reason.BAD_TIMESTAMP, "must be a positive number: -1"),
        (V1 | {"time": 1.5}, Reason.BAD_TIMESTAMP, "not an integer"),
        (V1 | {"time": True}, Reason.BAD_TIMESTAMP, "not an integer"),
        (V1 | {"time": "1"}, Reason.BAD_TIMESTAMP, "not an integer"),
        (V1 | {"time": 1 << 70}, Reason.TIMESTAMP_OUT_OF_RANGE, "after 2106"),
        (V1 | {"value": None}, Reason.EMPTY_VALUE, "Empty value"),
        (V1 | {"value": "1"}, Reason.BAD_NUMBER, "must be a number, not '1'"),
        (V1 | {"value": True}, Reason.BAD_NUMBER, "must be a number"),
        (V1 | {"value": {"doubleValue": 1}}, Reason.BAD_NUMBER, "must be a number"),
        (V1 | {"value": float("nan")}, Reason.BAD_NUMBER, "NaN or Infinite"),
        (V1 | {"value": float("-inf")}, Reason.BAD_NUMBER, "NaN or Infinite"),
        (text(V1).replace(b"42.5", b"1e400"), Reason.NUMBER_OUT_OF_RANGE, "NaN or Infinite"),
        (V1 | {"value": 1 << 63}, Reason.NUMBER_OUT_OF_RANGE, "more than 64 bits"),
        (V2 | {"value": 1}, Reason.BAD_NUMBER, "a doubleValue or a distributionValue"),
        (V2 | {"value": None}, Reason.EMPTY_VALUE, "Empty value"),
        (V2 | {"value": {}}, Reason.BAD_NUMBER, "a doubleValue or a distributionValue"),
        (V2 | {"value": {"doubleValue": None}}, Reason.EMPTY_VALUE, "Empty value"),
        (V2 | {"value": {"distributionValue": "a?=="}}, Reason.BAD_SYNTAX, "must be base64"),
        (V2 | {"value": {"distributionValue": "é"}}, Reason.BAD_SYNTAX, "must be base64"),
        (V2 | {"value": {"distributionValue": 1}}, Reason.BAD_SYNTAX, "must be base64"),
        (text(V1).replace(b'"time"', b'"key"'), Reason.BAD_SYNTAX, "duplicate key 'key'"),
        (b'{"time":1,' + text(V1)[1:], Reason.BAD_SYNTAX, "duplicate key 'time'"),
        (  # an escaped colon, as many as there are names too many
            b'{"time":1,' + text(V1)[1:].replace(b"cpu", b"c\\u003apu"),
            Reason.BAD_SYNTAX,
            "duplicate key 'time'",
        ),
        (text(V1).replace(b'"what"', b'"what":"gpu","what"'), Reason.DUPLICATE_TAG, "duplicate tag: what="),
        (text(V2).replace(b'"doubleV', b'"doubleValue":1,"doubleV'), Reason.BAD_SYNTAX, "duplicate key"),
        ({"series": IDENTITY}, Reason.EMPTY_VALUE, "must not be empty"),
        (write([]), Reason.EMPTY_VALUE, "must not be empty"),
        (write([], "spreads"), Reason.VALUE_NOT_STORABLE, "Unsupported metric type 'spreads'"),
        ({"series": IDENTITY, "data": {"data": [[1, 1]]}}, Reason.VALUE_NOT_STORABLE, "Unsupported"),
        (write({"a": 1}), Reason.BAD_SYNTAX, "must be an array"),
        (write([[1, 1]], series={"tags": {"a": "b"}}), Reason.BAD_METRIC, "must be a string"),
        (write([[1, 1]], series=IDENTITY | {"tags": {"a": None}}), Reason.BAD_TAG, "a must be a string"),
        (write([[1, 1]], series=[1]), Reason.BAD_SYNTAX, "series must be a JSON object"),
        ({"series": IDENTITY, "data": [1]}, Reason.BAD_SYNTAX, "data must be a JSON object"),
        (write([[1]]), Reason.BAD_SYNTAX, "must be [ms, number]"),
        (write([[1, 2, 3]]), Reason.BAD_SYNTAX, "must be [ms, number]"),
        (write([[1, None]]), Reason.EMPTY_VALUE, "Empty value"),
        (write([[1, 1 << 63]]), Reason.NUMBER_OUT_OF_RANGE, "more than 64 bits"),
        (write([[1 << 70, 1]]), Reason.TIMESTAMP_OUT_OF_RANGE, "after 2106"),
        (write([[-1, 1]]), Reason.BAD_TIMESTAMP, "must be a positive number: -1"),
        (write([{"timestamp": 1}], "distributionPoints"), Reason.EMPTY_VALUE, "distribution in base64"),
        (write([[1, 2]], "distributionPoints"), Reason.BAD_SYNTAX, "must be a JSON object"),
    ],
)
def test_what_is_rejected(document: bytes | dict[str, Any], reason: Reason, message: str) -> None:
    raw = document if isinstance(document, bytes) else text(document)
    line = text(V1)
    parsed = parse(line + b"\n" + raw + b"\n\n" + line, 100)
    (rejected,) = parsed.rejected
    assert (rejected.payload, rejected.reason, rejected.stage) == (raw, reason, Stage.PARSE)
    assert (rejected.source, rejected.offset) == ("f", 100 + len(line) + 1)
    assert message in rejected.message
    assert list(parsed.batch.points()) == [(SERIES, TIME, 42.5)] * 2
    assert parsed.batch.series == (SERIES,)


def test_the_same_tag_twice_is_one_tag() -> None:
    assert points(text(V1).replace(b'"what"', b'"what":"cpu","what"')) == [(SERIES, TIME, 42.5)]


def test_bad_points_of_a_write_are_one_rejection_for_each_reason() -> None:
    raw = text(write([[1, None], [2, "x"], [3, 1.5], [4, None], 5, [6, 2]]))
    parsed = parse(raw)
    assert [(time, value) for _, time, value in parsed.batch.points()] == [(3, 1.5), (6, 2)]
    assert [(rejected.reason, rejected.payload == raw) for rejected in parsed.rejected] == [
        (Reason.EMPTY_VALUE, True),
        (Reason.BAD_NUMBER, True),
        (Reason.BAD_SYNTAX, True),
    ]
    assert parsed.rejected[0].message.endswith("(and 1 more of the record's points)")


def test_a_document_over_several_lines() -> None:
    for document in (V1, write([[TIME, 42.5]])):
        raw = json.dumps(document, indent=2).encode()
        parsed = parse(b"\n" + raw + b"\n")
        assert list(parsed.batch.points()) == [(SERIES, TIME, 42.5)]
    parsed = parse(raw[:-1])
    assert {rejected.reason for rejected in parsed.rejected} == {Reason.BAD_SYNTAX}
    assert b"\n".join(rejected.payload for rejected in parsed.rejected) == raw[:-2]


def test_nan_in_a_document_over_several_lines_costs_its_point_only() -> None:
    raw = json.dumps(write([[TIME, 42.5], [TIME + 1, math.nan]]), indent=2).encode()
    parsed = parse(raw)
    assert list(parsed.batch.points()) == [(SERIES, TIME, 42.5)]
    assert [(each.reason, each.payload) for each in parsed.rejected] == [(Reason.BAD_NUMBER, raw)]


@pytest.mark.parametrize("value", [42.5, math.nan])
def test_an_array_over_several_lines_is_one_rejection(value: float) -> None:
    raw = b"[\n" + text(V1 | {"value": value}) + b",\n" + text(V1) + b"\n]"
    parsed = parse(raw)
    assert len(parsed.batch) == 0  # nor is the last document, whose line has no comma
    assert [(each.reason, each.payload) for each in parsed.rejected] == [(Reason.BAD_SYNTAX, raw)]


def test_several_messages_become_one_batch() -> None:
    bodies = [text(V1), b"{\n}", text(V2), b"", json.dumps(write([[1, 2], [3, None]]), indent=1).encode()]
    messages = [
        Message(body, 10 + i, "topic", 0, Envelope(str(i), 10 + i, {})) for i, body in enumerate(bodies)
    ]
    (parsed,) = HeroicJson().parse_all(messages)
    assert parsed.batch.arrivals_ms.tolist() == [10, 12, 14]
    assert list(parsed.batch.points()) == [(SERIES, TIME, 42.5)] * 2 + [(SERIES, 1, 2)]
    assert [(r.payload, r.offset, r.arrival_ms, r.envelope) for r in parsed.rejected] == [
        (bodies[i], 0, 10 + i, messages[i].envelope) for i in (1, 4)
    ]


def slowly(raw: bytes) -> Parsed:
    """The same read by the slow path only."""

    def odd(document: object) -> None:
        raise RejectedError(Reason.BAD_SYNTAX, "odd")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_read", odd)
        return parse(raw)


TEXTS = st.text(st.sampled_from('ab:"\\é\U0001f600\ud800 {}\n') | st.characters(), max_size=4)
MAPS = st.none() | st.dictionaries(TEXTS, TEXTS | st.none(), max_size=3)
NUMBERS = st.integers(-(1 << 65), 1 << 65) | st.floats() | st.none() | TEXTS | st.booleans()
TIMES = st.integers(-2, 1 << 43) | st.integers() | NUMBERS
CONSUMED = st.fixed_dictionaries(
    {"key": TEXTS | NUMBERS, "time": TIMES},
    optional={"attributes": MAPS, "resource": MAPS, "host": TEXTS, "extra": NUMBERS, "series": MAPS},
).flatmap(
    lambda found: st.sampled_from(
        [
            found | {"version": "1.0.0", "value": 1},
            found | {"version": "1.0.0", "value": 2.5},
            found | {"version": "2.0.0", "value": {"doubleValue": 2.5}},
            found | {"version": "2.0.0", "value": {"distributionValue": "AA=="}},
        ]
    )
)
WRITTEN = st.builds(
    write,
    st.lists(
        st.lists(st.integers(0, 1 << 43), min_size=2, max_size=2) | st.tuples(TIMES, NUMBERS), max_size=3
    ),
    st.just("points") | st.just("groups"),
    st.fixed_dictionaries({"key": TEXTS}, optional={"tags": MAPS, "resource": MAPS}),
)


@given(st.lists(CONSUMED | WRITTEN, min_size=1, max_size=4), st.booleans(), st.booleans())
def test_both_paths_are_alike(documents: list[dict[str, Any]], ascii_only: bool, doubled: bool) -> None:
    lines = [json.dumps(d, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass") for d in documents]
    if doubled:  # the last name of each document twice
        lines = [
            line[:-1] + b"," + line[line.rindex(b', "') + 2 :] if b', "' in line else line for line in lines
        ]
    fast, slow = parse(b"\n".join(lines)), slowly(b"\n".join(lines))
    assert fast.rejected == slow.rejected
    assert fast.batch.series == slow.batch.series
    assert repr(list(fast.batch.points())) == repr(list(slow.batch.points()))
    assert fast.batch.kinds.tolist() == slow.batch.kinds.tolist()
    assert len(fast.batch) + len(fast.rejected) >= len(lines)


def test_plain_documents_take_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("the slow path")

    monkeypatch.setattr(module, "_read_any", fail)
    odd_but_plain = V1 | {"attributes": {"url": "http://a:1", "é": ":"}, "host": "h:1"}
    bare = {name: V1[name] for name in ("version", "key", "time", "value")}
    documents = [V1, V2, bare, V1 | {"host": "h"}, odd_but_plain, write([[TIME, 1.5], [TIME, 2]])]
    parsed = parse(b"\r\n".join(text(document) for document in documents))
    assert len(parsed.batch) == 7
    assert parsed.batch.kinds.tolist() == [Kind.FLOAT] * 6 + [Kind.INTEGER]
