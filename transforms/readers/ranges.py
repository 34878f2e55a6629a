"""A reader limited to a range of the keys of a layout's data table."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence

from timebeam.schema.layouts import ReadableLayout, Reader, Row, Scan
from timebeam.transforms.bigtable.rows import KeyRange
from timebeam.transforms.bigtable.splits import WHOLE_TABLE, common_range


def within(reader: Reader, layout: ReadableLayout, keys: KeyRange) -> Reader:
    """A reader of the data rows of a range of keys, and of what of an index is for them."""
    return RangeReader(
        reader, {spec.name for spec in layout.tables() if spec.holds_points or spec.same_keys}, keys
    )


def scan_within(scan: Scan, keys: KeyRange) -> Scan:
    """The same of a range of keys only; perhaps without any ranges."""
    ranges = [cut for one in scan.ranges if (cut := common_range(one, keys)) is not None]
    return dataclasses.replace(scan, ranges=ranges)


class RangeReader:
    """A `Reader` to which only a range of the keys of some tables is there; of all others everything."""

    def __init__(self, reader: Reader, tables: Collection[str], within: KeyRange) -> None:
        self._reader, self._tables, self._within = reader, tables, within

    def scan(self, scan: Scan) -> Iterator[Row]:
        """See `Reader.scan`."""
        if scan.table in self._tables and self._within != WHOLE_TABLE:
            scan = scan_within(scan, self._within)
            if not scan.ranges:
                return
        yield from self._reader.scan(scan)

    def rows(self, table: str, keys: Sequence[bytes]) -> Mapping[bytes, Row]:
        """See `Reader.rows`."""
        if table in self._tables:
            start, end = self._within
            keys = [key for key in keys if start <= key and (not end or key < end)]
        return self._reader.rows(table, keys)
