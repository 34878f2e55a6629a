"""What input becomes in memory, charged before it is built: a few bytes of a message can name gigabytes.

A name of a megabyte that 100,000 series share is 100 GB as soon as one step copies it, a field of two bytes
takes sixty in columns, and a number of JSON a hundred as an object. So whatever makes many objects of few
bytes charges their size first, and the reader of messages stops when it is more than `MESSAGE_BYTES`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar

MESSAGE_BYTES = 256 << 20
"""What the content of messages that are read together may take, beside their bytes."""

SERIES_BYTES, TAG_BYTES, POINT_BYTES = 500, 200, 128
"""About what a series without its names, a tag without its texts, and a point take, with what reads them."""

VALUE_BYTES = 64
"""The same of a value of JSON, and of a field of protobuf in columns."""

_SHORT_BYTES = 1 << 16
_GATHERED_BYTES = 8 << 20  # 4 MiB are read together, and the record that ends after them


class NoRoomError(Exception):
    """The content of messages would take more than they may."""


class MemoryMeter:
    """How much of some room is charged.

    Attributes:
      room: in bytes.
      used: bytes of it, including those of the meters inside that are under way.
    """

    def __init__(self, room: int, outer: MemoryMeter | None = None) -> None:
        """`outer`: a meter that is charged too, until this one is done."""
        self.room, self.used, self.outer = room, 0, outer

    def charge(self, size: int) -> None:
        """Charges some bytes.

        Raises:
          NoRoomError: there is less room. Then nothing is charged.
        """
        if self.used + size > self.room:
            why = f"its series, points and fields would take more than {self.room:,} bytes: send less at once"
            raise NoRoomError(why)
        self.used += size
        if self.outer is not None:
            self.outer.used += size


_CURRENT: ContextVar[MemoryMeter | None] = ContextVar("meter", default=None)


@contextlib.contextmanager
def metered(meter: MemoryMeter | None = None) -> Iterator[MemoryMeter]:
    """A context whose charges go to a meter: this one, or one of `MESSAGE_BYTES` inside that around it."""
    outer = _CURRENT.get()
    if meter is None:
        room = MESSAGE_BYTES if outer is None else min(MESSAGE_BYTES, outer.room - outer.used)
        meter = MemoryMeter(room, outer)
    token = _CURRENT.set(meter)
    try:
        yield meter
    finally:
        _CURRENT.reset(token)
        if meter.outer is not None:
            meter.outer.used -= meter.used


def charge(size: int) -> None:
    """Charges some bytes to the meter of the context; without one, to a new meter.

    Raises:
      NoRoomError: see `MemoryMeter.charge`.
    """
    (_CURRENT.get() or MemoryMeter(MESSAGE_BYTES)).charge(size)


def room() -> int:
    """The bytes that can still be charged."""
    meter = _CURRENT.get()
    return MESSAGE_BYTES if meter is None else meter.room - meter.used


def charge_series(names: int, tags: int, series: int = 1) -> None:
    """Charges some series with the same number of tags; `names` are the bytes of their texts, in each.

    Raises:
      NoRoomError: see `MemoryMeter.charge`.
    """
    charge(series * (SERIES_BYTES + tags * TAG_BYTES + names))


def text_bytes(pairs: Iterable[tuple[str, str]]) -> int:
    """The characters of the keys and values of tags."""
    return sum(len(key) + len(value) for key, value in pairs)


def charge_fields(size: int) -> None:
    """Charges a message of protobuf of so many bytes that is read field by field, each of at least two bytes.

    What a short one takes is given back before the next is read, so it is not charged.

    Raises:
      NoRoomError: see `MemoryMeter.charge`.
    """
    if size > _SHORT_BYTES:
        charge(size // 2 * VALUE_BYTES)


def charge_json(text: bytes) -> None:
    """Charges the values of a text of JSON; one of a portion of short records is not looked at.

    Raises:
      NoRoomError: see `MemoryMeter.charge`.
    """
    if len(text) > _GATHERED_BYTES:
        charge(VALUE_BYTES * sum(text.count(mark) for mark in (b",", b"[", b"{", b":")))
