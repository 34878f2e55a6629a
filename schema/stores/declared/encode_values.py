"""The values of cells: the texts of fields to stored bytes, and back.

Format: docs/spec/bigtable-patterns.md §5, `encoding`.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timebeam.schema.bits.arrays import Bools, Bytes, Int64s, Kind
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.stores.declared.columns import Encoding

Value = str | int | float
"""What is read back: text, or the number of a binary encoding; of `json` the JSON text."""

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_WHOLE, _FRACTION = r"^-?(0|[1-9][0-9]{0,17})$", r"^-?[0-9]{1,15}\.[0-9]{1,15}$"
"""Usual numbers, which are parsed many at a time."""
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def encode(
    texts: pa.Array, are_texts: Bools, encoding: Encoding
) -> tuple[list[bytes | None], list[tuple[int, RejectedError]]]:
    """(n values, None where absent; what is rejected by its number).

    Args:
      texts: string[n], null where absent.
      are_texts: bool[n], which of them are texts in their source.
    """
    if encoding is Encoding.TEXT:
        return _plain(texts, are_texts)
    encoded: list[bytes | None] = []
    rejected: list[tuple[int, RejectedError]] = []
    for i, (text, is_text) in enumerate(zip(texts.to_pylist(), are_texts.tolist(), strict=True)):
        try:
            encoded.append(None if text is None else encode_one(text, is_text, encoding))
        except RejectedError as error:
            rejected.append((i, error))
            encoded.append(None)
    return encoded, rejected


def encode_one(text: str, is_text: bool, encoding: Encoding) -> bytes:
    """The stored bytes of one value.

    >>> encode_one("42", False, Encoding.TEXT), encode_one("42", False, Encoding.I64BE).hex()
    (b'42', '000000000000002a')
    >>> encode_one("1.5", False, Encoding.F32BE).hex(), encode_one("a", True, Encoding.JSON)
    ('3fc00000', b'"a"')

    Raises:
      RejectedError: the encoding cannot hold it.
    """
    if encoding is Encoding.JSON:
        return json.dumps(text, ensure_ascii=False).encode() if is_text else text.encode()
    if not is_text and text[:1] in "[{":
        raise RejectedError(
            Reason.VALUE_NOT_STORABLE, f'an array or object needs encoding = "json", not {encoding.value}'
        )
    if encoding is Encoding.TEXT:
        return text.encode()
    if encoding is Encoding.I64BE:
        if not _INTEGER.fullmatch(text):
            raise RejectedError(Reason.BAD_NUMBER, f"{_short(text)} is not a whole number")
        number = int(text) if len(text) <= 20 else 1 << 63
        if not -(1 << 63) <= number < 1 << 63:
            raise RejectedError(Reason.NUMBER_OUT_OF_RANGE, f"{_short(text)} does not fit 64 bits")
        return number.to_bytes(8, "big", signed=True)
    if not _NUMBER.fullmatch(text):
        raise RejectedError(Reason.BAD_NUMBER, f"{_short(text)} is not a number")
    try:
        packed = struct.pack(">d" if encoding is Encoding.F64BE else ">f", float(text))
    except OverflowError:
        packed = b""
    if not packed or math.isinf(float(text)):
        raise RejectedError(Reason.NUMBER_OUT_OF_RANGE, f"{_short(text)} is beyond {encoding.value}")
    return packed


def decode(value: bytes, encoding: Encoding) -> Value:
    """What a stored value says.

    Raises:
      ValueError: it has not the length of its encoding, or is not UTF-8.
    """
    if encoding in (Encoding.TEXT, Encoding.JSON):
        return value.decode()
    size = 4 if encoding is Encoding.F32BE else 8
    if len(value) != size:
        raise ValueError(f"a value of {len(value)} bytes where {encoding.value} has {size}")
    if encoding is Encoding.I64BE:
        return int.from_bytes(value, "big", signed=True)
    number: float = struct.unpack(">d" if size == 8 else ">f", value)[0]
    return number


class Numbers(NamedTuple):
    """n stored values as the values of points.

    Attributes:
      kinds: uint8[n], a `Kind` each: INTEGER, FLOAT, or TEXT for what is not a number.
      bits: int64[n], integers, the bits of floats, or indexes into `payloads`.
      payloads: the texts.
      corruption: why a value cannot be read, by its index.
    """

    kinds: Bytes
    bits: Int64s
    payloads: list[bytes]
    corruption: dict[int, str]


def numbers(stored: Sequence[bytes], encoding: Encoding) -> Numbers:
    """Stored values as the values of points; of text and JSON, decimal numbers of ASCII digits."""
    kinds = np.full(len(stored), Kind.FLOAT, np.uint8)
    bits = np.zeros(len(stored), np.int64)
    payloads: list[bytes] = []
    corruption: dict[int, str] = {}
    usual = np.zeros(len(stored), np.bool_)
    if encoding in (Encoding.TEXT, Encoding.JSON):
        raw = pa.array(stored, pa.binary())
        for pattern, kind, numeric in (
            (_WHOLE, Kind.INTEGER, pa.int64()),
            (_FRACTION, Kind.FLOAT, pa.float64()),
        ):
            matches = pc.match_substring_regex(raw, pattern).to_numpy(zero_copy_only=False)
            matching = raw.filter(pa.array(matches)).cast(pa.string()).cast(numeric)
            kinds[matches], bits[matches] = kind, matching.to_numpy().view(np.int64)
            usual |= matches
    for i in np.flatnonzero(~usual).tolist():
        try:
            value = decode(stored[i], encoding)
            number = finite_number(value) if isinstance(value, str) else value
        except RejectedError:
            kinds[i], bits[i] = Kind.TEXT, len(payloads)
            payloads.append(_text_payload(str(value), encoding))
        except ValueError as error:
            corruption[i] = str(error)
        else:
            kinds[i] = Kind.INTEGER if isinstance(number, int) else Kind.FLOAT
            bits[i] = number if isinstance(number, int) else np.float64(number).view(np.int64)
    return Numbers(kinds, bits, payloads, corruption)


def _text_payload(text: str, encoding: Encoding) -> bytes:
    """The bytes of a value that is not a number; of a JSON string its text."""
    if encoding is Encoding.JSON and text.startswith('"'):
        with contextlib.suppress(ValueError):
            return str(json.loads(text)).encode(errors="backslashreplace")
    return text.encode()


def whole_number(value: Value) -> int:
    """A value as a whole number: of text, digits as `i64be` takes them.

    Raises:
      ValueError: it is not one.
    """
    if isinstance(value, str):
        if not _INTEGER.fullmatch(value) or len(value) > 20:
            raise ValueError(f"{_short(value)} is not a whole number")
        return int(value)
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"{value!r} is not a whole number")
    return int(value)


def finite_number(value: Value) -> int | float:
    """A value as a number that can be added; of text, decimal digits of ASCII, with or without sign.

    Raises:
      RejectedError: it is not one, or is beyond the floats.
    """
    number: int | float
    if not isinstance(value, str):
        number = value
    elif not _DECIMAL.fullmatch(value):
        raise RejectedError(Reason.BAD_NUMBER, f"{_short(value)} is not a number")
    else:
        is_whole = value.lstrip("+-").isdigit() and len(value) <= 20
        number = int(value) if is_whole else float(value)
    if isinstance(number, int) and -(1 << 63) <= number < 1 << 63:
        return number
    number = float(number)
    if not math.isfinite(number):
        raise RejectedError(Reason.NUMBER_OUT_OF_RANGE, f"{_short(str(value))} is NaN or infinite")
    return number


def _plain(texts: pa.Array, are_texts: Bools) -> tuple[list[bytes | None], list[tuple[int, RejectedError]]]:
    """Texts as they are; only arrays and objects are rejected."""
    rejected: list[tuple[int, RejectedError]] = []
    stored: list[bytes | None] = texts.cast(pa.binary()).to_pylist()
    if not are_texts.all():
        nested = pc.fill_null(pc.match_substring_regex(texts, r"^[\[{]"), False)
        for i in np.flatnonzero(nested.to_numpy(zero_copy_only=False) & ~are_texts).tolist():
            try:
                encode_one(texts[i].as_py(), False, Encoding.TEXT)
            except RejectedError as error:
                rejected.append((i, error))
    return stored, rejected


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:80] + "...")
