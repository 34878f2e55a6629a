"""Replay of dead letters: payloads become messages, refused rows become points or index rows."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Final

import apache_beam as beam
from apache_beam.io.filesystem import CompressedFile, CompressionTypes, FileMetadata
from apache_beam.io.filesystems import FileSystems
from apache_beam.pvalue import PBegin, PCollection, TaggedOutput

from timebeam.schema.layouts import RefusedRows
from timebeam.schema.messages import Message
from timebeam.schema.points import Reason, Rejected, Stage
from timebeam.transforms import metrics
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.dead_letters.rejected import REJECTED, RejectedOutput, refuse, row_of
from timebeam.transforms.dead_letters.store import from_json
from timebeam.transforms.ingest.pack import mutations
from timebeam.transforms.readers.table_reader import RememberingReader, TableReader

POINTS: Final = "points"
ROWS: Final = "rows"
_COMPRESSED_BYTES = 1 << 18  # read ahead, and counted as done with the first line in them


class ReadLetters(beam.PTransform):  # type: ignore[type-arg]
    """Reads dead-letter files: a pipeline in, a `Message` for each line out. A line may be long."""

    def __init__(self, files: Sequence[FileMetadata]) -> None:
        super().__init__()
        self._files = list(files)

    def expand(self, root: PBegin) -> PCollection[Message]:
        return (
            root
            | "Files" >> beam.Create([self._files])
            | "Plan" >> beam.FlatMap(_planned).with_output_types(str)
            | "SpreadFiles" >> beam.Reshuffle()
            | "Lines" >> beam.FlatMap(_lines).with_output_types(Message)
        )


def _planned(files: Sequence[FileMetadata]) -> list[str]:
    """The paths of files, whose bytes are all planned work before the first is read."""
    metrics.plan_work(sum(file.size_in_bytes for file in files))
    return [file.path for file in files]


def _lines(path: str) -> Iterator[Message]:
    """A `Message` for each line of a file."""
    with FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED) as file:
        compression = CompressionTypes.detect_compression_type(path)
        lines: BinaryIO | CompressedFile = file
        if compression != CompressionTypes.UNCOMPRESSED:
            lines = CompressedFile(file, compression, read_size=_COMPRESSED_BYTES)
        before = 0
        for line in iter(lines.readline, b""):
            yield Message(line, int(time.time() * 1000), path)
            position = file.tell()  # compressed bytes of a compressed file
            metrics.work_done(position - before)
            before = position


def open_letters(target: Target, layout: RefusedRows) -> Any:
    """A ParDo over `Message`s whose lines are dead letters.

    Its outputs are `main` (`Message`), POINTS (`PointBatch`), ROWS (`Row`, to be written as they are) and
    REJECTED.
    """
    step = beam.ParDo(_OpenFn(target, layout)).with_output_types(Message)
    return step.with_outputs(POINTS, ROWS, REJECTED, main="main")


class _OpenFn(beam.DoFn):
    """Parses dead letters; see `open_letters`.

    An incomplete payload stays a dead letter, since it may parse as another record. Rows are not trusted:
    only cells that the layout itself would write are restored.
    """

    def __init__(self, target: Target, layout: RefusedRows) -> None:
        self._layout = layout
        self._reader = RememberingReader(TableReader(target))

    def process(self, message: Message) -> Iterator[Message | TaggedOutput[Any, Any] | RejectedOutput]:
        for line in message.text.splitlines():
            if not line.strip():
                continue
            try:
                rejected, is_complete = from_json(line)
            except ValueError as error:
                metrics.count("points_read")
                yield refuse(Rejected(line, Reason.BAD_SYNTAX, str(error), Stage.READ, message.source))
                continue
            if not is_complete:
                yield _refused_again(rejected, rejected.message)
            elif rejected.stage in (Stage.VALIDATE, Stage.WRITE):
                yield from self._restored(rejected)
            else:
                arrival_ms = rejected.arrival_ms if rejected.arrival_ms >= 0 else message.arrival_ms
                yield Message(
                    rejected.payload, arrival_ms, rejected.source, rejected.offset, rejected.envelope
                )

    def _restored(self, rejected: Rejected) -> Iterator[TaggedOutput[Any, Any] | RejectedOutput]:
        """The points and index cells of a refused row, or its refusal with the same stage."""
        try:
            points, other_cells = self._layout.restore(row_of(rejected.payload), self._reader)
        except ValueError as error:
            yield _refused_again(rejected, f"not written: {error}"[:1000])
            return
        if len(points):
            metrics.count("points_read", len(points))
            yield TaggedOutput(POINTS, points)
        if other_cells.cells:
            for row in mutations((other_cells,)):
                yield row if isinstance(row, TaggedOutput) else TaggedOutput(ROWS, row)


def _refused_again(rejected: Rejected, why: str) -> RejectedOutput:
    """The refusal of a dead letter that cannot be replayed."""
    metrics.count_refused_again(rejected)
    return refuse(dataclasses.replace(rejected, message=why))
