"""Leases: the right to rewrite what a row stands for, until a time; taken and given up by compare-and-set.

| row key | family | qualifier | value | timestamp |
|---|---|---|---|---|
| what is leased | `t` | `lease` | 8 random bytes of the holder, end in ms (8 bytes), a note | 0 |
| | | `lost`, 8 bytes of the holder | as above | 0 |

Anybody can take a lease whose end has passed. The same mutation then notes the holder under `lost`: it may be
paused, and write later. So what a lost lease covers is uncertain until its holder says that it has stopped
(`give_up`), or until an hour after its end, when a holder counts as dead (`is_dead`). A holder learns that
its lease is lost because its compare-and-set fails. So nothing depends on clocks, except that no write
arrives more than an hour after the end of its lease.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from timebeam.schema.bits.times import HOUR_MS
from timebeam.schema.core.rows import Cell, Deletion, Row
from timebeam.transforms.bigtable.compare_and_set import Replacement, replace_cells
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.bigtable.write_rows import write_all

FAMILY = "t"
DEAD_MS = HOUR_MS
"""How long after the end of its lease a holder may still write."""

_LEASE, _LOST = b"lease", b"lost"
_HOLDER_BYTES = _END_BYTES = 8


class Lease(NamedTuple):
    """A lease, perhaps of another process.

    Attributes:
      key: the row key of what is leased.
      holder: 8 random bytes, others for each call of `claim`.
      end_ms: when others may take it.
      note: what the holder tells others.
    """

    key: bytes
    holder: bytes
    end_ms: int
    note: bytes = b""

    @property
    def is_dead(self) -> bool:
        """Whether its holder writes no more, since the lease ended long ago."""
        return self.end_ms + DEAD_MS <= _now_ms()


class LeaseRow(NamedTuple):
    """The leases in a row.

    Attributes:
      lease: the last one that was taken; its end may have passed. None if nobody has it.
      lost: those that were taken over, and whose holders have not said that they stopped.
    """

    key: bytes
    lease: Lease | None
    lost: Sequence[Lease]

    @classmethod
    def of(cls, key: bytes, cells: Iterable[Cell]) -> LeaseRow:
        """The leases among the cells of a row."""
        lease, lost = None, list[Lease]()
        for cell in cells:
            if cell.qualifier == _LEASE:
                lease = _parsed(key, cell.value)
            elif is_lease(cell.qualifier):
                lost.append(_parsed(key, cell.value))
        return cls(key, lease, lost)


def is_lease(qualifier: bytes) -> bool:
    """Whether a column is of a lease, or of a lost one."""
    lost_bytes = len(_LOST) + _HOLDER_BYTES
    return qualifier == _LEASE or (qualifier.startswith(_LOST) and len(qualifier) == lost_bytes)


def claim(
    target: Target, table: str, rows: Iterable[LeaseRow], seconds: float, notes: Mapping[bytes, bytes] = {}
) -> list[Lease]:
    """Takes the leases that nobody has, or whose end has passed; those that it got.

    Args:
      rows: as they were read; each key once.
      seconds: until their end.
      notes: by row key.

    Raises:
      GoogleAPICallError: a lease could not be taken; others may have been.
    """
    holder, now_ms = secrets.token_bytes(_HOLDER_BYTES), _now_ms()
    end_ms = now_ms + int(seconds * 1000)
    free = [row for row in rows if row.lease is None or row.lease.end_ms <= now_ms]
    leases = [Lease(row.key, holder, end_ms, notes.get(row.key, b"")) for row in free]
    replacements = [
        Replacement(
            row.key,
            None if row.lease is None else _cell(row.lease),
            _cell(lease),
            () if row.lease is None else (_cell(row.lease, _lost(row.lease)),),
        )
        for row, lease in zip(free, leases, strict=True)
    ]
    return list(_done(leases, replace_cells(target, table, replacements)))


def release(
    target: Target,
    table: str,
    leases: Sequence[Lease],
    deleted: Mapping[bytes, Sequence[Deletion]] = {},
    cells: Mapping[bytes, Sequence[Cell]] = {},
) -> list[Lease]:
    """Gives leases back, if they are not lost; those that were not lost.

    Args:
      deleted: by row key, other columns of the row that are deleted in the same mutation.
      cells: by row key, other cells of the row that are set in it.

    Raises:
      GoogleAPICallError: a lease could not be given back; others may have been.
    """
    replacements = [
        Replacement(
            lease.key,
            _cell(lease),
            None,
            cells.get(lease.key, ()),
            deleted.get(lease.key, ()),
        )
        for lease in leases
    ]
    return list(_done(leases, replace_cells(target, table, replacements)))


def give_up(
    target: Target, table: str, leases: Sequence[Lease], cells: Mapping[bytes, Sequence[Cell]] = {}
) -> None:
    """Says of lost leases that their holder has stopped to write.

    Args:
      cells: by row key, other cells of the row that are set in the same mutation.

    Raises:
      GoogleAPICallError: see `write_all`.
    """
    write_all(
        target,
        table,
        [Row(table, lease.key, cells.get(lease.key, ()), [deletion_of(lease)]) for lease in leases],
    )


def deletion_of(lost: Lease) -> Deletion:
    """What deletes the note of a lost lease."""
    return Deletion(FAMILY, _lost(lost))


def _done(leases: Sequence[Lease], done: Sequence[bool]) -> Iterator[Lease]:
    return (lease for lease, is_done in zip(leases, done, strict=True) if is_done)


def _lost(lease: Lease) -> bytes:
    """The qualifier of a lost lease."""
    return _LOST + lease.holder


def _cell(lease: Lease, qualifier: bytes = _LEASE) -> Cell:
    """The cell of a lease; no other lease has its value."""
    return Cell(FAMILY, qualifier, 0, lease.holder + lease.end_ms.to_bytes(_END_BYTES, "big") + lease.note)


def _parsed(key: bytes, value: bytes) -> Lease:
    holder, rest = value[:_HOLDER_BYTES], value[_HOLDER_BYTES:]
    return Lease(key, holder, int.from_bytes(rest[:_END_BYTES], "big"), rest[_END_BYTES:])


def _now_ms() -> int:
    return int(time.time() * 1000)
