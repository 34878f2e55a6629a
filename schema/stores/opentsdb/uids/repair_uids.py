"""The stored UID table in memory: what is wrong with it, how it is fixed, and how full it is.

Format: docs/spec/opentsdb.md §5; `repairs` are those of `tsdb uid fsck fix` but for the exceptions of §5.5.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from timebeam.schema.bits.times import DAY_MS
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.core.selection import Finding, Severity
from timebeam.schema.stores.opentsdb.keys import UidPair
from timebeam.schema.stores.opentsdb.options import Names, OpenTsdbOptions
from timebeam.schema.stores.opentsdb.uids import uid_table

_NEARLY_EXHAUSTED = 0.8
_GROWTH_DAYS = 30
_KIND_BY_METADATA = {f"{kind.removesuffix('s')}_meta": kind for kind in uid_table.KINDS}


class UidChange(NamedTuple):
    """A cell of the UID table to replace, unless it has changed; None for no cell."""

    key: bytes
    old: Cell | None
    new: Cell | None


@dataclasses.dataclass(frozen=True, slots=True)
class Repair:
    """Something wrong in the UID table.

    Attributes:
      text: what is wrong, and what is done about it.
      changes: in their order; empty if it cannot be fixed here.
    """

    kind: str
    text: str
    changes: Sequence[UidChange] = ()


class UidCapacity(NamedTuple):
    """How many UIDs of a kind are used, and until when they last.

    Attributes:
      names: names with a UID.
      used: UIDs that are given out, also those without a name.
      possible: UIDs of the configured width.
      new_names: names assigned in the last 30 days.
      days_left: days until the UIDs run out at this pace; None without new names.
    """

    kind: str
    names: int
    used: int
    possible: int
    new_names: int
    days_left: float | None


class UidMaps:
    """Both directions of the stored UID table, and its counters.

    Attributes:
      uids: the cell with the UID of each (kind, stored name).
      names: the cell with the stored name of each (kind, UID).
      counters: the cell with the highest id of each kind.
      metadata: the cell with the metadata of each (kind, UID).
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self.uids: dict[tuple[str, bytes], Cell] = {}
        self.names: dict[UidPair, Cell] = {}
        self.counters: dict[str, Cell] = {}
        self.metadata: dict[UidPair, Cell] = {}
        for row in rows:
            for cell in row.cells:
                kind = cell.qualifier.decode("iso-8859-1")
                if kind in _KIND_BY_METADATA:
                    self.metadata[_KIND_BY_METADATA[kind], row.key] = cell
                elif kind not in uid_table.KINDS:
                    continue
                elif cell.family == uid_table.NAME_FAMILY:
                    self.names[kind, row.key] = cell
                elif row.key == uid_table.COUNTER_ROW:
                    self.counters[kind] = cell
                else:
                    self.uids[kind, row.key] = cell

    def findings(self, table: str, options: OpenTsdbOptions) -> Iterator[Finding]:
        """Everything that keeps the mapping from being one to one, and UIDs that run out."""
        for (kind, name), cell in self.uids.items():
            uid = cell.value
            if len(uid) != options.uid_width(kind):
                yield _corruption(
                    table, name, f"{kind}: UID {uid.hex()} is not {options.uid_width(kind)} bytes"
                )
            elif (kind, uid) not in self.names:
                yield _corruption(table, name, f"{kind}: UID {uid.hex()} has no reverse mapping")
            elif self.names[kind, uid].value != name:
                mapped_name = uid_table.name_text(self.names[kind, uid].value)
                yield _corruption(table, name, f"{kind}: UID {uid.hex()} is mapped back to {mapped_name!r}")
            if options.names is Names.ESCAPE and not options.names.stores(uid_table.name_text(name)):
                yield _corruption(
                    table, name, f"{kind}: not an escaped name: no query finds it (names=escape)"
                )
        for (kind, uid), cell in self.names.items():
            name_text = uid_table.name_text(cell.value)
            if (kind, cell.value) not in self.uids:
                text = f"{kind}: UID {uid.hex()} of {name_text!r} lacks its forward mapping"
                yield Finding(Severity.NOTE, table, uid, text + " (left by an interrupted assignment)")
            elif self.uids[kind, cell.value].value != uid:
                text = f"{kind}: UID {uid.hex()} is an unused second UID of {name_text!r}"
                yield Finding(Severity.NOTE, table, uid, text + " (left by a lost race)")
        for kind, cell in sorted(self.counters.items()):
            yield from self._counter_findings(table, kind, cell.value, options)

    def _counter_findings(
        self, table: str, kind: str, value: bytes, options: OpenTsdbOptions
    ) -> Iterator[Finding]:
        """A finding if most UIDs of a kind are assigned."""
        if len(value) != 8:
            yield _corruption(
                table, uid_table.COUNTER_ROW, f"{kind}: counter of {len(value)} bytes instead of 8"
            )
            return
        used = int.from_bytes(value, "big", signed=True)
        last = uid_table.last_id(options.uid_width(kind))
        if used >= last:
            text = f"{kind}: all {last} UIDs are assigned; new names are rejected"
            yield Finding(Severity.NOTE, table, uid_table.COUNTER_ROW, text)
        elif used > _NEARLY_EXHAUSTED * last:
            text = f"{kind}: {used} of {last} UIDs are assigned"
            yield Finding(Severity.NOTE, table, uid_table.COUNTER_ROW, text)

    def capacity(self, kind: str, width: int, now_ms: int) -> UidCapacity:
        """How full a kind is. Growth is that of the last 30 days, by the timestamps of forward mappings."""
        possible = uid_table.last_id(width)
        written_ms = [cell.timestamp_ms for (each, _), cell in self.uids.items() if each == kind]
        counter = self.counters.get(kind)
        given_out = 0 if counter is None else min(possible, int.from_bytes(counter.value, "big", signed=True))
        used = max(given_out, sum(each == kind for each, _ in self.names))
        new_names = sum(now_ms - time_ms < _GROWTH_DAYS * DAY_MS for time_ms in written_ms)
        pace = new_names / _GROWTH_DAYS
        return UidCapacity(
            kind, len(written_ms), used, possible, new_names, (possible - used) / pace if pace else None
        )

    def repairs(self, options: OpenTsdbOptions, used: Collection[UidPair], now_ms: int) -> Iterator[Repair]:
        """What is wrong, and how to fix it.

        Args:
          used: the UIDs that rows with points or rollups have.
          now_ms: the timestamp of new cells.
        """
        for kind in uid_table.KINDS:
            yield from self._forward_repairs(kind, options.uid_width(kind), now_ms)
            yield from self.orphan_repairs(kind, used, now_ms)
            yield from self._counter_repairs(kind, options.uid_width(kind), now_ms)

    def _forward_repairs(self, kind: str, width: int, now_ms: int) -> Iterator[Repair]:
        """Forward mappings without their reverse mapping: the name in the reverse mapping keeps the UID."""
        names_by_uid = collections.defaultdict[bytes, list[bytes]](list)
        for each, name in self.uids:
            if each == kind:
                names_by_uid[self.uids[kind, name].value].append(name)
        for uid, names in sorted(names_by_uid.items()):
            reverse = self.names.get((kind, uid))
            if len(uid) != width:
                text = f"UID {uid.hex()} of {_listed(names)} is not {width} bytes: uid_width_*?"
                yield Repair(kind, text)
                continue
            if reverse is not None and names == [reverse.value]:
                continue
            oldest = min(names, key=lambda name: (self.uids[kind, name].timestamp_ms, name))
            name = reverse.value if reverse is not None and reverse.value in names else oldest
            changes = []
            if reverse is None or reverse.value != name:
                changes.append(UidChange(uid, reverse, _reverse_cell(kind, name, reverse, now_ms)))
            others = sorted(set(names) - {name})
            changes += [UidChange(other, self.uids[kind, other], None) for other in others]
            mapped = _listed([reverse.value]) if reverse is not None else "no name"
            text = (
                f"UID {uid.hex()} of {_listed(names)} is mapped back to {mapped}: {_listed([name])} keeps it"
            )
            if others:
                text += f"; {_listed(others)} gets a UID of its own when it is written next"
            yield Repair(kind, text, changes)

    def orphan_repairs(self, kind: str, used: Collection[UidPair], now_ms: int) -> Iterator[Repair]:
        """UIDs in row keys that are mapped to a name, which is not mapped to them."""
        forward = {name: cell.value for (each, name), cell in self.uids.items() if each == kind}
        mapped_uids = set(forward.values())
        for (each, uid), cell in sorted(self.names.items()):
            name = cell.value
            if each != kind or uid in mapped_uids or (kind, uid) not in used:
                continue  # a leftover of a lost race: `timebeam names free` deletes it
            if name in forward:
                command = f"timebeam names merge {kind} {uid.hex()} {uid_table.name_text(name)}"
                text = f"{_listed([name])} has the UID {forward[name].hex()}, but rows with {uid.hex()} too"
                yield Repair(kind, f"{text}: {command}")
                continue
            text = f"UID {uid.hex()} of {_listed([name])} has rows, but no forward mapping: it is restored"
            new = Cell(uid_table.ID_FAMILY, kind.encode(), now_ms, uid)
            forward[name] = uid
            yield Repair(kind, text, [UidChange(name, None, new)])

    def _counter_repairs(self, kind: str, width: int, now_ms: int) -> Iterator[Repair]:
        """A counter below ids that it would give out next; ids far above it may be random ones."""
        counter = self.counters.get(kind)
        if counter is None or len(counter.value) != 8:
            if counter is not None:
                yield Repair(kind, f"the counter has {len(counter.value)} bytes instead of 8")
            return
        number = highest = int.from_bytes(counter.value, "big", signed=True)
        while highest < uid_table.last_id(width):
            next_uid = uid_table.uid_bytes(max(1, highest + 1), width)
            if (kind, next_uid) not in self.names:
                break
            highest = max(1, highest + 1)
        if highest > number:
            new = counter._replace(timestamp_ms=max(now_ms, counter.timestamp_ms), value=highest.to_bytes(8))
            text = f"the counter is {number}, but UIDs up to {highest} have names: it is set to {highest}"
            yield Repair(kind, text, [UidChange(uid_table.COUNTER_ROW, counter, new)])

    def retirements(
        self,
        options: OpenTsdbOptions,
        used: Collection[UidPair],
        before_ms: int,
        now_ms: int,
        only: UidPair | None = None,
    ) -> Iterator[Repair]:
        """The first step to free UIDs without rows: their names lose them, so that no writer learns them.

        The reverse mapping gets a new timestamp, which is when the wait begins (`deletions`), and stays: a
        writer that still has the UID in its cache may write rows.

        Args:
          before_ms: names with a newer forward mapping are left alone.
          only: this UID; None for all.
        """
        for (kind, name), cell in sorted(self.uids.items()):
            uid, reverse = cell.value, self.names.get((kind, cell.value))
            if only not in (None, (kind, uid)):
                continue
            if (kind, uid) in used or cell.timestamp_ms >= before_ms or len(uid) != options.uid_width(kind):
                continue
            if reverse is not None and reverse.value == name:
                text = f"UID {uid.hex()} of {_listed([name])} has no rows: the name loses it"
                marked = _reverse_cell(kind, name, reverse, now_ms)
                changes = [UidChange(uid, reverse, marked), UidChange(name, cell, None)]
                yield Repair(kind, text, changes)

    def deletions(self, used: Collection[UidPair], before_ms: int) -> Iterator[Repair]:
        """The second step to free UIDs: those without rows that no name has had since `before_ms`."""
        mapped = {(kind, cell.value) for (kind, _), cell in self.uids.items()}
        for (kind, uid), cell in sorted(self.names.items()):
            if (kind, uid) in mapped or (kind, uid) in used or cell.timestamp_ms >= before_ms:
                continue
            metadata = self.metadata.get((kind, uid))
            changes = [UidChange(uid, each, None) for each in (metadata, cell) if each is not None]
            text = f"UID {uid.hex()}, once of {_listed([cell.value])}, has no rows: it is deleted"
            yield Repair(kind, text, changes)


def _reverse_cell(kind: str, name: bytes, old: Cell | None, now_ms: int) -> Cell:
    """The cell that maps a UID to a name; it replaces an old one."""
    timestamp_ms = now_ms if old is None else max(now_ms, old.timestamp_ms)
    return Cell(uid_table.NAME_FAMILY, kind.encode(), timestamp_ms, name)


def _listed(names: Iterable[bytes]) -> str:
    return ", ".join(repr(uid_table.name_text(name)) for name in names)


def _corruption(table: str, key: bytes, text: str) -> Finding:
    return Finding(Severity.CORRUPT, table, key, text)
