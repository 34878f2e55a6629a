"""The worked examples in docstrings (`>>>`) of schema/ and transforms/ print what they say."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEAST = 80


def _modules() -> list[str]:
    """The names of modules whose text has `>>>`."""
    paths = [path for folder in ("schema", "transforms") for path in sorted((ROOT / folder).rglob("*.py"))]
    return [
        ".".join(("timebeam", *path.relative_to(ROOT).with_suffix("").parts))
        for path in paths
        if ">>> " in path.read_text(encoding="utf-8")
    ]


def _examples(name: str) -> list[doctest.DocTest]:
    """The docstrings of a module that have examples."""
    tests = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name))
    return [test for test in tests if test.examples]


@pytest.mark.parametrize("name", _modules())
def test_examples_of_a_module_print_what_they_say(name: str) -> None:
    lines: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.REPORT_NDIFF)
    tests = _examples(name)
    for test in tests:
        runner.run(test, out=lines.append)
    assert tests, f"{name}: no docstring holds the text behind >>>"
    assert not runner.failures, "".join(lines)


def test_there_are_examples_of_every_codec_and_flow() -> None:
    count = sum(len(_examples(name)) for name in _modules())
    assert count >= LEAST, f"{count} docstrings with examples; {LEAST} are promised"
