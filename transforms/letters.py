"""Dead letters as input again: their payloads as messages, and refused rows as rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.pvalue import PBegin, PCollection, TaggedOutput

from schema.messages import Message
from schema.points import Reason, Rejected, Stage
from transforms import metrics
from transforms.bigtable.limits import row_of
from transforms.dead_letters import from_json
from transforms.rejected import REJECTED, RejectedOutput, refuse

ROWS: Final = "rows"


class ReadLetters(beam.PTransform):  # type: ignore[type-arg]
    """The lines of files of dead letters, each as a `Message`; a line may be long, of a large payload."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__()
        self._paths = list(paths)

    def expand(self, root: PBegin) -> PCollection[Message]:
        """See the class."""
        return (
            root
            | "Files" >> beam.Create(self._paths)
            | "Lines" >> beam.ParDo(_LinesFn()).with_output_types(Message)
        )


class _LinesFn(beam.DoFn):
    def process(self, path: str) -> Iterator[Message]:
        with FileSystems.open(path) as file:
            for line in file:
                yield Message(line, int(time.time() * 1000), path)


def open_letters() -> Any:
    """A ParDo of `Message` whose lines are letters; its outputs are `main` (`Message`), ROWS and REJECTED."""
    step = beam.ParDo(_OpenFn()).with_output_types(Message)
    return step.with_outputs(ROWS, REJECTED, main="main")


class _OpenFn(beam.DoFn):
    """Letters opened. A payload that is not whole stays a dead letter: a cut line may read as another one."""

    def process(self, message: Message) -> Iterator[Message | TaggedOutput[Any, Any] | RejectedOutput]:
        for line in message.text.splitlines():
            if not line.strip():
                continue
            try:
                rejected, whole = from_json(line)
                if rejected.stage in (Stage.VALIDATE, Stage.WRITE):
                    yield TaggedOutput(ROWS, row_of(rejected.payload))
                    continue
            except ValueError as error:
                why = f"not a dead letter: {error}"
                metrics.count("points_read")
                yield refuse(Rejected(line, Reason.BAD_SYNTAX, why, Stage.READ, message.source))
                continue
            if not whole:
                metrics.count("points_read")
                yield refuse(rejected)
                continue
            arrival_ms = rejected.arrival_ms if rejected.arrival_ms >= 0 else message.arrival_ms
            yield Message(rejected.payload, arrival_ms, rejected.source, 0, rejected.envelope)
