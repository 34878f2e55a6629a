"""Rows of the archive and of the data table that a query reads, each instant of a series in one of them.

Rows of the data table in the span of an archive row are late points, or were sealed and are not deleted yet:
they are decoded with that row. The spans are those that the archive had when the read began. A row that is
sealed meanwhile still has its points in the data table: `timebeam seal` deletes them only after
`--reader_hours`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from timebeam.schema.layouts.archive import keys
from timebeam.schema.layouts.archive.keys import BLOCK_S, ArchiveKey, archive_key, parse_key
from timebeam.schema.layouts.archive.rows import PARTS, within_parts
from timebeam.schema.layouts.opentsdb.keys import OpenTsdbOptions, key_pattern
from timebeam.schema.layouts.reading import Finding, Reader, Scan, Severity
from timebeam.schema.layouts.tables import Row

KeyedRow = tuple[Row, bytes]
"""A row, and the key of a data row of its series."""


def archive_scan(
    options: OpenTsdbOptions,
    table: str,
    metrics: Sequence[bytes],
    tags: Mapping[bytes, Collection[bytes]],
    start_ms: int,
    end_ms: int,
) -> Scan:
    """The rows of the archive with points of some metrics in a time range.

    Args:
      metrics: their UIDs.
      tags: as in `timebeam.schema.layouts.opentsdb.select.scan`.
      start_ms, end_ms: first and last time, in ms, both inclusive.
    """
    ranges = sorted(
        key_range for metric in metrics for key_range in keys.ranges(options, metric, start_ms, end_ms)
    )
    return Scan(table, ranges, key_pattern(tags), PARTS)


def sealed_metrics(
    options: OpenTsdbOptions, table: str, period: tuple[int, int], reader: Reader, metrics: set[bytes]
) -> Iterator[Finding]:
    """Reads all keys of the archive, and yields those that no reader of a metric reaches.

    Args:
      period: first and last time, in ms, both inclusive.
      metrics: takes the UIDs of the metrics that have rows in the period.
    """
    salt_width, base_at = options.salt_width, options.salt_width + options.uid_width_metric
    for row in reader.scan(Scan(table, ((b"", b""),), columns=PARTS, keys_only=True)):
        try:
            key = parse_key(options, row.key)
        except ValueError as error:
            yield Finding(Severity.DAMAGE, table, row.key, str(error))
            continue
        salt = row.key[:salt_width]
        if salt and int.from_bytes(salt, "big") >= options.salt_buckets:
            text = f"salt {salt.hex()} is beyond {options.salt_buckets} salt buckets"
            yield Finding(Severity.DAMAGE, table, row.key, text)
        elif key.base_s * 1000 <= period[1] and key.end_s * 1000 > period[0]:
            metrics.add(row.key[salt_width:base_at])


def archived_rows(
    options: OpenTsdbOptions,
    data_rows: Callable[[int, int], Iterator[KeyedRow]],
    archive: Callable[[int, int], Scan],
    period: tuple[int, int],
    reader: Reader,
    late_of: dict[bytes, list[Row]],
) -> Iterator[KeyedRow]:
    """The rows of both tables, those of a series in the order of time if its older points are sealed.

    Args:
      data_rows: gives the rows of the data table in a period.
      archive: gives the scan of the archive in a period.
      period: first and last time, in ms, both inclusive.
      late_of: takes, by the key of an archive row, the rows of the data table in its span, before the
        archive row is yielded. In memory are those of one block.
    """
    reached_ms, last_ms = period
    for block_ms in _blocks(options, archive, period, reader):
        start_ms = max(block_ms, period[0])
        end_ms = min(block_ms + BLOCK_S * 1000 - 1, last_ms)
        if next(data_rows(start_ms, end_ms), None) is None:  # then nothing is late
            if reached_ms < start_ms:
                yield from data_rows(reached_ms, start_ms - 1)
            for row in reader.scan(archive(start_ms, end_ms)):
                if (key := _key(options, row.key)) is not None:
                    yield within_parts(row, key, start_ms, end_ms), key.data
            reached_ms = end_ms + 1
            continue
        sealed = _keys(options, archive(start_ms, end_ms), reader)
        if not sealed:
            continue
        if reached_ms < start_ms:
            yield from data_rows(reached_ms, start_ms - 1)
        codes = sorted({key.code for key in sealed.values()})
        sealed_to_ms = min(max(key.end_s for key in sealed.values()) * 1000 - 1, end_ms)
        for row, data_key in data_rows(start_ms, sealed_to_ms):
            candidates = (archive_key(options, data_key, code) for code in codes)
            in_archive = next((candidate for candidate in candidates if candidate in sealed), None)
            if in_archive is None:
                yield row, data_key
            else:
                late_of.setdefault(in_archive, []).append(row)
        for row in reader.scan(archive(start_ms, end_ms)):
            if (key := sealed.pop(row.key, None)) is not None:
                yield within_parts(row, key, start_ms, end_ms), key.data
        for archive_row_key in sealed:  # deleted meanwhile
            yield from ((row, row.key) for row in late_of.pop(archive_row_key, ()))
        reached_ms = max(sealed_to_ms + 1, start_ms)
    if reached_ms <= last_ms:
        yield from data_rows(reached_ms, last_ms)


def _blocks(
    options: OpenTsdbOptions, archive: Callable[[int, int], Scan], period: tuple[int, int], reader: Reader
) -> Sequence[int]:
    """The starts, in ms, of the blocks of a period that may have rows in the archive."""
    first_ms, last_ms = (time_ms - time_ms % (BLOCK_S * 1000) for time_ms in period)
    if first_ms == last_ms:
        return (first_ms,)
    scan = dataclasses.replace(archive(*period), keys_only=True)
    bases_ms = {key.base_s * 1000 for row in reader.scan(scan) if (key := _key(options, row.key))}
    return sorted({base_ms - base_ms % (BLOCK_S * 1000) for base_ms in bases_ms})


def _keys(options: OpenTsdbOptions, scan: Scan, reader: Reader) -> dict[bytes, ArchiveKey]:
    """The keys of the rows of a scan, parsed; without those that no row has."""
    rows = reader.scan(dataclasses.replace(scan, keys_only=True))
    return {row.key: key for row in rows if (key := _key(options, row.key))}


def _key(options: OpenTsdbOptions, key: bytes) -> ArchiveKey | None:
    try:
        return parse_key(options, key)
    except ValueError:
        return None
