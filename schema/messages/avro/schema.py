"""Avro schemas, and records read by their schema: binary with fastavro, JSON here.

Logical types are removed, so that a value comes as it is stored; those of top-level fields are kept aside.
JSON is read strictly (fastavro does not check its types). Source: Apache Avro 1.12 specification.

The schema of a container is untrusted. Module `size` bounds the memory that its records may take.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import fastavro

from timebeam.schema.messages.avro.size import DEEPEST, Union, sizes
from timebeam.schema.points import Reason, RefusedError

OWN_SCHEMAS = ("point", "point_batch")
"""Our own schemas, by the names of their files."""

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
      RefusedError: BAD_SYNTAX.
    """
    try:
        record: Any = fastavro.schemaless_reader(file, schema.parsed, handle_unicode_errors="surrogateescape")
        return record[_ANY]
    except Exception as error:  # bad data make fastavro raise any error
        raise RefusedError(Reason.BAD_SYNTAX, f"no record of the schema: {error!r}"[:180]) from error


def read_json(text: bytes, schema: Schema) -> Any:
    """The record in a text in Avro's JSON encoding.

    Raises:
      RefusedError: BAD_ENCODING, BAD_SYNTAX.
    """
    try:
        value = json.loads(text.decode(), object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        raise RefusedError(Reason.BAD_ENCODING, f"not UTF-8 at byte {error.start} of the record") from error
    except (ValueError, RecursionError) as error:
        raise RefusedError(Reason.BAD_SYNTAX, f"not JSON: {error}") from error
    return _typed(value, schema.parsed["fields"][0]["type"], schema.named)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("duplicate key")
    return members


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
            raise RefusedError(
                Reason.BAD_SYNTAX, f"a record lacks the field {differing!r}, or its schema lacks it"
            )
        return {name: _typed(value[name], field, named) for name, field in fields.items()}
    if kind == "array" and isinstance(value, list):
        return [_typed(item, schema["items"], named) for item in value]
    if kind == "map" and isinstance(value, dict):
        return {key: _typed(item, schema["values"], named) for key, item in value.items()}
    if _fits(value, kind):
        return float(value) if kind in ("float", "double") else value
    raise RefusedError(Reason.BAD_SYNTAX, f"{str(value)[:40]!r} is not a {str(kind)[:40]}")


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
    raise RefusedError(
        Reason.BAD_SYNTAX, f'{str(value)[:40]!r} is not a value of a union: write {{"type": value}}'
    )


def _check_depth(schema: Any, depth: int) -> None:
    """Refuses JSON that is deeper than any accepted schema.

    Raises:
      ValueError: it is.
    """
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
