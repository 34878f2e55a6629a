"""The rows that a query wants: found in `row_keys`, read from `data_points` (docs/spec/kairosdb.md §6)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from timebeam.schema.layouts.kairosdb import index, keys
from timebeam.schema.layouts.kairosdb.options import KairosDbOptions
from timebeam.schema.layouts.reading import (
    ColumnRange,
    Finding,
    Reader,
    Scan,
    Selected,
    Selection,
    Severity,
    UnknownNameError,
)
from timebeam.schema.points import Series


class Tables(NamedTuple):
    """Names of the layout's tables."""

    data: str
    row_keys: str
    strings: str


class _Run(NamedTuple):
    """Rows that stand one behind the other in the index, all wanted, with the same columns wanted."""

    columns: ColumnRange | None
    first: bytes
    last: bytes


def select(
    options: KairosDbOptions, tables: Tables, wanted: Selection, reader: Reader
) -> Iterator[Selected | Finding]:
    """See `Layout.select`. Rows with a row time before 1970 are not looked for.

    Raises:
      UnknownNameError: the metric is not in `string_index`.
    """
    if wanted.metric is not None and not _is_known(tables.strings, wanted.metric, reader):
        raise UnknownNameError(
            f"no such metric: {wanted.metric!r}",
            wanted.metric,
            lambda start: _metrics_from(tables.strings, start, reader),
        )
    width = options.row_spec.width_ms
    first_ms = max(0, wanted.start_ms) // width * width
    last_ms = min(wanted.end_ms, keys.LAST_MS) // width * width
    if first_ms > last_ms:
        return
    ranges = (_index_range(wanted, width),)
    runs: list[_Run] = []
    is_open = False
    for row in reader.scan(Scan(tables.row_keys, ranges, keys_only=True)):
        try:
            parts = keys.parse_key(row.key)
        except ValueError as error:
            yield Finding(Severity.DAMAGE, tables.row_keys, row.key, str(error))
            continue
        takes = first_ms <= parts.row_ms <= last_ms and wanted.takes(parts.series)
        if takes:
            columns = _columns(options, wanted, parts.row_ms)
            if is_open and runs[-1].columns == columns:
                runs[-1] = runs[-1]._replace(last=row.key)
            else:
                runs.append(_Run(columns, row.key, row.key))
        is_open = takes
    yield from _rows(tables.data, runs, wanted, reader)


def of_several_types(
    options: KairosDbOptions, tables: Tables, wanted: Selection, reader: Reader
) -> frozenset[Series]:
    """The series that have rows of several types for one of the wanted row times, by the index."""
    width = options.row_spec.width_ms
    found: set[Series] = set()
    seen: set[Series] = set()
    head = b""
    for row in reader.scan(Scan(tables.row_keys, (_index_range(wanted, width),), keys_only=True)):
        try:
            parts = keys.parse_key(row.key)
        except ValueError:
            continue  # `select` finds and tells of it
        if not row.key.startswith(head) or not head:
            head, seen = keys.before_types(row.key), set()
        if wanted.start_ms < parts.row_ms + width and parts.row_ms <= wanted.end_ms:
            (found if parts.series in seen else seen).add(parts.series)
    return frozenset(found)


def _index_range(wanted: Selection, width: int) -> tuple[bytes, bytes]:
    """The range of the index in which the wanted rows are."""
    if wanted.metric is None:
        return b"", b""
    first, last = max(0, wanted.start_ms) // width * width, min(wanted.end_ms, keys.LAST_MS) // width * width
    return keys.metric_range(wanted.metric, first, last)


def _is_known(strings: str, metric: str, reader: Reader) -> bool:
    """Whether a metric is in `string_index`."""
    name = metric.encode()
    columns = ColumnRange(index.NAMES_FAMILY, name, name + b"\0")
    ranges = ((index.METRICS, index.METRICS + b"\0"),)
    return any(row.cells for row in reader.scan(Scan(strings, ranges, columns=columns)))


def _metrics_from(strings: str, start: str, reader: Reader) -> Iterator[str]:
    """The metrics that begin with a text, ascending by their bytes."""
    first = start.encode()
    columns = ColumnRange(index.NAMES_FAMILY, first, first + b"\xff")
    for row in reader.scan(Scan(strings, ((index.METRICS, index.METRICS + b"\0"),), columns=columns)):
        yield from (cell.qualifier.decode(errors="replace") for cell in row.cells)


def _columns(options: KairosDbOptions, wanted: Selection, row_ms: int) -> ColumnRange | None:
    """What is wanted of the columns of a row, None for all of them.

    A range of columns is one of a single family, so that with retention classes rows are read whole.
    """
    spec = options.row_spec
    first = max(0, wanted.start_ms - row_ms)
    last = min(wanted.end_ms - row_ms, spec.width_ms - 1)
    if len(options.families) > 1 or (first == 0 and last == spec.width_ms - 1):
        return None
    start, end = spec.columns(first), spec.columns(last + spec.unit_ms)
    return ColumnRange(options.families[0], start.to_bytes(4, "big"), end.to_bytes(4, "big"))


def _rows(data: str, runs: Iterable[_Run], wanted: Selection, reader: Reader) -> Iterator[Selected | Finding]:
    """The rows of the runs; also what stands between their rows and is in no index, if it is wanted."""
    for run in runs:
        for row in reader.scan(Scan(data, ((run.first, run.last + b"\0"),), columns=run.columns)):
            try:
                parts = keys.parse_key(row.key)
            except ValueError as error:
                yield Finding(Severity.DAMAGE, data, row.key, str(error))
                continue
            if wanted.takes(parts.series):
                yield Selected(row, parts.series)
