"""Beam's pipelines built and started in half the time, for tests that run many small ones.

Beam inspects the signature of each function some thirty times per pipeline, and parses all of its
options for each look at one of them. The answers are remembered here. It pickles each function twice, once as
an early check, measures what its cache of side inputs holds by looking at every loaded module, notes the
stack of calls for each type hint, tries to import IPython at each step, and packs pickles as tightly as bzip2
can. All this is left out. The pipelines are the same. The lease of a killed process ends after seconds.
"""

from __future__ import annotations

import argparse
import bz2
import contextlib
import copy
import types
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import pytest
from apache_beam.internal import cloudpickle_pickler
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.worker import statecache
from apache_beam.transforms import core, ptransform, userstate
from apache_beam.typehints import decorators, trivial_inference
from apache_beam.utils import interactive_utils

from tests.support.processes.children import SHORT_LEASE_SECONDS
from timebeam.transforms.care import range_leases

_MOST_INFERENCES, _MOST_VIEWS = 500, 200


@contextlib.contextmanager
def quick_graphs() -> Iterator[None]:
    """Pipelines that run in the block are built and started faster."""
    packer = types.SimpleNamespace(
        compress=lambda data, compresslevel: bz2.compress(data, 1), decompress=bz2.decompress
    )
    pickler = types.SimpleNamespace(**{**vars(ptransform.pickler), "roundtrip": lambda value: value})
    with pytest.MonkeyPatch.context() as patch:
        for module, name in (
            (core, "get_function_args_defaults"),
            (core, "_check_fn_use_yield_and_return"),
            (decorators, "get_signature"),
        ):
            patch.setattr(module, name, _by_function(getattr(module, name)))
        infer = _by_code(trivial_inference.infer_return_type_func)
        patch.setattr(trivial_inference, "infer_return_type_func", infer)
        patch.setattr(userstate, "get_dofn_specs", _by_class(userstate.get_dofn_specs))
        patch.setattr(ptransform, "pickler", pickler)
        patch.setattr(cloudpickle_pickler, "bz2", packer)
        patch.setattr(statecache, "get_deep_size", lambda *values: len(values))
        patch.setattr(decorators.IOTypeHints, "_make_origin", lambda *_bases, **_texts: [])
        patch.setattr(interactive_utils, "is_in_ipython", lambda: False)
        patch.setattr(argparse.HelpFormatter.__init__, "__defaults__", (2, 24, 78))  # asks for no terminal
        patch.setattr(
            PipelineOptions, "_visible_option_list", lambda self: sorted(vars(self._visible_options))
        )
        patch.setattr(range_leases, "LEASE_SECONDS", SHORT_LEASE_SECONDS)
        patch.setattr(PipelineOptions, "view_as", _shared_views(_parsed_once(PipelineOptions.view_as)))
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


def _by_function(answer_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Remembers an answer for as long as the function lives; a method has that of its function."""
    of_functions: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
    of_methods: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def by_function(function: Any) -> Any:
        if isinstance(function, types.MethodType):
            answers, key = of_methods, function.__func__
        else:
            answers, key = of_functions, function
        if not isinstance(key, types.FunctionType):
            return answer_of(function)
        if key not in answers:
            answers[key] = answer_of(function)
        return answers[key]

    return by_function


def _by_code(infer: Callable[..., Any]) -> Callable[..., Any]:
    """The type that a function returns depends on its code, what it encloses, and the types of its input."""
    answers: dict[Hashable, Any] = {}

    def infer_return_type_func(f: Any, input_types: list[Any], debug: bool = False, depth: int = 0) -> Any:
        try:
            enclosed = tuple(cell.cell_contents for cell in f.__closure__ or ())
            key = f.__code__, enclosed, tuple(input_types), depth
            if key in answers:
                return answers[key]
        except (TypeError, ValueError):  # a value without a hash; a cell that is empty yet
            return infer(f, input_types, debug, depth)
        if len(answers) == _MOST_INFERENCES:
            answers.clear()
        answers[key] = infer(f, input_types, debug, depth)
        return answers[key]

    return infer_return_type_func


def _parsed_once(make_view: Callable[[Any, type], Any]) -> Callable[[Any, type], Any]:
    """What the same flags mean for a kind of options is parsed once; no two pipelines share a list."""
    parsed: dict[tuple[tuple[str, ...], type], dict[str, Any]] = {}

    def view_as(options: PipelineOptions, kind: type) -> Any:
        key = tuple(options._flags or ()), kind
        if key not in parsed:
            if len(parsed) == _MOST_VIEWS:
                parsed.clear()
            parsed[key] = vars(make_view(PipelineOptions(options._flags), kind)._visible_options)
        view = kind.__new__(kind)
        view._flags = options._flags
        view._visible_options = argparse.Namespace(**copy.deepcopy(parsed[key]))
        for name, value in vars(view._visible_options).items():
            options._all_options.setdefault(name, value)
        view._all_options = options._all_options
        return view

    return view_as


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
