"""Records of named fields in columns, and the message format `records`: JSON lines, CSV or Avro.

A value is kept as the text that was received, so that 600.60 keeps its zero; what is absent is null.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timebeam.schema.bits import json_text
from timebeam.schema.bits.arrays import Bools, Int64s
from timebeam.schema.bits.memory_limit import POINT_BYTES, NoRoomError, charge, metered
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.rejections import Joined, Origins, Rejected, Stage
from timebeam.schema.formats.avro.container import read_records, unpack
from timebeam.schema.formats.avro.schema import Schema
from timebeam.schema.formats.base import Message, Rejections

_WHOLE = r"^(0|-?[1-9][0-9]{0,18})$"


@dataclasses.dataclass(frozen=True, slots=True)
class RecordBatch:
    """n records in columns.

    Attributes:
      fields: for each field name string[n], the text of the value, or int64[n]; null where absent.
      arrivals_ms: int64[n], when the record reached us.
      origins: where the records are in their input, while that is in memory.
      quoted: bool[n] for fields that hold other values than texts: which of them are texts (a JSON
        string, say). Without an entry all are; of int64 fields none is.
    """

    fields: Mapping[str, pa.Array]
    arrivals_ms: Int64s
    origins: Origins | None = None
    quoted: Mapping[str, Bools] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.arrivals_ms)

    def texts(self, name: str) -> pa.Array:
        """string[n]: the text of a field."""
        column = self.fields.get(name)
        if column is None:
            return pa.nulls(len(self), pa.string())
        return column.cast(pa.string()) if pa.types.is_integer(column.type) else column

    def present(self, name: str) -> Bools:
        """bool[n]: which records have a field."""
        column = self.fields.get(name)
        if column is None:
            return np.zeros(len(self), np.bool_)
        return column.is_valid().to_numpy(zero_copy_only=False)

    def are_texts(self, name: str) -> Bools:
        """bool[n]: which values of a field are texts, not numbers, booleans, arrays or objects."""
        quoted = self.quoted.get(name)
        if quoted is not None:
            return quoted
        column = self.fields.get(name)
        return np.full(len(self), column is None or not pa.types.is_integer(column.type))

    def integers(self, name: str) -> tuple[Int64s, Bools]:
        """(int64[n], bool[n]): a field as whole numbers, and which of its values are any."""
        column = self.fields.get(name)
        if column is None:
            return np.zeros(len(self), np.int64), np.zeros(len(self), np.bool_)
        if not pa.types.is_integer(column.type):
            good = pc.fill_null(pc.match_substring_regex(column, _WHOLE), False)
            column = pc.if_else(good, column, None)
            try:
                column = column.cast(pa.int64())
            except pa.ArrowInvalid:  # 19 digits beyond 64 bits
                column = pa.array([_int64(text) for text in column.to_pylist()], pa.int64())
        good = column.is_valid().to_numpy(zero_copy_only=False)
        return column.fill_null(0).to_numpy(), good

    def take(self, records: Int64s) -> RecordBatch:
        """A batch of the records at these indices."""
        indices = pa.array(records)
        return RecordBatch(
            {name: values.take(indices) for name, values in self.fields.items()},
            self.arrivals_ms[records],
            self.origins.take(records) if self.origins else None,
            {name: quoted[records] for name, quoted in self.quoted.items()},
        )

    def payload(self, record: int) -> bytes:
        """The original bytes of a record; without origins its fields as JSON."""
        if self.origins:
            return self.origins.text[self.origins.starts[record] : self.origins.ends[record]]
        values = {name: values[record].as_py() for name, values in self.fields.items()}
        present = {name: value for name, value in values.items() if value is not None}
        return json.dumps(present, ensure_ascii=False).encode()

    def reject(self, record: int, reason: Reason, message: str) -> Rejected:
        """The rejection of one record by a layout."""
        if self.origins:
            why, number = RejectedError(reason, message), np.array([record])
            (rejected,) = self.origins.reject(number, lambda _: why, Stage.ENCODE, self.arrivals_ms)
            return rejected
        arrival_ms = int(self.arrivals_ms[record])
        return Rejected(self.payload(record), reason, message, Stage.ENCODE, arrival_ms=arrival_ms)


def _int64(text: str | None) -> int | None:
    number = int(text) if text is not None else None
    return number if number is not None and -(1 << 63) <= number < 1 << 63 else None


Read = tuple[RecordBatch, list[Rejected]]
"""The good records of a message, and its rejected ones."""

_MOST_CELLS = 1 << 24  # records times fields of a block; those of a record that are absent are cells too
_MOST_FIELDS = 10_000

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_json(message: Message, joined: Joined | None = None) -> Read:
    """JSON lines: an object each; null is absent. A key that is repeated rejects its line.

    The text of a number is as it was written; arrays and objects are kept as JSON text.

    Args:
      joined: as of `Rejections`.
    """
    spans = _lines(message.text)
    try:
        records: list[dict[str, msgspec.Raw]] | None = _MEMBERS.decode_lines(message.text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        records = None
    if (
        records is None
        or len(records) != len(spans)
        or not _all_sound(message.text, records)
        or len({name for members in records for name in members}) > _most_fields(len(records))
    ):
        return _each(message, spans, _json_members, joined)
    return _batch(message, spans, records), []


def read_csv(message: Message, header: Sequence[str] | None = None) -> Read:
    """CSV (RFC 4180) of UTF-8: one record per line, so that no value holds a newline; empty is absent.

    Args:
      header: field names, of `csv_header`; None if the first line of the message holds them.

    Raises:
      ValueError: the first line of the message is not a header.
    """
    spans = _lines(message.text)
    if header is None:
        if not spans:
            return _batch(message, [], []), []
        start, end = spans.pop(0)
        header = csv_header(message.text[start:end])
    names = list(header)

    def members(line: bytes) -> dict[str, str | None]:
        row = _csv_row(line)
        if len(row) != len(names):
            raise RejectedError(Reason.BAD_SYNTAX, f"{len(row)} values where the header has {len(names)}")
        return {name: value or None for name, value in zip(names, row, strict=True)}

    return _each(message, spans, members)


def csv_header(line: bytes) -> list[str]:
    """The field names in the first line of a file.

    Raises:
      ValueError: it is not a line of CSV, or a name is empty or is repeated.
    """
    names = _csv_row(line.rstrip(b"\r\n"))
    if len(set(names)) < len(names) or not all(names):
        raise ValueError(f"the header {','.join(names)} has an empty name, or one that is repeated")
    return names


def read_avro(message: Message) -> Read:
    """An Avro object container; records of any schema. Of a rejected record the payload is its bytes.

    Bytes have no text and reject their record; arrays, maps and records are kept as JSON text. What
    is behind corruption is rejected as one piece, and so are records behind those for which there is room.
    """
    with metered():
        return _read_avro(message)


def _read_avro(message: Message) -> Read:
    """As `read_avro`; charges each record."""
    container = unpack(message.text)
    rejections = Rejections(dataclasses.replace(message, text=container.text), separator=b"")
    corrupt: list[Rejected] = []
    fields: list[dict[str, Any]] = []
    if container.corruption:
        why = f"{container.corruption}: the records before are stored, these bytes are not"
        corrupt.append(_corrupt(message, container.read_bytes, why))
    try:
        schema = Schema.of(container.header.schema, logical_types=True) if container.header else None
    except ValueError as error:
        return _batch(message, [], []), [_corrupt(message, 0, f"the schema of the container: {error}"[:180])]
    for record in read_records(container, schema) if schema else ():
        try:
            if isinstance(record.value, RejectedError):
                raise record.value
            if not isinstance(record.value, dict):
                raise RejectedError(Reason.BAD_SYNTAX, "the schema must be that of a record")
            charge((1 + len(record.value)) * POINT_BYTES)
            fields.append({name: _avro_text(name, value) for name, value in record.value.items()})
        except NoRoomError as error:
            rejections.add(record.start, record.end, RejectedError(Reason.CORRUPT_FILE, str(error)))
        except RejectedError as error:
            rejections.add(record.start, record.end, error)
    return _batch(message, [], fields), [*corrupt, *rejections.rejected()]


def _corrupt(message: Message, start: int, why: str) -> Rejected:
    """The rejection of the bytes from `start` on."""
    return Rejected(
        message.text[start:], Reason.CORRUPT_FILE, why, Stage.READ, message.source, message.offset + start
    )


def _lines(text: bytes) -> list[tuple[int, int]]:
    """(start, end) of the lines that hold more than blanks, without newline and carriage return."""
    spans = []
    start = 0
    for line in text.split(b"\n"):
        stripped = line.rstrip(b"\r")
        if stripped.strip():
            spans.append((start, start + len(stripped)))
        start += len(line) + 1
    return spans


def _all_sound(text: bytes, records: Iterable[dict[str, msgspec.Raw]]) -> bool:
    """Whether the lines surely are as they should be: no more colons than keys, so no key twice."""
    if b"\\u" in text:
        return False  # a half of a surrogate pair may be among the escapes
    try:
        written = json_text.members_written(text.decode())
    except UnicodeDecodeError:
        return False
    return written == sum(map(len, records))


def _json_members(line: bytes) -> dict[str, msgspec.Raw]:
    try:
        members = _MEMBERS.decode(line)
        json_text.check_keys(line.decode())
        msgspec.json.decode(line)  # with every escape
    except UnicodeDecodeError as error:
        raise RejectedError(Reason.BAD_ENCODING, f"not UTF-8 at byte {error.start} of the record") from None
    except (ValueError, RecursionError) as error:
        raise RejectedError(Reason.BAD_SYNTAX, f"no JSON object of fields: {error}") from None
    return members


def _csv_row(line: bytes) -> list[str]:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise RejectedError(Reason.BAD_ENCODING, f"not UTF-8 at byte {error.start} of the record") from None
    try:
        (row,) = csv.reader([text], strict=True)
    except (csv.Error, ValueError) as error:
        raise RejectedError(Reason.BAD_SYNTAX, f"no line of CSV: {error}") from None
    return row


def _avro_text(name: str, value: Any) -> Any:
    """A value as `_batch` takes it: text, a JSON text, or None."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        raise RejectedError(Reason.VALUE_NOT_STORABLE, f"{name}: bytes have no text")
    if isinstance(value, (bool, int, list, dict)):
        return msgspec.Raw(msgspec.json.encode(value))
    if isinstance(value, float):
        if not math.isfinite(value):
            raise RejectedError(Reason.BAD_NUMBER, f"{name}: {value} is not a number")
        return msgspec.Raw(repr(value).encode())
    raise RejectedError(
        Reason.VALUE_NOT_STORABLE, f"{name}: {type(value).__name__} has no text: use a long or string"
    )


def _each(
    message: Message,
    spans: Sequence[tuple[int, int]],
    members: Callable[[bytes], dict[str, Any]],
    joined: Joined | None = None,
) -> Read:
    """Reads line by line; rejects single lines."""
    good, sound_spans = [], []
    rejections = Rejections(message, joined)
    names: set[str] = set()
    most = _most_fields(len(spans))
    for start, end in spans:
        try:
            record = members(message.text[start:end])
            more = record.keys() - names
            if len(names) + len(more) > most:
                why = f"more than {most} different fields in a block of {len(spans)} records"
                raise RejectedError(Reason.BAD_SYNTAX, why)
            names |= more
            good.append(record)
            sound_spans.append((start, end))
        except RejectedError as error:
            rejections.add(start, end, error)
    return _batch(message, sound_spans, good), list(rejections.rejected())


def _most_fields(records: int) -> int:
    """Different fields that so many records may have, as each becomes a column of all of them."""
    return min(_MOST_FIELDS, _MOST_CELLS // max(records, 1))


def _batch(
    message: Message, spans: Sequence[tuple[int, int]], records: Sequence[dict[str, Any]]
) -> RecordBatch:
    """Records from their members: texts, or JSON values as they were written; None is absent."""
    names = dict.fromkeys(name for members in records for name in members)
    fields, quoted = {}, {}
    for name in names:
        fields[name], quoted[name] = _column([members.get(name) for members in records])
    where: Int64s = np.array(spans, np.int64).reshape(-1, 2)
    origins = None
    if len(where) == len(records):
        origins = Origins(message.text, where[:, 0], where[:, 1], message.source, message.offset)
    return RecordBatch(fields, np.full(len(records), message.arrival_ms, np.int64), origins, quoted)


def _column(members: Sequence[Any]) -> tuple[pa.Array, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """(string[n], bool[n] which are texts)."""
    texts: list[str | None] = []
    are_texts: list[bool] = []
    for member in members:
        if isinstance(member, msgspec.Raw):
            written = bytes(member)
            if written[:1] == b'"' and b"\\" not in written:
                text, is_text = written[1:-1].decode(), True
            else:
                text, is_text = json_text.scalar(member)  # type: ignore[assignment]  # None is absent
        else:
            text, is_text = member, True
        texts.append(text)
        are_texts.append(is_text)
    return pa.array(texts, pa.string()), np.array(are_texts, np.bool_)
