"""Newer values of archived points in data rows that are not sealed together with them.

A row of the archive that is rewritten has a later newest arrival (docs/spec/archive.md §5): a correction that
won until then would lose to the point that it corrects. So it is written into the row, and stays in the data
table until its own row is sealed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from timebeam.schema.common.batches import join
from timebeam.schema.layouts import Archive, Row, Selected
from timebeam.schema.layouts.archive import keys as archive_keys
from timebeam.schema.layouts.archive import rows as archive_rows
from timebeam.schema.layouts.opentsdb import keys as data_keys
from timebeam.schema.layouts.opentsdb import select
from timebeam.schema.points import PointBatch, Series
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.readers.table_reader import TableReader, read_rows

_ROWS_AT_ONCE = 4_000
_HOUR_MS = data_keys.SPAN_S * 1000


def corrected_rows(
    target: Target, layout: Archive, rows: Sequence[Row], sealed: Collection[bytes]
) -> dict[bytes, list[bytes]]:
    """The keys of the data rows that may have corrections, by the key of the archive row.

    Args:
      rows: archive rows with points of one metric, that are about to be rewritten.
      sealed: the keys of data rows whose points they get.
    """
    options = layout.options
    by_key = [Selected(row, Series(row.key.hex(), ())) for row in rows]
    arrivals_ms = _arrivals(archive_rows.decode_archive_rows(options, by_key).batch)
    spans = [archive_keys.parse_key(options, row.key) for row in rows]
    span_ms = min(span.base_s for span in spans) * 1000, max(span.end_s for span in spans) * 1000 - 1
    codes = sorted({span.code for span in spans})
    salt_end = options.salt_width
    metric = rows[0].key[salt_end : salt_end + options.uid_width_metric]
    scan = dataclasses.replace(
        select.scan(options, layout.data_table, [metric], {}, *span_ms), keys_only=True
    )
    corrected: dict[bytes, list[bytes]] = {}
    for row, key in select.data_rows(options, scan, span_ms, TableReader(target)):
        if key in sealed or layout.key_error(key):
            continue
        hour = data_keys.base_s_of(options, key) // data_keys.SPAN_S
        for code in codes:
            archive_key = archive_keys.archive_key(options, key, code)
            archived_ms = arrivals_ms.get((archive_key.hex(), hour))
            if archived_ms is not None and any(cell.timestamp_ms > archived_ms for cell in row.cells):
                corrected.setdefault(archive_key, []).append(key)
    return corrected


def _arrivals(batch: PointBatch) -> Mapping[tuple[str, int], int]:
    """The oldest arrival, in ms, of the points of each (row key in hex, hour since 1970)."""
    places = batch.index.astype(np.int64) << 32 | batch.times_ms // _HOUR_MS
    order = np.argsort(places, kind="stable")
    places = places[order]
    firsts = np.flatnonzero(np.append(True, places[1:] != places[:-1])[: len(places)])
    oldest_ms = np.minimum.reduceat(batch.arrivals_ms[order], firsts) if len(firsts) else firsts
    return {
        (batch.series[place >> 32].metric, place & 0xFFFFFFFF): oldest
        for place, oldest in zip(places[firsts].tolist(), oldest_ms.tolist(), strict=True)
    }


def corrections(
    target: Target, layout: Archive, corrected: Mapping[bytes, Sequence[bytes]], before_ms: int
) -> Iterator[tuple[list[bytes], PointBatch]]:
    """(keys of archive rows, the points of their data rows that arrived before `before_ms`), few at a time.

    Args:
      corrected: as `corrected_rows` returns them.
    """
    pending: list[bytes] = []
    keys: list[bytes] = []
    for archive_key, row_keys in corrected.items():
        pending.append(archive_key)
        keys += row_keys
        if len(keys) >= _ROWS_AT_ONCE:
            yield pending, _points(target, layout, keys, before_ms)
            pending, keys = [], []
    if pending:
        yield pending, _points(target, layout, keys, before_ms)


def _points(target: Target, layout: Archive, keys: Sequence[bytes], before_ms: int) -> PointBatch:
    """The points of data rows that can be read, of series that are named by their TSUIDs."""
    rows = read_rows(target, layout.data_table, keys).values()
    selected = [Selected(row, Series(layout.tsuid_of(row.table, row.key).hex(), ())) for row in rows]
    decoded = layout.decode_rows(selected)
    if decoded.outside:
        outside = set(decoded.outside)
        decoded = layout.decode_rows([pair for n, pair in enumerate(selected) if n not in outside])
    return decoded.batch.take(np.flatnonzero(decoded.batch.arrivals_ms < before_ms))


def with_corrections(batch: PointBatch, corrected: PointBatch) -> PointBatch:
    """The points of the series that have corrections, with these."""
    names = set(corrected.series)
    numbers = [number for number, series in enumerate(batch.series) if series in names]
    return join([batch.take(np.flatnonzero(np.isin(batch.index, numbers))), corrected])
