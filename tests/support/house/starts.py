"""Which tests start processes or run Beam pipelines: told from the code that they reach."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator

import pytest

_STARTERS = ("apache_beam", "multiprocessing", "subprocess")


def starts_processes(item: pytest.Item) -> bool:
    """Whether a test, one of its fixtures or a function of tests/ that they call uses `_STARTERS`."""
    if not isinstance(item, pytest.Function):
        return False
    fixtures = item._fixtureinfo.name2fixturedefs.values()
    functions = [item.function, *(definition.func for definitions in fixtures for definition in definitions)]
    return any(_reaches(_unwrapped(function)) for function in functions)


@functools.cache
def _reaches(function: object) -> bool:
    hypothesis = getattr(function, "hypothesis", None)
    function = hypothesis.inner_test if hypothesis else function
    if not isinstance(function, types.FunctionType) or not function.__module__.startswith("test"):
        return False  # also of conftest.py, whose fixtures are everybody's
    for name in _names(function.__code__):
        value = _unwrapped(function.__globals__.get(name))
        module = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", "")
        if isinstance(module, str) and module.partition(".")[0] in _STARTERS:
            return True
        if value is not function and isinstance(value, types.FunctionType) and _reaches(value):
            return True
    return False


def _unwrapped(value: object) -> object:
    """The function that a decorator has wrapped, as those of fixtures and caches do."""
    return getattr(value, "__wrapped__", value)


def _names(code: types.CodeType) -> Iterator[str]:
    """The names that a function and those within it look up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
