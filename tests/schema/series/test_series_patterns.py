"""Patterns of names: what they match, and that no pattern takes more than linear time."""

from __future__ import annotations

import itertools
import re

import pytest

from timebeam.schema.series.series_patterns import matches

TEXTS = ["".join(letters) for size in range(5) for letters in itertools.product("ab*", repeat=size)]


def test_a_pattern_matches_as_a_regular_expression_that_has_any_text_for_each_star() -> None:
    for pattern in TEXTS:
        expression = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
        for name in TEXTS:
            assert matches(name, [pattern]) == bool(expression.fullmatch(name)), (name, pattern)


def test_a_name_may_hold_line_breaks() -> None:
    assert matches("a\nb", ["a*b"])


@pytest.mark.parametrize("pattern", ["*" * 60 + "!", "a*" * 30 + "!", "*a" * 30 + "*b*"])
def test_a_pattern_of_many_stars_does_not_backtrack(pattern: str) -> None:
    """By backtracking each of these takes longer than any test run."""
    assert not matches("a" * 25, [pattern])
