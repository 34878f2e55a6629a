"""Bounds on the memory for the records of an Avro schema, from the schema alone.

With a schema of a few lines a record of a few bytes can take any memory: a type that contains itself, types
of ten fields ten levels deep, an array of items without bytes. Such schemas are refused before a record is
read; with any other, the bytes of a record bound its memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

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
            raise ValueError(f"{str(kind)[:40]!r} is not a type")
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
