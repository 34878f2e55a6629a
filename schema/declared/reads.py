"""Which reads a key serves, in how many ranges (section 6.1)."""

from __future__ import annotations

from collections.abc import Collection

from schema.declared.model import Const, Field, Hash, Salt, Suffix, TableLayout, Time, follows, inputs


def served(layout: TableLayout, equals: Collection[str], time: str | None) -> int:
    """In how many ranges the key serves a read by these fields, and by an interval of this time.

    Raises:
      ValueError: it does not; the message says what stands in its way.
    """
    if time is not None and not any(time in inputs(part) for part in layout.key):
        raise ValueError(f"{time} is no time part of the key")
    ranges = 1
    used: set[str] = set()
    for part in layout.key:
        if isinstance(part, Time) and part.name == time:
            break
        if isinstance(part, Salt) and not follows(part, equals):
            ranges *= max(part.buckets, *(count for _, count in part.since), 1)
        elif follows(part, equals):
            used |= inputs(part)
        elif time is None and used >= set(equals):
            return ranges
        else:
            raise ValueError(_obstacle(part, time))
    else:
        if time is not None:
            raise ValueError(f"{time} is no time part of the key")
    unused = sorted(set(equals) - used)
    if unused:
        raise ValueError(f"{unused[0]} does not stand in the key" + (f" before {time}" if time else ""))
    return ranges


def derived(layout: TableLayout) -> list[tuple[tuple[str, ...], str | None]]:
    """(equals, range) of every read that the key serves in ranges, from coarse to fine."""
    found: list[tuple[tuple[str, ...], str | None]] = []
    equals: list[str] = []
    for part in layout.key:
        if isinstance(part, Time):
            found.append((tuple(equals), part.name))
            equals.append(part.name)
        elif isinstance(part, Field):
            equals.append(part.name)
        elif isinstance(part, Hash):
            equals += [name for name in sorted(inputs(part)) if name not in equals]
        else:
            if isinstance(part, Suffix):
                break
            continue
        found.append((tuple(equals), None))
    return found


def _obstacle(part: Const | Field | Time | Salt | Hash | Suffix, time: str | None) -> str:
    names = ", ".join(sorted(inputs(part))) or "the record"
    if isinstance(part, Hash) and time in inputs(part):
        return f"{time} is hashed, so that an interval of it lies all over the table: use a time part"
    if isinstance(part, (Field, Time)):
        return f"{names} stands before it in the key: add {names} to equals, or put it behind"
    return f"a {type(part).__name__.lower()} of {names} stands before it in the key"
