"""Signatures of methods, inspected once for Beam."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

from apache_beam.transforms import core


def remember() -> None:
    """Lets Beam inspect each method of a class of steps once in this process.

    To look for state and timers, Beam inspects the signatures of all thirty methods of a step, and does so
    eight times for each step: half of the time that a pipeline of thirty steps needs to start. A signature is
    that of the function of the class, whatever the object.
    """
    if not isinstance(core.get_function_args_defaults, _Remembered):
        core.get_function_args_defaults = _Remembered(  # type: ignore[assignment]  # its parameter has another name
            core.get_function_args_defaults
        )


class _Remembered:
    """`get_function_args_defaults` of Beam, which remembers its answers for methods."""

    def __init__(self, inspect: Callable[[Any], tuple[list[str], list[Any]]]) -> None:
        self._inspect = inspect
        self._of_function = functools.lru_cache(maxsize=4096)(self._of_bound)

    def __call__(self, function: Any) -> tuple[list[str], list[Any]]:
        if isinstance(function, MethodType) and isinstance(function.__func__, FunctionType):
            names, defaults = self._of_function(function.__func__)
            return names[:], defaults[:]
        return self._inspect(function)

    def _of_bound(self, function: FunctionType) -> tuple[list[str], list[Any]]:
        """What Beam finds for the function as a method of an object."""
        return self._inspect(MethodType(function, self))
