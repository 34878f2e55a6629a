"""What Beam asks for again and again, and gets from memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any, TypeVar

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import core

View = TypeVar("View", bound=PipelineOptions)


class CachedOptions(PipelineOptions):
    """Beam's options, with each view of them made once.

    Beam asks for a view a few times for each step, and makes a parser of arguments for each: a sixth of the
    time that a pipeline of a dozen steps needs to start. All views share their values.
    """

    def __init__(self, flags: Sequence[str] = ()) -> None:
        super().__init__([*flags])
        self.__dict__["_views"] = {}  # an attribute would be an option

    def __getstate__(self) -> Any:
        return {name: state for name, state in super().__getstate__().items() if name != "_views"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state, _views={})

    def view_as(self, cls: type[View]) -> View:
        views = self.__dict__["_views"]
        if cls not in views:
            views[cls] = super().view_as(cls)
        view: View = views[cls]
        return view


def remember_signatures() -> None:
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
