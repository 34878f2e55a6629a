"""How many examples Hypothesis tries: all in `make test-long`, a quarter of them in `make test`."""

from __future__ import annotations

import hypothesis

EXAMPLES = 60
"""Of a test that says nothing else, in `make test-long`."""


def examples(number: int) -> hypothesis.settings:
    """The settings of a test with so many examples in `make test-long`."""
    return hypothesis.settings(max_examples=max(1, number * hypothesis.settings().max_examples // EXAMPLES))
