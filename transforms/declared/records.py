"""Records into the rows of declared tables, and points as records; refusals on the side."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import apache_beam as beam
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems

from timebeam.schema.common.lru import LruCache
from timebeam.schema.declared.codec.reading import Read, csv_header, read_avro, read_csv, read_json
from timebeam.schema.declared.codec.records import RecordBatch, of_points
from timebeam.schema.declared.codec.rows import rows
from timebeam.schema.declared.model import Declaration
from timebeam.schema.layouts import Cell, Row
from timebeam.schema.messages import Framing, Message
from timebeam.schema.messages.base import RecordEncoding, joined_of
from timebeam.schema.points import PointBatch, Reason, RefusedError, Rejected, Stage
from timebeam.transforms import metrics
from timebeam.transforms.dead_letters.rejected import RejectedOutput, refuse
from timebeam.transforms.ingest.pack import mutations
from timebeam.transforms.input.decompress import DamagedError, TruncatedError, content
from timebeam.transforms.input.line_cutter import LINE_BYTES
from timebeam.transforms.input.unpack import parse_portions, refused_message

_HEADERS = 1000  # of so many files the headers are remembered


class RecordRowsFn(beam.DoFn):
    """`Message`, a block of a file of records, in; `Row` mutations out, refused records to `REJECTED`."""

    def __init__(self, declaration: Declaration, encoding: RecordEncoding) -> None:
        self._declaration, self._encoding = declaration, encoding
        self._headers: LruCache[str, Sequence[str]] = LruCache(_HEADERS)

    def process(self, message: Message) -> Iterator[Row | RejectedOutput]:
        """See the class."""
        try:
            batch, rejected = self._read(message)
        except ValueError as error:
            metrics.count("points_read")
            why = Reason.BAD_SYNTAX
            yield refuse(_stamped(Rejected(message.text, why, str(error), Stage.PARSE, offset=0), message))
            return
        metrics.count("points_read", len(batch) + len(rejected))
        for refusal in rejected:
            yield refuse(_stamped(refusal, message))
        for row in _stored(self._declaration, batch):
            yield refuse(_stamped(row, message)) if isinstance(row, Rejected) else row

    def _read(self, message: Message) -> Read:
        """The records of a block.

        Raises:
          ValueError: the file has no valid header.
        """
        if self._encoding is RecordEncoding.CSV:
            return read_csv(message, None if message.offset == 0 else self._header(message.source))
        return read_avro(message) if self._encoding is RecordEncoding.AVRO else read_json(message)

    def _header(self, path: str) -> Sequence[str]:
        """The header of a file, of which a block further behind is at hand."""
        header = self._headers.get(path)
        if header is None:
            header = csv_header(_first_line(path))
            self._headers[path] = header
        return header


class RecordMessagesFn(beam.DoFn):
    """Lists of `Message` in; `Row` mutations out, refused records to `REJECTED`.

    The lines of JSON messages are read together; a CSV message begins with its header.
    """

    def __init__(self, declaration: Declaration, encoding: RecordEncoding) -> None:
        self._declaration, self._encoding = declaration, encoding

    def process(self, messages: Sequence[Message]) -> Iterator[Row | RejectedOutput]:
        """See the class."""
        return parse_portions(messages, self._framing_of, self._rows)

    def _framing_of(self, message: Message) -> Framing:
        """How the text of a message may be cut; only the first block of a CSV would have its header."""
        return Framing.LINES if self._encoding is RecordEncoding.JSON else Framing.NONE

    def _rows(self, plain: Sequence[Message]) -> Iterator[Row | RejectedOutput]:
        """The rows of messages that are unpacked."""
        batches: list[tuple[RecordBatch, Sequence[Rejected]]] = []
        if self._encoding is RecordEncoding.JSON and plain:
            batches.append(_read_together(plain))
        elif plain:
            for message in plain:
                try:
                    batches.append(_read_alone(message, self._encoding))
                except ValueError as error:
                    metrics.count("points_read")
                    yield refuse(refused_message(message, RefusedError(Reason.BAD_SYNTAX, str(error))))
        for batch, rejected in batches:
            metrics.count("points_read", len(batch) + len(rejected))
            for refusal in rejected:
                yield refuse(refusal)
            for row in _stored(self._declaration, batch):
                yield refuse(row) if isinstance(row, Rejected) else row


def _read_together(messages: Sequence[Message]) -> tuple[RecordBatch, list[Rejected]]:
    """The records of messages of JSON lines."""
    joined = joined_of(messages)
    text = Message(b"\n".join([message.text for message in messages]), 0, messages[0].source)
    batch, rejected = read_json(text, joined)
    if batch.origins is not None:
        batch = dataclasses.replace(
            batch,
            arrivals_ms=joined.arrivals_at(batch.origins.starts),
            origins=dataclasses.replace(batch.origins, joined=joined),
        )
    return batch, [joined.addressed(refusal) for refusal in rejected]


def _read_alone(message: Message, encoding: RecordEncoding) -> tuple[RecordBatch, list[Rejected]]:
    """The records of one message.

    Raises:
      ValueError: it has no valid header.
    """
    batch, rejected = read_csv(message, None) if encoding is RecordEncoding.CSV else read_avro(message)
    joined = joined_of([message])
    if batch.origins is not None:
        batch = dataclasses.replace(batch, origins=dataclasses.replace(batch.origins, joined=joined))
    stamped = [
        dataclasses.replace(
            refusal, source=message.source, arrival_ms=message.arrival_ms, envelope=message.envelope
        )
        for refusal in rejected
    ]
    return batch, stamped


class PointRowsFn(beam.DoFn):
    """`PointBatch` in; `Row` mutations of declared tables out, refused points to `REJECTED`."""

    def __init__(self, declaration: Declaration) -> None:
        self._declaration = declaration

    def process(self, points: PointBatch) -> Iterator[Row | RejectedOutput]:
        """See the class."""
        batch, rejected = of_points(self._declaration, points)
        for refusal in rejected:
            yield refuse(refusal)
        for row in _stored(self._declaration, batch):
            yield refuse(row) if isinstance(row, Rejected) else row


def merged(rows: Iterable[Row]) -> list[Row]:
    """One mutation for each row of each table; of two values of one cell and timestamp the later one."""
    by_key: dict[tuple[str, bytes], list[Row]] = {}
    for row in rows:
        by_key.setdefault((row.table, row.key), []).append(row)
    return [same[0] if len(same) == 1 else _one_row(same) for same in by_key.values()]


def _one_row(same: Sequence[Row]) -> Row:
    """One row of several with one key."""
    cells = {cell[:3]: cell for row in same for cell in row.cells}
    return same[0]._replace(cells=list[Cell](cells.values()))


def _stored(declaration: Declaration, batch: RecordBatch) -> Iterator[Row | RejectedOutput | Rejected]:
    """The mutations and refusals of a batch, counted."""
    stored_rows, refused = rows(declaration, batch)
    metrics.count("points_packed", len(batch) - len(refused))
    yield from refused
    yield from mutations(merged(stored_rows))


def _stamped(rejected: Rejected, message: Message) -> Rejected:
    """A refusal with where and when its message came."""
    return dataclasses.replace(rejected, source=message.source, arrival_ms=message.arrival_ms)


def _first_line(path: str) -> bytes:
    """The first line of a file that holds more than blanks.

    Raises:
      ValueError: it is longer than lines may be, or cannot be read.
    """
    text = b""
    # Damage behind the header is refused by the step that reads the file.
    with (
        FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED) as file,
        contextlib.suppress(TruncatedError, DamagedError),
    ):
        for chunk in content(path, file, LINE_BYTES):
            text = (text + chunk).lstrip()
            if b"\n" in text or len(text) > LINE_BYTES:
                break
    line = text.partition(b"\n")[0]
    if len(line) > LINE_BYTES:
        raise ValueError(f"the header is longer than {LINE_BYTES} bytes")
    return line
