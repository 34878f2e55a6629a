"""Avro schemas, and records read by their schema: binary with fastavro, JSON here.

Logical types are removed, so that a value comes as it is stored; those of top-level fields are kept aside.
JSON is read strictly (fastavro does not check its types). Source: Apache Avro 1.12 specification.

The schema of a container is untrusted. With a schema of a few lines a record of a few bytes can take any
memory: a type that contains itself, types of ten fields ten levels deep, an array of items without bytes.
Such schemas are rejected before a record is read; with any other, the bytes of a record bound its memory.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import fastavro

from timebeam.schema.bits.json_text import DuplicateKeyError, distinct
from timebeam.schema.bits.reasons import Reason, RejectedError, decoded, shown
from timebeam.schema.bits.text_columns import integer

DEEPEST = 32
"""Types within types; fastavro reads them by recursion in C without a limit."""

_MEMORY = 256 << 20  # of the objects of one record
_WORK = 8 << 30  # of the objects of all records of a container, one after the other
_LARGEST = 1 << 20  # of a record without the content of its arrays, maps and strings
_MOST_RECORDS = 1 << 21

_PRIMITIVES = {  # bytes of the object, least bytes in the binary encoding
    "null": (0, 0),
    "boolean": (0, 1),
    "int": (28, 1),
    "long": (28, 1),
    "float": (24, 4),
    "double": (24, 8),
    "string": (80, 1),
    "bytes": (40, 1),
}
_SLOT = 8
_OBJECT = 240  # an empty dict or list, and its first places
_ENTRY = 100
_TEXT = 4  # bytes of a character beyond the first planes


class Union(list[Any]):
    """The branches of a union, or the symbols of an enum, which fastavro indexes with numbers from the data.

    Its C code would take index -1 of a list for the last item. For an empty list it calls `__getitem__`.
    """

    def __init__(self, branches: list[Any]) -> None:
        super().__init__()
        self.branches = branches

    def __getitem__(self, index: Any) -> Any:
        if 0 <= index < len(self.branches):
            return self.branches[index]
        raise IndexError(f"index {index} of {len(self.branches)} branches or symbols")


class _Size(NamedTuple):
    """The size of a value of a type.

    Attributes:
      memory: bytes of its objects, without the content of its arrays, maps and strings.
      least: its fewest bytes in the binary encoding.
      height: types within types, itself included.
    """

    memory: int
    least: int
    height: int = 1


def sizes(parsed: Any, named: Mapping[str, Any]) -> tuple[int, int]:
    """(bytes that a record may have, records that a container may have) for a schema parsed by fastavro.

    Replaces its unions and enums by `Union`.

    Raises:
      ValueError: it is recursive, too deep or too large, or has arrays of items without bytes.
    """
    measure = _Measure(named)
    record = measure.size(parsed)
    return _MEMORY // measure.growth, min(_MOST_RECORDS, _WORK // record.memory)


class _Measure:
    """Measures types, each named type once.

    Attributes:
      growth: bytes of objects that a byte of an array, map or string may become.
    """

    def __init__(self, named: Mapping[str, Any]) -> None:
        self.growth = _TEXT
        self._named = named
        self._sizes: dict[str, _Size | None] = {}  # None while it is measured

    def size(self, schema: Any) -> _Size:
        """The size of the values of a type that is not a union."""
        kind = schema["type"] if isinstance(schema, dict) else schema
        if kind in _PRIMITIVES:
            return _Size(*_PRIMITIVES[kind])
        if kind in self._named:
            return self._named_size(kind, self._named[kind])
        if kind in ("array", "map"):
            return self._checked(self._repeated(schema))
        return self._named_size(schema["name"], schema)

    def _named_size(self, name: str, schema: Any) -> _Size:
        """The size of a record, an enum or a fixed."""
        if name in self._sizes:
            size = self._sizes[name]
            if size is None:
                raise ValueError(f"the type {name[:40]} contains itself: recursive types are not read")
            return size
        self._sizes[name] = None
        kind = schema["type"]
        if kind == "enum":
            schema["symbols"] = Union(schema["symbols"])
            size = _Size(0, 1)
        elif kind == "fixed":
            if not 0 <= schema["size"] <= _LARGEST:
                raise ValueError(f"a fixed of {schema['size']} bytes: at most {_LARGEST} are read")
            size = _Size(_ENTRY + schema["size"], schema["size"])
        elif kind in ("record", "error"):
            inner = [self._inner(field, "type") for field in schema["fields"]]
            memory = _OBJECT + sum(_ENTRY + size.memory for size in inner)
            height = 1 + max((size.height for size in inner), default=0)
            size = _Size(memory, sum(size.least for size in inner), height)
        else:
            raise ValueError(f"{shown(kind)!r} is not a type")
        self._sizes[name] = self._checked(size)
        return size

    def _repeated(self, schema: Any) -> _Size:
        """The size of an array or map without its items, which raise `growth`."""
        is_map = schema["type"] == "map"
        item = self._inner(schema, "values" if is_map else "items")
        memory, least = item.memory + _SLOT, item.least
        if is_map:
            memory, least = memory + _ENTRY + _PRIMITIVES["string"][0], least + 1
        if least == 0:
            raise ValueError("an array of items that have no bytes")
        self.growth = max(self.growth, -(-memory // least))
        return _Size(_OBJECT, 1, 1 + item.height)

    def _inner(self, holder: Any, key: str) -> _Size:
        """The size of the values of a type within another, perhaps a union."""
        schema = holder[key]
        if not isinstance(schema, list):
            return self.size(schema)
        branches = [self.size(branch) for branch in schema]
        if not branches:
            raise ValueError("a union without branches")
        holder[key] = Union(schema)
        memory = max(branch.memory for branch in branches)
        least = 1 + min(branch.least for branch in branches)
        return _Size(memory, least, max(branch.height for branch in branches))

    def _checked(self, size: _Size) -> _Size:
        if size.height > DEEPEST:
            raise ValueError(f"types within types, more than {DEEPEST} deep")
        if size.memory > _LARGEST:
            raise ValueError(f"a record of more than {_LARGEST} bytes beside its arrays, maps and strings")
        return size


LARGEST_SCHEMA = 256 << 10
"""Bytes of the JSON text of a schema."""

_INTEGERS = {"int": 32, "long": 64}
_ANY = "timebeam__any"  # the record whose only field has the schema, since that may be no record


@dataclasses.dataclass(frozen=True, slots=True)
class Schema:
    """A schema, without logical types.

    Attributes:
      parsed: as fastavro needs it.
      named: the named types in it, by full name.
      logical: the logical type of the top-level fields that have one, by field name.
      fields: the names of the top-level fields; of all records if the schema is a union of records.
      longest: bytes that a record may have, which bounds its memory.
      most: records that a container may have, which bounds the time to read it.
    """

    parsed: Any
    named: Mapping[str, Any]
    logical: Mapping[str, str]
    fields: frozenset[str]
    longest: int
    most: int

    @classmethod
    def of(cls, text: str | bytes, *, logical_types: bool = False) -> Schema:
        """Parses a schema; with `logical_types`, their binary values come as fastavro converts them.

        Raises:
          ValueError: it is not a schema, is recursive, too deep or too large, or fields of one name have
            different logical types.
        """
        if len(text) > LARGEST_SCHEMA:
            raise ValueError(f"a schema of {len(text)} bytes: at most {LARGEST_SCHEMA} are read")
        named: dict[str, Any] = {}
        try:
            raw = json.loads(text)
            _check_depth(raw, 4 * DEEPEST)
            stored = raw if logical_types else _without_logical_types(raw)
            record = {"type": "record", "name": _ANY, "fields": [{"name": _ANY, "type": stored}]}
            parsed = fastavro.parse_schema(record, named)
            longest, most = sizes(parsed, named)
        except Exception as error:  # fastavro's errors have no common base, bad schemas raise any
            raise ValueError(f"no Avro schema: {error!r}") from error
        logical: dict[str, str] = {}
        fields: dict[str, str] = {}
        for field in _top_level_fields(raw):
            kind = _logical_type(field["type"])
            if fields.setdefault(field["name"], kind) != kind:
                raise ValueError(f"the fields {field['name']!r} of its records have different logical types")
            if kind:
                logical[field["name"]] = kind
        return cls(parsed, named, logical, frozenset(fields), longest, most)


def own_schema(name: str) -> str:
    """The JSON text of one of `OWN_SCHEMAS`."""
    return Path(__file__).with_name(f"{name}.avsc").read_text(encoding="utf-8")


def read_binary(file: BinaryIO, schema: Schema) -> Any:
    """The next record of a file; bytes of strings that are not UTF-8 become surrogates.

    Raises:
      RejectedError: BAD_SYNTAX.
    """
    try:
        record: Any = fastavro.schemaless_reader(file, schema.parsed, handle_unicode_errors="surrogateescape")
        return record[_ANY]
    except Exception as error:  # bad data make fastavro raise any error
        why = _ADDRESS.sub("", repr(error))
        raise RejectedError(Reason.BAD_SYNTAX, f"no record of the schema: {why}"[:180]) from error


_ADDRESS = re.compile(r" from <[^>]*>")
"""An address in memory, which is another one each time."""


def read_json(text: bytes, schema: Schema) -> Any:
    """The record in a text in Avro's JSON encoding.

    Raises:
      RejectedError: BAD_ENCODING, BAD_SYNTAX.
    """
    plain = decoded(text)
    try:
        value = json.loads(plain, object_pairs_hook=distinct, parse_int=integer)
    except DuplicateKeyError as error:
        raise RejectedError(Reason.BAD_SYNTAX, "not JSON: duplicate key") from error
    except (ValueError, RecursionError) as error:
        raise RejectedError(Reason.BAD_SYNTAX, f"not JSON: {error}") from error
    return _typed(value, schema.parsed["fields"][0]["type"], schema.named)


def _typed(value: Any, schema: Any, named: Mapping[str, Any]) -> Any:
    """A JSON value as a value of an Avro type."""
    if isinstance(schema, Union):
        return _of_union(value, schema.branches, named)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if not isinstance(kind, str) or kind in named:
        return _typed(value, named[kind] if isinstance(kind, str) else kind, named)
    if kind in ("record", "error") and isinstance(value, dict):
        fields = {field["name"]: field["type"] for field in schema["fields"]}
        if value.keys() != fields.keys():
            differing = sorted(value.keys() ^ fields.keys())[0]
            raise RejectedError(
                Reason.BAD_SYNTAX, f"a record lacks the field {differing!r}, or its schema lacks it"
            )
        return {name: _typed(value[name], field, named) for name, field in fields.items()}
    if kind == "array" and isinstance(value, list):
        return [_typed(item, schema["items"], named) for item in value]
    if kind == "map" and isinstance(value, dict):
        return {key: _typed(item, schema["values"], named) for key, item in value.items()}
    if _fits(value, kind):
        return float(value) if kind in ("float", "double") else value
    raise RejectedError(Reason.BAD_SYNTAX, f"{shown(value)!r} is not a {shown(kind)}")


def _fits(value: Any, kind: str) -> bool:
    """Whether a JSON value fits a primitive type (bytes, fixed and enum are strings in JSON)."""
    if kind == "null":
        return value is None
    if kind == "boolean":
        return isinstance(value, bool)
    if kind in _INTEGERS:
        return type(value) is int and -1 <= value >> (_INTEGERS[kind] - 1) <= 0
    if kind in ("float", "double"):
        return type(value) is float or (type(value) is int and abs(value) < 1 << 1023)
    return kind in ("string", "bytes", "fixed", "enum") and isinstance(value, str)


def _of_union(value: Any, branches: list[Any], named: Mapping[str, Any]) -> Any:
    """A JSON value of a union: null, or an object of one member named after its type."""
    if value is None and "null" in branches:
        return None
    if isinstance(value, dict) and len(value) == 1:
        ((name, inner),) = value.items()
        for branch in branches:
            if name != "null" and name == (
                branch if isinstance(branch, str) else branch.get("name", branch["type"])
            ):
                return _typed(inner, branch, named)
    raise RejectedError(
        Reason.BAD_SYNTAX, f'{shown(value)!r} is not a value of a union: write {{"type": value}}'
    )


def _check_depth(schema: Any, depth: int) -> None:
    """Rejects JSON that is deeper than any accepted schema; raises ValueError if it is."""
    if depth < 0:
        raise ValueError(f"types within types, more than {DEEPEST} deep")
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        _check_depth(inner, depth - 1)


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: _without_logical_types(item) for key, item in schema.items() if key != "logicalType"}
    return [_without_logical_types(item) for item in schema] if isinstance(schema, list) else schema


def _top_level_fields(schema: Any) -> Iterator[dict[str, Any]]:
    for record in schema if isinstance(schema, list) else [schema]:
        if isinstance(record, dict):
            yield from record.get("fields", [])


def _logical_type(schema: Any) -> str:
    """The logical type of a field, of the items of its array or of its union; empty for none."""
    if isinstance(schema, list):
        return next(filter(None, map(_logical_type, schema)), "")
    if not isinstance(schema, dict):
        return ""
    return str(schema.get("logicalType", "")) or _logical_type(schema.get("items", schema.get("type")))
