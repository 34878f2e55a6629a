"""A dead letter: one JSON object for rejected input, in parts if it is too long for a message.

The payload of a rejected row is the row as JSON. Limits of rows are checked before the sink: one row that is
rejected fails the whole bundle of Beam's own writer.

Format: docs/reference/reasons.md.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from typing import Annotated, NamedTuple

import msgspec

from timebeam.schema.bits.compression import LARGEST
from timebeam.schema.bits.reasons import Reason, shortened
from timebeam.schema.core.rejections import MOST_RECORDS, Envelope, Part, Rejected, Stage
from timebeam.schema.core.rows import CELL_BYTES, KEY_BYTES, LAST_MS, QUALIFIER_BYTES, Cell, Row

ROW_SOURCE = "row of table "
"""How the source of a rejected row begins."""

CellTime = Annotated[int, msgspec.Meta(ge=-LAST_MS, le=LAST_MS)]
"""A cell timestamp in ms in JSON; Bigtable takes none below 0."""

LETTER_BYTES = 9_000_000
"""Longest letter sent to a topic; Pub/Sub takes 10 MB, attributes included."""

LINE_BYTES = 4 * LARGEST
"""Longest line of a file that is read as a letter, and longest payload that is joined from parts. A payload
has about `LARGEST` bytes, and its text as JSON at most three times as many."""

_MOST_PARTS = 1000  # of `LINE_BYTES`, each of at least three 32nds of `LETTER_BYTES`, there are 319
_ATTRIBUTES_BYTES = 1 << 20  # the service takes 100 of 1,280 bytes
_HALF_BYTES = LARGEST // 4  # of a line with escapes, which may be made into Python objects as a whole

# JSON needs six characters for each of them; base64 four for three bytes.
_CONTROLS = bytes(byte for byte in range(32) if byte not in b"\b\t\n\f\r")


def to_json(rejected: Rejected, now_ms: int) -> str:
    """One dead letter as a line of JSON.

    The payload is in base64 if it is not UTF-8, is mostly control characters, or is a part.

    >>> line = b"put sys.cpu now 1 host=a"
    >>> rejected = Rejected(line, Reason.BAD_TIMESTAMP, "not a number", Stage.PARSE, "a.txt", offset=40)
    >>> print(to_json(rejected, now_ms=1357000000000))
    {"reason": "bad-timestamp", "message": "not a number", "stage": "parse", "source": "a.txt",
     "offset": 40, "arrival_ms": -1, "time_ms": 1357000000000, "payload": "put sys.cpu now 1 host=a"}
    """
    letter: dict[str, object] = {"reason": rejected.reason.value}  # first, and then `points`: `count_letters`
    if rejected.points != 1:
        letter["points"] = rejected.points
    letter |= {
        "message": _plain(shortened(rejected.message)),
        "stage": rejected.stage.value,
        "source": _plain(rejected.source),
        "offset": rejected.offset,
        "arrival_ms": rejected.arrival_ms,
        "time_ms": now_ms,
    }
    if rejected.envelope is not None:
        letter["message_id"] = rejected.envelope.message_id
        letter["publish_time_ms"] = rejected.envelope.publish_ms
        letter["attributes"] = dict(rejected.envelope.attributes)
    if rejected.records:
        letter["records"] = rejected.records
    if rejected.part is not None:
        letter["part"], letter["parts"], letter["payload_sha256"] = rejected.part
    text = None if rejected.part else _text(rejected.payload)
    if text is None:
        letter["payload_base64"] = _base64(rejected.payload)
    else:
        letter["payload"] = text
    # Attributes may have half surrogates, which a UTF-8 file cannot hold.
    return json.dumps(letter, ensure_ascii=False).encode(errors="backslashreplace").decode()


def letters(rejected: Rejected, now_ms: int, longest: int = LETTER_BYTES) -> Iterator[str]:
    """The dead letter of a rejection, or several with the parts of its payload, of about `longest` bytes
    each.

    The first part stands for the rejected points, the others for none.
    """
    line = to_json(rejected, now_ms)
    if len(line.encode()) <= longest:
        yield line
        return
    payload, sha256 = rejected.payload, hashlib.sha256(rejected.payload).hexdigest()
    no_payload = dataclasses.replace(rejected, payload=b"", part=Part(1, len(payload), sha256))
    room = max(longest // 8, longest - len(to_json(no_payload, now_ms).encode())) // 4 * 3
    count = -(-len(payload) // room)
    for number in range(count):
        yield to_json(
            dataclasses.replace(
                rejected,
                payload=payload[number * room : (number + 1) * room],
                points=0 if number else rejected.points,
                part=Part(number + 1, count, sha256),
            ),
            now_ms,
        )


class Letter(NamedTuple):
    """A parsed dead letter; `is_complete` unless the payload is only the beginning of the input."""

    rejected: Rejected
    is_complete: bool


_CUT = (Reason.LINE_TOO_LONG, Reason.TRUNCATED_FILE, Reason.CORRUPT_FILE)


_Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
_Name = Annotated[str, msgspec.Meta(max_length=1 << 16)]


class _LetterJson(msgspec.Struct):
    """The fields of a dead letter; others are ignored."""

    reason: Reason
    message: str
    stage: Stage
    source: _Name
    offset: _Int64
    arrival_ms: CellTime
    payload: str | None = None
    payload_base64: bytes | None = None
    payload_is_cut: bool = False
    points: _Count = 1
    message_id: _Name | None = None
    publish_time_ms: CellTime | None = None
    attributes: msgspec.Raw = msgspec.Raw(b"null")
    number: _Count | None = msgspec.field(default=None, name="part")
    total: _Count = msgspec.field(default=0, name="parts")
    payload_sha256: _Name = ""
    records: Annotated[tuple[tuple[_Count, _Count], ...], msgspec.Meta(max_length=MOST_RECORDS)] = ()


def from_json(line: str | bytes) -> Letter:
    """Parses a dead letter.

    Raises:
      ValueError: the line is not a dead letter.
    """
    raw = line.encode(errors="surrogatepass") if isinstance(line, str) else line
    try:
        letter = msgspec.json.decode(_without_halves(raw), type=_LetterJson)
        attributes = _attributes(letter.attributes)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not a dead letter: {error}") from error
    payload = letter.payload_base64 if letter.payload is None else letter.payload.encode()
    if payload is None:
        raise ValueError("not a dead letter: it has no payload")
    payload_part = None
    if letter.number is not None:
        payload_part = Part(letter.number, letter.total, letter.payload_sha256)
        is_part = 1 <= letter.number <= letter.total <= _MOST_PARTS and not letter.payload_is_cut
        if not is_part or len(payload) > LETTER_BYTES:
            raise ValueError(
                f"not a dead letter: part {letter.number} of {letter.total}, {len(payload):,} bytes"
            )
    rejected = Rejected(
        payload,
        letter.reason,
        letter.message,
        letter.stage,
        letter.source,
        letter.offset,
        letter.arrival_ms,
        _envelope(letter, attributes),
        letter.points,
        letter.records,
        payload_part,
    )
    return Letter(rejected, letter.reason not in _CUT and not letter.payload_is_cut)


def joined(rejections: Collection[Rejected]) -> Rejected:
    """The rejection whose payload some letters hold in parts, which are given in any order, each once.

    Raises:
      ValueError: they are not all of its parts.
    """
    by_number = {rejected.part.number: rejected for rejected in rejections if rejected.part is not None}
    first = next(iter(by_number.values()))
    assert first.part is not None
    count = first.part.total
    missing = count - len(by_number)
    if missing:
        absent = [str(number) for number in range(1, min(count, 10_000) + 1) if number not in by_number]
        shown = ", ".join(absent[:5]) + (", …" if len(absent) > 5 else "")
        raise ValueError(f"part of a payload in {count} parts, without {shown}: replay all of them together")
    payload = b"".join([by_number[number].payload for number in range(1, count + 1)])
    if hashlib.sha256(payload).hexdigest() != first.part.sha256:
        raise ValueError("part of a payload whose parts do not have its SHA-256: they were changed")
    points = sum(rejected.points for rejected in by_number.values())
    return dataclasses.replace(by_number[1], payload=payload, points=points, part=None)


def of_one_payload(rejected: Rejected) -> str:
    """A text that the letters with the parts of one payload have, and no others."""
    assert rejected.part is not None
    identity: Sequence[object] = (
        *rejected.part[1:],
        rejected.reason,
        rejected.stage,
        rejected.source,
        rejected.offset,
        rejected.arrival_ms,
        rejected.envelope and rejected.envelope.message_id,
    )
    return json.dumps(identity)


def _text(payload: bytes) -> str | None:
    """A payload as text; None if base64 is better."""
    if 5 * (len(payload) - len(payload.translate(None, _CONTROLS))) > len(payload):
        return None
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None


def _without_halves(line: bytes) -> bytes:
    """A letter without half surrogates, which msgspec does not take; those of a payload stay, to be rejected.

    Letters of earlier versions have them in messages that quote names.

    Raises:
      ValueError: the line is not JSON.
    """
    if b"\\u" not in line or len(line) > _HALF_BYTES:
        return line
    members = json.loads(line)
    if isinstance(members, dict):
        for name in ("message", "source", "message_id"):
            if isinstance(members.get(name), str):
                members[name] = _plain(members[name])
        if isinstance(members.get("attributes"), dict):
            members["attributes"] = {
                _plain(key): _plain(value) if isinstance(value, str) else value
                for key, value in members["attributes"].items()
            }
    return json.dumps(members).encode()


def _attributes(raw: msgspec.Raw) -> dict[str, str] | None:
    """The attributes of a message; raises ValueError if they are too long, or something else."""
    if len(bytes(raw)) > _ATTRIBUTES_BYTES:
        raise ValueError(f"attributes of more than {_ATTRIBUTES_BYTES:,} bytes")
    return msgspec.json.decode(raw, type=dict[str, str] | None)


def _envelope(letter: _LetterJson, attributes: dict[str, str] | None) -> Envelope | None:
    """The envelope of a Pub/Sub message; None if the input was not a message.

    Raises:
      ValueError: the fields are incomplete.
    """
    if letter.message_id is None:
        return None
    if letter.publish_time_ms is None or attributes is None:
        raise ValueError("not a dead letter: message_id without publish_time_ms and attributes")
    return Envelope(letter.message_id, letter.publish_time_ms, attributes)


def _plain(text: str) -> str:
    """A string that UTF-8 can encode: half surrogates become escapes."""
    return text.encode(errors="backslashreplace").decode()


def over_limit(row: Row) -> Rejected | None:
    """The rejection of a row that Bigtable would not take, or None."""
    why = None
    if not 0 < len(row.key) <= KEY_BYTES:
        why = f"row key of {len(row.key)} bytes; Bigtable takes 1 to {KEY_BYTES}"
    for _, qualifier, timestamp_ms, value in row.cells:
        if len(qualifier) > QUALIFIER_BYTES:
            why = f"qualifier of {len(qualifier)} bytes; Bigtable takes at most {QUALIFIER_BYTES}"
        elif len(value) > CELL_BYTES:
            why = f"cell of {len(value)} bytes; Bigtable takes at most {CELL_BYTES}"
        elif timestamp_ms < 0:
            why = f"cell timestamp of {timestamp_ms} ms; Bigtable takes none below 0"
    return None if why is None else rejected_row(row, Reason.OVER_BIGTABLE_LIMIT, why, Stage.VALIDATE)


def rejected_row(row: Row, reason: Reason, message: str, stage: Stage) -> Rejected:
    """The rejection of a row mutation; its payload is the row as JSON, bytes in base64."""
    payload = {
        "table": row.table,
        "key": _base64(row.key),
        "cells": [
            {
                "family": cell.family,
                "qualifier": _base64(cell.qualifier),
                "timestamp_ms": cell.timestamp_ms,
                "value": _base64(cell.value),
            }
            for cell in row.cells
        ],
    }
    return Rejected(json.dumps(payload).encode(), reason, message, stage, ROW_SOURCE + row.table)


class _CellJson(msgspec.Struct):
    family: str
    qualifier: bytes
    timestamp_ms: CellTime
    value: bytes


class _RowJson(msgspec.Struct):
    table: str
    key: bytes
    cells: list[_CellJson]


def row_of(payload: bytes) -> Row:
    """The row in the payload of `rejected_row`.

    Raises:
      ValueError: the payload is not a row.
    """
    try:
        row = msgspec.json.decode(payload, type=_RowJson)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"not a row mutation: {error}") from error
    cells = [Cell(cell.family, cell.qualifier, cell.timestamp_ms, cell.value) for cell in row.cells]
    return Row(row.table, row.key, cells)


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
