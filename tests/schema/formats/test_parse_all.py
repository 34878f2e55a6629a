"""Messages parsed together give what each of them gives alone, and know which message they came from."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rejections import refused_point
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.rejections import Envelope, Rejected
from timebeam.schema.formats import FORMATS, Message, format_class, message_format

T = 1_767_225_600

JSON = [
    b'{"metric":"m","timestamp":%d,"value":1.5,"tags":{"host":"a"}}' % T,
    b'{"metric":"m","timestamp":%d,"value":7,"tags":{"host":"b"}}\n' % (T + 1),
    b'{"metric":"m","timestamp":%d,"value":1,"tags":{"host":"a"}}\n\n{"metric":"n","timestamp":%d,"value":"2","tags":{"x":"y"}}'
    % (T, T),
    b"bad",
    b"",
    b"\n \n",
    b'{"metric":"m","timestamp":0,"value":1,"tags":{"host":"a"}}',
    json.dumps(
        [{"metric": "m", "timestamp": T + n, "value": n, "tags": {"host": "a"}} for n in range(3)]
    ).encode(),
    json.dumps([{"metric": "m", "timestamp": T, "value": 1, "tags": {"host": "é"}}, 5], indent=2).encode(),
    b'{"metric":"m",\n',
    b'{"metric":"m","timestamp":%d,"value":1.5,"tags":{"host":"\xff"}}' % T,
]
TEXT = [
    b"put m %d 1.5 host=a" % T,
    b"put m %d 7 host=b\nput m %d 8 host=b\n" % (T, T + 1),
    b"put m 0 1 host=a",
    b"",
    b"m %d250 4 host=a" % T,
    b"put",
]
INFLUX = [
    b"cpu,host=a user=1.5,idle=7i %d000000000" % T,
    b"cpu,host=a user=1.5 %d000000000\n# comment\nmem,host=b used=3u %d000000001\n" % (T, T),
    b"cpu user=t",
    b"",
    b'cpu,host=a text="x",user=1 %d000000000' % T,
]


def messages_of(texts: list[bytes]) -> list[Message]:
    return [
        Message(text, 1000 + n, "sub", 0, Envelope(str(n), 1000 + n, {"n": str(n)}))
        for n, text in enumerate(texts)
    ]


def records(batch: PointBatch) -> list[Any]:
    """Each point with all that is known of it; its place by a refusal of it."""
    found = []
    for i, (series, time_ms, value) in enumerate(batch.points()):
        origin = refused_point(batch, i)
        kind = (int(batch.kinds[i]), bool(batch.in_ms[i]), int(batch.arrivals_ms[i]))
        found.append(
            (series, time_ms, value, kind, origin.payload, origin.offset, origin.envelope, origin.arrival_ms)
        )
    return found


def rejection(rejected: Rejected) -> Any:
    return rejected.payload, rejected.reason, rejected.message, rejected.offset


@pytest.mark.parametrize(
    ("name", "texts"), [("opentsdb-json", JSON), ("opentsdb-text", TEXT), ("influx", INFLUX)]
)
@given(data=st.data())
def test_together_as_alone(name: str, texts: list[bytes], data: st.DataObject) -> None:
    messages = messages_of(data.draw(st.lists(st.sampled_from(texts), min_size=1, max_size=12)))
    points, refused = [], []
    for parsed in message_format(name).parse_all(messages):
        points += records(parsed.batch)
        refused += [(*rejection(one), one.envelope, one.arrival_ms) for one in parsed.rejected]
    alone_points, alone_refused = [], []
    for message in messages:
        parsed = message_format(name).parse(message)
        for series, time_ms, value, kind, payload, offset, _, _ in records(parsed.batch):
            place = (payload, offset, message.envelope, message.arrival_ms)
            alone_points.append((series, time_ms, value, kind, *place))
        alone_refused += [(*rejection(one), message.envelope, message.arrival_ms) for one in parsed.rejected]
    assert sorted(points, key=repr) == sorted(alone_points, key=repr)
    assert sorted(refused, key=repr) == sorted(alone_refused, key=repr)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_takes_several_messages(name: str) -> None:
    example = format_class(name).example
    (parsed, *others) = message_format(name).parse_all(messages_of([example, b"", example, example]))
    batches = [parsed.batch, *(other.batch for other in others)]
    one = len(message_format(name).parse(Message(example, 1)).batch)
    assert sum(map(len, batches)) == 3 * one
    envelopes = [found[6].message_id for batch in batches for found in records(batch)]
    assert sorted(envelopes) == sorted(["0", "2", "3"] * one)


def test_many_messages_of_one_point_are_one_batch() -> None:
    texts = [JSON[0]] * 1000
    random.Random(1).shuffle(texts)
    (parsed,) = message_format("opentsdb-json").parse_all(messages_of(texts))
    assert len(parsed.batch) == 1000
    assert parsed.batch.arrivals_ms.tolist() == list(range(1000, 2000))
