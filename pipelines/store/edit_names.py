"""`timebeam names`: OpenTSDB's UID table listed, renamed in, freed of what has no rows, and fixed."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from timebeam.pipelines.options.parameters import UsageError, usage_errors
from timebeam.pipelines.options.parsing import note
from timebeam.pipelines.options.place import Place
from timebeam.pipelines.options.use_settings import settings_table
from timebeam.pipelines.output.printable import printable
from timebeam.schema.bits.times import HOUR_MS
from timebeam.schema.stores.opentsdb.keys import UidPair
from timebeam.schema.stores.opentsdb.uids import uid_table
from timebeam.schema.stores.opentsdb.uids.repair_uids import Repair, UidCapacity, UidMaps
from timebeam.transforms.bigtable.existing_tables import check_tables
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.care.range_leases import Leases, RangeLease
from timebeam.transforms.opentsdb.merge_uids import MergeTally, merge_uids
from timebeam.transforms.opentsdb.rename_uids import (
    NameChangeError,
    UidUse,
    apply_changes,
    drop_name,
    read_maps,
    read_use,
    rename,
    uid_to_merge,
)
from timebeam.transforms.rollup.rollup_job import rollup_tables

if TYPE_CHECKING:
    from timebeam.schema.stores import OpenTsdb

_SOON_DAYS = 365


@dataclasses.dataclass(frozen=True, slots=True)
class EditNamesOptions:
    """What is done to which names."""

    action: str
    argument: Sequence[str]
    use: bool
    wait_hours: int
    yes: bool
    rollup_config: str | None
    output: str


def run(place: Place, options: EditNamesOptions) -> int:
    """Does what the action says; the exit code is 1 if something is wrong and stays so.

    Raises:
      UsageError: the arguments are not those of the action, or the layout has no UIDs.
    """
    layout, target = place.opentsdb("UID tables"), place.target
    check_tables(target, layout.tables(), place.create_command())
    if options.action == "merge":
        return _merge(place, options, layout, target)
    return _ACTIONS[options.action](options, layout, target)


def _list(options: EditNamesOptions, layout: OpenTsdb, target: Target) -> int:
    """Lists names with their UIDs, and how full each kind is."""
    arguments = options.argument
    kind, prefix = (*arguments, "", "")[:2]
    if len(arguments) > 2 or kind not in ("", *uid_table.KINDS):
        raise UsageError("list takes a kind (metrics, tagk, tagv) and the beginning of names, or nothing")
    maps = read_maps(target, layout)
    use = read_use(target, layout) if options.use else None
    now_ms = int(time.time() * 1000)
    capacities = [maps.capacity(each, layout.options.uid_width(each), now_ms) for each in uid_table.KINDS]
    entries = _entries(layout, maps, use, kind, prefix)
    if options.output == "json":
        print(json.dumps({"names": list(entries), "kinds": [capacity._asdict() for capacity in capacities]}))
        return 0
    for entry in entries:
        counts = "  ".join(f"{name} {entry[name]:,}" for name in UidUse._fields if name in entry)
        print("  ".join(filter(None, (entry["kind"], entry["uid"], printable(entry["name"]), counts))))
    for capacity in capacities:
        print(_capacity_line(capacity))
    return 0


def _entries(
    layout: OpenTsdb,
    maps: UidMaps,
    use: Mapping[UidPair, UidUse] | None,
    kind: str,
    prefix: str,
) -> Iterator[dict[str, Any]]:
    """What --output json prints of each name, by kind and name."""
    for (each, stored), cell in sorted(maps.uids.items()):
        name = layout.options.names.shown(uid_table.name_text(stored))
        if kind in ("", each) and name.startswith(prefix):
            entry = {"kind": each, "name": name, "uid": cell.value.hex().upper()}
            if use is not None:
                entry |= use.get((each, cell.value), UidUse(0, 0, 0, 0))._asdict()
            yield entry


def _capacity_line(capacity: UidCapacity) -> str:
    """How full a kind is, and until when its UIDs last."""
    kind, names, used, possible, new_names, days_left = capacity
    text = f"{kind}: {names:,} names; {used:,} of {possible:,} UIDs are used"
    if days_left is None:
        return f"{text}; no new names in 30 days"
    days = f"last for {days_left:,.0f} days" if days_left < 100 * 365 else "last over 100 years"
    warning = "; wider UIDs need new tables: docs/use/copy.md"
    return f"{text}; at {new_names:,} new names in 30 days they {days}" + (
        warning if days_left < _SOON_DAYS else ""
    )


def _rename(options: EditNamesOptions, layout: OpenTsdb, target: Target) -> int:
    kind, old, new = _kind_and_names(options)
    now_ms = int(time.time() * 1000)
    with usage_errors(NameChangeError):
        uid = rename(target, layout, kind, old, new, now_ms, dry_run=not options.yes)
    done = "renamed" if options.yes else "would rename"
    if options.output == "json":
        print(
            json.dumps({"kind": kind, "old": old, "new": new, "uid": uid.hex().upper(), "done": options.yes})
        )
        return 0
    print(f"{done} {kind} {printable(old)} to {printable(new)}, UID {uid.hex().upper()}")
    if options.yes:
        print("restart TSDs, streams and `timebeam serve`: they use the old name until then")
    else:
        _print_dry()
    return 0


class _Merged(NamedTuple):
    """What a merge did, or would do.

    Attributes:
      is_dropped: whether the old UID was taken from its name.
    """

    old: bytes
    new: bytes
    tally: MergeTally
    is_dropped: bool


def _merge(place: Place, options: EditNamesOptions, layout: OpenTsdb, target: Target) -> int:
    """Moves the rows of one UID to another, and takes the UID from its name."""
    _kind_and_names(options)
    if layout.options.is_event_time:
        raise UsageError(
            "tables with cell_time=event cannot be merged: of two values at one time, one would be lost"
        )
    _uids_to_merge(options, layout, read_maps(target, layout))
    rollups: list[str] = []
    if options.rollup_config:
        rollups_layout, config = place.rollups(options.rollup_config)
        specs = rollup_tables(config, rollups_layout)
        check_tables(target, specs, place.create_command())
        rollups = [spec.name for spec in specs if spec.holds_points]
    if options.yes:
        leases = Leases(target, settings_table(place.table_prefix), "names merge")
        for line in leases.open():
            note(line)
        with leases.lease(moves=True) as lease:
            merged = _merged(options, layout, target, rollups, lease)
    else:
        merged = _merged(options, layout, target, rollups, None)
    tally = merged.tally
    if options.output == "json":
        print(json.dumps(tally._asdict() | {"done": merged.is_dropped}))
        return 1 if tally.kept else 0
    uids = f"UID {merged.old.hex().upper()} to UID {merged.new.hex().upper()}"
    print(
        f"{'moved' if options.yes else 'would move'} {tally.rows:,} rows, {tally.cells:,} cells from {uids}"
    )
    if tally.kept:
        print(
            f"{tally.kept:,} cells stay: corruption, or rollups of intervals that two series have: see "
            "docs/use/names.md"
        )
    if not options.yes:
        _print_dry()
    else:
        print(
            "restart TSDs and streams; if `timebeam names fix` finds rows with UID "
            f"{merged.old.hex()}, merge it"
        )
    return 1 if tally.kept else 0


def _merged(
    options: EditNamesOptions,
    layout: OpenTsdb,
    target: Target,
    rollups: Sequence[str],
    lease: RangeLease | None,
) -> _Merged:
    """Merges under a lease, or counts without one; reads the names, which another merge may have changed."""
    maps = read_maps(target, layout)
    old, new = _uids_to_merge(options, layout, maps)
    pair = (options.argument[0], old)
    tally = merge_uids(target, layout, rollups, pair, new, lease)
    is_dropped = False
    if lease is not None and not tally.kept:
        is_dropped = drop_name(target, layout, maps, pair, int(time.time() * 1000))
    return _Merged(old, new, tally, is_dropped)


def _uids_to_merge(options: EditNamesOptions, layout: OpenTsdb, maps: UidMaps) -> tuple[bytes, bytes]:
    """The UIDs of the names; raises UsageError if there are no two."""
    kind, old, new = _kind_and_names(options)
    with usage_errors(NameChangeError):
        old_uid, new_uid = (uid_to_merge(maps, layout, kind, text) for text in (old, new))
    if old_uid == new_uid:
        raise UsageError(f"{kind} {old!r} and {new!r} have the same UID, {new_uid.hex().upper()}")
    return old_uid, new_uid


def _free(options: EditNamesOptions, layout: OpenTsdb, target: Target) -> int:
    """Takes UIDs without rows from their names; deletes those that have waited."""
    maps, use = read_maps(target, layout), read_use(target, layout)
    now_ms = int(time.time() * 1000)

    def unused(before_ms: int) -> list[Repair]:
        retired = maps.retirements(layout.options, use, before_ms, now_ms)
        return [*maps.deletions(use, before_ms), *retired]

    repairs = unused(now_ms - options.wait_hours * HOUR_MS)
    waiting = len(unused(now_ms + 1)) - len(repairs)
    if waiting:
        note(f"unused UIDs that changed within --wait-hours {options.wait_hours} and wait: {waiting:,}")
    for kind in uid_table.KINDS:
        repairs += maps.orphan_repairs(kind, _in_rows(use), now_ms)
    return _carry_out(options, layout, target, repairs)


def _fix(options: EditNamesOptions, layout: OpenTsdb, target: Target) -> int:
    """Reports what is wrong in the UID table, and fixes it."""
    maps, use = read_maps(target, layout), read_use(target, layout)
    repairs = maps.repairs(layout.options, _in_rows(use), int(time.time() * 1000))
    return _carry_out(options, layout, target, repairs)


def _in_rows(use: Mapping[UidPair, UidUse]) -> set[UidPair]:
    """The UIDs that rows with points or rollups have."""
    return {pair for pair, counts in use.items() if counts.is_in_rows}


def _carry_out(options: EditNamesOptions, layout: OpenTsdb, target: Target, repairs: Iterable[Repair]) -> int:
    """Makes and prints changes, or only prints them; the exit code is 1 if one could not be made."""
    if options.action in ("free", "fix") and options.argument:
        raise UsageError(f"{options.action} takes no {options.argument[0]!r}")
    figures, failures = [], 0
    for repair in repairs:
        result = "would change"
        if not repair.changes:
            result = "not changed"
        elif options.yes:
            made = apply_changes(target, layout.options.uid_table, repair.changes)
            result = "changed" if len(made) == len(repair.changes) else "changed by another program meanwhile"
        failures += result not in ("changed", "would change")
        figures.append({"kind": repair.kind, "text": repair.text, "result": result})
        if options.output == "text":
            print(f"{result}: {repair.kind}: {printable(repair.text)}")
    if options.output == "json":
        print(json.dumps(figures))
    elif not figures:
        print("nothing to do")
    elif not options.yes:
        _print_dry()
    return 1 if failures else 0


def _kind_and_names(options: EditNamesOptions) -> Sequence[str]:
    """The kind, and the two names, that rename and merge take.

    Raises:
      UsageError: the arguments are not these.
    """
    arguments = options.argument
    if len(arguments) != 3 or arguments[0] not in uid_table.KINDS:
        raise UsageError(f"{options.action} takes KIND OLD NEW; KIND is one of {', '.join(uid_table.KINDS)}")
    return arguments


def _print_dry() -> None:
    print("nothing was changed: give --yes to change it")


_ACTIONS: Mapping[str, Callable[[EditNamesOptions, OpenTsdb, Target], int]] = {
    "list": _list,
    "rename": _rename,
    "free": _free,
    "fix": _fix,
}
