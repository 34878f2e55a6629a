"""Format `influx`: its columns against its slow path, and lines of an independent writer read back."""

from __future__ import annotations

import dataclasses
import math
import random
import string
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schema.formats.odd_lines import corrupt, value_text
from tests.support.budget import long_after
from tests.support.inputs.line_paths import ARRIVAL, OFFSET, SOURCE, expected, line_spans
from timebeam.schema.bits.reasons import RejectedError
from timebeam.schema.core.points import Series
from timebeam.schema.formats import Message, Parsed
from timebeam.schema.formats.influx.influx_format import Influx, joined_lines
from timebeam.schema.formats.linewise import LineRecord
from timebeam.schema.formats.options import Booleans, FormatOptions, Precision
from timebeam.testing import points_of

NOW = {
    Precision.NANOSECONDS: 10**9,
    Precision.MICROSECONDS: 10**6,
    Precision.MILLISECONDS: 1000,
    Precision.SECONDS: 1,
}


def check(form: Influx, text: bytes) -> Parsed:
    """Parses a block, and asserts that the slow path record by record gives the same, in the same order.

    Which lines are one record, with a newline in a string, is the subject of test_influx_newlines.py.
    """
    parsed = form.parse(Message(text, ARRIVAL, SOURCE, OFFSET))
    starts, ends = np.array([*line_spans(text)], np.int64).reshape(-1, 2).T
    starts, ends = joined_lines(text, starts, ends, np.zeros(1, np.int64))
    spans = zip(starts.tolist(), ends.tolist(), strict=True)
    assert (points_of(parsed.batch), list(parsed.rejected)) == expected(form, text, spans)
    assert len(set(parsed.batch.series)) == len(parsed.batch.series)
    assert set(parsed.batch.index.tolist()) == set(range(len(parsed.batch.series)))
    origins = parsed.batch.origins
    for i, (series, time_ms, _) in enumerate(parsed.batch.points()):
        assert origins is not None
        record = form.records(text, int(origins.starts[i]), int(origins.ends[i]))
        points = [one.outcome for one in record if not isinstance(one.outcome, RejectedError)]
        assert (series, time_ms) in [(point.series, point.time_ms) for point in points]
    return parsed


HEADS = (
    *("cpu,host=web01", "cpu,host=web02,cpu=cpu0", "mem,host=web01", "mem", "cpu,cpu=cpu0,host=web02"),
    *(r"my\ cpu,host=web01", r"cpu,host=web\ 01", r"cpu,a\=b=c\,d", r"cpu\\,host=web01", "cpu,host=größe"),
    *("cpu,host", "cpu,host=", "cpu,", ",a=b", "", "cpu,a=b,a=c", "cpu,a=b,a=b", "#cpu", "cpu#", "cpu=1,a=b"),
    *(
        'cpu,host="web"',
        "cpu,host=\x00",
        "cpu\t",
        "cpu,host=a\x7f",
        "cpu,host=\udcff",
        "a=1 ",
        "cpu,a=b=c",
        "\\",
    ),
)
KEYS = (
    *("user", "system", "idle", "a", "usage_iowait", "user", "system"),
    *(r"a\ b", r"a\=b", r"a\,b", "größe", "", "a b", "a,b", "a=b", '"a"', "a\t", "\udcff", "#", "\\"),
)
VALUES = (
    *(
        "1i",
        "-5i",
        "0i",
        "007i",
        "12u",
        "-12u",
        "0u",
        "i",
        "u",
        "-i",
        "1.5i",
        "1e5i",
        "1ii",
        "5iu",
        "1 i",
        "+5i",
    ),
    *(
        "9223372036854775807i",
        "9223372036854775808i",
        "999999999999999999i",
        "-999999999999999999i",
        "1" * 19 + "i",
    ),
    *("9223372036854775807u", "18446744073709551615u", "999999999999999999u", "1" * 23 + "i", "1" * 24 + "i"),
    *(
        "t",
        "F",
        "true",
        "false",
        "True",
        '"a string"',
        '"a,b=c d"',
        '""',
        r'"\""',
        r'"\\"',
        '"',
        '"a\\"',
        "12345e",
    ),
    *(
        "1e5",
        "1.5e-7",
        "1e",
        ".5",
        "5.",
        "1.e5",
        "00.5",
        "0x10",
        "0x10i",
        "1" * 25,
        "0." + "1" * 30,
        "1,",
        "1=2",
    ),
)
TIMES = (
    "",
    "0",
    "1",
    "-5",
    "x",
    "1.5",
    "0x10",
    "1556813561098000000 ",
    "1556813561098000000 5",
    "9" * 18,
    "8" + "9" * 18,
)


def time_text(r: random.Random, precision: Precision) -> str:
    """A timestamp, mostly a good one."""
    if r.random() < 0.9:
        unit = NOW[r.choice(list(NOW)) if precision is Precision.AUTO else precision]
        return str(int(r.uniform(1e9, 4.294e9) * unit))
    return r.choice(
        (*TIMES, str(2**63 - 1), str(2**63), str(2**64), "0" + str(10**18), "+5", "\u0665", "4294967296000")
    )


def shape(r: random.Random, precision: Precision) -> Callable[[], bytes]:
    """A template of lines: the same head and keys with other values and times, most of them plain."""
    odd = r.random() < 0.4
    head = r.choice(HEADS if odd else HEADS[:5])
    keys = [r.choice(KEYS if odd and r.random() < 0.3 else KEYS[:7]) for _ in range(r.choice((1, 1, 2, 5)))]
    gaps = [r.choice((" ", "  ", "", "\t")) if odd and r.random() < 0.1 else " " for _ in range(2)]
    start, end = (r.choice(("", " ")), r.choice(("", "\r", " ", "\r\r", " \r"))) if odd else ("", "")
    ints = r.random() < 0.3

    def value() -> str:
        if r.random() < (0.2 if odd else 0.02):
            return r.choice((r.choice(VALUES), value_text(r)))
        return f"{r.randrange(-(10**18), 10**18)}i" if ints else repr(r.uniform(-1e6, 1e6))

    def line() -> bytes:
        fields = ",".join(f"{key}={value()}" for key in keys)
        text = start + head + gaps[0] + fields + gaps[1] + time_text(r, precision) + end
        return text.encode("utf-8", "surrogateescape")

    return line


@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize("seed", long_after(1, range(3)))
def test_blocks_of_lines(precision: Precision, seed: int) -> None:
    r = random.Random(f"{precision} {seed}")
    options = FormatOptions(influx_precision=precision, influx_booleans=r.choice(list(Booleans)))
    warm, small = Influx(options), Influx(dataclasses.replace(options, remembered=r.choice((1, 3))))
    points = 0
    for _ in range(50):
        shapes = [shape(r, precision) for _ in range(r.choice((1, 2, 4)))]
        lines = [r.choice(shapes)() for _ in range(r.choice((1, 3, 20, 50)))]
        lines = [corrupt(r, line) if r.random() < 0.1 else line for line in lines]
        text = b"\n".join(lines) + r.choice((b"\n", b""))
        points += len(check(warm, text).batch)
        check(small, text)
    assert points > 300


@given(st.binary(max_size=120), st.booleans())
def test_any_bytes_behind_a_plain_line(text: bytes, newline: bool) -> None:
    plain = b"m,t=v a=1,b=2i 1556813561098000000"
    check(Influx(), plain + (b"\n" if newline else b"") + text + b"\n" + plain)


@given(st.text(alphabet=' ,=#\\"im15.e\n\r-', max_size=40))
def test_any_text_of_the_characters_that_matter(text: str) -> None:
    check(Influx(FormatOptions(influx_precision=Precision.SECONDS)), text.encode())


class Counting(Influx):
    """Counts the lines that are read one by one."""

    calls = 0

    def records(self, text: bytes, start: int, end: int) -> Iterator[LineRecord]:
        self.calls += 1
        return super().records(text, start, end)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_plain_lines_take_the_fast_path(end: bytes) -> None:
    form = Counting()
    values = (b"5", b"-7.25", b"12i", b"-1.5e-5", b"9" * 18 + b"u", b"0.0", b"0i")
    lines = [
        b"cpu,host=web%d a=%s,b=%s %d" % (i % 3, values[i % 7], values[i % 5], 1_556_813_561_098_765_432 + i)
        for i in range(300)
    ]
    text = end.join(lines) + end
    assert len(form.parse(Message(text, 1)).batch) == 600
    assert form.calls == 6  # once for each head and key
    form.parse(Message(text, 1))
    assert form.calls == 6


def test_one_odd_line_leaves_the_others_on_the_fast_path() -> None:
    plain = b"m,t=v a=1,b=2 1556813561098000000"
    for odd in (
        b"m,t=v a=1,b=x 1556813561098000000",
        b"m,t=v a=1,b=1x5 1556813561098000000",
        b"m,t=v a=1,b=2 15",
    ):
        form = Counting()
        check(form, b"\n".join([plain, odd, plain]))
        form.calls = 0
        form.parse(Message(b"\n".join([plain, odd, plain]), 1))
        assert form.calls == 1


# An independent writer, by the table of the reference: which characters need a backslash where.

LETTERS = string.ascii_letters + string.digits + " ,=\"'#é東🍭._-/"
NAMES = st.text(alphabet=LETTERS, min_size=1, max_size=8)
NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-100, 100),
)


def escaped(name: str, characters: str) -> str:
    return "".join("\\" + letter if letter in characters else letter for letter in name)


def written(measurement: str, tags: dict[str, str], fields: dict[str, int | float], time: int) -> str:
    head = escaped(measurement, ", ")
    if head.startswith("#"):
        head = "x" + head
    for key, value in tags.items():
        head += f",{escaped(key, ',= ')}={escaped(value, ',= ')}"
    pairs = [
        f"{escaped(key, ',= ')}={value!r}{'i' * isinstance(value, int)}" for key, value in fields.items()
    ]
    return f"{head} {','.join(pairs)} {time}"


LINES = st.tuples(
    NAMES.filter(lambda name: not name.startswith("#")),
    st.dictionaries(NAMES, NAMES, max_size=3),
    st.dictionaries(NAMES, NUMBERS, min_size=1, max_size=4),
    st.integers((1 << 32) * 10**6, (1 << 32) * 10**9 - 1),
)


@given(st.lists(LINES, min_size=1, max_size=6))
def test_what_was_written_is_read_back(
    lines: list[tuple[str, dict[str, str], dict[str, int | float], int]],
) -> None:
    text = "\n".join(written(*line) for line in lines)
    parsed = Influx().parse(Message(text.encode(), 1))
    assert not parsed.rejected
    wanted = [
        (Series.of(f"{measurement}.{field}", tags), time // 10**6, value)
        for measurement, tags, fields, time in lines
        for field, value in fields.items()
    ]
    found = list(parsed.batch.points())
    assert found == wanted
    assert [type(value) for _, _, value in found] == [type(value) for _, _, value in wanted]
    assert [math.copysign(1, value) for _, _, value in found] == [
        math.copysign(1, value) for _, _, value in wanted
    ]
