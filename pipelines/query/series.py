"""`timebeam series`: which series there are, as OpenTSDB's /api/search/lookup tells, by patterns."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from timebeam.pipelines.options.parameters import UsageError, usage_errors
from timebeam.pipelines.options.parsing import note
from timebeam.pipelines.options.place import Place
from timebeam.pipelines.output.printable import printable
from timebeam.pipelines.output.write_results import Readable, csv_cell, csv_line, json_array
from timebeam.pipelines.query.database import Database
from timebeam.pipelines.query.listings import NameKind, find_series
from timebeam.schema.series.series_patterns import Listed, SeriesQuery, tag_patterns
from timebeam.transforms.read.find_series import why_nothing

if TYPE_CHECKING:
    pass

_SHOWN = 10


@dataclasses.dataclass(frozen=True, slots=True)
class ListOptions:
    """What `timebeam series` lists, and how."""

    metric: str
    tag: Sequence[str]
    source: str
    output: str
    csv_guard: bool


def list_series(place: Place, options: ListOptions) -> int:
    """Lists series, none are a result too; exit code 1 if some could not be read."""
    with usage_errors():
        pattern = SeriesQuery(options.metric, tag_patterns(options.tag))
        database = Database.of(place)
        database.check_tables()
        results, where = find_series(database, pattern, options.source)
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
        print(f"nothing found: {why_nothing(database.target, database.store)}", file=sys.stderr)
    return 1 if bad else 0


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

    kind: NameKind
    prefix: str
    max: int
    output: str


def list_names(place: Place, options: NamesOptions) -> int:
    """Lists names; none are a result too."""
    store = place.store
    if store.uids is None:
        raise UsageError(f"layout {store.name} has no table of names: try `timebeam series`")
    with usage_errors():
        names = Database.of(place, store=store).suggest(options.prefix, kind=options.kind, limit=options.max)
    if options.output == "json":
        print(json.dumps(names, ensure_ascii=False))
    else:
        for name in names:
            print(printable(name))
    return 0
