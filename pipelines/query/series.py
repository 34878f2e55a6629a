"""`timebeam series`: which series there are, as OpenTSDB's /api/search/lookup tells, by patterns."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from timebeam.pipelines.options.parameters import UsageError, usage_errors
from timebeam.pipelines.options.parsing import note
from timebeam.pipelines.options.place import Place
from timebeam.pipelines.output.printable import printable
from timebeam.pipelines.output.write_results import Readable, csv_cell, csv_line, json_array
from timebeam.schema.core.contract import ReadableStore
from timebeam.schema.core.rows import TableSpec
from timebeam.schema.series.series_patterns import Listed, SeriesQuery
from timebeam.schema.stores import as_opentsdb, find_opentsdb
from timebeam.transforms.bigtable.existing_tables import check_tables
from timebeam.transforms.bigtable.read_ranges import scan_keys
from timebeam.transforms.bigtable.target import BigtableError
from timebeam.transforms.opentsdb.stored_series import (
    check_storable,
    from_data,
    from_meta,
    meta_of,
    shown_names,
)
from timebeam.transforms.read.find_series import Found, from_keys, from_rows, why_nothing

if TYPE_CHECKING:
    from timebeam.schema.stores import OpenTsdb

_SHOWN = 10


@dataclasses.dataclass(frozen=True, slots=True)
class ListOptions:
    """What `timebeam series` lists, and how."""

    metric: str
    tag: Sequence[str]
    source: str
    output: str
    csv_guard: bool


def wanted_of(metric: str, tag: Sequence[str]) -> SeriesQuery:
    """What is looked for.

    Raises:
      UsageError: a tag is not k=v.
    """
    tags: dict[str, tuple[str, ...]] = {}
    for text in tag:
        key, equals, values = text.partition("=")
        if not key or not equals or not values or key in tags:
            raise UsageError(f"--tag {text}: give each key once, as k=v, k=v|w or k=*")
        tags[key] = tuple(sorted(set(values.split("|"))))
    return SeriesQuery(metric, tags)


def list_series(place: Place, options: ListOptions) -> int:
    """Lists series, none are a result too; exit code 1 if some could not be read."""
    layout, target, pattern = place.readable(), place.target, wanted_of(options.metric, options.tag)
    check_tables(target, layout.tables(), place.create_command())
    results, where = find_series(place, layout, options.source, pattern)
    listing = Readable(results, Listed)
    lines = {
        "text": _text(listing),
        "json": json_array(map(_json, listing)),
        "csv": _csv(listing, options.csv_guard),
    }
    for line in lines[options.output]:
        print(line)
    bad = listing.unreadable
    for key, why in bad[:_SHOWN]:
        print(f"skipped: row {key.hex()}: {why}", file=sys.stderr)
    if len(bad) > _SHOWN:
        print(f"and {len(bad) - _SHOWN:,} more", file=sys.stderr)
    note(f"{listing.count:,} series, from {where}")
    if not listing.count:
        print(f"nothing found: {why_nothing(target, layout)}", file=sys.stderr)
    return 1 if bad else 0


def find_series(
    place: Place, layout: ReadableStore, source: str, pattern: SeriesQuery
) -> tuple[Iterator[Found], str]:
    """(what is found, where).

    Args:
      layout: of the place.
      source: as the option of `timebeam series`.

    Raises:
      UsageError: the layout cannot tell, or no name can be so.
    """
    with_meta, target = find_opentsdb(layout), place.target
    if with_meta is not None:
        values = itertools.chain.from_iterable(pattern.tags.values())
        _check_storable(with_meta, pattern.metric, *pattern.tags, *values)
        meta = meta_of(with_meta)
        if _uses_meta(place, source, meta):
            return from_meta(target, with_meta, pattern), f"the meta table {meta.name}"
        return from_data(target, with_meta, pattern), f"the keys of the data table {with_meta.data_table}"
    if source != "auto":
        place.opentsdb("metadata")
    tables = ", ".join(spec.name for spec in layout.tables() if spec.holds_points)
    if layout.index is None:
        return from_rows(target, layout, pattern), f"the rows of {tables}"
    return from_keys(target, layout, pattern), f"the keys of table {tables}"


def _check_storable(layout: OpenTsdb, *texts: str) -> None:
    """Raises UsageError for a name, or a pattern, that no name of OpenTSDB can match."""
    with usage_errors():
        check_storable(layout, texts)


def _uses_meta(place: Place, source: str, meta: TableSpec) -> bool:
    """Whether the meta table is asked; raises BigtableError if it is to be asked, and is not there."""
    if source == "data":
        return False
    try:
        check_tables(place.target, [meta], place.create_command() + " --meta")
    except BigtableError:
        if source == "meta":
            raise
        return False
    return source == "meta" or next(scan_keys(place.target, meta.name), None) is not None


def _text(listing: Iterable[Listed]) -> Iterator[str]:
    for listed in listing:
        name = printable(str(listed.series))
        yield f"{listed.tsuid.hex().upper()}  {name}" if listed.tsuid else name


def _json(listed: Listed) -> str:
    """As in the `results` of /api/search/lookup, and what the metadata says beside it."""
    members: dict[str, object] = {"tsuid": listed.tsuid.hex().upper()} if listed.tsuid else {}
    members |= {"metric": listed.series.metric, "tags": dict(listed.series.tags)}
    if listed.series.resources:
        members["resources"] = dict(listed.series.resources)
    if listed.tsuid:
        members |= {"created": listed.created_s, "points": listed.points}
    return json.dumps(members, ensure_ascii=False)


def _csv(listing: Iterable[Listed], guard: bool) -> Iterator[str]:
    yield csv_line(("tsuid", "metric", "tags", "created", "points"))
    for listed in listing:
        tags = " ".join(f"{key}={value}" for key, value in listed.series.tags + listed.series.resources)
        tsuid = listed.tsuid.hex().upper() if listed.tsuid else ""
        names = (csv_cell(text, guard) for text in (listed.series.metric, tags))
        yield csv_line((tsuid, *names, listed.created_s, listed.points))


@dataclasses.dataclass(frozen=True, slots=True)
class NamesOptions:
    """What `timebeam suggest` lists, and how."""

    kind: str
    prefix: str
    max: int
    output: str


def list_names(place: Place, options: NamesOptions) -> int:
    """Lists names; none are a result too."""
    layout, target = place.store, place.target
    if layout.uids is None:
        raise UsageError(f"layout {layout.name} has no table of names: try `timebeam series`")
    with_uids = as_opentsdb(layout, "UID tables")
    _check_storable(with_uids, options.prefix)
    check_tables(target, layout.tables(), place.create_command())
    matches = shown_names(target, with_uids, options.kind, options.prefix)
    names = list(itertools.islice(matches, options.max))
    if options.output == "json":
        print(json.dumps(names, ensure_ascii=False))
    else:
        for name in names:
            print(printable(name))
    return 0
