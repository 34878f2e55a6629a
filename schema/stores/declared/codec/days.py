"""Tables per day that a nightly job fills with the day's rows of another table.

Format: docs/spec/bigtable-patterns.md §3.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable

import numpy as np

from timebeam.schema.bits.times import day_range, first_instant
from timebeam.schema.stores.declared.codec import read_keys, time_parts
from timebeam.schema.stores.declared.model import DayTables, TableLayout

_DAY = re.compile(r"\{day:([^{}]*)\}")
_PLACEHOLDER = re.compile(r"%(.?)")
_WIDTHS = {"Y": 4, "m": 2, "d": 2, "j": 3}
_WHOLE_DATES = (["Y", "d", "m"], ["Y", "j"])
_EPOCH = datetime.date(1970, 1, 1)
EXAMPLE = datetime.date(2026, 11, 22)
_DIGIT = "\0"


def check_name(table: str) -> None:
    """Checks that days and the names of their tables map one to one.

    Raises:
      ValueError: they do not.
    """
    forms = _DAY.findall(table)
    if len(forms) != 1:
        raise ValueError(f"{table!r} must contain the day once, as in SENSOR_{{day:%Y%m%d}}")
    letters = sorted(_PLACEHOLDER.findall(forms[0]))
    if letters not in _WHOLE_DATES:
        raise ValueError(
            f"{table!r} must contain the whole date: year, month and day once each, as in {{day:%Y%m%d}}, or "
            "year and day of the year, as in {day:%Y%j}"
        )


def may_meet(tables: DayTables, other_tables: DayTables) -> bool:
    """Whether two days may have one name; by their digits, so also of some that no calendar has."""
    shape, other_shape = _shape(tables), _shape(other_tables)
    return len(shape) == len(other_shape) and all(
        _alike(*pair) for pair in zip(shape, other_shape, strict=True)
    )


def _shape(tables: DayTables) -> str:
    """A name with `_DIGIT` for each digit of the day."""
    return _DAY.sub(
        lambda day: _PLACEHOLDER.sub(lambda mark: _DIGIT * _WIDTHS[mark[1]], day[1]),
        tables.table,
    )


def _alike(shape: str, other_shape: str) -> bool:
    digits = "0123456789" + _DIGIT
    return shape == other_shape or (
        _DIGIT in (shape, other_shape) and shape in digits and other_shape in digits
    )


def table_of(tables: DayTables, day: datetime.date) -> str:
    """The name of a day's table."""
    return name_of(tables.table, day)


def name_of(table: str, day: datetime.date) -> str:
    """The name of a day's table, from one with `{day:...}` in it.

    >>> name_of("SENSOR_{day:%Y%m%d}", datetime.date(2015, 3, 16))
    'SENSOR_20150316'
    """
    return _DAY.sub(lambda form: day.strftime(form[1]), table)


def is_expired(tables: DayTables, day: datetime.date, today: datetime.date) -> bool:
    """Whether the table of a day may be dropped as a whole."""
    return tables.expire_days is not None and (today - day).days > tables.expire_days


def day_piece(source: TableLayout, day: datetime.date) -> bytes:
    """The bytes of the time part in the keys of a day's rows; the day is that of the part's zone."""
    time = source.time
    assert time is not None
    midnight = datetime.datetime(day.year, day.month, day.day, tzinfo=datetime.UTC)
    local = np.array([int(midnight.timestamp()) * 1000], np.int64)
    numbers, good = time_parts.numbers(time, time_parts.from_ms(first_instant(local, time.zone), time.unit))
    if not good[0]:
        raise ValueError(f"the day {day} does not fit the key of {source.table}")
    piece: bytes = time_parts.render(time, numbers)[0].as_py()
    return piece


def day_of(tables: DayTables, name: str) -> datetime.date | None:
    """The day of a table of this name; None if it is not one of these tables."""
    form = _DAY.search(tables.table)
    assert form is not None
    head, tail = tables.table[: form.start()], tables.table[form.end() :]
    if len(name) < len(head) + len(tail) or not (name.startswith(head) and name.endswith(tail)):
        return None
    try:
        day = datetime.datetime.strptime(name[len(head) : len(name) - len(tail)], form[1]).date()
    except ValueError:
        return None
    return day if day.year >= 1970 and table_of(tables, day) == name else None


def tables_within(
    tables: DayTables, source: TableLayout, names: Iterable[str], start_ms: int | None, end_ms: int | None
) -> list[str]:
    """Those of the names that are of days with a part in a range of time, ascending by day.

    Args:
      start_ms, end_ms: both inclusive; None for no limit.
    """
    assert source.time is not None
    by_day = {day: name for name in names if (day := day_of(tables, name)) is not None}
    within = []
    for day, name in sorted(by_day.items()):
        day_start_ms, day_end_ms = day_range(day, source.time.zone)
        if (end_ms is None or day_start_ms <= end_ms) and day_end_ms > (start_ms or 0):
            within.append(name)
    return within


def day_pattern(source: TableLayout, piece: bytes) -> bytes:
    """RE2 for the keys that may be of the day with this piece; `is_of_day` tells for certain."""
    assert source.time is not None
    return read_keys.pattern(source, {source.time: piece})


def is_of_day(source: TableLayout, key: bytes, piece: bytes) -> bool:
    """Whether a row is one of the day with this piece; the job copies it unchanged.

    Raises:
      ValueError: it is not a key of this layout.
    """
    assert source.time is not None
    return read_keys.split(source, key)[source.key.index(source.time)] == piece
