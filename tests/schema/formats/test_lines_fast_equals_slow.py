"""The columnar reader against the slow path: the same points and the same rejections, in order.

The reference splits a block into lines itself and hands each to the format's `records`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schema.formats.odd_lines import block, document, json_shape, text_shape
from tests.support.budget import examples, long_after
from tests.support.inputs.line_paths import ARRIVAL, OFFSET, SOURCE, expected, line_spans
from timebeam.schema.bits.reasons import RejectedError
from timebeam.schema.formats import Message, Parsed
from timebeam.schema.formats.linewise import LineFormat, LineRecord
from timebeam.schema.formats.opentsdb.put_points import OpenTsdbJson, OpenTsdbText
from timebeam.schema.formats.options import FormatOptions
from timebeam.testing import points_of

SHAPES = {OpenTsdbJson: json_shape, OpenTsdbText: text_shape}


def parse(form: LineFormat, text: bytes) -> Parsed:
    """The columnar path; asserts that a quick look counts as many points, or nothing."""
    parsed = form.parse(Message(text, ARRIVAL, SOURCE, OFFSET))
    good = form.good_points(text)
    assert good is None or (good, []) == (len(parsed.batch), list(parsed.rejected))
    return parsed


def check(form: LineFormat, text: bytes) -> Parsed:
    """Asserts that both paths agree about a block of lines."""
    parsed = parse(form, text)
    assert (points_of(parsed.batch), list(parsed.rejected)) == expected(form, text, line_spans(text))
    assert len(set(parsed.batch.series)) == len(parsed.batch.series)
    assert set(parsed.batch.index.tolist()) == set(range(len(parsed.batch.series)))
    return parsed


def check_origins(form: LineFormat, parsed: Parsed) -> None:
    """Asserts that the bytes that each point is said to come from hold that point and no other."""
    points = list(parsed.batch.points())
    origins = parsed.batch.origins
    if origins is None:
        assert not points
        return
    for i, point in enumerate(points):
        start, end = int(origins.starts[i]), int(origins.ends[i])
        (record,) = form.records(origins.text, start, end)
        assert not isinstance(record.outcome, RejectedError)
        assert (record.outcome.series, record.outcome.time_ms) == point[:2]


@pytest.mark.parametrize("form", SHAPES)
@pytest.mark.parametrize("seed", long_after(3, range(8)))
def test_blocks_of_lines(form: type[LineFormat], seed: int) -> None:
    r = random.Random(seed)
    warm, small = form(), form(FormatOptions(remembered=r.choice((1, 2, 5))))
    points = 0
    for _ in range(60):
        text = block(r, SHAPES[form], r.choice((1, 2, 5, 30, 60)))
        if form is OpenTsdbJson and b"\n" in text:
            text = b"{}\n" + text  # its end tells that the text is no document over several lines
        parsed = check(warm, text)
        check(small, text)
        check_origins(warm, parsed)
        points += len(parsed.batch)
    assert points > 300


@pytest.mark.parametrize("seed", range(3))
def test_documents_over_several_lines(seed: int) -> None:
    r = random.Random(seed)
    form = OpenTsdbJson()
    for _ in range(200):
        text = document(r)
        try:
            json.loads(text.decode("utf-8", "replace"))  # a document that is not UTF-8 is rejected as a whole
        except (ValueError, RecursionError):
            check(form, text)  # no document, so lines
            continue
        parsed = parse(form, text)
        assert (points_of(parsed.batch), list(parsed.rejected)) == expected(
            form, text, iter([(0, len(text))])
        )
        check_origins(form, parsed)


@given(st.binary(max_size=200), st.sampled_from([OpenTsdbText, OpenTsdbJson]))
@examples(300)
def test_any_bytes_are_read_or_rejected(text: bytes, form: type[LineFormat]) -> None:
    check(form(), b"{}\n" + text)


ALIKE = {
    OpenTsdbText: b"put sys.cpu %s %s host=web01",
    OpenTsdbJson: b'{"metric":"sys.cpu","timestamp":%s,"value":%s,"tags":{"host":"web01"}}',
}
VALUE_FIRST = b'{"value":%s,"metric":"sys.cpu","timestamp":%s,"tags":{"host":"web01"}}'


@pytest.mark.parametrize("form", ALIKE)
@pytest.mark.parametrize(
    ("time", "value"),
    [
        (b"1", b"23456789"),  # ten bytes from the time on end in a digit
        (b"1", b"23456789012"),
        (b"0x50e22700", b"5"),
        (b"0356998400", b"5"),
        (b"1356998400", b"0x10"),
        (b"1356998400", b"-0x10"),
        (b"1356998400", b"007"),
        (b"1356998400", b"-0"),
        (b"1356998400", b"0"),
        (b"1356998400", b"0.5"),
        (b"1356998400", b"0e1"),
        (b"1356998400", b"\xff5"),
        (b"1356998400", b"5\xff5"),
        (b"135699\xff400", b"5"),
    ],
)
def test_odd_numbers_beside_plain_ones(form: type[LineFormat], time: bytes, value: bytes) -> None:
    template = ALIKE[form]
    plain = template % (b"1356998400", b"5")
    check(form(), template % (time, value))
    check(form(), b"\n".join([plain, template % (time, value), plain]))


@pytest.mark.parametrize(
    "text",
    [
        b'{"metric":"m","timestamp":"value":123,"tags":{"h":"a"}}',
        b'{"metric":"m","value":123,"tags":{"h":"a"},"timestamp":1}\n12345678 x',
        b'{}\n{"value":5,"timestamp":\n12345678901,"tags":{"h":"a"}}',
    ],
)
def test_numbers_that_would_overlap(text: bytes) -> None:
    check(OpenTsdbJson(), text)


@pytest.mark.parametrize(
    "inner",
    [
        b'"timestamp":1987654321,"value":4815162342',
        b'"timestamp":1987654321,"value":"+4815162342"',
        b'"timestamp":1987654321,"value":481516234.2e1',
        b'"timestamp":"198765432\\u0031","value":"481516234\\u0032"',
    ],
)
def test_numbers_in_a_nested_object_are_not_the_points(inner: bytes) -> None:
    line = b'{"x":{"timestamp":%d,"value":%d},"metric":"m",' + inner + b',"tags":{"h":"a"}}'
    parsed = check(OpenTsdbJson(), b"\n".join(line % (1_356_998_400 + i, i) for i in range(5)))
    assert {time for _, time, _ in parsed.batch.points()} == {1_987_654_321_000}


def test_a_value_in_a_nested_object_is_not_the_points() -> None:
    line = b'{"x":{"value":%d},"metric":"m","timestamp":1356998400,"value":481516234.2e1,"tags":{"h":"a"}}'
    parsed = check(OpenTsdbJson(), b"\n".join(line % i for i in range(5)))
    assert {value for _, _, value in parsed.batch.points()} == {4815162342.0}


def test_both_orders_of_the_keys_in_one_block() -> None:
    time_first, value_first = ALIKE[OpenTsdbJson], VALUE_FIRST
    lines = [value_first % (b"%d" % i, b"%d" % (1_356_998_400 + i)) for i in range(5)]
    lines += [time_first % (b"%d" % (1_356_998_405 + i), b"%d" % i) for i in range(3)]
    for text in (b"\n".join(lines), b"\n".join(lines[::-1]), b"\n".join(lines[:1] + lines[5:])):
        assert not check(OpenTsdbJson(), text).rejected


@pytest.mark.parametrize("blank", [b"", b" ", b"\r", b" " * 8, b"\t \r" * 20])
@pytest.mark.parametrize("form", ALIKE)
def test_blank_lines_are_passed_over(form: type[LineFormat], blank: bytes) -> None:
    line = ALIKE[form] % (b"1356998400", b"5")
    parsed = check(form(), b"\n".join([line, blank, line, blank]))
    assert (len(parsed.batch), list(parsed.rejected)) == (2, [])
    assert not parse(form(), blank).rejected


class CountingText(OpenTsdbText):
    """Counts the lines that are read one by one."""

    calls = 0

    def records(self, text: bytes, start: int, end: int) -> Iterator[LineRecord]:
        self.calls += 1
        return super().records(text, start, end)


class CountingJson(OpenTsdbJson):
    """Counts the lines that are read one by one."""

    calls = 0

    def records(self, text: bytes, start: int, end: int) -> Iterator[LineRecord]:
        self.calls += 1
        return super().records(text, start, end)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("counting", [CountingText, CountingJson])
def test_plain_lines_take_the_fast_path(counting: type[CountingText | CountingJson], end: bytes) -> None:
    form = counting()
    template = ALIKE[counting.__base__].replace(b"web01", b"web%d")
    values = (b"5", b"-7", b"0.25", b"-1e-5", b"9" * 18)
    text = b"".join(template % (b"%d" % (1_356_998_400 + i), values[i % 5], i % 3) + end for i in range(300))
    assert len(parse(form, text).batch) == 300
    assert form.calls == 3
    parse(form, text.replace(b"13569984", b"13569985"))
    assert form.calls == 3


def test_forgotten_skeletons_are_learned_again() -> None:
    form = CountingText(FormatOptions(remembered=2))
    for host in (b"a", b"b", b"a", b"c", b"b"):
        parse(form, b"put m 1356998400 5 host=" + host)
    assert form.calls == 4  # only the second a was still known
