"""The names of OpenTSDB's UID table: what uses them, and changes that are safe beside TSDs and other writers.

Each cell changes by compare-and-set, in an order that leaves every UID of a row with a name. A change that
was interrupted is finished by the same call.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from timebeam.schema.bits.reasons import RejectedError
from timebeam.schema.core.rows import Cell
from timebeam.schema.series.series_limits import counts_table
from timebeam.schema.stores.opentsdb.keys import UidPair, is_of_series, tsuid_pairs
from timebeam.schema.stores.opentsdb.meta_documents import meta_table
from timebeam.schema.stores.opentsdb.options import BASE_BYTES
from timebeam.schema.stores.opentsdb.trees.tree_cells import leaf_tsuid
from timebeam.schema.stores.opentsdb.uids import uid_table
from timebeam.schema.stores.opentsdb.uids.repair_uids import UidChange, UidMaps
from timebeam.transforms.bigtable.compare_and_set import Replacement, replace_cells
from timebeam.transforms.bigtable.existing_tables import table_exists, table_names
from timebeam.transforms.bigtable.read_ranges import scan_keys
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.opentsdb.trees.tree_table import tree_table
from timebeam.transforms.read.table_reader import read_rows, scan_table
from timebeam.transforms.rollup.changed_hours import changed_hours_table

if TYPE_CHECKING:
    from timebeam.schema.stores.opentsdb.layout import OpenTsdb


class NameChangeError(ValueError):
    """A name cannot be changed; the message says why, and what to do."""


class UidUse(NamedTuple):
    """What uses a UID.

    Attributes:
      series: series of the data table.
      rows: rows of the data table.
      rollups: rows of tables of rollups and pre-aggregates.
      others: rows of metadata, and leaves of trees.
    """

    series: int
    rows: int
    rollups: int
    others: int

    @property
    def is_in_rows(self) -> bool:
        """Whether rows with points or rollups have it."""
        return self.rows + self.rollups > 0


def read_maps(target: Target, layout: OpenTsdb) -> UidMaps:
    """The UID table."""
    return UidMaps(scan_table(target, layout.options.uid_table))


def read_use(target: Target, layout: OpenTsdb) -> dict[UidPair, UidUse]:
    """What uses each UID, by one scan of the row keys of all tables; UIDs without use are missing.

    It holds one number for each series in memory. A table whose name begins with the prefix counts as a table
    of rollups, unless it belongs to a longer prefix with a UID table of its own.
    """
    series: collections.Counter[UidPair] = collections.Counter()
    rows: collections.Counter[UidPair] = collections.Counter()
    rollups: collections.Counter[UidPair] = collections.Counter()
    others: collections.Counter[UidPair] = collections.Counter()
    for tsuid, count in _rows_by_tsuid(target, layout, layout.data_table).items():
        for pair in _pairs(layout, tsuid):
            series[pair] += 1
            rows[pair] += count
    for table in tables_of_rollups(target, layout):
        _count_pairs(layout, _rows_by_tsuid(target, layout, table), rollups)
    prefix = layout.options.table_prefix
    if table_exists(target, meta_table(prefix).name):
        _count_pairs(layout, dict.fromkeys(scan_keys(target, meta_table(prefix).name), 1), others)
    if table_exists(target, tree_table(prefix).name):
        _count_pairs(layout, collections.Counter(_leaves(target, tree_table(prefix).name)), others)
    return {
        pair: UidUse(series[pair], rows[pair], rollups[pair], others[pair])
        for pair in {*rows, *rollups, *others}
    }


def _rows_by_tsuid(target: Target, layout: OpenTsdb, table: str) -> collections.Counter[bytes]:
    """The number of rows of each series of a table with the keys of a data table."""
    options = layout.options
    salt_end, base_at = options.salt_width, options.salt_width + options.uid_width_metric
    tags_at = base_at + BASE_BYTES
    return collections.Counter(
        key[salt_end:base_at] + key[tags_at:]
        for key in scan_keys(target, table)
        if is_of_series(options, key)
    )


def _count_pairs(
    layout: OpenTsdb, rows_by_tsuid: dict[bytes, int], counts: collections.Counter[UidPair]
) -> None:
    """Adds the rows of each UID of some series."""
    for tsuid, count in rows_by_tsuid.items():
        for pair in _pairs(layout, tsuid):
            counts[pair] += count


def _pairs(layout: OpenTsdb, tsuid: bytes) -> Sequence[UidPair]:
    """The distinct UIDs of a series; none if it is not a TSUID."""
    with contextlib.suppress(ValueError):
        return sorted(set(tsuid_pairs(layout.options, tsuid)))
    return ()


def tables_of_rollups(target: Target, layout: OpenTsdb) -> Iterator[str]:
    """The tables of this prefix that are not those of the layout, of its settings, or of a longer prefix."""
    prefix = layout.options.table_prefix
    suffix = layout.options.uid_table.removeprefix(prefix)
    names = [name for name in table_names(target) if name.startswith(prefix)]
    longer = tuple(
        name.removesuffix(suffix)
        for name in names
        if name.endswith(suffix) and name != layout.options.uid_table
    )
    other_tables = {
        layout.data_table,
        layout.options.uid_table,
        meta_table(prefix).name,
        tree_table(prefix).name,
    }
    other_tables |= {prefix + "timebeam", changed_hours_table(layout).name, counts_table(prefix).name}
    for name in names:
        if name not in other_tables and not name.startswith(longer):
            yield name


def _leaves(target: Target, table: str) -> Iterator[bytes]:
    """The TSUIDs of the leaves of all trees."""
    for row in scan_table(target, table):
        for cell in row.cells:
            tsuid = leaf_tsuid(cell)
            if tsuid:
                yield tsuid


def apply_changes(target: Target, table: str, changes: Iterable[UidChange]) -> list[UidChange]:
    """Makes changes one after the other, until a cell is no longer what it was; those that were applied."""
    applied = []
    for change in changes:
        if not replace_cells(target, table, [Replacement(*change)])[0]:
            break
        applied.append(change)
    return applied


def uid_to_merge(maps: UidMaps, layout: OpenTsdb, kind: str, text: str) -> bytes:
    """The UID of a name, or the UID itself, in hex, of a name that has another UID or none.

    Raises:
      NameChangeError: there is none.
    """
    forward = maps.uids.get((kind, _stored(layout, kind, text)))
    if forward is not None:
        return forward.value
    with contextlib.suppress(ValueError):
        uid = bytes.fromhex(text)
        if (kind, uid) in maps.names:
            return uid
    raise NameChangeError(f"No such name or UID for '{kind}': {text!r}")


def drop_name(target: Target, layout: OpenTsdb, maps: UidMaps, pair: UidPair, now_ms: int) -> bool:
    """Takes a UID without rows from its name; returns whether the name has lost it."""
    changes = [
        change
        for repair in maps.retirements(layout.options, (), now_ms + 1, now_ms, only=pair)
        for change in repair.changes
    ]
    return len(apply_changes(target, layout.options.uid_table, changes)) == len(changes)


def rename(
    target: Target, layout: OpenTsdb, kind: str, old: str, new: str, now_ms: int, *, dry_run: bool
) -> bytes:
    """Gives a UID a new name, beside running writers; the UID. A rename that was interrupted is finished.

    Forward mapping of the new name, reverse mapping, then the old forward mapping is deleted: at each time
    every UID has a name, and both names, or one, find it.

    Args:
      now_ms: the timestamp of the new cells.

    Raises:
      NameChangeError: there is no such name, the new name has a UID, or is not allowed, or another program
        changed the cells meanwhile.
    """
    changes = rename_changes(target, layout, kind, old, new, now_ms)
    if not dry_run:
        applied = apply_changes(target, layout.options.uid_table, changes)
        if len(applied) < len(changes):
            if len(applied) == 1 and applied[0].old is None:
                created = applied[0]  # must not stay beside a third name
                apply_changes(
                    target, layout.options.uid_table, [UidChange(created.key, created.new, created.old)]
                )
            raise NameChangeError(
                f"{kind} {old!r} was changed by another program meanwhile: see `timebeam names list {kind} "
                f"{old}`, and try again"
            )
    cell = changes[-1].old
    assert cell is not None
    return cell.value


def rename_changes(
    target: Target, layout: OpenTsdb, kind: str, old: str, new: str, now_ms: int
) -> Sequence[UidChange]:
    """The changes of a rename that are not made yet, in their order; the last one deletes the old name.

    Raises:
      NameChangeError: see `rename`.
    """
    old_key, new_key = _stored(layout, kind, old), _stored(layout, kind, new)
    if old_key == new_key:
        raise NameChangeError(f"{kind} {old!r} has that name already")
    cells = {
        key: cell
        for key, row in read_rows(target, layout.options.uid_table, [old_key, new_key]).items()
        for cell in row.cells
        if (cell.family, cell.qualifier) == (uid_table.ID_FAMILY, kind.encode())
    }
    forward, new_forward = cells.get(old_key), cells.get(new_key)
    if forward is None:
        raise NameChangeError(f"No such name for '{kind}': {old!r}" + _renamed_before(new, new_forward))
    uid = forward.value
    if new_forward is not None and new_forward.value != uid:
        raise NameChangeError(
            f"{kind} {new!r} has the UID {new_forward.value.hex()}: to read both as one, "
            f"`timebeam names merge {kind} {old} {new}`"
        )
    row = read_rows(target, layout.options.uid_table, [uid]).get(uid)
    reverse = next(
        (
            cell
            for cell in (row.cells if row else ())
            if (cell.family, cell.qualifier) == (uid_table.NAME_FAMILY, kind.encode())
        ),
        None,
    )
    if reverse is None or reverse.value not in (old_key, new_key):
        raise NameChangeError(
            f"UID {uid.hex()} is not mapped back to {old!r}: run `timebeam names fix` first"
        )
    changes = []
    if new_forward is None:
        changes.append(UidChange(new_key, None, forward._replace(timestamp_ms=now_ms)))
    if reverse.value == old_key:
        renamed = reverse._replace(timestamp_ms=max(now_ms, reverse.timestamp_ms), value=new_key)
        changes.append(UidChange(uid, reverse, renamed))
    return [*changes, UidChange(old_key, forward, None)]


def _stored(layout: OpenTsdb, kind: str, name: str) -> bytes:
    """The stored bytes of a name; raises NameChangeError if it is not allowed."""
    stored = layout.options.names.stored(name)
    try:
        uid_table.check_name(kind, stored)
    except RejectedError as error:
        raise NameChangeError(error.message) from error
    return uid_table.name_bytes(stored)


def _renamed_before(new: str, cell: Cell | None) -> str:
    return f"; {new!r} has the UID {cell.value.hex()}: renamed before?" if cell is not None else ""
