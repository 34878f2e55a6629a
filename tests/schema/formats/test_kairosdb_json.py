"""Format `kairosdb-json`: KairosDB's own vectors, what is refused and why, fast path against slow path."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.inputs.kairosdb_vectors import VECTORS, bits_of, of_kind, stored, without_ttl
from timebeam.schema.bits.json_text import elements
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.formats import Message, Parsed, message_format
from timebeam.schema.formats.kairosdb.json_format import KairosDbJson, read_metric
from timebeam.schema.formats.options import FormatOptions, Ttl

DIFFERENT = {
    "rest_datapoints-182": (Reason.BAD_TIMESTAMP, "a time of 5.7 ms, which KairosDB cuts to 5"),
    "rest_datapoints-203": (None, "an empty body: no record, as an empty line"),
    "rest_datapoints-204": (Reason.BAD_SYNTAX, "cut off: the message is not Gson's"),
    "rest_datapoints-205": (Reason.BAD_SYNTAX, "a number: the message is not Gson's"),
    "rest_datapoints-206": (Reason.BAD_SYNTAX, "no pairs: the message is not Gson's"),
}
"""Where the answer is not KairosDB's, the reason given, and why."""

REASONS = {
    "rest_datapoints-176": Reason.EMPTY_VALUE,
    "rest_datapoints-177": Reason.EMPTY_VALUE,
    "rest_datapoints-184": Reason.BAD_METRIC,
    "rest_datapoints-186": Reason.NO_TAGS,
    "rest_datapoints-187": Reason.NO_TAGS,
    "rest_datapoints-188": Reason.BAD_TAG,
    "rest_datapoints-189": Reason.BAD_TAG,
    "rest_datapoints-190": Reason.BAD_TAG,
    "rest_datapoints-197": Reason.NO_TAGS,
    "rest_datapoints-198": Reason.EMPTY_VALUE,
}
"""The reasons of what KairosDB refuses too."""


def parse(text: bytes, ttl: Ttl = Ttl.REJECT) -> Parsed:
    return KairosDbJson(FormatOptions(kairosdb_ttl=ttl)).parse(Message(text, 5, "gs://b/f", 100))


@pytest.mark.parametrize("vector", of_kind("rest_datapoints"))
def test_bodies_are_read_as_kairosdb_reads_them(vector: dict[str, Any]) -> None:
    parsed = parse(vector["body"].encode())
    reasons = [rejected.reason for rejected in parsed.rejected]
    if vector["id"] in DIFFERENT:
        reason, _ = DIFFERENT[vector["id"]]
        assert (len(parsed.batch), reasons) == (0, [reason] if reason else [])
        return
    assert stored(parsed.batch) == without_ttl(vector["stored"])
    assert [rejected.message for rejected in parsed.rejected] == vector["errors"]
    assert reasons == ([REASONS[vector["id"]]] if vector["errors"] else [])
    assert parsed.batch.in_ms.all()


def test_every_vector_is_met() -> None:
    met = {vector["id"] for vector in VECTORS if vector["kind"] == "rest_datapoints"}
    assert met >= DIFFERENT.keys() | REASONS.keys()
    assert len(met) == 33


def metric(**fields: Any) -> bytes:
    """A metric object, `m{host=a}` unless something else is said."""
    return json.dumps({"name": "m", "tags": {"host": "a"}, **fields}, separators=(",", ":")).encode()


def of_value(value: str, more: str = "") -> bytes:
    """A metric object with one point of a value, given as JSON."""
    return b'{"name":"m","tags":{"host":"a"},"datapoints":[[1,%s]]%s}' % (value.encode(), more.encode())


SERIES = Series.of("m", {"host": "a"})


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (of_value("1e3"), 1000),
        (of_value("1e-0"), 1),
        (of_value("-0"), 0),
        (of_value("0e5"), 0),
        (of_value("9223372036854775807"), (1 << 63) - 1),
        (of_value("9007199254740993"), 9007199254740993),
        (of_value("4.0"), 4.0),
        (of_value("42", ',"type":"double"'), 42.0),
        (of_value("-0", ',"type":"double"'), -0.0),
        (of_value("4.0", ',"type":"long"'), 4),
        (of_value('"42"', ',"type":"long"'), 42),
        (of_value('"+42"'), 42),
        (of_value('".5"'), 0.5),
        (of_value('"-.5"'), -0.5),
        (of_value('"1e3"'), "1e3"),
        (of_value('"NaN"'), "NaN"),
        (of_value('"5."'), "5."),
        (of_value('"-"'), "-"),
        (of_value("true"), "true"),
        (of_value("42", ',"type":"string"'), "42"),
        (of_value("4.50", ',"type":"string"'), "4.50"),
        (of_value('"1e3"', ',"type":"double"'), 1000.0),
        (of_value('42,"double","more"'), 42.0),
        (of_value('"caf\\u00e9"'), "café"),
        (metric(timestamp="1", value="4.5"), 4.5),
        (metric(time=1, timestamp=2, value=4), 4),
        (metric(timestamp=1, value=4, ttl=0), 4),
        (metric(timestamp=1, value=4, skip_validate="TRUE"), 4),
        (metric(datapoints=[[1.0, 4]]), 4),
        (b' {"name" : "m", "tags" : {"host":"a"}, "datapoints" : [[1, 4]]}', 4),
        (b'{"na\\u006de":"m","tags":{"host":"a"},"datapoints":[[1,4]]}', 4),
        (b'{"name":"m","tags":{"host":"a"},"datapoints":[[1,4]]},', 4),
    ],
)
def test_values(body: bytes, value: float | str) -> None:
    parsed = parse(body)
    assert parsed.rejected == []
    assert [(series, time, type(found), found) for series, time, found in parsed.batch.points()] == [
        (SERIES, 1, type(value), value)
    ]


@pytest.mark.parametrize(
    ("body", "reason", "text"),
    [
        (of_value("9223372036854775808"), Reason.NUMBER_OUT_OF_RANGE, "Over/underflow:  9223372036854775808"),
        (of_value('"9223372036854775808"'), Reason.NUMBER_OUT_OF_RANGE, "Over/underflow"),
        (of_value("1e99999"), Reason.NUMBER_OUT_OF_RANGE, "Over/underflow"),
        (of_value("1e99999999999999999999"), Reason.BAD_NUMBER, "not an integer"),
        (of_value("1.5e400"), Reason.NUMBER_OUT_OF_RANGE, "Infinite"),
        (
            of_value("4.9", ',"type":"long"'),
            Reason.BAD_NUMBER,
            "4.9 is not an integer: its fraction would be cut",
        ),
        (of_value("1e-3"), Reason.BAD_NUMBER, "its fraction would be cut"),
        (of_value('"4.9"', ',"type":"long"'), Reason.BAD_NUMBER, 'For input string: "4.9"'),
        (of_value("true", ',"type":"long"'), Reason.BAD_NUMBER, "true is not a long"),
        (of_value('"NaN"', ',"type":"double"'), Reason.BAD_NUMBER, "'NaN' is not a number"),
        (of_value('"..5"'), Reason.BAD_NUMBER, "'..5' is not a number"),
        (of_value("NaN"), Reason.BAD_NUMBER, "'NaN' is not an integer"),
        (of_value("[5]"), Reason.BAD_NUMBER, "metric[0](name=m) value is an invalid type"),
        (of_value("{}"), Reason.BAD_NUMBER, "metric[0](name=m) value is an invalid type"),
        (
            of_value("[]"),
            Reason.EMPTY_VALUE,
            "metric[0](name=m).datapoints[0].value may not be an empty array.",
        ),
        (of_value('"x","complex"'), Reason.VALUE_NOT_STORABLE, "Unregistered data point type 'complex'"),
        (of_value("1,null"), Reason.BAD_SYNTAX, "metric[0](name=m).datapoints[0].type may not be null."),
        (of_value('"\\ud800"'), Reason.BAD_ENCODING, "half a surrogate pair"),
        (metric(datapoints=[[]]), Reason.BAD_TIMESTAMP, ".datapoints[0].timestamp cannot be null or empty."),
        (metric(datapoints=[[1]]), Reason.EMPTY_VALUE, ".datapoints[0].value cannot be null or empty."),
        (metric(datapoints=[[None, 1]]), Reason.BAD_TIMESTAMP, ".datapoints[0].timestamp may not be null."),
        (metric(datapoints=[[True, 1]]), Reason.BAD_TIMESTAMP, ".datapoints[0].timestamp must be an integer"),
        (metric(datapoints=[["x", 1]]), Reason.BAD_TIMESTAMP, "'x' is not an integer"),
        (metric(datapoints=[[1 << 63, 1]]), Reason.TIMESTAMP_OUT_OF_RANGE, "Over/underflow"),
        (metric(datapoints={}), Reason.BAD_SYNTAX, "must be an array of arrays"),
        (metric(timestamp=5.7, value=1), Reason.BAD_TIMESTAMP, "its fraction would be cut"),
        (metric(timestamp=5), Reason.EMPTY_VALUE, "metric[0](name=m).value may not be null."),
        (metric(timestamp=5, value=None), Reason.EMPTY_VALUE, "metric[0](name=m).value may not be empty."),
        (metric(value=5), Reason.BAD_TIMESTAMP, "metric[0](name=m).timestamp may not be null."),
        (metric(name=""), Reason.BAD_METRIC, "metric[0].name may not be empty."),
        (metric(name=None, skip_validate=True), Reason.BAD_METRIC, "metric[0]: a name is missing"),
        (metric(name=["m"]), Reason.BAD_METRIC, "metric[0].name: expected a string"),
        (metric(name="\ud800"), Reason.BAD_ENCODING, "half a surrogate pair"),
        (metric(tags=["a"]), Reason.BAD_TAG, "metric[0].tags must be a JSON object"),
        (
            metric(tags={"a": None}, skip_validate=True),
            Reason.BAD_TAG,
            "metric[0](name=m): a name is missing",
        ),
        (metric(tags={"a": {}}), Reason.BAD_TAG, "metric[0].tag[a].value: expected a string"),
        (metric(ttl=60), Reason.VALUE_NOT_STORABLE, "ttl of 60 seconds"),
        (metric(ttl="x"), Reason.BAD_SYNTAX, "'x' is not an integer"),
        (b'{"name":"m","tags":{"a":"b","a":"b"}}', Reason.DUPLICATE_TAG, "duplicate key: a"),
        (b'{"name":"m","name":"m","tags":{"a":"b"}}', Reason.BAD_SYNTAX, "duplicate key 'name'"),
        (
            b'{"name":"m","tags":{"a":"b"},"datapoints":[[1,1]],"datapoints":[]}',
            Reason.BAD_SYNTAX,
            "duplicate key",
        ),
        (b'{"name":"m","tags":{"a":"b"}} 5', Reason.BAD_SYNTAX, "surplus text"),
        (b"5", Reason.BAD_SYNTAX, "metric[0] must be a JSON object"),
        (b",", Reason.BAD_SYNTAX, "not JSON"),
        (b"{'name':'m'}", Reason.BAD_SYNTAX, "not JSON"),
        (b"[" * 100_000, Reason.BAD_SYNTAX, "not JSON"),
        (b'{"name":"m\xff","tags":{"a":"b"},"datapoints":[]}', Reason.BAD_ENCODING, "not UTF-8 at byte 10"),
        (b'{"name":"m","tags":{"a":"\xff"},"datapoints":[]}', Reason.BAD_ENCODING, "not UTF-8 at byte 25"),
    ],
)
def test_rejections(body: bytes, reason: Reason, text: str) -> None:
    parsed = parse(body)
    (rejected,) = parsed.rejected
    assert (rejected.reason, len(parsed.batch)) == (reason, 0)
    assert text in rejected.message
    assert body[rejected.offset - 100 :].startswith(rejected.payload)


def test_bad_points_are_one_rejection_for_each_reason_and_the_others_are_stored() -> None:
    body = metric(datapoints=[[1, None], [2, 2], [3, ""], [4.5, 1], [5, 5]])
    parsed = parse(b"[" + metric() + b"," + body + b"]")
    assert [(time, value) for _, time, value in parsed.batch.points()] == [(2, 2), (5, 5)]
    assert [(one.reason, one.message, one.payload, one.offset) for one in parsed.rejected] == [
        (
            Reason.EMPTY_VALUE,
            "metric[1](name=m).datapoints[0].value may not be empty. (and 1 more of the metric's points)",
            body,
            102 + len(metric()),
        ),
        (Reason.BAD_TIMESTAMP, "4.5 is not an integer: its fraction would be cut", body, 102 + len(metric())),
    ]


def test_what_stands_before_a_cut_is_stored() -> None:
    parsed = parse(b"[" + of_value("1") + b"," + of_value("2") + b',{"name":')
    assert [value for _, _, value in parsed.batch.points()] == [1, 2]
    (rejected,) = parsed.rejected
    assert (rejected.reason, rejected.payload) == (Reason.BAD_SYNTAX, b'{"name":')


@pytest.mark.parametrize(
    "text",
    [
        of_value("1") + b"\n\n" + of_value('"x"') + b"\r\n" + of_value("2.5"),
        b"[\n" + of_value("1") + b",\n" + of_value('"x"') + b",\r\n" + of_value("2.5") + b"\n]\n",
        b"[" + of_value("1") + b",\n" + of_value('"x"') + b"," + of_value("2.5") + b"]",
        b"[" + of_value("1") + b"]\n[" + of_value('"x"') + b"," + of_value("2.5") + b"]",
        json.dumps([json.loads(of_value(value)) for value in ("1", '"x"', "2.5")], indent=2).encode(),
    ],
)
def test_lines_arrays_and_documents(text: bytes) -> None:
    parsed = parse(text)
    assert [value for _, _, value in parsed.batch.points()] == [1, "x", 2.5]
    assert parsed.rejected == []
    origins = parsed.batch.origins
    assert origins is not None
    spans = zip(origins.starts.tolist(), origins.ends.tolist(), strict=True)
    assert [json.loads(text[start:end])["datapoints"][0][1] for start, end in spans] == [1, "x", 2.5]


def test_nan_in_a_document_over_several_lines_costs_its_point_only() -> None:
    metrics = [json.loads(of_value("1")), json.loads(metric(datapoints=[[1, math.nan], [2, 2]]))]
    parsed = parse(json.dumps(metrics, indent=2).encode())
    assert [value for _, _, value in parsed.batch.points()] == [1, 2]
    (rejected,) = parsed.rejected
    assert (rejected.reason, json.loads(rejected.payload)["name"]) == (Reason.BAD_NUMBER, "m")


def test_lifetimes_can_be_ignored() -> None:
    parsed = parse(metric(timestamp=1, value=4, ttl=60), Ttl.IGNORE)
    assert (len(parsed.batch), parsed.rejected) == (1, [])
    form = message_format("kairosdb-json", {"kairosdb_ttl": "ignore"})
    assert len(form.parse(Message(metric(timestamp=1, value=4, ttl="60"), 1)).batch) == 1
    with pytest.raises(ValueError, match="kairosdb_ttl"):
        message_format("kairosdb-json", {"kairosdb_ttl": "x"})


def test_the_example() -> None:
    assert list(parse(KairosDbJson.example).batch.points()) == [
        (Series.of("sys.cpu", {"host": "web01"}), 1_356_998_400_000, 42.5)
    ]


def check(form: KairosDbJson, text: bytes) -> Parsed:
    """Asserts that a body is read as its metric objects are one by one."""
    parsed = form.parse(Message(text, 5, "f", 100))
    points, rejected = [], []
    for number, element in enumerate(elements(text, 0, len(text), trailing_comma=True)):
        payload, offset = text[element.start : element.end], 100 + element.start
        try:
            if isinstance(element.value, RejectedError):
                raise element.value
            found = read_metric(element.value, number, Ttl.REJECT)
        except RejectedError as error:
            rejected.append((payload, error.reason, error.message, offset))
            continue
        points += [(found.series, time, True, value) for time, value in found.points]
        rejected += [(payload, error.reason, error.message, offset) for error in found.rejected]
    assert bits_of(parsed.batch) == bits_of(PointBatch.of(points, 5))
    assert [(one.payload, one.reason, one.message, one.offset) for one in parsed.rejected] == rejected
    assert set(parsed.batch.index.tolist()) == set(range(len(parsed.batch.series)))
    return parsed


VALUES = [
    "1",
    "-7",
    "2.5",
    "1e3",
    "1.5e3",
    "-0",
    "-0.0",
    "9223372036854775807",
    "9223372036854775808",
    "1e400",
]
VALUES += ['"x"', '"4"', "null", "true", "[]", '5,"double"', '"web0e1"', "18446744073709551616"]
TIMES = ["1", "1300000000000", "5.7", "5.0", '"5"', "null", "-5", "1e3", "9223372036854775808"]
FIELDS = [
    '"type":"long"',
    '"type":null',
    '"ttl":0',
    '"ttl":9',
    '"name":"m"',
    '"x":1',
    '"value":5',
    '"timestamp":5',
]
FIELDS += ['"timestamp":5,"value":6', '"time":5,"value":6', '"datapoints":[]', '"tags":{"a":"b"}']


def odd_metric(r: random.Random) -> str:
    """A metric object that is plain in most of its parts."""
    odd = r.random() < 0.4
    name = r.choice(
        ['"m"', '"sys.cpu"', '"é😀"', *(['""', "null", "5", '"a\\"b"', '"\\u0061"'] if odd else [])]
    )
    tags = r.choice(
        ['{"host":"a"}', '{"host":"b","name":"x"}', *(["{}", '{"a":1}', '{"a":"\\n"}'] if odd else [])]
    )
    pairs = [
        f"[{r.choice(TIMES if odd else TIMES[:2])},{r.choice(VALUES if odd else VALUES[:3])}]"
        for _ in range(r.randrange(4))
    ]
    members = [f'"name":{name}', f'"tags":{tags}', f'"datapoints":[{",".join(pairs)}]']
    members += r.sample(FIELDS, r.choice((0, 0, 1, 2))) if odd or r.random() < 0.2 else []
    r.shuffle(members)
    return "{" + r.choice([",", ", ", ",\n "]).join(members) + "}"


@pytest.mark.parametrize("seed", range(4))
def test_fast_equals_slow(seed: int) -> None:
    r = random.Random(seed)
    warm = KairosDbJson()
    points = 0
    for _ in range(120):
        text = "[" + r.choice([",", " ,\n"]).join(odd_metric(r) for _ in range(r.randrange(12))) + "]"
        points += len(check(warm, text.encode()).batch)
        check(KairosDbJson(FormatOptions(remembered=1)), text.encode())
    assert points > 300


@pytest.mark.parametrize(
    "body",
    [
        of_value("-0", ',"type":"double"'),
        of_value("-0,5", ',"type":"double"'),
        b'{"name":"m","name" :"n","tags":{"a":"b"},"datapoints":[[1,1]]}',
        b'{"name":"a\\":b","name":"n","tags" :{"a":"b"},"datapoints":[[1,1]]}',
        b'{"name":"m","n\\u0061me":"n","tags":{"a":"b"},"datapoints":[[1,1]]}',
        b'{"name":"m","tags":{"a":"b","c":"d"},"tags":{"a":"b"},"datapoints":[[1,1]]}',
        b'{"name":"a\\":b","tags":{"a\\":":"b"},"datapoints":[[1,1]]}',
        b'{"name":"m","tags":{"a":"b"},"datapoints":[[1,1],[2]]}',
        b'{"name":"m","tags":{"a":"b"},"datapoints":[[1,1],[2,2,"long"]]}',
    ],
)
def test_metric_objects_that_look_plain(body: bytes) -> None:
    check(KairosDbJson(), b"[" + body + b"," + metric(timestamp=1, value=2) + b"]")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", ""]), inner, max_size=2)
    ),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["name", "tags", "datapoints", "time", "value", "type", "ttl"]), JSON))
def test_any_metric_object_is_read_or_rejected(fields: dict[str, Any]) -> None:
    check(KairosDbJson(), b"[" + metric(**fields) + b"]")


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_rejected(text: bytes) -> None:
    parsed = KairosDbJson().parse(Message(b"[" + text + b"\n{" + text, 5))
    assert parsed.rejected


class Counting(KairosDbJson):
    """Counts what is read one by one."""

    calls = 0

    def _slow(self, *args: Any) -> None:
        self.calls += 1
        super()._slow(*args)


def test_plain_bodies_take_the_fast_path() -> None:
    form = Counting()
    pairs = [[1_300_000_000_000 + i, (i, i * 0.5)[i % 2]] for i in range(10)]
    body = [{"name": "m", "tags": {"name": f"h{i}"}, "datapoints": pairs} for i in range(20)]
    body += [{"name": "m", "tags": {"name": "h0"}, "datapoints": pairs, "type": "double"}]
    body += [{"timestamp": 5, "tags": {"host": "value"}, "value": 7.5, "name": "n"}] * 3
    body += [{"name": "ø", "tags": {"ö": "ü"}, "datapoints": pairs}]  # written with escapes
    for text in (json.dumps(body), json.dumps(body, indent=1), "\n".join(json.dumps(one) for one in body)):
        parsed = form.parse(Message(text.encode(), 1))
        assert (len(parsed.batch), len(parsed.batch.series), parsed.rejected) == (223, 22, [])
    assert form.calls == 0
