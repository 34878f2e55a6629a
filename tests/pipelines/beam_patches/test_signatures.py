"""Signatures that are remembered are those that Beam finds."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms import core, userstate
from apache_beam.transforms.userstate import BagStateSpec, TimerSpec, on_timer

from timebeam.pipelines.beam_patches import cached
from timebeam.pipelines.jobs.run import build  # which imports the steps of all jobs

assert build


@pytest.fixture
def of_beam(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Beam's own function; the other one takes its place in the test."""
    current = core.get_function_args_defaults
    inspect = current._inspect if isinstance(current, cached._Remembered) else current
    monkeypatch.setattr(core, "get_function_args_defaults", inspect)
    cached.remember_signatures()
    return inspect


def _classes(of: type) -> Iterator[type]:
    for each in of.__subclasses__():
        yield each
        yield from _classes(each)


def test_the_methods_of_all_steps(of_beam: Any) -> None:
    checked = 0
    for step in {*_classes(beam.DoFn)}:
        for name in dir(step):
            if isinstance(function := getattr(step, name, None), types.FunctionType):
                method = types.MethodType(function, object())
                for _ in range(2):
                    names, defaults = core.get_function_args_defaults(method)
                    assert (names, list(map(id, defaults))) == (
                        of_beam(method)[0],
                        list(map(id, of_beam(method)[1])),
                    )
                names.append("changed by a caller")
                checked += 1
    assert checked > 1000


_STATE = BagStateSpec("state", beam.coders.VarIntCoder())
_TIMER = TimerSpec("timer", beam.TimeDomain.WATERMARK)
_STATE_PARAM, _TIMER_PARAM = beam.DoFn.StateParam(_STATE), beam.DoFn.TimerParam(_TIMER)


class _Stateful(beam.DoFn):
    def process(self, element: Any, state: Any = _STATE_PARAM) -> Iterable[Any]:
        return ()

    @on_timer(_TIMER)
    def expire(self, timer: Any = _TIMER_PARAM) -> None: ...


@pytest.mark.usefixtures("of_beam")
def test_state_and_timers_are_found() -> None:
    for _ in range(2):
        assert userstate.get_dofn_specs(_Stateful()) == ({_STATE}, {_TIMER})
        assert userstate.get_dofn_specs(core.CallableWrapperDoFn(lambda element: ())) == (set(), set())
