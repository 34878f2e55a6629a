"""/api/annotation, /api/uid/uidmeta and /api/uid/tsmeta: what is stored beside points.

tsd/AnnotationRpc and tsd/UniqueIdRpc of OpenTSDB 2.4.1, by GET.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from google.api_core.exceptions import NotFound

from timebeam.pipelines.serve.api import Api
from timebeam.schema.core.annotations import NotAnAnnotationError, parse_stored
from timebeam.schema.core.point_fragments import Name
from timebeam.schema.core.rows import Row
from timebeam.schema.series.series_patterns import SeriesQuery
from timebeam.schema.stores import find_opentsdb
from timebeam.schema.stores.opentsdb.columns import annotation_cells
from timebeam.schema.stores.opentsdb.http.api_request import ApiError, Request, not_found, parse_time
from timebeam.schema.stores.opentsdb.http.last_suggest_lookup import metric_and_tags
from timebeam.schema.stores.opentsdb.http.query_answer import annotation_body
from timebeam.schema.stores.opentsdb.keys import tsuid_pairs
from timebeam.schema.stores.opentsdb.meta_documents import (
    COUNTER,
    DOCUMENT,
    QUALIFIERS,
    TsMeta,
    UidMeta,
    counter_value,
    meta_table,
)
from timebeam.schema.stores.opentsdb.options import Names
from timebeam.schema.stores.opentsdb.uids import uid_table
from timebeam.schema.stores.opentsdb.uids.uid_table import look_up_shown
from timebeam.transforms.opentsdb.stored_series import from_meta

if TYPE_CHECKING:
    from timebeam.schema.stores import OpenTsdb

_KINDS = {"metric": "metrics", "metrics": "metrics", "tagk": "tagk", "tagv": "tagv"}
"""Kinds of names by what requests call them."""


def annotation(api: Api, request: Request) -> Any:
    """The answer to /api/annotation: the annotation of a series, or the global one, of a start."""
    layout = find_opentsdb(api.store)
    if layout is None:
        raise not_found()
    tsuid = _hex(request.parameter("tsuid") or "", "TSUID")
    try:
        start_s = parse_time(request.parameter("start_time") or "0", None, 0) // 1000
        if start_s < 1:
            raise ApiError("Missing start time")
        place = annotation_cells.place(layout.options, tsuid, start_s)
        former = annotation_cells.former_place(layout.options, tsuid, start_s).qualifier
    except ValueError as error:
        raise ApiError(str(error)) from error
    cells = _cells(api.reader.rows(layout.data_table, [place.key]).get(place.key))
    value = cells.get(place.qualifier)
    if value is None and annotation_cells.starts_at(cells.get(former, b""), start_s):
        value = cells[former]
    if value is None:
        raise ApiError("Unable to locate annotation in storage", 404)
    try:
        return annotation_body(parse_stored(value))
    except NotAnAnnotationError as error:
        raise ApiError(f"The annotation is corrupt: {error}") from error


def uid_meta(api: Api, request: Request) -> Any:
    """The answer to /api/uid/uidmeta: what is stored of a name; what is not stored is empty."""
    layout = find_opentsdb(api.store)
    if layout is None:
        raise not_found()
    uid, kind = _hex(request.required("uid"), "UID"), _KINDS.get(request.required("type").lower())
    if kind is None:
        raise ApiError(f"Unknown type: {request.required('type')}")
    rows = api.reader.rows(layout.options.uid_table, [uid])
    if kind.encode() not in _cells(rows.get(uid)):
        raise ApiError("Could not find the requested UID", 404)
    return _uid_body(layout.options.names, kind, uid, rows)


def ts_meta(api: Api, request: Request) -> Any:
    """The answer to /api/uid/tsmeta: of a TSUID, or a list of those of a metric and tags, `m`."""
    layout = find_opentsdb(api.store)
    if layout is None:
        raise not_found()
    try:
        if request.has("tsuid"):
            bodies = _ts_bodies(api, layout, [_hex(request.required("tsuid"), "TSUID")])
            if not bodies:
                raise ApiError("Could not find Timeseries meta data", 404)
            return bodies[0]
        metric, tags = metric_and_tags(request.required("m"))
        named = {key: value for key, value in tags if key and value}
        if len(named) < len(tags):
            raise ApiError(f"Tags must be key=value: {request.required('m')}")
        names = [Name("metrics", metric)]
        names += [Name(*name) for tag in named.items() for name in zip(("tagk", "tagv"), tag, strict=True)]
        if look_up_shown(layout.options, names, api.reader).keys() != {*names}:
            raise ApiError("Unable to find one of the UIDs", 404)
        query = SeriesQuery(metric, {key: (value,) for key, value in named.items()})
        listed = from_meta(api.target, layout, query)
        return _ts_bodies(
            api, layout, [one.tsuid for one in listed if not isinstance(one, tuple) and one.tsuid]
        )
    except NotFound:
        raise ApiError("Could not find Timeseries meta data", 404) from None
    except ValueError as error:
        raise ApiError(str(error)) from error


def _ts_bodies(api: Api, layout: OpenTsdb, found: Sequence[bytes]) -> list[dict[str, Any]]:
    """The metadata of series that have some, and of their names.

    Raises:
      ValueError: a TSUID or stored metadata is wrong.
      ApiError: a UID has no name.
    """
    pairs_of = {tsuid: tsuid_pairs(layout.options, tsuid) for tsuid in found}
    rows = api.reader.rows(meta_table(layout.options.table_prefix).name, [*pairs_of])
    stored = {tsuid: cells for tsuid in pairs_of if DOCUMENT in (cells := _cells(rows.get(tsuid)))}
    uids = sorted({uid for tsuid in stored for _, uid in pairs_of[tsuid]})
    names = api.reader.rows(layout.options.uid_table, uids)
    bodies = []
    for tsuid, cells in stored.items():
        form = layout.options.names
        metric, *tags = (_uid_body(form, kind, uid, names) for kind, uid in pairs_of[tsuid])
        body = _ts_body(tsuid, cells, rows[tsuid])
        api.meter.add_shown(1 + len(tags))
        bodies.append(body | {"metric": metric, "tags": tags})
    return bodies


def _ts_body(tsuid: bytes, cells: Mapping[bytes, bytes], row: Row) -> dict[str, Any]:
    members = TsMeta.from_bytes(tsuid, cells[DOCUMENT]).members()
    received_ms = [cell.timestamp_ms for cell in row.cells if cell.qualifier == COUNTER]
    return members | {
        **{name: "NaN" for name in ("max", "min") if math.isnan(members[name])},
        "lastReceived": max(received_ms, default=0) // 1000,
        "totalDatapoints": counter_value(cells[COUNTER]) if COUNTER in cells else 0,
    }


def _uid_body(form: Names, kind: str, uid: bytes, rows: Mapping[bytes, Row]) -> dict[str, Any]:
    """The metadata of a name, out of rows of the UID table.

    Raises:
      ApiError: the UID has no name, or its metadata is corrupt.
    """
    cells = _cells(rows.get(uid))
    if kind.encode() not in cells:
        raise ApiError("Unable to find one of the UIDs", 404)
    stored = cells.get(QUALIFIERS[kind])
    try:
        meta = UidMeta(kind, 0) if stored is None else UidMeta.from_bytes(kind, stored)
    except ValueError as error:
        raise ApiError(f"The metadata of UID {uid.hex().upper()} is corrupt: {error}") from error
    return {
        "uid": uid.hex().upper(),
        "type": QUALIFIERS[kind].decode().removesuffix("_meta").upper(),
        "name": form.shown(uid_table.name_text(cells[kind.encode()])),
        "description": meta.description,
        "notes": meta.notes,
        "created": meta.created,
        "custom": None if meta.custom is None else dict(meta.custom),
        "displayName": meta.display_name,
    }


def _cells(row: Row | None) -> dict[bytes, bytes]:
    """The newest value of each column of a row."""
    return {} if row is None else {cell.qualifier: cell.value for cell in row.cells}


def _hex(text: str, noun: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise ApiError(f"{noun} {text} is not hexadecimal") from error
