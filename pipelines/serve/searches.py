"""/api/suggest, /api/search/lookup and /api/uid/uidmeta: names and series out of the tables."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from typing import Any

from google.api_core.exceptions import NotFound

from timebeam.pipelines.serve.api import Api
from timebeam.pipelines.serve.queries import check_method
from timebeam.schema.api.errors import ApiError, not_found
from timebeam.schema.api.request import Request
from timebeam.schema.api.search import LookupQuery, lookup_body, lookup_query, suggest_query
from timebeam.schema.layouts import Name, SeriesIndex, SeriesMeta, UidTables, find_capability
from timebeam.schema.layouts.opentsdb import uid_table
from timebeam.schema.layouts.opentsdb.select import look_up, names_from
from timebeam.schema.meta.search import Listed, SeriesQuery
from timebeam.schema.meta.ts_meta import meta_table
from timebeam.schema.meta.uid_meta import QUALIFIERS, UidMeta
from timebeam.transforms.bigtable.reader import scan_keys
from timebeam.transforms.meta.find import Found, from_data, from_keys, from_meta, from_rows

_KINDS = {"metric": "metrics", "metrics": "metrics", "tagk": "tagk", "tagv": "tagv"}
"""Kinds of names by what requests call them."""


def suggest(api: Api, request: Request) -> Any:
    """The answer to /api/suggest."""
    check_method(request, ("GET", "POST"))
    query = suggest_query(request)
    try:
        return list(itertools.islice(_names(api, query.kind, query.start), query.limit))
    except UnicodeEncodeError:
        return []


def lookup(api: Api, request: Request) -> Any:
    """The answer to /api/search/lookup."""
    check_method(request, ("GET", "POST"))
    begun = time.perf_counter()
    query = lookup_query(request)
    listed = (one for one in _readable(api, _find(api, query)) if query.takes(one.series))
    results = list(itertools.islice(listed, query.limit) if query.limit > 0 else listed)
    return lookup_body(query, results, int((time.perf_counter() - begun) * 1000))


def metric_names(api: Api) -> Iterator[str]:
    """The names of all metrics."""
    if find_capability(api.layout, UidTables) or find_capability(api.layout, SeriesIndex):
        return _names(api, "metrics", "")
    listed = _readable(api, from_rows(api.target, api.layout, SeriesQuery("*", {}), api.meter))
    return iter(sorted({one.series.metric for one in listed}))


def _names(api: Api, kind: str, start: str) -> Iterator[str]:
    """The names of a kind that begin with `start`, ascending by their bytes.

    Raises:
      UnicodeEncodeError: none can begin so.
    """
    layout = find_capability(api.layout, UidTables)
    if layout is None:
        yield from _names_of_series(api, kind, start)
    else:
        yield from (name for name, _ in names_from(layout.uid_table, kind, start, api.reader))


def uid_meta(api: Api, request: Request) -> Any:
    """The answer to /api/uid/uidmeta: what is stored of a name; what is not stored is empty."""
    check_method(request, ("GET",))
    layout = find_capability(api.layout, UidTables)
    if layout is None:
        raise not_found()
    text, kind = request.required("uid"), _KINDS.get(request.required("type").lower())
    if kind is None:
        raise ApiError(f"Unknown type: {request.required('type')}")
    try:
        uid = bytes.fromhex(text)
    except ValueError as error:
        raise ApiError(f"UID {text} is not hexadecimal") from error
    row = api.reader.rows(layout.uid_table, [uid]).get(uid)
    cells = {cell.qualifier: cell.value for cell in row.cells} if row is not None else {}
    if kind.encode() not in cells:
        raise ApiError("Could not find the requested UID", 404)
    stored = cells.get(QUALIFIERS[kind])
    meta = UidMeta(kind, 0) if stored is None else UidMeta.from_bytes(kind, stored)
    return {
        "uid": uid.hex().upper(),
        "type": QUALIFIERS[kind].decode().removesuffix("_meta").upper(),
        "name": uid_table.name_text(cells[kind.encode()]),
        "description": meta.description,
        "notes": meta.notes,
        "created": meta.created,
        "custom": None if meta.custom is None else dict(meta.custom),
        "displayName": meta.display_name,
    }


def _find(api: Api, query: LookupQuery) -> Iterator[Found]:
    """The series that may answer a lookup, by TSUID; without metadata one for each row.

    Raises:
      ApiError: a name is unknown, or the layout cannot tell which series there are.
    """
    patterns = SeriesQuery("*" if query.metric is None else query.metric, {})
    layout = find_capability(api.layout, SeriesMeta)
    if layout is None:
        keyed = find_capability(api.layout, SeriesIndex)
        if keyed is None:
            raise not_found()
        return iter(
            sorted(
                _readable(api, from_keys(api.target, keyed, patterns, api.meter)), key=lambda one: one.series
            )
        )
    names = [Name(*pair) for pair in query.names()]
    known = look_up(layout.uid_table, names, api.reader)
    for name in names:
        if name not in known:
            details = f"No such name for '{name.kind}': '{name.text}'"
            raise ApiError("Unable to resolve one or more UIDs", 404, details)
    if query.use_meta and _has_meta(api, layout):
        return from_meta(api.target, layout, patterns, api.meter)
    if not query.use_meta:
        return from_data(api.target, layout, patterns, api.meter, once=False)
    found = _readable(api, from_data(api.target, layout, patterns, api.meter))
    return iter(sorted(found, key=lambda one: one.tsuid or b""))


def _readable(api: Api, found: Iterable[Found]) -> Iterator[Listed]:
    """The series; rows that cannot be read go to `api.skipped`."""
    for one in found:
        if isinstance(one, Listed):
            yield one
        else:
            api.skipped.append(f"row {one[0].hex()}: {one[1]}")


def _has_meta(api: Api, layout: SeriesMeta) -> bool:
    """Whether there is a meta table with rows."""
    try:
        table = meta_table(layout.options.table_prefix).name
        return next(iter(scan_keys(api.target, table, limit=1)), None) is not None
    except NotFound:
        return False


def _names_of_series(api: Api, kind: str, start: str) -> list[str]:
    """Names of a kind in a layout whose row keys hold them, ascending by their bytes.

    None for declared tables, whose names are found by reading all rows: Grafana asks to see whether the
    server works.
    """
    keyed = find_capability(api.layout, SeriesIndex)
    if keyed is None:
        return []
    names: set[str] = set()
    for one in _readable(api, from_keys(api.target, keyed, SeriesQuery("*", {}), api.meter)):
        if kind == "metrics":
            names.add(one.series.metric)
        else:
            names.update(tag[kind == "tagv"] for tag in one.series.tags)
    return sorted((name for name in names if name.startswith(start)), key=str.encode)
