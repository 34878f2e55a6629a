"""Records and points into rows of declared tables, and the records that a query reads."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import apache_beam as beam
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from google.api_core.exceptions import GoogleAPICallError

from timebeam.schema.bits.compression import CorruptDataError, TruncatedError, content
from timebeam.schema.bits.lru_cache import LruCache
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.core.rows import EncodedRow
from timebeam.schema.formats import Framing, Message
from timebeam.schema.formats.base import joined_of
from timebeam.schema.formats.options import RecordEncoding
from timebeam.schema.stores.declared.declaration import Declaration
from timebeam.schema.stores.declared.records import (
    Read,
    RecordBatch,
    csv_header,
    read_avro,
    read_csv,
    read_json,
)
from timebeam.schema.stores.declared.write_records import of_points, rows
from timebeam.transforms.flow import metrics
from timebeam.transforms.flow.steps import RejectedOutput, outputs, reject
from timebeam.transforms.ingest.row_mutations import merged_rows, mutations
from timebeam.transforms.input.cut_lines import LINE_BYTES
from timebeam.transforms.input.unpack_messages import parse_gathered, rejected_message

_HEADERS = 1000  # files whose headers are cached


class _Headers:
    """A cache of the headers of CSV files."""

    def __init__(self) -> None:
        self._by_path: LruCache[str, Sequence[str]] = LruCache(_HEADERS)

    def header(self, path: str) -> Sequence[str]:
        """The names in the header of a file.

        Raises:
          ValueError: it has no valid header.
          OSError: it cannot be read.
        """
        header = self._by_path.get(path)
        if header is None:
            header = self._by_path[path] = csv_header(_first_line(path))
        return header


class RecordRowsFn(beam.DoFn):
    """`Message`, a block of a file of records, in; `EncodedRow` out, rejected records to `REJECTED`."""

    def __init__(self, declaration: Declaration, encoding: RecordEncoding) -> None:
        self._declaration, self._encoding = declaration, encoding
        self._headers = _Headers()

    def process(self, message: Message) -> Iterator[EncodedRow | RejectedOutput]:
        try:
            batch, rejected = self._read(message)
        except ValueError as error:
            metrics.count("points_read")
            why = Reason.BAD_SYNTAX
            yield reject(_stamped(Rejected(message.text, why, str(error), Stage.PARSE, offset=0), message))
            return
        metrics.count("points_read", len(batch) + sum(rejection.points for rejection in rejected))
        yield from _stored(self._declaration, batch, rejected, message)

    def _read(self, message: Message) -> Read:
        """The records of a block; raises ValueError if the file has no valid header."""
        if self._encoding is RecordEncoding.CSV:
            return read_csv(message, None if message.offset == 0 else self._headers.header(message.source))
        return read_avro(message) if self._encoding is RecordEncoding.AVRO else read_json(message)


class RecordMessagesFn(beam.DoFn):
    """Lists of `Message` in; `EncodedRow` out, rejected records to `REJECTED`.

    The lines of JSON messages are read together; a CSV message begins with its header.

    Args:
      letters: whether messages are the payloads of dead letters: lines of CSV whose file has the header, and
        records of Avro as JSON.
    """

    def __init__(self, declaration: Declaration, encoding: RecordEncoding, *, letters: bool = False) -> None:
        self._declaration, self._encoding, self._letters = declaration, encoding, letters
        self._headers = _Headers()

    def process(self, messages: Sequence[Message]) -> Iterator[EncodedRow | RejectedOutput]:
        return parse_gathered(messages, self._framing_of, self._rows)

    def _framing_of(self, message: Message) -> Framing:
        """How the text of a message may be cut; only the first block of a CSV would have its header."""
        return Framing.LINES if self._encoding is RecordEncoding.JSON else Framing.NONE

    def _rows(self, messages: Sequence[Message]) -> Iterator[EncodedRow | RejectedOutput]:
        batches: list[tuple[RecordBatch, Sequence[Rejected]]] = []
        if self._encoding is RecordEncoding.JSON and messages:
            batches.append(_read_together(messages))
        else:
            for message in messages:
                try:
                    batches.append(_read_alone(message, self._encoding_of(message), self._header_of(message)))
                except ValueError as error:
                    metrics.count("points_read")
                    yield reject(rejected_message(message, RejectedError(Reason.BAD_SYNTAX, str(error))))
        for batch, rejected in batches:
            metrics.count("points_read", len(batch) + sum(rejection.points for rejection in rejected))
            yield from _stored(self._declaration, batch, rejected)

    def _encoding_of(self, message: Message) -> RecordEncoding:
        """How a message is written: the payload of a dead letter of an Avro record is JSON."""
        is_json = self._letters and self._encoding is RecordEncoding.AVRO and message.text.startswith(b"{")
        return RecordEncoding.JSON if is_json else self._encoding

    def _header_of(self, message: Message) -> Sequence[str] | None:
        """The header of a CSV message; None if it begins with it.

        Raises:
          ValueError: it is the payload of a dead letter whose header is lost.
        """
        if not self._letters or self._encoding is not RecordEncoding.CSV:
            return None
        if message.envelope is not None:
            raise ValueError("a line of a CSV message, whose header is lost: publish it with its header")
        if message.offset == 0:
            return None  # rejected with the header of its file, for that header
        try:
            return self._headers.header(message.source)
        except (OSError, GoogleAPICallError) as error:
            raise ValueError(f"the header of its file cannot be read: {error}") from None


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
    return batch, [joined.addressed(rejection) for rejection in rejected]


def _read_alone(
    message: Message, encoding: RecordEncoding, header: Sequence[str] | None
) -> tuple[RecordBatch, list[Rejected]]:
    """The records of one message; raises ValueError if it has no valid header, or nothing else."""
    if encoding is RecordEncoding.CSV:
        batch, rejected = read_csv(message, header)
        if header is None and not len(batch) and not rejected and message.text.strip():
            raise ValueError("a CSV message of one line, its header: publish records with their header")
    else:
        batch, rejected = read_avro(message) if encoding is RecordEncoding.AVRO else read_json(message)
    joined = joined_of([message])
    if batch.origins is not None:
        batch = dataclasses.replace(batch, origins=dataclasses.replace(batch.origins, joined=joined))
    stamped = [
        dataclasses.replace(
            rejection, source=message.source, arrival_ms=message.arrival_ms, envelope=message.envelope
        )
        for rejection in rejected
    ]
    return batch, stamped


def point_rows(points: PointBatch, declaration: Declaration) -> Iterator[EncodedRow | RejectedOutput]:
    """The `EncodedRow`s of declared tables of points; rejected points to `REJECTED`."""
    batch, rejected = of_points(declaration, points)
    return _stored(declaration, batch, rejected)


def _stored(
    declaration: Declaration, batch: RecordBatch, rejected: Iterable[Rejected], message: Message | None = None
) -> Iterator[EncodedRow | RejectedOutput]:
    """The mutations of a batch, counted, and all rejections.

    Args:
      rejected: what was rejected before.
      message: whose source and arrival the rejections get; None if they have them.
    """
    stored_rows, now_rejected = rows(declaration, batch)
    metrics.count("points_packed", len(batch) - len(now_rejected))
    for rejection in (*rejected, *now_rejected):
        yield reject(rejection if message is None else _stamped(rejection, message))
    yield from outputs(mutations(merged_rows(stored_rows)))


def _stamped(rejected: Rejected, message: Message) -> Rejected:
    """A rejection with the source and arrival of its message."""
    return dataclasses.replace(rejected, source=message.source, arrival_ms=message.arrival_ms)


def _first_line(path: str) -> bytes:
    """The first line of a file that is not blank.

    Raises:
      ValueError: the line is longer than `LINE_BYTES`.
    """
    text = b""
    # Corruption behind the header is rejected by the step that reads the file.
    with (
        FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED) as file,
        contextlib.suppress(TruncatedError, CorruptDataError),
    ):
        for chunk in content(path, file, LINE_BYTES):
            text = (text + chunk).lstrip()
            if b"\n" in text or len(text) > LINE_BYTES:
                break
    line = text.partition(b"\n")[0]
    if len(line) > LINE_BYTES:
        raise ValueError(f"the header is longer than {LINE_BYTES} bytes")
    return line
