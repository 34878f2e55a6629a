"""Lookups in the tables: /api/query/last, /api/suggest and /api/search/lookup."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from google.api_core.exceptions import NotFound

from timebeam.pipelines.query.listings import names_of, readable
from timebeam.pipelines.serve.api import Api
from timebeam.schema.bits.times import HOUR_MS, floor_to
from timebeam.schema.core.point_fragments import Name
from timebeam.schema.core.points import Series
from timebeam.schema.core.selection import Scan, Selection, UnknownNameError
from timebeam.schema.series.series_patterns import Listed, SeriesQuery
from timebeam.schema.stores import find_opentsdb
from timebeam.schema.stores.opentsdb.http.api_request import ApiError, Request, not_found
from timebeam.schema.stores.opentsdb.http.last_suggest_lookup import (
    LastQuery,
    LookupQuery,
    SuggestQuery,
    last_query,
    lookup_body,
    lookup_query,
    suggest_query,
)
from timebeam.schema.stores.opentsdb.meta_documents import COUNTER, FAMILY, meta_table
from timebeam.schema.stores.opentsdb.uids.uid_table import look_up, look_up_shown
from timebeam.transforms.opentsdb.stored_series import (
    from_data,
    from_meta,
    has_rows,
    series_of_tsuids,
    tsuids_of,
)
from timebeam.transforms.query.read_points import find_series
from timebeam.transforms.read.find_series import Found, from_keys, from_rows

if TYPE_CHECKING:
    from timebeam.schema.stores import OpenTsdb

Element = TypeVar("Element")


def last_points(api: Api, request: Request) -> Any:
    """The answer to /api/query/last; a series without a point has none in it.

    Raises:
      ApiError: the request is wrong, or names what is not there.
    """
    query = last_query(request)
    layout = find_opentsdb(api.store)
    if layout is None:
        raise not_found()
    try:
        by_tsuid = series_of_tsuids(layout, query.tsuids, api.reader)
        tsuids = {series: tsuid for tsuid, series in by_tsuid.items()}
        return [
            _body(query, series, tsuid, *point)
            for series, tsuid, end_ms, hours in _asked(api, layout, query, tsuids)
            for point in _last_point(api, series, end_ms, hours)
        ]
    except UnknownNameError as error:
        raise ApiError(error.args[0], details=error.args[0]) from error
    except ValueError as error:
        raise ApiError(str(error)) from error


def _asked(
    api: Api, layout: OpenTsdb, query: LastQuery, tsuids: dict[Series, bytes]
) -> Iterator[tuple[Series, bytes, int, int]]:
    """(series, TSUID, time in ms, hours before it to look at) of each series that is asked for.

    Without hours to look back it is the hour of the last write, which `ts_ctr` in the meta table has.
    """
    if query.back_scan:
        now_ms = int(time.time() * 1000)
        named = tsuids_of(layout, query.series, api.reader)
        for series, tsuid in (tsuids | named).items():
            yield series, tsuid, now_ms, query.back_scan
        return
    _check_names(api, layout, query.series)
    wanted_tsuids = {*tsuids.values()}
    for tsuid, written_ms in _last_writes(api, layout):
        if tsuid not in wanted_tsuids and not query.series:
            continue
        try:
            (series,) = series_of_tsuids(layout, [tsuid.hex()], api.reader).values()
        except ValueError as error:
            api.skipped.append(f"row {tsuid.hex()} of the meta table: {error}")
            continue
        if series in tsuids or any(_has_tags(series, wanted) for wanted in query.series):
            yield series, tsuid, written_ms, 0


def _check_names(api: Api, layout: OpenTsdb, series: Collection[Series]) -> None:
    """Raises UnknownNameError for the first name without a UID, as meta/TSUIDQuery.resolveMetric does."""
    names = [name for named in series for name in layout.uids.names(named)]
    known = look_up(layout.options.uid_table, set(names), api.reader)
    for name in names:
        if name not in known:
            message = f"No such name for '{name.kind}': '{name.text}'"
            raise UnknownNameError(message, name.text, lambda _: iter(()))


def _last_writes(api: Api, layout: OpenTsdb) -> Iterable[tuple[bytes, int]]:
    """(TSUID, when its last point was received in ms) of the series in the meta table."""
    table = meta_table(layout.options.table_prefix).name
    try:
        return [
            (row.key, cell.timestamp_ms)
            for row in api.reader.scan(Scan(table, [(b"", b"")]))
            for cell in row.cells
            if (cell.family, cell.qualifier) == (FAMILY, COUNTER)
        ]
    except NotFound:
        return []


def _has_tags(series: Series, named: Series) -> bool:
    return series.metric == named.metric and set(named.tags) <= set(series.tags)


def _last_point(api: Api, series: Series, end_ms: int, hours: int) -> Iterator[tuple[int, int | float]]:
    """(time in ms, value) of the last point of a series in some hours; nothing if there is none."""
    first_ms = max(0, floor_to(end_ms, HOUR_MS) - hours * HOUR_MS)
    last_ms = floor_to(end_ms, HOUR_MS) + HOUR_MS - 1
    tags = {key: frozenset({value}) for key, value in series.tags}
    selection = Selection(series.metric, tags, first_ms, last_ms, explicit_tags=True)
    found, corruption, _ = find_series(api.target, api.store, selection, lambda other: other == series)
    api.skipped.extend(corruption)
    for points in found:
        yield int(points.times_ms[-1]), points.values[-1:].tolist()[0]


def _body(query: LastQuery, series: Series, tsuid: bytes, time_ms: int, value: int | float) -> dict[str, Any]:
    """A point as IncomingDataPoint: its value is text."""
    body: dict[str, Any] = {"timestamp": time_ms, "value": str(value), "tsuid": tsuid.hex().upper()}
    return body | {"metric": series.metric, "tags": dict(series.tags)} if query.resolves_names else body


def suggest(api: Api, request: Request) -> Any:
    """The answer to /api/suggest."""
    query = suggest_query(request)
    try:
        return _listed(
            api,
            query,
            lambda: list(itertools.islice(names_of(api, query.kind, query.start, api.skipped), query.limit)),
        )
    except UnicodeEncodeError:
        return []


def lookup(api: Api, request: Request) -> Any:
    """The answer to /api/search/lookup."""
    begun = time.perf_counter()
    query = lookup_query(request)

    def read() -> list[Listed]:
        listed = (one for one in readable(_find(api, query), api.skipped) if query.takes(one.series))
        return list(itertools.islice(listed, query.limit) if query.limit > 0 else listed)

    return lookup_body(query, _listed(api, query, read), int((time.perf_counter() - begun) * 1000))


_MOST_KEPT = 10_000
"""Members of a list that is kept."""


def _listed(api: Api, query: SuggestQuery | LookupQuery, read: Callable[[], list[Element]]) -> list[Element]:
    """A list that was read less than a minute ago, or is read now; one with unreadable rows is not kept."""
    if api.caches is None:
        return read()
    kept: list[Element] | None = api.caches.lists.get(query)
    if kept is None:
        kept = read()
        if not api.skipped and len(kept) <= _MOST_KEPT:
            api.caches.lists[query] = kept
    return kept


def metric_names(api: Api) -> Iterator[str]:
    """The names of all metrics."""
    if find_opentsdb(api.store) or api.store.index:
        return names_of(api, "metrics", "", api.skipped)
    listed = readable(from_rows(api.target, api.store, SeriesQuery("*", {})), api.skipped)
    return iter(sorted({one.series.metric for one in listed}))


def _find(api: Api, query: LookupQuery) -> Iterator[Found]:
    """The series that may answer a lookup, by TSUID; without metadata one for each row.

    Raises:
      ApiError: a name is unknown, or the layout cannot tell which series there are.
    """
    patterns = SeriesQuery("*" if query.metric is None else query.metric, {})
    layout = find_opentsdb(api.store)
    if layout is None:
        if api.store.index is None:
            raise not_found()
        return iter(
            sorted(
                readable(from_keys(api.target, api.store, patterns), api.skipped),
                key=lambda one: one.series,
            )
        )
    names = [Name(*pair) for pair in query.names()]
    known = look_up_shown(layout.options, names, api.reader)
    for name in names:
        if name not in known:
            details = f"No such name for '{name.kind}': '{name.text}'"
            raise ApiError("Unable to resolve one or more UIDs", 404, details)
    if query.use_meta and has_rows(api.target, meta_table(layout.options.table_prefix).name):
        return from_meta(api.target, layout, patterns)
    if not query.use_meta:
        return from_data(api.target, layout, patterns, once=False)
    found = readable(from_data(api.target, layout, patterns), api.skipped)
    return iter(sorted(found, key=lambda one: one.tsuid or b""))
