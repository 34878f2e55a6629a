"""UIDs of OpenTSDB: looked up and assigned in Bigtable, beside any number of writers and TSDs.

As uid/UniqueId.UniqueIdAllocator of OpenTSDB 2.4.1 (docs/spec/opentsdb.md §5.2), with three differences that
no reader can see: one increment of the counter reserves the ids of many names; after a lost answer the cell
is read, instead of starting from scratch; an id that is lost in a race goes to the next name. A forward
mapping is never visible without its reverse mapping.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import hashlib
import logging
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.contract import Store
from timebeam.schema.core.point_fragments import Name, UidSpec
from timebeam.schema.core.rows import KEY_BYTES, Cell, Row
from timebeam.schema.stores.opentsdb.uids import uid_table
from timebeam.transforms.bigtable.compare_and_set import CellColumn, Replacement, create_cells, replace_cells
from timebeam.transforms.bigtable.target import BigtableError, Target
from timebeam.transforms.bigtable.write_rows import increment
from timebeam.transforms.read.table_reader import TableReader, read_rows, scan_table

_LOGGER = logging.getLogger(__name__)

_ATTEMPTS = 10
_WARN_SHARE = 0.8
_CONNECTIONS = 16
_NAMES_AT_ONCE = 64


class UidWidthError(BigtableError, ValueError):
    """A stored UID does not have the configured width: the options are not those of the tables."""


@dataclasses.dataclass(frozen=True, slots=True)
class UidPolicy:
    """Which unknown names are assigned a UID, with the defaults of a TSD.

    Attributes:
      auto_create_metrics, auto_create_tagks, auto_create_tagvs: tsd.core.auto_create_*.
      random_metrics: tsd.core.uid.random_metrics: ids of new metrics are random.
    """

    auto_create_metrics: bool = False
    auto_create_tagks: bool = True
    auto_create_tagvs: bool = True
    random_metrics: bool = False

    def creates(self, kind: str) -> bool:
        """Whether names of a kind are assigned UIDs."""
        return {
            "metrics": self.auto_create_metrics,
            "tagk": self.auto_create_tagks,
            "tagv": self.auto_create_tagvs,
        }[kind]


class _Number(NamedTuple):
    """A UID that this process may assign.

    Attributes:
      reverse: its reverse mapping, to a name that got another UID in a race; None if it has none.
    """

    uid: bytes
    reverse: Cell | None = None


class UidTable:
    """The UID table of one layout in one Bigtable instance. Not for threads."""

    def __init__(self, target: Target, layout: Store, policy: UidPolicy | None = None) -> None:
        if layout.uids is None:
            raise ValueError(f"layout {layout.name} stores names as they are: it has no UIDs")
        self._target = target
        self._spec = layout.uids
        self._policy = policy or UidPolicy()
        self._warned: set[str] = set()
        self._highest: dict[str, int] = {}
        self._spare = collections.defaultdict[str, list[_Number]](list)

    def snapshot(self) -> Iterator[tuple[Name, bytes]]:
        """Every name and its UID.

        Raises:
          UidWidthError: a stored UID does not have the configured width.
        """
        for row in scan_table(self._target, self._spec.table):
            for cell in row.cells:
                kind = cell.qualifier.decode("iso-8859-1")
                if cell.family != uid_table.ID_FAMILY or kind not in uid_table.KINDS:
                    continue  # reverse mappings, metadata
                if row.key != uid_table.COUNTER_ROW:
                    name = Name(kind, uid_table.name_text(row.key))
                    yield name, self._checked(name, cell.value)

    def look_up(self, names: Iterable[Name]) -> dict[Name, bytes]:
        """The UIDs of the names that have one.

        Raises:
          UidWidthError: a stored UID does not have the configured width.
        """
        uids = uid_table.look_up(self._spec.table, names, TableReader(self._target))
        return {name: self._checked(name, uid) for name, uid in uids.items()}

    def resolve(self, names: Iterable[Name]) -> tuple[Mapping[Name, bytes | RejectedError], int]:
        """(UID or rejection of each name, how many of the UIDs are newly assigned)."""
        names = sorted(set(names))
        result: dict[Name, bytes | RejectedError] = dict(self.look_up(names))
        result.update(self.unassignable(name for name in names if name not in result))
        assigned = 0
        for kind in uid_table.KINDS:
            missing = [name for name in names if name.kind == kind and name not in result]
            if missing:
                created, new = self._assign(kind, missing)
                result.update(created)
                assigned += new
        return result, assigned

    def unassignable(self, names: Iterable[Name]) -> dict[Name, RejectedError]:
        """Why names without a UID are not assigned one, for those that are not."""
        result: dict[Name, RejectedError] = {}
        for name in names:
            if uid_table.row_key(name.text) is None:
                result[name] = _not_storable(name)
            elif not self._policy.creates(name.kind):
                flag = "metrics" if name.kind == "metrics" else name.kind + "s"
                result[name] = _unknown(name, f"--auto-create-{flag}")
        return result

    def _assign(self, kind: str, names: Sequence[Name]) -> tuple[dict[Name, bytes | RejectedError], int]:
        """Assigns a UID to each name; (the UIDs, how many are new): a faster writer's UID is used."""
        result: dict[Name, bytes | RejectedError] = {}
        pending, assigned = list(names), 0
        collisions: collections.Counter[Name] = collections.Counter()
        with concurrent.futures.ThreadPoolExecutor(_CONNECTIONS) as pool:
            while pending:
                size = self._names_at_once(kind)
                batch, pending = pending[:size], pending[size:]
                numbers = self._numbers(kind, len(batch))
                outcomes = list(pool.map(self._map, batch, numbers))
                mapped = dict(zip(batch, outcomes, strict=False))
                result.update({name: uid for name, uid in mapped.items() if uid is not None})
                new = sum(
                    result.get(name) == number.uid for name, number in zip(batch, numbers, strict=False)
                )
                assigned += new
                unmapped = [name for name in batch if name not in result]
                collisions.update(unmapped)
                pending += unmapped
                is_exhausted = len(numbers) < len(batch) or max(collisions.values(), default=0) == _ATTEMPTS
                if is_exhausted or new < len(batch):  # others are assigning the same names
                    result.update(self.look_up(pending))
                    pending = [name for name in pending if name not in result]
                    random.shuffle(pending)
                if is_exhausted:
                    result.update({name: _exhausted(name) for name in pending})
                    break
        self._warn(kind)
        return result, assigned

    def _names_at_once(self, kind: str) -> int:
        """How many names get a number together: the fewer are left, the fewer may be lost in a race."""
        remaining = uid_table.last_id(self._spec.widths[kind]) - self._highest.get(kind, 0)
        return max(1, min(_NAMES_AT_ONCE, remaining // _NAMES_AT_ONCE))

    def _numbers(self, kind: str, n: int) -> list[_Number]:
        """Up to n unused UIDs, those first that were lost in a race; fewer if the kind is exhausted."""
        spare = [self._spare[kind].pop() for _ in range(min(n, len(self._spare[kind])))]
        n -= len(spare)
        width = self._spec.widths[kind]
        last = uid_table.last_id(width)
        if kind == "metrics" and self._policy.random_metrics:
            ids: Iterable[int] = [random.randint(1, last) for _ in range(n)]
        else:
            highest = self._increment(kind, n) if n else 0
            self._highest[kind] = max(highest, self._highest.get(kind, 0))
            ids = range(highest - n + 1, highest + 1)
        return spare + [_Number(uid_table.uid_bytes(number, width)) for number in ids if 0 < number <= last]

    def _warn(self, kind: str) -> None:
        """Warns once if most UIDs of a kind are used."""
        highest, last = self._highest.get(kind, 0), uid_table.last_id(self._spec.widths[kind])
        if highest > _WARN_SHARE * last and kind not in self._warned:
            self._warned.add(kind)
            _LOGGER.warning("%d of %d UIDs of kind %s are used", min(highest, last), last, kind)

    def _increment(self, kind: str, by: int) -> int:
        """Adds to the counter of a kind; its new value. Each lost answer wastes `by` ids."""
        column = (uid_table.ID_FAMILY, kind.encode())
        return increment(self._target, self._spec.table, uid_table.COUNTER_ROW, column, by)

    def _map(self, name: Name, number: _Number) -> bytes | None:
        """Stores both mappings, reverse first; the name's UID, or None if the number's is of another name.

        A number whose forward mapping another writer was faster to store is kept for the next name.
        """
        stored, kind = uid_table.name_bytes(name.text), name.kind.encode()
        cell = Cell(uid_table.NAME_FAMILY, kind, int(time.time() * 1000), stored)
        if number.reverse is None:
            value, created = self._create(number.uid, cell)
            if value != stored:
                return None
        else:
            replacement = Replacement(number.uid, number.reverse, cell)
            (created,) = replace_cells(self._target, self._spec.table, [replacement])
            if not created:
                return None
        forward, _ = self._create(stored, cell._replace(family=uid_table.ID_FAMILY, value=number.uid))
        if created and forward != number.uid:
            self._spare[name.kind].append(_Number(number.uid, cell))
        return self._checked(name, forward)

    def _create(self, key: bytes, cell: Cell) -> tuple[bytes, bool]:
        """Stores a cell if the column has none; (the column's value afterwards, whether it was stored)."""
        table, column = self._spec.table, CellColumn(key, cell.family, cell.qualifier)
        created = create_cells(self._target, table, [Row(table, key, [cell])], {})
        return created.values[column], column in created.created

    def _checked(self, name: Name, uid: bytes) -> bytes:
        width = self._spec.widths[name.kind]
        if len(uid) != width:
            raise UidWidthError(
                f"{name.kind} {name.text!r} has a UID of {len(uid)} bytes where {width} are configured: "
                f"set uid_width_{name.kind.removesuffix('s')} as in the TSDs of this table"
            )
        return uid


def read_counters(target: Target, spec: UidSpec) -> dict[str, tuple[int, int]]:
    """By kind of names the highest id so far, and the highest that fits a UID."""
    row = read_rows(target, spec.table, [uid_table.COUNTER_ROW]).get(uid_table.COUNTER_ROW)
    counters = {
        cell.qualifier.decode("iso-8859-1"): int.from_bytes(cell.value, "big", signed=True)
        for cell in (row.cells if row else ())
        if cell.family == uid_table.ID_FAMILY
    }
    return {kind: (counters.get(kind, 0), uid_table.last_id(width)) for kind, width in spec.widths.items()}


class DryUidTable(UidTable):
    """A `UidTable` that assigns hashes of names, and stores nothing."""

    def _assign(self, kind: str, names: Sequence[Name]) -> tuple[dict[Name, bytes | RejectedError], int]:
        width = self._spec.widths[kind]
        uids: dict[Name, bytes | RejectedError] = {
            name: hashlib.blake2b(name.text.encode(), digest_size=width, key=kind.encode()).digest()
            for name in names
        }
        return uids, len(uids)


def _not_storable(name: Name) -> RejectedError:
    return RejectedError(
        Reason.NAME_NOT_STORABLE,
        f"{name.kind} {name.text[:80]!r} cannot be a row of the UID table: a name has 1 to "
        f"{KEY_BYTES} characters of ISO-8859-1",
    )


def _unknown(name: Name, option: str) -> RejectedError:
    return RejectedError(
        Reason.UNKNOWN_NAME,
        f"No such name for '{name.kind}': '{name.text}': assign it, or allow new ones with {option}",
    )


def _exhausted(name: Name) -> RejectedError:
    return RejectedError(
        Reason.UIDS_EXHAUSTED,
        f"All Unique IDs for {name.kind} are already assigned: {name.text!r} gets none "
        "(wider UIDs need a new set of tables)",
    )
