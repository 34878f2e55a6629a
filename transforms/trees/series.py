"""The series of OpenTSDB's tables by TSUID: from the meta table, or from the keys of the data rows."""

from __future__ import annotations

from collections.abc import Iterator

from google.api_core import exceptions

from schema.layouts.opentsdb.layout import OpenTsdb
from schema.meta import tsuid as tsuids
from schema.points import Reason, Rejected, Stage
from transforms.bigtable.row_keys import scan_keys
from transforms.bigtable.splits import Range
from transforms.bigtable.target import Target


def has_rows(target: Target, table: str) -> bool:
    """Whether a table is there and has a row."""
    try:
        return any(True for _ in scan_keys(target, table, limit=1))
    except exceptions.NotFound:
        return False


def read_tsuids(target: Target, layout: OpenTsdb, table: str, within: Range) -> Iterator[bytes | Rejected]:
    """The TSUIDs of the rows of a key range, ascending by key, or the refusal of a row that has none.

    In the data table a series has a row for each hour, and comes once for each run of its rows. The
    rows of global annotations are no series.

    Args:
      table: the meta table, or the data table.
    """
    if table != layout.data_table:
        yield from scan_keys(target, table, *within)
        return
    last = b""
    for key in scan_keys(target, table, *within):
        if not tsuids.is_of_series(layout.options, key):
            continue
        try:
            tsuid, _ = tsuids.of_key(layout.options, key)
        except ValueError as error:
            reason = Reason.SERIES_NOT_STORABLE
            yield Rejected(key, reason, str(error), Stage.READ, f"row of table {table}")
            continue
        if tsuid != last:
            yield tsuid
        last = tsuid
