"""Mutants of good messages: bytes, numbers, texts, members of JSON, fields of protobuf, packings, bombs."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import random
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import zstandard

from timebeam.schema.bits.protobuf import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    encoded_bytes,
    encoded_varint,
    varint,
)

Attributes = dict[str, str]

_BOMB_BYTES = 48 << 20
_NUMBER = re.compile(rb"-?[0-9]+(\.[0-9]+)?")
_WORD = re.compile(rb"[A-Za-z_.]+")
_ODD_NUMBERS = [
    *(b"NaN", b"Infinity", b"-Infinity", b"nan", b"inf", b"1e400", b"-1e400", b"1e-400", b"-0", b"0", b"-1"),
    *(b"9" * 5000, b"-" + b"9" * 5000, b"0." + b"0" * 5000 + b"1", b"1e" + b"9" * 5000, b"1" + b"0" * 400),
    *(b"9223372036854775808", b"-9223372036854775809", b"18446744073709551616", b"4294967296", b"2147483648"),
    *(b"0x1F", b"1_000", "١٢".encode(), b"", b"1.", b".5", b"+1", b"1e", b"--1", b"1.2.3", b"null", b"true"),
    *(b"253402300800000", b"99999999999999999999", b"1356998400.123", b"1e9", b'"5"', b"[]", b"{}"),
]
_ODD_TEXTS = [
    *(b"\\ud800", b"\\udc00\\ud800", b"\xed\xa0\x80", b"\xff", b"\xc3", b"\0", b"\\u0000", b"", b" ", b"\t"),
    *("ß".encode(), "\u202e".encode(), "\U0001f600".encode(), "İ".encode(), b"\xef\xbb\xbf", b"\r", b"\n"),
    *(b'"', b"'", b"\\", b",", b"=", b":", b"/", b"%00", b"a" * 5000, b"a" * 300_000, b"__name__"),
]
_ODD_VALUES: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        -1,
        1 << 63,
        -(1 << 63) - 1,
        1 << 64,
        1.5,
        1e308,
        "",
        "NaN",
        "1e999",
        "5",
        "x" * 70_000,
    ),
    *([], {}, [[]], {"": {}}, [1] * 5000, {f"k{n}": n for n in range(3000)}, "\ud800", "\0"),
]
_MARK = "\ue000mark\ue000"


def mutant(chance: random.Random, samples: tuple[bytes, ...]) -> tuple[bytes, Attributes]:
    """The bytes and attributes of a message that is a sample after some changes."""
    text = chance.choice(samples)
    kinds: list[Callable[[random.Random, bytes], bytes]] = [
        _bytes,
        _bytes,
        _tokens,
        _tokens,
        _structure,
        _structure,
    ]
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
        text = chance.choice(kinds)(chance, text)
        if len(text) > 4 << 20:
            break
    if chance.random() < 0.1:
        text = _spliced(chance, text, chance.choice(samples))
    if chance.random() < 0.04:
        text = _repeated(chance, text)
    return _packed(chance, text)


def _span(chance: random.Random, text: bytes) -> tuple[int, int]:
    """Where a piece begins and ends, mostly a short one."""
    start = chance.randrange(len(text) + 1)
    return start, min(len(text), start + chance.choice((0, 1, 1, 2, 4, 8, 40, 400)))


def _bytes(chance: random.Random, text: bytes) -> bytes:
    """Flips, removes, inserts, doubles or cuts bytes."""
    start, end = _span(chance, text)
    before, piece, after = text[:start], text[start:end], text[end:]
    kind = chance.randrange(8)
    if kind < 2 and text:
        changed = bytearray(text)
        for _ in range(chance.choice((1, 1, 2, 8))):
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        return bytes(changed)
    if kind == 2:
        return before + after
    if kind == 3:
        return before + piece * chance.choice((2, 3, 50, 2000)) + after
    if kind == 4:
        return before
    if kind == 5:
        return before + chance.randbytes(max(1, len(piece))) + after
    if kind == 6:
        odd = (
            b"\0",
            b"\xff",
            b"\x80",
            b"\x7f",
            b"\xff" * 9 + b"\x01",
            b"\xff" * 10,
            b"\n",
            b"[",
            b"{",
            b"\x1f\x8b",
        )
        return before + chance.choice(odd) + after
    return before + encoded_varint(chance.choice((0, 1, 127, 1 << 31, (1 << 63) - 1, (1 << 64) - 1))) + after


def _tokens(chance: random.Random, text: bytes) -> bytes:
    """Puts an odd number or text in the place of one, in text; else changes bytes."""
    is_number = chance.random() < 0.6
    found = list((_NUMBER if is_number else _WORD).finditer(text[: 1 << 20]))
    if not found:
        return _bytes(chance, text)
    match = chance.choice(found)
    odd = chance.choice(_ODD_NUMBERS if is_number else _ODD_TEXTS)
    return text[: match.start()] + odd + text[match.end() :]


def _structure(chance: random.Random, text: bytes) -> bytes:
    """Changes members of JSON or fields of protobuf; else changes bytes."""
    if text[:1] in (b"{", b"["):
        lines = text.split(b"\n") if text[:2] != b"[\n" else [text]
        number = chance.randrange(len(lines))
        with contextlib.suppress(ValueError, RecursionError):
            lines[number] = _json(chance, json.loads(lines[number]))
            return b"\n".join(lines)
        return _tokens(chance, text)
    if text[:3] == b"Obj" or text[:4] in (b"PAR1", b"\xff\xff\xff\xff"):
        return _bytes(chance, text)
    is_snappy = False
    plain = text
    with contextlib.suppress(Exception):
        size, _ = varint(text, 0)
        if size < 1 << 24:
            plain = bytes(pa.decompress(text, size, codec="snappy", asbytes=True))
            is_snappy = True
    fields = _fields(plain)
    if fields is None:
        return _tokens(chance, text)
    changed = _encoded(_fields_changed(chance, fields))
    return bytes(pa.compress(changed, "snappy", asbytes=True)) if is_snappy else changed


def _json(chance: random.Random, value: Any) -> bytes:
    """A value of JSON in which one place is changed."""
    places: list[tuple[Any, Any]] = []

    def visit(node: Any) -> None:
        for key in node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
            places.append((node, key))
            visit(node[key])

    visit(value)
    if not places:
        return json.dumps(chance.choice(_ODD_VALUES)).encode()
    node, key = chance.choice(places)
    kind = chance.randrange(9)
    replacement = b""
    if kind < 3:
        node[key] = chance.choice(_ODD_VALUES)
    elif kind == 3:
        del node[key]
    elif kind == 4:
        other, other_key = chance.choice(places)
        node[key] = json.loads(json.dumps(other[other_key] if _has(other, other_key) else None))
    elif kind == 5 and isinstance(node, dict):
        node[chance.choice(("", "\ud800", "metric", "x" * 5000, "tags", "é"))] = node.pop(key)
    else:
        levels = chance.choice((3, 60, 600, 100_000))
        is_closed = chance.random() < 0.7
        replacement = chance.choice(
            (
                b"[" * levels + b"]" * levels * is_closed,
                b'{"a":' * levels + b"1" + b"}" * levels * is_closed,
                chance.choice(_ODD_NUMBERS),
                b'"' + chance.choice(_ODD_TEXTS) + b'"',
                b'{"a":1,"a":2}',
            )
        )
        node[key] = _MARK
    text = json.dumps(value, ensure_ascii=chance.random() < 0.5, indent=chance.choice((None, None, None, 1)))
    raw = text.encode(errors="surrogatepass")
    for mark in (json.dumps(_MARK).encode(), f'"{_MARK}"'.encode()):
        raw = raw.replace(mark, replacement)
    return raw


def _has(node: Any, key: Any) -> bool:
    return key in node if isinstance(node, dict) else key < len(node)


_Field = tuple[int, int, Any]
"""Number, type, and value: an integer, bytes, or fields."""


def _fields(text: bytes, depth: int = 0) -> list[_Field] | None:
    """The fields of a message of protobuf, with messages as fields again; None if it is not one."""
    fields: list[_Field] = []
    position = 0
    try:
        while position < len(text):
            tag, position = varint(text, position)
            number, kind = tag >> 3, tag & 7
            value: Any
            if kind == VARINT:
                value, position = varint(text, position)
            elif kind == BYTES:
                size, position = varint(text, position)
                value, position = text[position : position + size], position + size
                if depth < 9 and value and (inner := _fields(value, depth + 1)) is not None:
                    value = inner
            elif kind in (FIXED64, FIXED32):
                size = 8 if kind == FIXED64 else 4
                value, position = text[position : position + size], position + size
            else:
                return None
            if number == 0 or position > len(text):
                return None
            fields.append((number, kind, value))
    except (ValueError, IndexError):
        return None
    return fields


def _encoded(fields: list[_Field]) -> bytes:
    pieces = []
    for number, kind, value in fields:
        if isinstance(value, list):
            value = _encoded(value)
        if kind == BYTES:
            pieces.append(encoded_bytes(number, value))
        else:
            raw = encoded_varint(value & (1 << 64) - 1) if isinstance(value, int) else value
            pieces.append(encoded_varint(number << 3 | kind) + raw)
    return b"".join(pieces)


def _fields_changed(chance: random.Random, fields: list[_Field]) -> list[_Field]:
    """Fields of which one, here or further in, is changed."""
    if not fields:
        return [(chance.choice((1, 2, 15)), VARINT, 1)]
    place = chance.randrange(len(fields))
    number, kind, value = fields[place]
    if isinstance(value, list) and chance.random() < 0.8:
        return [*fields[:place], (number, kind, _fields_changed(chance, value)), *fields[place + 1 :]]
    raw = _encoded(value) if isinstance(value, list) else value
    odd_bytes = (
        b"",
        b"\xff",
        b"\0" * 8,
        b"\xff" * 8,
        b"a" * 5000,
        b"\0\0\0\0\0\0\xf8\x7f",
        b"\x80" * 11,
        b"NaN",
        b"\xed\xa0\x80",
    )
    changed: list[_Field]
    match chance.randrange(8):
        case 0:
            changed = []
        case 1:
            changed = [fields[place]] * chance.choice((2, 3, 100, 20_000))
        case 2:
            changed = [(chance.choice((1, 2, 3, 4, 5, 7, 15, 16, 1 << 28)), kind, value)]
        case 3:
            changed = [
                (
                    number,
                    VARINT,
                    chance.choice((0, 1, 2, 3, 1 << 31, 1 << 53, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)),
                )
            ]
        case 4:
            changed = [(number, BYTES, chance.choice(odd_bytes))]
        case 5:
            changed = [(number, FIXED64, chance.choice(odd_bytes)[:8].ljust(8, b"\0"))]
        case 6:
            levels = chance.choice((3, 100, 3_000))
            nested = raw if isinstance(raw, bytes) else b"\x08\x01"
            for _ in range(levels):
                nested = encoded_bytes(number, nested)
            changed = [(number, BYTES, nested)]
        case _:
            changed = [
                (number, chance.choice((VARINT, FIXED64, BYTES, FIXED32)), value if kind != BYTES else raw)
            ]
            if changed[0][1] == BYTES and isinstance(changed[0][2], int):
                changed = [(number, VARINT, -changed[0][2])]
    return [*fields[:place], *changed, *fields[place + 1 :]]


def _spliced(chance: random.Random, text: bytes, other: bytes) -> bytes:
    return text[: chance.randrange(len(text) + 1)] + other[chance.randrange(len(other) + 1) :]


def _repeated(chance: random.Random, text: bytes) -> bytes:
    """A message again and again, or a piece of it."""
    if not text:
        return text
    start, end = _span(chance, text)
    piece = text[start:end] or text
    size = chance.choice((1 << 16, 1 << 20, 4 << 20))
    if chance.random() < 0.5:
        return (text + b"\n") * (size // (len(text) + 1))
    return text[:start] + piece * (size // len(piece)) + text[end:]


_PACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda text: gzip.compress(text, 1),
    "zstd": zstandard.ZstdCompressor(level=1).compress,
    "snappy": lambda text: bytes(pa.compress(text, "snappy", asbytes=True)),
    "base64": base64.b64encode,
}


def _packed(chance: random.Random, text: bytes) -> tuple[bytes, Attributes]:
    """A message, sometimes in packings, which may be corrupt, bombs, or not those that it names."""
    if chance.random() < 0.75:
        return text, {}
    names = [chance.choice(list(_PACK)) for _ in range(chance.choice((1, 1, 1, 2, 3)))]
    if chance.random() < 0.06:
        text += chance.choice((b"\0", b" ", b"\n", b"[", text[:64] or b"x")) * (_BOMB_BYTES // 64)
    for name in names:
        text = _PACK[name](text)
    if chance.random() < 0.3:
        text = _bytes(chance, text)
    if chance.random() < 0.1:
        names[0] = chance.choice((*_PACK, "br", "", "identity", "gzip"))
    return text, {"content-encoding": ", ".join(names)} if chance.random() < 0.7 else {}
