"""Messages parsed together give what each of them gives alone, and know which message they came from."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from timebeam import parse
from timebeam.schema.core.rejections import Envelope
from timebeam.schema.formats import Message, message_format
from timebeam.testing import check_format

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


@pytest.mark.parametrize(
    ("name", "texts"), [("opentsdb-json", JSON), ("opentsdb-text", TEXT), ("influx", INFLUX)]
)
def test_together_as_alone(name: str, texts: list[bytes]) -> None:
    check_format(name, texts)


def test_a_text_is_no_message() -> None:
    words: Any = INFLUX[0].decode()
    with pytest.raises(TypeError, match="parse takes bytes, not str"):
        parse("influx", words)


def test_many_messages_of_one_point_are_one_batch() -> None:
    texts = [JSON[0]] * 1000
    random.Random(1).shuffle(texts)
    messages = [
        Message(text, 1000 + n, "sub", 0, Envelope(str(n), 1000 + n, {"n": str(n)}))
        for n, text in enumerate(texts)
    ]
    (parsed,) = message_format("opentsdb-json").parse_all(messages)
    assert len(parsed.batch) == 1000
    assert parsed.batch.arrivals_ms.tolist() == list(range(1000, 2000))
