"""/api/query/last: the last points of series."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from google.api_core.exceptions import NotFound

from timebeam.pipelines.serve.api import Api
from timebeam.pipelines.serve.queries import check_method
from timebeam.schema.api.errors import ApiError, not_found
from timebeam.schema.api.last_query import LastQuery, last_query
from timebeam.schema.api.request import Request
from timebeam.schema.layouts import Scan, Selection, UidTables, UnknownNameError, find_capability
from timebeam.schema.meta.ts_meta import COUNTER, FAMILY, meta_table
from timebeam.schema.points import Series
from timebeam.transforms.query.points import find_series
from timebeam.transforms.query.tsuids import series_of_tsuids, tsuids_of

_HOUR_MS = 3_600_000


def last_points(api: Api, request: Request) -> Any:
    """The answer to /api/query/last; a series without a point has none in it.

    Raises:
      ApiError: the request is wrong, or names what is not there.
    """
    check_method(request, ("GET", "POST"))
    query = last_query(request)
    layout = find_capability(api.layout, UidTables)
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
    api: Api, layout: UidTables, query: LastQuery, tsuids: dict[Series, bytes]
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


def _last_writes(api: Api, layout: UidTables) -> Iterable[tuple[bytes, int]]:
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
    first_ms = max(0, (end_ms // _HOUR_MS - hours) * _HOUR_MS)
    last_ms = end_ms // _HOUR_MS * _HOUR_MS + _HOUR_MS - 1
    tags = {key: frozenset({value}) for key, value in series.tags}
    selection = Selection(series.metric, tags, first_ms, last_ms)
    found, damage = find_series(
        api.target, api.layout, selection, lambda other: other == series, meter=api.meter
    )
    api.skipped.extend(damage)
    for points in found:
        yield int(points.times_ms[-1]), points.values[-1:].tolist()[0]


def _body(query: LastQuery, series: Series, tsuid: bytes, time_ms: int, value: int | float) -> dict[str, Any]:
    """A point as IncomingDataPoint: its value is text."""
    body: dict[str, Any] = {"timestamp": time_ms, "value": str(value), "tsuid": tsuid.hex().upper()}
    return body | {"metric": series.metric, "tags": dict(series.tags)} if query.resolves_names else body
