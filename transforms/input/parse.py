"""Parses messages of any format into points, refusals, and edits of annotations."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import apache_beam as beam
from apache_beam.pvalue import TaggedOutput

from timebeam.schema.annotations.edits import AnnotationEdit
from timebeam.schema.messages import Message, MessageFormat, Parsed, message_format
from timebeam.schema.points import PointBatch
from timebeam.transforms import metrics
from timebeam.transforms.dead_letters.rejected import REJECTED, RejectedOutput, refuse

ANNOTATIONS: Final = "annotations"

AnnotationsOutput = TaggedOutput[Literal["annotations"], list[AnnotationEdit]]


def parsing(fn: beam.DoFn) -> Any:
    """A ParDo with the outputs `main` (`PointBatch`), `REJECTED` and `ANNOTATIONS` (lists of edits)."""
    step = beam.ParDo(fn).with_output_types(PointBatch)
    return step.with_outputs(REJECTED, ANNOTATIONS, main="main")


def parsed_points(parsed: Parsed) -> Iterable[PointBatch | AnnotationsOutput]:
    """Points, and edits as elements of `ANNOTATIONS`, of a parsed message; counts them and the refusals."""
    metrics.count("points_read", len(parsed.batch) + len(parsed.rejected))
    if parsed.annotations:
        metrics.count_annotations("annotations_read", len(parsed.annotations))
        yield TaggedOutput(ANNOTATIONS, list(parsed.annotations))
    if len(parsed.batch):
        yield parsed.batch


class ParseFn(beam.DoFn):
    """`Message` in; `PointBatch` out, refused records to the output `REJECTED`, edits to `ANNOTATIONS`."""

    def __init__(self, format_name: str, options: Mapping[str, Any]) -> None:
        """See `message_format` for the arguments."""
        self._format_name, self._options = format_name, options
        self._format: MessageFormat | None = None

    def setup(self) -> None:
        """Makes the format, whose caches live as long as the worker."""
        self._format = message_format(self._format_name, self._options)

    def process(self, message: Message) -> Iterable[PointBatch | RejectedOutput | AnnotationsOutput]:
        """See the class."""
        assert self._format is not None
        parsed = self._format.parse(message)
        for rejected in parsed.rejected:
            yield refuse(dataclasses.replace(rejected, arrival_ms=message.arrival_ms))
        yield from parsed_points(parsed)
