"""Hostile texts for every format of text: each is rejected with its bytes, in a child with little memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.support.budget import long_after, long_but_every
from tests.support.inputs.confined import parsed
from timebeam.schema.formats import format_class
from timebeam.schema.formats.base import SINGLE

MEMORY = {4 << 20: 256 << 20, 1 << 20: 96 << 20}
"""Bytes of memory that a text may take, by its size in bytes; Pub/Sub takes 10 MB."""

FULL, PART = MEMORY


def sized(*values: Iterable[str]) -> list[Any]:
    """Parameters for all combinations with `FULL` bytes, which are long, and for some with `PART`."""
    combinations = long_but_every(3, *values)
    return [
        *(pytest.param(*each.values, FULL, marks=pytest.mark.long) for each in combinations),
        *(pytest.param(*each.values, PART) for each in combinations if not each.marks),
    ]


SMALL, LITTLE = 32 << 10, 64 << 20
"""Bytes of a text of many lines, which take long, and the memory for it: more for each byte."""

AVRO_JSON = b'{"metric":"m","timestamp":1356998400,"value":{"double":42.5},"tags":{"host":"web01"}}'

GOOD: dict[str, tuple[str, dict[str, Any], bytes]] = {
    "opentsdb-json": ("opentsdb-json", {}, format_class("opentsdb-json").example),
    "opentsdb-text": ("opentsdb-text", {}, format_class("opentsdb-text").example),
    "opentsdb-annotations": ("opentsdb-annotations", {}, format_class("opentsdb-annotations").example),
    "influx": ("influx", {}, format_class("influx").example),
    "avro as json": ("avro", {"avro_encoding": "json"}, AVRO_JSON),
    "heroic-json": ("heroic-json", {}, format_class("heroic-json").example),
    "kairosdb-json": ("kairosdb-json", {}, format_class("kairosdb-json").example),
    "kairosdb-text": ("kairosdb-text", {}, format_class("kairosdb-text").example),
    "records as json": ("records", {"encoding": "json"}, b'{"A":1,"B":"x"}'),
    "records as csv": ("records", {"encoding": "csv"}, b"1,x"),
}
"""Of each format: its name, its options, and a good record."""

JSON = [name for name in GOOD if "json" in name or "annotations" in name]


def times(piece: bytes, size: int) -> bytes:
    """A piece again and again."""
    return piece * (size // len(piece))


def bare(text: bytes) -> bytes:
    """A text without what separates records."""
    return text.translate(None, b"[], \r\n\t")


def check(form: str, text: bytes, memory: int, points: int = 0) -> None:
    """A text is rejected, in whatever pieces; with `points`, that many are read of what is before it."""
    name, options, good = GOOD[form]
    header = b"A,B\n" if form == "records as csv" else b""
    before = (good + b"\n") * points
    outcome = parsed(name, options, header + before + text, LITTLE if len(text) <= SMALL else memory)
    assert (outcome.code, outcome.points) == (0, points)
    rejected = bare(b"".join(payload for _, payload in outcome.rejected))
    if len(outcome.rejected) < SINGLE:
        assert rejected == bare(text)
    else:  # the others are together by reason
        assert sorted(rejected) == sorted(bare(text))


BAD_LINES: dict[str, Callable[[int], bytes]] = {
    "zero bytes": lambda size: times(b"\0", size),
    "a long word": lambda size: times(b"a", size),
    "quotes": lambda size: times(b'"', size - 1) + b"x",
    "backslashes": lambda size: times(b"\\", size),
    "equals": lambda size: times(b"=", size),
    "braces": lambda size: times(b"{", size),
    "numbers": lambda size: times(b"1 ", size),
    "spaces in one line": lambda size: b"x" + times(b" ", size) + b"x",
}
"""Texts of about a size."""

SHORT_LINES = {"short lines": times(b"x\n", SMALL), "no text": times(b"\xff\n", SMALL)}


@pytest.mark.parametrize(("form", "text", "size"), sized(GOOD, BAD_LINES))
def test_lines_that_are_none(form: str, text: str, size: int) -> None:
    check(form, BAD_LINES[text](size), MEMORY[size])


@pytest.mark.parametrize(("form", "text"), long_but_every(2, GOOD, SHORT_LINES))
def test_many_lines_that_are_none(form: str, text: str) -> None:
    check(form, SHORT_LINES[text], LITTLE)


@pytest.mark.parametrize("form", GOOD)
def test_many_lines_without_a_record(form: str) -> None:
    check(form, times(b"\n", SMALL), LITTLE, points=1)
    check(form, times(b" \n", SMALL), LITTLE, points=1)


@pytest.mark.parametrize("form", GOOD)
def test_truncated_anywhere(form: str) -> None:
    good = GOOD[form][2]
    for cut in range(1, len(good), 7):
        name, options, _ = GOOD[form]
        outcome = parsed(name, options, good[:cut])
        assert outcome.code == 0
        assert outcome.points == 0 or not outcome.rejected


BAD_JSON: dict[str, Callable[[int], bytes]] = {
    "open arrays": lambda size: times(b"[", size),
    "open objects": lambda size: times(b'{"a":', size),
    "arrays in each other": lambda size: times(b"[", size // 2) + times(b"]", size // 2),
    "objects in each other": lambda size: b'{"a":' * (size // 80) + b"1" + b"}" * (size // 80),
    "an array of numbers": lambda size: b"[" + times(b"1,", size // 32) + b"1]",
    "an array of objects": lambda size: b"[" + times(b"{},", size // 32) + b"{}]",
    "an array of small objects": lambda size: b"[" + times(b'{"":0},', size // 32) + b"{}]",
    "arrays in an array": lambda size: b"[" + times(b"[],", size // 32) + b"[]]",
    "a long text": lambda size: b'"' + times(b"a", size) + b'"',
    "escapes": lambda size: b'"' + times(b"\\u0001", size) + b'"',
    "a huge number": lambda size: times(b"9", size),
    "a huge exponent": lambda size: b"1e" + times(b"9", 1000),
    "many keys": lambda size: b"{" + b",".join(b'"k%d":"%d' % (i, i) for i in range(size // 20)) + b"}",
    "one key": lambda size: b"{" + times(b'"a":1,', size) + b'"a":x}',
    "lines of documents that are none": lambda size: times(b"{}}\n", SMALL),
}
"""Texts of about a size; of arrays of many elements, which are read one by one, a part of it."""


@pytest.mark.parametrize(("form", "text", "size"), sized(JSON, BAD_JSON))
def test_json_that_is_no_record(form: str, text: str, size: int) -> None:
    check(form, BAD_JSON[text](size), MEMORY[size])


@pytest.mark.parametrize("form", JSON)
def test_lines_of_empty_arrays(form: str) -> None:
    """Where such a line is nothing, it takes little memory all the same: 4 MB took 1.2 GB."""
    name, options, _ = GOOD[form]
    outcome = parsed(name, options, times(b"[]\n", PART), MEMORY[PART])
    assert (outcome.code, outcome.points) == (0, 0)


@pytest.mark.parametrize("size", long_after(1, [PART, FULL]))
def test_records_that_have_each_a_field_of_its_own(size: int) -> None:
    fields = size // 80
    lines = [b'{"k%d":1}\n' % number for number in range(fields)]
    outcome = parsed("records", {"encoding": "json"}, b"".join(lines))
    assert (outcome.code, outcome.points) == (0, (1 << 24) // fields)
    assert bare(b"".join(payload for _, payload in outcome.rejected)) == bare(
        b"".join(lines[outcome.points :])
    )
    many = b"{" + b",".join(b'"k%d":1' % number for number in range(4 * fields)) + b"}"
    outcome = parsed("records", {"encoding": "json"}, many)
    assert outcome == (0, 0, [("bad-syntax", many)])


NUMBERS = [
    b"9" * 1_000_000,
    b"-" * 100_000,
    b"1e" + b"9" * 10_000,
    b"0." + b"0" * 1_000_000 + b"1",
    b"1" * 5000,
]


@pytest.mark.parametrize("form", GOOD)
def test_huge_numbers(form: str) -> None:
    """In place of any number of a good record; a fraction may be one."""
    name, options, good = GOOD[form]
    if name == "records":
        return  # they keep the text of a number
    for number in NUMBERS:
        for old in (b"42.5", b"42.0", b"1356998400", b"1356998407", b"1300000000000", b"1434055562"):
            if old not in good:
                continue
            text = good.replace(old, number)
            outcome = parsed(name, options, text)
            assert outcome.code == 0
            assert outcome.points or [payload for _, payload in outcome.rejected] == [text]
