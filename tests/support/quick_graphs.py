"""Beam's pipelines built and started in half the time, for tests that run many small ones.

Beam inspects the signature of each function some thirty times per pipeline, and parses all of its
options for each look at one of them. The answers are remembered here; the pipelines are the same.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import core, userstate

_MOST_SIGNATURES, _MOST_VIEWS = 10_000, 200


@contextlib.contextmanager
def quick_graphs() -> Iterator[None]:
    """Pipelines that run in the block are built and started faster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "get_signature", _by_function(core.get_signature))
        patch.setattr(userstate, "get_dofn_specs", _by_class(userstate.get_dofn_specs))
        patch.setattr(PipelineOptions, "view_as", _shared_views(PipelineOptions.view_as))
        yield


def _by_class(specs_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """State and timers of a DoFn: its methods declare them, so they are the same for all of a class.

    Not if an instance has methods of other objects. Functions among its attributes declare nothing.
    """
    specs: dict[tuple[type, frozenset[str]], Any] = {}

    def get_dofn_specs(dofn: Any) -> Any:
        functions = {name: value for name, value in vars(dofn).items() if callable(value)}
        if any(isinstance(value, types.MethodType) for value in functions.values()):
            return specs_of(dofn)
        key = type(dofn), frozenset(functions)
        if key not in specs:
            specs[key] = specs_of(dofn)
        return specs[key]

    return get_dofn_specs


def _by_function(signature_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Signatures: a method has that of its function, without the first argument."""
    of_function = functools.lru_cache(_MOST_SIGNATURES)(signature_of)
    of_method: dict[Any, Any] = {}

    def get_signature(function: Any) -> Any:
        if not isinstance(function, types.MethodType):
            return of_function(function)
        key = function.__func__
        if key not in of_method:
            if len(of_method) == _MOST_SIGNATURES:
                of_method.clear()
            of_method[key] = signature_of(function)
        return of_method[key]

    return get_signature


def _shared_views(make_view: Callable[[Any, type], Any]) -> Callable[[Any, type], Any]:
    """Views of options share their values: one for each kind will do."""
    views: dict[tuple[int, tuple[str, ...], type], tuple[Any, Any]] = {}

    def view_as(options: PipelineOptions, kind: type) -> Any:
        values = options._all_options
        key = (id(values), tuple(options._flags or ()), kind)
        entry = views.get(key)
        if entry is None or entry[0] is not values:
            if len(views) == _MOST_VIEWS:
                views.clear()
            entry = views[key] = values, make_view(options, kind)
        return entry[1]

    return view_as
