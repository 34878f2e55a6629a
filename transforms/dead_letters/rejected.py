"""The side output of every step for refused input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal

import apache_beam as beam
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import GlobalWindows

from timebeam.schema.points import Rejected

REJECTED: Final = "rejected"

RejectedOutput = TaggedOutput[Literal["rejected"], Rejected]


def refuse(rejected: Rejected) -> RejectedOutput:
    """A refusal as an element of the output `REJECTED`."""
    return TaggedOutput(REJECTED, rejected)


def windowed(elements: Iterable[Any]) -> Iterator[Any]:
    """Elements and refusals as windowed values, as `finish_bundle` must yield them."""
    for element in elements:
        if isinstance(element, TaggedOutput):
            yield TaggedOutput(element.tag, GlobalWindows.windowed_value(element.value))
        else:
            yield GlobalWindows.windowed_value(element)


def refusing(fn: beam.DoFn, output_type: Any, *side_inputs: Any) -> Any:
    """A ParDo with the outputs `main`, of the given type, and `REJECTED`."""
    step = beam.ParDo(fn, *side_inputs).with_output_types(output_type)
    return step.with_outputs(REJECTED, main="main")
