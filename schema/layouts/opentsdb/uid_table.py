"""The UID table: names to UIDs and back, and the counters (docs/spec/opentsdb.md §5.1).

| row | family | qualifier | value |
|---|---|---|---|
| name, ISO-8859-1 | `id` | `metrics`, `tagk`, `tagv` | UID |
| UID | `name` | the same | name |
| one zero byte | `id` | the same | highest id so far, 8 bytes, signed |
"""

from __future__ import annotations

KINDS = ("metrics", "tagk", "tagv")
ID_FAMILY = "id"
NAME_FAMILY = "name"
COUNTER_ROW = b"\x00"
NAME_BYTES = 4 * 1024
"""Longest name: Bigtable's longest row key."""


def name_bytes(name: str) -> bytes:
    """A name as it is stored.

    Raises:
      UnicodeEncodeError: it has a character that ISO-8859-1 has not.
    """
    return name.encode("iso-8859-1")


def row_key(name: str) -> bytes | None:
    """The row of a name; None for a name that cannot be stored, which a query may still ask for."""
    try:
        key = name_bytes(name)
    except UnicodeEncodeError:
        return None
    return None if key in (b"", COUNTER_ROW) or len(key) > NAME_BYTES else key


def name_text(raw: bytes) -> str:
    """A stored name."""
    return raw.decode("iso-8859-1")


def last_id(width: int) -> int:
    """The highest id that fits a UID of `width` bytes; ids of 8 bytes are signed."""
    return (1 << (8 * width)) - 1 if width < 8 else (1 << 63) - 1


def uid_bytes(number: int, width: int) -> bytes:
    """The UID of an id (core/UniqueId.UniqueIdAllocator).

    Raises:
      ValueError: it does not fit.
    """
    if not 0 < number <= last_id(width):
        raise ValueError(f"id {number} does not fit {width} bytes")
    return number.to_bytes(width, "big")
