"""Meta rows of new series: cells that are set only where none exist.

The cell timestamp of the JSON is 1 ms, so that every later write of a TSD is newer, whatever the clocks; it
has no other meaning. The cell timestamp of the counter is the arrival of the newest point.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from timebeam.schema.layouts.tables import Cell, Row
from timebeam.schema.meta import ts_meta, uid_meta
from timebeam.schema.meta.ts_meta import TsMeta
from timebeam.schema.meta.tsuid import Pair
from timebeam.schema.meta.uid_meta import UidMeta

_DOCUMENT_MS = 1


class MetaMode(enum.StrEnum):
    """What an ingest writes for new series.

    TRACK is what a TSD writes with `tsd.core.meta.enable_tsuid_tracking`; FULL is what it writes with
    `enable_realtime_ts` and `enable_realtime_uid` as well.
    """

    OFF = "off"
    TRACK = "track"
    FULL = "full"


def series_row(
    table: str, tsuid: bytes, created_s: int, arrival_ms: int, *, points: int = 1, document: bool = True
) -> Row:
    """The row of a series in the meta table.

    Args:
      created_s: when it was first seen, in seconds.
      arrival_ms: when its newest point was stored.
      points: their number; 1 if they are not counted.
      document: write `ts_meta` beside `ts_ctr`.
    """
    cells = [Cell(ts_meta.FAMILY, ts_meta.COUNTER, arrival_ms, ts_meta.counter_bytes(points))]
    if document:
        raw = TsMeta(tsuid, created_s).to_bytes()
        cells.append(Cell(ts_meta.FAMILY, ts_meta.DOCUMENT, _DOCUMENT_MS, raw))
    return Row(table, tsuid, cells)


def uid_rows(table: str, names: Mapping[Pair, int]) -> list[Row]:
    """The rows of the UID table with metadata of names; kinds with the same UID share a row.

    Args:
      names: when each name was first seen, in seconds.
    """
    cells: dict[bytes, list[Cell]] = {}
    for (kind, uid), created_s in names.items():
        raw = UidMeta(kind, created_s).to_bytes()
        cell = Cell(uid_meta.FAMILY, uid_meta.QUALIFIERS[kind], _DOCUMENT_MS, raw)
        cells.setdefault(uid, []).append(cell)
    return [Row(table, uid, uid_cells) for uid, uid_cells in cells.items()]
