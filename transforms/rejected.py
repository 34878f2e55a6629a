"""The side output on which every step hands on what it refuses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal

import apache_beam as beam
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import GlobalWindows

from schema.points import Rejected

REJECTED: Final = "rejected"

RejectedOutput = TaggedOutput[Literal["rejected"], Rejected]


def refuse(rejected: Rejected) -> RejectedOutput:
    """A refusal as an element of the output `REJECTED`."""
    return TaggedOutput(REJECTED, rejected)


def windowed(elements: Iterable[Any]) -> Iterator[Any]:
    """Elements and refusals as `finish_bundle` must give them."""
    for one in elements:
        if isinstance(one, TaggedOutput):
            yield TaggedOutput(one.tag, GlobalWindows.windowed_value(one.value))
        else:
            yield GlobalWindows.windowed_value(one)


def refusing(fn: beam.DoFn, output_type: Any, *side_inputs: Any) -> Any:
    """A ParDo with the outputs `main`, of the given type, and `REJECTED`."""
    step = beam.ParDo(fn, *side_inputs).with_output_types(output_type)
    return step.with_outputs(REJECTED, main="main")
