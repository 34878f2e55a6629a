"""Series and names by pattern, as /api/search/lookup and /api/suggest find them (docs/spec/opentsdb.md §8.5).

In a pattern, `*` matches any text, also none. Case matters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from timebeam.schema.bits.bounded import batched
from timebeam.schema.core.points import Series
from timebeam.schema.core.rows import Row
from timebeam.schema.stores.opentsdb import meta_documents
from timebeam.schema.stores.opentsdb.uids.uid_directory import UidDirectory

_AT_ONCE = 2_000


@dataclasses.dataclass(frozen=True, slots=True)
class SeriesQuery:
    """The series to list.

    Attributes:
      metric: a pattern.
      tags: for each tag key that a series must have, patterns; its value must match one.
    """

    metric: str
    tags: Mapping[str, Sequence[str]]

    def takes(self, series: Series) -> bool:
        """Whether a series is to be listed."""
        tags = dict(series.tags)
        return matches(series.metric, [self.metric]) and all(
            key in tags and matches(tags[key], patterns) for key, patterns in self.tags.items()
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Listed:
    """A listed series.

    Attributes:
      tsuid: None in a layout without TSUIDs.
      created_s: when its metadata was created, in seconds; None without metadata.
      points: the value of `ts_ctr`; None without this cell.
      seen_ms: when it was first seen, in ms: `created_s`, else the timestamp of `ts_ctr`, or the time of its
        first row; None if that is unknown.
    """

    series: Series
    tsuid: bytes | None = None
    created_s: int | None = None
    points: int | None = None
    seen_ms: int | None = None


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name matches one of the patterns.

    >>> matches("sys.cpu.user", ["sys.*.user"]), matches("sys.cpu.user", ["cpu*", "sys"])
    (True, False)
    """
    return any(_is_match(name, pattern) for pattern in patterns)


def _is_match(name: str, pattern: str) -> bool:
    """Whether a name matches a pattern, in linear time: a regular expression would backtrack at each `*`."""
    start, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    *middle, end = rest
    position, until = len(start), len(name) - len(end)
    if position > until or not (name.startswith(start) and name.endswith(end)):
        return False
    for text in middle:
        position = name.find(text, position, until)
        if position < 0:
            return False
        position += len(text)
    return True


def fixed_start(pattern: str) -> str:
    """The text that every name matching a pattern begins with."""
    return pattern.partition("*")[0]


def listed(
    rows: Iterable[Row], names: UidDirectory, query: SeriesQuery
) -> Iterator[Listed | tuple[bytes, str]]:
    """The series of rows whose keys are TSUIDs; or (key, why) for a row that cannot be read.

    Args:
      rows: of the meta table, or rows without cells.
    """
    for batch in batched(rows, _AT_ONCE):
        yield from _listed(batch, names, query)


def _listed(
    rows: Sequence[Row], names: UidDirectory, query: SeriesQuery
) -> Iterator[Listed | tuple[bytes, str]]:
    series_of = names.series(row.key for row in rows)
    for row in rows:
        series = series_of[row.key]
        if isinstance(series, str):
            yield row.key, series
        elif query.takes(series):
            try:
                yield _with_meta(row, series)
            except ValueError as error:
                yield row.key, str(error)


def _with_meta(row: Row, series: Series) -> Listed:
    """A series with the metadata of its row; raises ValueError if a cell is damaged."""
    cells = {cell.qualifier: cell.value for cell in row.cells if cell.family == meta_documents.FAMILY}
    document, counter = cells.get(meta_documents.DOCUMENT), cells.get(meta_documents.COUNTER)
    created_s = None if document is None else meta_documents.TsMeta.from_bytes(row.key, document).created
    times_ms = [cell.timestamp_ms for cell in row.cells if cell.qualifier != meta_documents.DOCUMENT]
    return Listed(
        series,
        row.key,
        created_s,
        None if counter is None else meta_documents.counter_value(counter),
        min(times_ms, default=None) if created_s is None else created_s * 1000,
    )
