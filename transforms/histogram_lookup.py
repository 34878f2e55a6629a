"""The histograms that a query asks for, out of Bigtable."""

from __future__ import annotations

from schema.histograms import Histogram, NotASimpleHistogramError, decode
from schema.layouts import Cell, Finding, Selection
from schema.layouts.base import ColumnRange
from schema.layouts.opentsdb import select
from schema.layouts.opentsdb.annotation_cells import offset_ms
from schema.layouts.opentsdb.keys import parse_key
from schema.layouts.opentsdb.layout import OpenTsdb
from schema.layouts.opentsdb.pieces import FAMILY
from schema.layouts.opentsdb.rows import is_histogram
from schema.points import Series
from transforms.bigtable.reader import TableReader
from transforms.bigtable.target import Target

COLUMNS = ColumnRange(FAMILY, b"\x06", b"\x07")
"""The columns that histograms are among; points of seconds 96 to 111 are too."""


def find_histograms(
    target: Target, layout: OpenTsdb, wanted: Selection
) -> tuple[dict[Series, dict[int, Histogram]], list[str]]:
    """(the histograms of a time range by series and time in ms, what could not be read of them, in words).

    Raises:
      UnknownNameError: a name is in no table.
    """
    damage: list[str] = []
    found: dict[Series, dict[int, Histogram]] = {}
    tables = (layout.data_table, layout.uid_table)
    for one in select.select(layout.options, *tables, wanted, TableReader(target), COLUMNS):
        if isinstance(one, Finding):
            damage.append(f"row {one.key.hex()}: {one.text}")
            continue
        base_ms = parse_key(layout.options, one.row.key).base_s * 1000
        for cell in sorted(one.row.cells, key=_by_age):
            if not is_histogram(cell.qualifier):
                continue
            time_ms = base_ms + offset_ms(cell.qualifier)
            if not wanted.start_ms <= time_ms <= wanted.end_ms:
                continue
            try:
                found.setdefault(one.series, {})[time_ms] = decode(cell.value)
            except NotASimpleHistogramError as error:
                codec = cell.value[:1].hex() or "none"
                text = f"histogram {cell.qualifier.hex()} of codec {codec} is no SimpleHistogram: {error}"
                damage.append(f"row {one.row.key.hex()}: {text}")
    return {series: times for series, times in found.items() if times}, damage


def _by_age(cell: Cell) -> tuple[int, bytes]:
    return cell.timestamp_ms, cell.qualifier
