"""Replay of dead letters: payloads become messages, rejected rows become points or index rows."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, Final

import apache_beam as beam
import numpy as np
from apache_beam import typehints
from apache_beam.coders import FastPrimitivesCoder
from apache_beam.io.filesystem import CompressionTypes, FileMetadata
from apache_beam.io.filesystems import FileSystems
from apache_beam.pvalue import PBegin, PCollection, TaggedOutput
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import GlobalWindow

from timebeam.schema.bits.compression import CorruptDataError, TruncatedError, content
from timebeam.schema.bits.json_text import line_spans
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.contract import ReadableStore
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.core.rows import ARRIVAL, Row
from timebeam.schema.formats import Message
from timebeam.schema.formats.base import Rejections
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.dead_letters.letter import (
    LINE_BYTES,
    Letter,
    from_json,
    joined,
    of_one_payload,
    row_of,
    to_json,
)
from timebeam.transforms.flow import metrics
from timebeam.transforms.flow.steps import REJECTED, RejectedOutput, reject
from timebeam.transforms.ingest.row_mutations import mutations
from timebeam.transforms.input import cut_lines
from timebeam.transforms.read.table_reader import RememberingReader, TableReader

POINTS: Final = "points"
ROWS: Final = "rows"
_PARTS: Final = "parts"
_READ_BYTES = 1 << 18  # read ahead, and counted as done with the first line in them

ArrivedLetter = tuple[Letter, int]
"""A letter, and when it arrived itself, in ms: what it holds cannot have arrived later."""


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
    """A `Message` for each line of a file; for one that is too long or cut the letter that rejects it."""
    with FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED) as file:
        before = 0
        for line, offset, why in _split(path, file):
            now_ms = int(time.time() * 1000)
            if why is not None:
                rejected = Rejected(line, why.reason, why.message, Stage.READ, path, offset, now_ms)
                line = to_json(rejected, now_ms).encode()
            yield Message(line, now_ms, path, offset)
            position = file.tell()  # compressed bytes of a compressed file
            metrics.work_done(position - before)
            before = position


def _split(path: str, file: BinaryIO) -> Iterator[tuple[bytes, int, RejectedError | None]]:
    """The lines of a file and their offsets; the beginning of one that is not whole, and why it is not."""
    pending: list[bytes] = []  # of a line, but no more than its beginning if it is too long
    size = offset = 0
    try:
        for chunk in content(path, file, _READ_BYTES):
            *ended, last = chunk.split(b"\n")
            for piece in ended:
                pending.append(piece)
                size += len(piece)
                yield _line(pending, size, offset)
                offset += size + 1
                pending, size = [], 0
            size += len(last)
            pending.append(last)
            if size > LINE_BYTES:
                pending = [b"".join(pending)[: cut_lines.LINE_BYTES]]
    except (TruncatedError, CorruptDataError) as error:
        reason = Reason.TRUNCATED_FILE if isinstance(error, TruncatedError) else Reason.CORRUPT_FILE
        why = RejectedError(reason, f"{error}: dead letters before byte {offset} are read; the rest is not")
        yield b"".join(pending)[: cut_lines.LINE_BYTES], offset, why
        return
    if size:
        yield _line(pending, size, offset)


def _line(chunks: list[bytes], size: int, offset: int) -> tuple[bytes, int, RejectedError | None]:
    """A line, or the beginning of one that is too long and why it is rejected."""
    if size <= LINE_BYTES:
        return b"".join(chunks), offset, None
    why = f"line of more than {LINE_BYTES:,} bytes: no dead letter is so long; the payload is its beginning"
    return b"".join(chunks)[: cut_lines.LINE_BYTES], offset, RejectedError(Reason.LINE_TOO_LONG, why)


class OpenLetters(beam.PTransform):  # type: ignore[type-arg]
    """Opens `Message`s whose lines are dead letters, after the parts of each payload have been joined.

    Out: a dict of `main` (`Message`), POINTS (`PointBatch`), ROWS (`Row`, to be written as they are) and
    REJECTED.

    Args:
      endless: whether the messages are a stream, whose end does not come: parts wait in the state of a step.
    """

    def __init__(self, target: Target, layout: ReadableStore, *, endless: bool) -> None:
        super().__init__()
        self._target, self._layout, self._endless = target, layout, endless

    def expand(self, messages: PCollection[Message]) -> dict[str, PCollection[Any]]:
        read = messages | "Read" >> beam.FlatMap(parsed_letters).with_outputs(_PARTS, REJECTED, main="main")
        partial = read[_PARTS]
        partial.element_type = typehints.KV[str, Any]
        together = beam.ParDo(_WaitForPartsFn())
        if not self._endless:
            partial = partial | "OfOnePayload" >> beam.GroupByKey()
            together = beam.FlatMapTuple(lambda _, letters: _joined(letters))
        joined_letters = partial | "Join" >> together.with_outputs(REJECTED, main="main")
        step = beam.ParDo(_OpenFn(self._target, self._layout)).with_output_types(Message)
        opened = (
            (read.main, joined_letters.main)
            | "WithJoined" >> beam.Flatten()
            | "Open" >> step.with_outputs(POINTS, ROWS, REJECTED, main="main")
        )
        rejected = (read[REJECTED], joined_letters[REJECTED], opened[REJECTED]) | "Rejected" >> beam.Flatten()
        return {"main": opened.main, POINTS: opened[POINTS], ROWS: opened[ROWS], REJECTED: rejected}


def parsed_letters(message: Message) -> Iterator[ArrivedLetter | TaggedOutput[Any, Any] | RejectedOutput]:
    """The `ArrivedLetter`s of a message, to `_PARTS` those of parts by payload, other lines to REJECTED."""
    rejections = Rejections(message)
    for start, end in line_spans(message.text):
        try:
            letter = from_json(message.text[start:end])
        except ValueError as error:
            rejections.add(start, end, RejectedError(Reason.BAD_SYNTAX, str(error)))
            continue
        arrived = letter, message.arrival_ms
        if letter.rejected.part is None:
            yield arrived
        else:
            yield TaggedOutput(_PARTS, (of_one_payload(letter.rejected), arrived))
    for rejected in rejections.rejected():
        metrics.count("points_read", rejected.points)
        yield reject(dataclasses.replace(rejected, stage=Stage.READ, arrival_ms=-1, envelope=None))


class _WaitForPartsFn(beam.DoFn):
    """(payload, letter with a part of it) in, of a stream; out the whole letter, or its parts to REJECTED.

    A runner acknowledges a message when its part is in the state. There it waits for the others, or until the
    stream is drained.
    """

    PARTS = BagStateSpec("parts", FastPrimitivesCoder())
    DRAINED = TimerSpec("drained", TimeDomain.WATERMARK)

    def process(
        self,
        element: tuple[str, ArrivedLetter],
        bag: Any = beam.DoFn.StateParam(PARTS),  # noqa: B008
        drained: Any = beam.DoFn.TimerParam(DRAINED),  # noqa: B008
    ) -> Iterator[ArrivedLetter | RejectedOutput]:
        arrived = element[1]
        bag.add(arrived)
        waiting = list(bag.read())
        assert arrived[0].rejected.part is not None
        if len({_number(each) for each in waiting}) == arrived[0].rejected.part.total:
            bag.clear()
            yield from _joined(waiting)
        else:
            drained.set(GlobalWindow().max_timestamp())

    @on_timer(DRAINED)
    def end(self, bag: Any = beam.DoFn.StateParam(PARTS)) -> Iterator[ArrivedLetter | RejectedOutput]:  # noqa: B008
        """The parts that still wait, as rejections."""
        waiting = list(bag.read())
        bag.clear()
        if waiting:
            yield from _joined(waiting)


def _number(arrived: ArrivedLetter) -> int:
    """Which part a letter holds."""
    assert arrived[0].rejected.part is not None
    return arrived[0].rejected.part.number


def _joined(letters: Iterable[ArrivedLetter]) -> Iterator[ArrivedLetter | RejectedOutput]:
    """The whole letter, or its parts as rejections; also those that differ from another of their number."""
    by_number: dict[int, Rejected] = {}
    is_complete, size, latest_ms = True, 0, 0
    conflicting = []
    for arrived in letters:
        (rejected, complete), arrival_ms = arrived
        earlier = by_number.setdefault(_number(arrived), rejected)
        if earlier.payload != rejected.payload:
            conflicting.append(rejected)
        elif earlier is rejected:
            size += len(rejected.payload)
            is_complete &= complete
            latest_ms = max(latest_ms, arrival_ms)
    try:
        if size > LINE_BYTES:
            raise ValueError(f"part of a payload of more than {LINE_BYTES:,} bytes")
        payload_rejection = joined(by_number.values())
    except ValueError as error:
        for rejected in (*by_number.values(), *conflicting):
            yield _rejected_again(rejected, str(error))
        return
    for rejected in conflicting:
        yield _rejected_again(rejected, "another part of this number belongs to the payload")
    yield Letter(payload_rejection, is_complete), latest_ms


class _OpenFn(beam.DoFn):
    """`ArrivedLetter` in; what it holds out, see `OpenLetters`.

    An incomplete payload stays a dead letter, since it may parse as another record. Rows are not trusted:
    only cells that the layout itself would write are restored. Nor are times of arrival: one in the future
    would win over every later correction.
    """

    def __init__(self, target: Target, layout: ReadableStore) -> None:
        self._layout = layout
        self._reader = RememberingReader(TableReader(target))

    def process(self, arrived: ArrivedLetter) -> Iterator[Message | TaggedOutput[Any, Any] | RejectedOutput]:
        (rejected, is_complete), latest_ms = arrived
        if not is_complete:
            yield _rejected_again(rejected, rejected.message)
        elif rejected.stage in (Stage.VALIDATE, Stage.WRITE):
            yield from self._restored(rejected, latest_ms)
        else:
            arrival_ms = min(rejected.arrival_ms, latest_ms) if rejected.arrival_ms >= 0 else latest_ms
            yield Message(
                rejected.payload,
                arrival_ms,
                rejected.source,
                rejected.offset,
                rejected.envelope,
                rejected.records,
            )

    def _restored(
        self, rejected: Rejected, latest_ms: int
    ) -> Iterator[TaggedOutput[Any, Any] | RejectedOutput]:
        """The points and index cells of a rejected row, or its rejection with the same stage."""
        try:
            points, other_cells = self._layout.restore(row_of(rejected.payload), self._reader)
        except ValueError as error:
            yield _rejected_again(rejected, f"not written: {error}")
            return
        if len(points):
            metrics.count("points_read", len(points))
            arrivals_ms = np.minimum(points.arrivals_ms, latest_ms)
            yield TaggedOutput(POINTS, dataclasses.replace(points, arrivals_ms=arrivals_ms))
        if other_cells.cells:
            for row in mutations((self._arrived(other_cells, latest_ms),)):
                yield reject(row) if isinstance(row, Rejected) else TaggedOutput(ROWS, row)

    def _arrived(self, row: Row, latest_ms: int) -> Row:
        """A row without cell timestamps after `latest_ms`, if its table has arrivals in them."""
        if not any(
            spec.name == row.table and spec.cell_time.startswith(ARRIVAL) for spec in self._layout.tables()
        ):
            return row
        cells = [cell._replace(timestamp_ms=min(cell.timestamp_ms, latest_ms)) for cell in row.cells]
        return row._replace(cells=cells)


def _rejected_again(rejected: Rejected, why: str) -> RejectedOutput:
    """The rejection of a dead letter that cannot be replayed."""
    metrics.count_rejected_again(rejected)
    return reject(dataclasses.replace(rejected, message=why))
