"""Tables per day that a nightly job fills with the day's rows of another table (section 3)."""

from __future__ import annotations

import datetime
import re

import numpy as np

from schema.declared import keys, times
from schema.declared.model import DayTables, TableLayout
from schema.declared.spans import first_instant

DAY = re.compile(r"\{day:([^{}]*)\}")


def table_of(tables: DayTables, day: datetime.date) -> str:
    """The name of a day's table."""
    return DAY.sub(lambda found: day.strftime(found[1]), tables.table)


def is_expired(tables: DayTables, day: datetime.date, today: datetime.date) -> bool:
    """Whether the table of a day may be dropped as a whole."""
    return tables.expire_days is not None and (today - day).days > tables.expire_days


def day_piece(source: TableLayout, day: datetime.date) -> bytes:
    """The bytes of the time part in the keys of a day's rows; the day is that of the part's zone."""
    time = source.time
    assert time is not None
    midnight = datetime.datetime(day.year, day.month, day.day, tzinfo=datetime.timezone.utc)
    local = np.array([int(midnight.timestamp()) * 1000], np.int64)
    found, good = times.numbers(time, times.from_ms(first_instant(local, time.zone), time.unit))
    if not good[0]:
        raise ValueError(f"the day {day} does not fit the key of {source.table}")
    piece: bytes = times.render(time, found)[0].as_py()
    return piece


def day_of(tables: DayTables, name: str) -> datetime.date | None:
    """The day of a table of this name; None if it is none of these tables."""
    form = DAY.search(tables.table)
    assert form is not None
    head, tail = tables.table[: form.start()], tables.table[form.end() :]
    if len(name) < len(head) + len(tail) or not (name.startswith(head) and name.endswith(tail)):
        return None
    try:
        day = datetime.datetime.strptime(name[len(head) : len(name) - len(tail)], form[1]).date()
    except ValueError:
        return None
    return day if table_of(tables, day) == name else None


def day_pattern(source: TableLayout, piece: bytes) -> bytes:
    """RE2 for the keys that may be of the day with this piece; `is_of_day` tells for certain."""
    parts = [
        _quoted(piece) if part is source.time else b"\\C*" if part.size is None else b"\\C{%d}" % part.size
        for part in source.key
    ]
    return _quoted(source.separator).join(parts)


def _quoted(raw: bytes) -> bytes:
    return b"".join(b"\\x%02x" % byte for byte in raw)


def is_of_day(source: TableLayout, key: bytes, piece: bytes) -> bool:
    """Whether a row is one of the day with this piece; the job copies it unchanged.

    Raises:
      ValueError: it is no key of this layout.
    """
    assert source.time is not None
    return keys.split(source, key)[source.key.index(source.time)] == piece
