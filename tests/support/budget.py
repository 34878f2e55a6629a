"""What `make test` leaves to `make test-long`: parameters, and three quarters of Hypothesis' examples."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import hypothesis
import pytest

EXAMPLES = 60
"""Of a test that says nothing else, in `make test-long`."""


def examples(number: int) -> hypothesis.settings:
    """The settings of a test with so many examples in `make test-long`."""
    return hypothesis.settings(max_examples=max(1, number * hypothesis.settings().max_examples // EXAMPLES))


def long_after(count: int, values: Iterable[Any]) -> list[Any]:
    """Parameters of a test of which `make test` takes the first `count`; the others are long.

    A value that is a tuple is one for each of several parameters.
    """
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)), marks=[pytest.mark.long] if n >= count else []
        )
        for n, value in enumerate(values)
    ]


def long_but_every(step: int, *values: Iterable[Any]) -> list[Any]:
    """Parameters for all combinations of values, of which `make test` takes each `step`-th diagonal.

    So each value is tried with some of the others; the other combinations are long.
    """
    combinations = itertools.product(*(enumerate(column) for column in values))
    return [
        pytest.param(
            *(value for _, value in combination),
            marks=[pytest.mark.long] if sum(number for number, _ in combination) % step else [],
        )
        for combination in combinations
    ]
