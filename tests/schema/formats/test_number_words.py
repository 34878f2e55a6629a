"""Numbers read as machine words, against Python's own parser."""

from __future__ import annotations

import math
import random
import re
import struct

import numpy as np
import pytest

from timebeam.schema.bits import text_columns
from timebeam.schema.bits.arrays import Int64s, Kind

_NUMBER = re.compile(r"-?(0|(0\.[0-9]+|[1-9][0-9]*(\.[0-9]+)?)([eE][+-]?[0-9]+)?)")  # 0e1 takes the slow path


def lines_of(words: list[str], stops: str = ",") -> tuple[bytes, Int64s]:
    """(a padded text with a word on each line, where each begins); the stops take turns."""
    ended = [word + stops[number % len(stops)] + "\n" for number, word in enumerate(words)]
    starts = np.cumsum([0, *map(len, ended[:-1])])
    return text_columns.padded("".join(ended).encode("latin-1")), starts


def value_of(word: str) -> tuple[int, int]:
    """(kind, bits) of a number, as Python reads it."""
    if re.search("[.eE]", word):
        return Kind.FLOAT, struct.unpack("<q", struct.pack("<d", float(word)))[0]
    return Kind.INTEGER, int(word)


def random_number(r: random.Random) -> str:
    whole = str(r.randrange(10 ** r.randrange(1, 13)))
    fraction = r.choice(("", f".{r.randrange(10**6):0{r.randrange(1, 9)}d}"))
    return r.choice(("", "-")) + whole + fraction


@pytest.mark.parametrize("seed", range(5))
def test_numbers_are_those_of_pythons_parser(seed: int) -> None:
    r = random.Random(seed)
    words = [random_number(r) for _ in range(20_000)]
    words += ["0", "-0", "0.0", "-0.0", "9999999", "-12345678901234567", "1e3", "-2.5E-7"]
    text, starts = lines_of(words, ',}" \t\n')
    read = text_columns.numbers(text, starts, np.ones(len(words), np.bool_))
    assert read.good.all()
    assert list(zip(read.kinds.tolist(), read.bits.tolist(), strict=True)) == list(map(value_of, words))
    assert read.lengths.tolist() == list(map(len, words))


def test_what_is_no_number_of_json_is_not_good() -> None:
    r = random.Random(1)
    words = ["".join(r.choices("0123456789.-+eE:/\xb1\xff", k=r.randrange(1, 8))) for _ in range(20_000)]
    words += ["", "-", ".", ".5", "5.", "-.5", "00", "007", "-01", "01.5", "0x10", "1..2", "1.2.3", "1_0"]
    text, starts = lines_of(words)
    read = text_columns.numbers(text, starts, np.ones(len(words), np.bool_))
    is_number = [bool(_NUMBER.fullmatch(word)) and math.isfinite(float(word)) for word in words]
    assert read.good.tolist() == is_number


def test_numbers_that_were_not_located_are_not_good() -> None:
    text, starts = lines_of(["1", "2", "1234567890.123"])
    assert not text_columns.numbers(text, starts * 0, np.zeros(3, np.bool_)).good.any()


def test_timestamps() -> None:
    words = ["1356998400", "1356998400123", "9999999999999", "0356998400", "135699840", "13569984001"]
    words += ["135699840x", "1356998400x", "x356998400", "13569984001234", "1356998400.5", "\xb1356998400"]
    text, starts = lines_of(words)
    lengths, times = text_columns.timestamps(text, starts)
    assert lengths.tolist() == [10, 13, 13, 0, 0, 0, 0, 10, 0, 0, 10, 0]
    good = np.flatnonzero(lengths)
    assert times[good].tolist() == [1356998400, 1356998400123, 9999999999999, 1356998400, 1356998400]
