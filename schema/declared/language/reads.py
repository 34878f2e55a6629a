"""Which reads a key serves, in how many ranges (docs/spec/bigtable-patterns.md §6.1)."""

from __future__ import annotations

from collections.abc import Collection

from timebeam.schema.declared.model import (
    Const,
    Field,
    Hash,
    Salt,
    Suffix,
    TableLayout,
    Time,
    follows,
    inputs,
)


def served(layout: TableLayout, equals: Collection[str], time: str | None) -> int:
    """In how many ranges the key serves a read by these fields, and by an interval of this time.

    Raises:
      ValueError: it does not; the message says what prevents it.
    """
    if time is not None and not any(time in inputs(key_part) for key_part in layout.key):
        raise ValueError(f"{time} is not a time part of the key")
    ranges = 1
    used: set[str] = set()
    for key_part in layout.key:
        if isinstance(key_part, Time) and key_part.name == time:
            break
        if isinstance(key_part, Salt) and not follows(key_part, equals):
            ranges *= max(key_part.buckets, *(count for _, count in key_part.since), 1)
        elif follows(key_part, equals):
            used |= inputs(key_part)
        elif time is None and used >= set(equals):
            return ranges
        else:
            raise ValueError(_obstacle(key_part, time))
    else:
        if time is not None:
            raise ValueError(f"{time} is not a time part of the key")
    unused = sorted(set(equals) - used)
    if unused:
        raise ValueError(f"{unused[0]} is not in the key" + (f" before {time}" if time else ""))
    return ranges


def derived(layout: TableLayout) -> list[tuple[tuple[str, ...], str | None]]:
    """(equals, range) of every read that the key serves in ranges, from coarse to fine."""
    reads: list[tuple[tuple[str, ...], str | None]] = []
    equals: list[str] = []
    for key_part in layout.key:
        if isinstance(key_part, Time):
            reads.append((tuple(equals), key_part.name))
            equals.append(key_part.name)
        elif isinstance(key_part, Field):
            equals.append(key_part.name)
        elif isinstance(key_part, Hash):
            equals += [name for name in sorted(inputs(key_part)) if name not in equals]
        else:
            if isinstance(key_part, Suffix):
                break
            continue
        reads.append((tuple(equals), None))
    return reads


def _obstacle(key_part: Const | Field | Time | Salt | Hash | Suffix, time: str | None) -> str:
    names = ", ".join(sorted(inputs(key_part))) or "the record"
    if isinstance(key_part, Hash) and time in inputs(key_part):
        return f"{time} is hashed, so that an interval of it lies all over the table: use a time part"
    if isinstance(key_part, (Field, Time)):
        return f"{names} comes before it in the key: add {names} to equals, or put it after"
    return f"a {type(key_part).__name__.lower()} of {names} comes before it in the key"
