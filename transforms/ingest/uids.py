"""UIDs of OpenTSDB: looked up and assigned in Bigtable, beside any number of writers and TSDs.

As uid/UniqueId.UniqueIdAllocator of OpenTSDB 2.4.1 (docs/spec/opentsdb.md §5.2), with two differences that no
reader can see: one increment of the counter reserves the ids of all new names of a kind,
and after a lost answer the cell is read, instead of starting from scratch. A forward mapping is never visible
without its reverse mapping. Wasted ids stay unused, as with a TSD.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import logging
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from timebeam.schema.layouts import Layout, Name
from timebeam.schema.layouts.opentsdb import select, uid_table
from timebeam.schema.points import Reason, RefusedError
from timebeam.transforms.bigtable.conditional import CellColumn, create_cells
from timebeam.transforms.bigtable.mutate import increment
from timebeam.transforms.bigtable.rows import BigtableCell, BigtableRow
from timebeam.transforms.bigtable.target import BigtableError, Target
from timebeam.transforms.readers.table_reader import TableReader, scan_table

_LOGGER = logging.getLogger(__name__)

_ATTEMPTS = 10
_WARN_SHARE = 0.8
_CONNECTIONS = 16


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


class UidTable:
    """The UID table of one layout in one Bigtable instance."""

    def __init__(self, target: Target, layout: Layout, policy: UidPolicy | None = None) -> None:
        if layout.uids is None:
            raise ValueError(f"layout {layout.name} stores names as they are: it has no UIDs")
        self._target = target
        self._spec = layout.uids
        self._policy = policy or UidPolicy()
        self._warned: set[str] = set()

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
        uids = select.look_up(self._spec.table, names, TableReader(self._target))
        return {name: self._checked(name, uid) for name, uid in uids.items()}

    def resolve(self, names: Iterable[Name]) -> tuple[Mapping[Name, bytes | RefusedError], int]:
        """(UID or refusal of each name, how many of the UIDs are newly assigned)."""
        names = sorted(set(names))
        result: dict[Name, bytes | RefusedError] = {
            name: _not_storable(name) for name in names if uid_table.row_key(name.text) is None
        }
        result.update(self.look_up(names))
        assigned = 0
        for kind in uid_table.KINDS:
            missing = [name for name in names if name.kind == kind and name not in result]
            if not missing:
                continue
            if self._policy.creates(kind):
                created, new = self._assign(kind, missing)
                result.update(created)
                assigned += new
            else:
                flag = "metrics" if kind == "metrics" else kind + "s"
                result.update({name: _unknown(name, f"--auto_create_{flag}") for name in missing})
        return result, assigned

    def _assign(self, kind: str, names: Sequence[Name]) -> tuple[dict[Name, bytes | RefusedError], int]:
        """Assigns a UID to each name; (the UIDs, how many are new): a faster writer's UID is used."""
        result: dict[Name, bytes | RefusedError] = {}
        pending, assigned = list(names), 0
        with concurrent.futures.ThreadPoolExecutor(_CONNECTIONS) as pool:
            for _ in range(_ATTEMPTS):
                uids = self._new_uids(kind, len(pending))
                result.update({name: _exhausted(name) for name in pending[len(uids) :]})
                tried = list(zip(pending, uids, strict=False))
                outcomes = list(pool.map(lambda pair: self._map(*pair), tried))
                mapped = {
                    name: uid for (name, _), uid in zip(tried, outcomes, strict=True) if uid is not None
                }
                result.update(mapped)
                assigned += sum(mapped.get(name) == uid for name, uid in tried)
                pending = [name for name, _ in tried if name not in mapped]
                if not pending:
                    return result, assigned
        # All random ids were taken: the kind is full, or nearly full.
        result.update({name: _exhausted(name) for name in pending})
        return result, assigned

    def _new_uids(self, kind: str, n: int) -> list[bytes]:
        """Up to n unused UIDs; fewer if the kind is exhausted."""
        width = self._spec.widths[kind]
        last = uid_table.last_id(width)
        if kind == "metrics" and self._policy.random_metrics:
            return [uid_table.uid_bytes(random.randint(1, last), width) for _ in range(n)]
        highest = self._increment(kind, n)
        if highest > _WARN_SHARE * last and kind not in self._warned:
            self._warned.add(kind)
            _LOGGER.warning("%d of %d UIDs of kind %s are used", min(highest, last), last, kind)
        return [
            uid_table.uid_bytes(number, width)
            for number in range(highest - n + 1, highest + 1)
            if 0 < number <= last
        ]

    def _increment(self, kind: str, by: int) -> int:
        """Adds to the counter of a kind; its new value. Each lost answer wastes `by` ids."""
        column = (uid_table.ID_FAMILY, kind.encode())
        return increment(self._target, self._spec.table, uid_table.COUNTER_ROW, column, by)

    def _map(self, name: Name, uid: bytes) -> bytes | None:
        """Stores both mappings, reverse first; the name's UID, or None if `uid` belongs to another name."""
        stored, kind = uid_table.name_bytes(name.text), name.kind.encode()
        if self._create(uid, uid_table.NAME_FAMILY, kind, stored) != stored:
            return None
        return self._checked(name, self._create(stored, uid_table.ID_FAMILY, kind, uid))

    def _create(self, key: bytes, family: str, qualifier: bytes, value: bytes) -> bytes:
        """Stores a cell if the column has none; the value of the column afterwards."""
        cell = BigtableCell(family, qualifier, int(time.time() * 1000), value)
        table = self._spec.table
        values = create_cells(self._target, table, [BigtableRow(table, key, [cell])], {}).values
        return values[CellColumn(key, family, qualifier)]

    def _checked(self, name: Name, uid: bytes) -> bytes:
        width = self._spec.widths[name.kind]
        if len(uid) != width:
            raise UidWidthError(
                f"{name.kind} {name.text!r} has a UID of {len(uid)} bytes where {width} are configured: "
                f"set --uid_width_{name.kind.removesuffix('s')} as in the TSDs of this table"
            )
        return uid


class DryUidTable(UidTable):
    """A `UidTable` that assigns hashes of names, and stores nothing."""

    def _assign(self, kind: str, names: Sequence[Name]) -> tuple[dict[Name, bytes | RefusedError], int]:
        width = self._spec.widths[kind]
        uids: dict[Name, bytes | RefusedError] = {
            name: hashlib.blake2b(name.text.encode(), digest_size=width, key=kind.encode()).digest()
            for name in names
        }
        return uids, len(uids)


def _not_storable(name: Name) -> RefusedError:
    return RefusedError(
        Reason.NAME_NOT_STORABLE,
        f"{name.kind} {name.text[:80]!r} cannot be a row of the UID table: a name has 1 to "
        f"{uid_table.NAME_BYTES} characters of ISO-8859-1",
    )


def _unknown(name: Name, option: str) -> RefusedError:
    return RefusedError(
        Reason.UNKNOWN_NAME,
        f"No such name for '{name.kind}': '{name.text}': assign it, or let new ones in with {option}",
    )


def _exhausted(name: Name) -> RefusedError:
    return RefusedError(
        Reason.UIDS_EXHAUSTED,
        f"All Unique IDs for {name.kind} are already assigned: {name.text!r} gets none "
        "(wider UIDs need a new set of tables)",
    )
