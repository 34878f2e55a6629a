"""Message format `records`: fields by name as JSON lines, CSV with a header, or an Avro container.

Bytes in; records in columns and refused lines out. Numbers stay the text they were written as.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import fastavro
import msgspec
import numpy as np
import pyarrow as pa

from schema.declared import strict_json
from schema.declared.records import RecordBatch
from schema.messages.base import Message
from schema.points import Int64s, Origins, Reason, RefusedError, Rejected, Stage

Read = tuple[RecordBatch, list[Rejected]]
"""The good records of a message, and its refused ones."""

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_json(message: Message) -> Read:
    """JSON lines: an object each; null is absent. A key that stands twice refuses its line.

    The text of a number is as it was written; arrays and objects are kept as JSON text.
    """
    spans = _lines(message.text)
    try:
        found: list[dict[str, msgspec.Raw]] | None = _MEMBERS.decode_lines(message.text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = None
    if found is None or len(found) != len(spans) or not _all_sound(message.text, found):
        return _each(message, spans, _json_members)
    return _batch(message, spans, found), []


def read_csv(message: Message, header: Sequence[str] | None = None) -> Read:
    """CSV (RFC 4180) of UTF-8: one record per line, so that no value holds a newline; empty is absent.

    Args:
      header: field names, of `csv_header`; None if the first line of the message holds them.

    Raises:
      ValueError: the first line of the message is no header.
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
            raise RefusedError(Reason.BAD_SYNTAX, f"{len(row)} values where the header has {len(names)}")
        return {name: value or None for name, value in zip(names, row, strict=True)}

    return _each(message, spans, members)


def csv_header(line: bytes) -> list[str]:
    """The field names in the first line of a file.

    Raises:
      ValueError: it is no line of CSV, or a name is empty or stands twice.
    """
    names = _csv_row(line.rstrip(b"\r\n"))
    if len(set(names)) < len(names) or not all(names):
        raise ValueError(f"the header {','.join(names)} has an empty name, or one that stands twice")
    return names


def read_avro(message: Message) -> Read:
    """An Avro object container; records of any schema. Of a refused record the payload is its JSON.

    Bytes have no text and refuse their record; arrays, maps and records are kept as JSON text. What
    stands behind damage is refused as one piece.
    """
    fields: list[dict[str, Any]] = []
    rejected: list[Rejected] = []
    try:
        for record in fastavro.reader(io.BytesIO(message.text), return_record_name=False):
            try:
                if not isinstance(record, dict):
                    raise RefusedError(Reason.BAD_SYNTAX, "the schema must be that of a record")
                fields.append({name: _avro_text(name, value) for name, value in record.items()})
            except RefusedError as error:
                payload = json.dumps(record, default=repr, ensure_ascii=False).encode()
                rejected.append(Rejected(payload, error.reason, error.message, Stage.PARSE, message.source))
    except (ValueError, EOFError, IndexError, TypeError, KeyError, StopIteration) as error:
        why = f"the Avro container is damaged behind {len(fields) + len(rejected)} records: {error}"
        rejected.append(
            Rejected(message.text, Reason.CORRUPT_FILE, why, Stage.READ, message.source, message.offset)
        )
    batch = _batch(message, [], fields)
    return batch, rejected


def _lines(text: bytes) -> list[tuple[int, int]]:
    """(start, end) of the lines that hold more than blanks, without newline and carriage return."""
    spans = []
    start = 0
    for line in text.split(b"\n"):
        kept = line.rstrip(b"\r")
        if kept.strip():
            spans.append((start, start + len(kept)))
        start += len(line) + 1
    return spans


def _all_sound(text: bytes, found: Iterable[dict[str, msgspec.Raw]]) -> bool:
    """Whether the lines surely are as they should be: no more colons than keys, so no key twice."""
    if b"\\u" in text:
        return False  # a half of a surrogate pair may be among the escapes
    try:
        written = strict_json.members_written(text.decode())
    except UnicodeDecodeError:
        return False
    return written == sum(map(len, found))


def _json_members(line: bytes) -> dict[str, msgspec.Raw]:
    try:
        members = _MEMBERS.decode(line)
        strict_json.check_keys(line.decode())
        msgspec.json.decode(line)  # with every escape
    except UnicodeDecodeError as error:
        raise RefusedError(Reason.BAD_ENCODING, f"not UTF-8 at byte {error.start} of the record") from None
    except (ValueError, RecursionError) as error:
        raise RefusedError(Reason.BAD_SYNTAX, f"no JSON object of fields: {error}") from None
    return members


def _csv_row(line: bytes) -> list[str]:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise RefusedError(Reason.BAD_ENCODING, f"not UTF-8 at byte {error.start} of the record") from None
    try:
        (row,) = csv.reader([text], strict=True)
    except (csv.Error, ValueError) as error:
        raise RefusedError(Reason.BAD_SYNTAX, f"no line of CSV: {error}") from None
    return row


def _avro_text(name: str, value: Any) -> Any:
    """A value as `_batch` takes it: text, a JSON text, or None."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        raise RefusedError(Reason.VALUE_NOT_STORABLE, f"{name}: bytes have no text")
    if isinstance(value, (bool, int, list, dict)):
        return msgspec.Raw(msgspec.json.encode(value))
    if isinstance(value, float):
        if not math.isfinite(value):
            raise RefusedError(Reason.BAD_NUMBER, f"{name}: {value} is no number")
        return msgspec.Raw(repr(value).encode())
    raise RefusedError(
        Reason.VALUE_NOT_STORABLE, f"{name}: {type(value).__name__} has no text: use a long or string"
    )


def _each(
    message: Message, spans: Sequence[tuple[int, int]], members: Callable[[bytes], dict[str, Any]]
) -> Read:
    """Reads line by line; refuses single lines."""
    good, kept = [], []
    rejected = []
    for start, end in spans:
        line = message.text[start:end]
        try:
            good.append(members(line))
            kept.append((start, end))
        except RefusedError as error:
            where = message.offset + start
            rejected.append(Rejected(line, error.reason, error.message, Stage.PARSE, message.source, where))
    return _batch(message, kept, good), rejected


def _batch(
    message: Message, spans: Sequence[tuple[int, int]], found: Sequence[dict[str, Any]]
) -> RecordBatch:
    """Records from their members: texts, or JSON values as they were written; None is absent."""
    names = dict.fromkeys(name for members in found for name in members)
    fields, quoted = {}, {}
    for name in names:
        fields[name], quoted[name] = _column([members.get(name) for members in found])
    where: Int64s = np.array(spans, np.int64).reshape(-1, 2)
    origins = None
    if len(where) == len(found):
        origins = Origins(message.text, where[:, 0], where[:, 1], message.source, message.offset)
    return RecordBatch(fields, np.full(len(found), message.arrival_ms, np.int64), origins, quoted)


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
                text, is_text = strict_json.scalar(member)  # type: ignore[assignment]  # None is absent
        else:
            text, is_text = member, True
        texts.append(text)
        are_texts.append(is_text)
    return pa.array(texts, pa.string()), np.array(are_texts, np.bool_)
