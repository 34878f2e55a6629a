"""Series and names by patterns: what /api/search/lookup and /api/suggest answer (section 8.5).

A pattern is a name in which `*` stands for any text, also none. Case counts.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from schema.layouts.base import ColumnRange, Reader, Row, Scan
from schema.layouts.opentsdb import uid_table
from schema.layouts.opentsdb.options import OpenTsdbOptions
from schema.lru import LruCache
from schema.meta import ts_meta
from schema.meta import tsuid as tsuids
from schema.meta.tsuid import Pair
from schema.points import Series

_AT_ONCE = 2_000
_KNOWN = 1_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """Which series are looked for.

    Attributes:
      metric: a pattern.
      tags: for each tag key that a series must have, patterns of which its value matches one.
    """

    metric: str
    tags: Mapping[str, Sequence[str]]

    def takes(self, series: Series) -> bool:
        """Whether a series is wanted."""
        tags = dict(series.tags)
        return matches(series.metric, [self.metric]) and all(
            key in tags and matches(tags[key], patterns) for key, patterns in self.tags.items()
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Listed:
    """A series that was found.

    Attributes:
      tsuid: None in a layout that has none.
      created_s: of its meta data, in seconds; None if there is none.
      points: what `ts_ctr` says; None if there is none.
    """

    series: Series
    tsuid: bytes | None = None
    created_s: int | None = None
    points: int | None = None


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name matches one of some patterns."""
    return any(
        re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL) for pattern in patterns
    )


def fixed_start(pattern: str) -> str:
    """What every name that matches a pattern begins with."""
    return pattern.partition("*")[0]


def names_from(table: str, kind: str, start: str, reader: Reader) -> Iterator[tuple[str, bytes]]:
    """(name, UID) of the names of a kind that begin with a text, ascending by their bytes.

    Unlike a TSD, which asks for `!` to `~` if the text is empty, it also gives names that begin with letters
    beyond ASCII.

    Raises:
      UnicodeEncodeError: no name can begin so, since names are stored as ISO-8859-1.
    """
    first = uid_table.name_bytes(start)
    column = ColumnRange(uid_table.ID_FAMILY, kind.encode(), kind.encode() + b"\x00")
    for row in reader.scan(Scan(table, ((first, _behind(first)),), columns=column)):
        if row.key != uid_table.COUNTER_ROW:
            yield uid_table.name_text(row.key), row.cells[0].value


def _behind(prefix: bytes) -> bytes:
    """The first key behind all that begin with a prefix; empty if there is none."""
    bare = prefix.rstrip(b"\xff")
    return bare[:-1] + bytes([bare[-1] + 1]) if bare else b""


class Names:
    """Names of UIDs, each read once while it is remembered."""

    def __init__(self, table: str, reader: Reader) -> None:
        self._table, self._reader = table, reader
        self._known: LruCache[Pair, str] = LruCache(_KNOWN)

    def of(self, wanted: Iterable[Pair]) -> dict[Pair, str]:
        """The names of those UIDs that have one."""
        found: dict[Pair, str] = {}
        missing: list[Pair] = []
        for pair in set(wanted):
            name = self._known.get(pair)
            if name is None:
                missing.append(pair)
            else:
                found[pair] = name
        rows = self._reader.rows(self._table, sorted({uid for _, uid in missing})) if missing else {}
        for kind, uid in missing:
            for cell in rows[uid].cells if uid in rows else ():
                if (cell.family, cell.qualifier) == (uid_table.NAME_FAMILY, kind.encode()):
                    found[kind, uid] = self._known[kind, uid] = uid_table.name_text(cell.value)
        return found


def listed(
    options: OpenTsdbOptions, rows: Iterable[Row], names: Names, wanted: Wanted
) -> Iterator[Listed | tuple[bytes, str]]:
    """The wanted series of some rows, whose keys are TSUIDs; or (key, why) of a row that cannot be read.

    Args:
      rows: of the meta table, or without cells.
    """
    held: list[Row] = []
    for row in rows:
        held.append(row)
        if len(held) == _AT_ONCE:
            yield from _listed(options, held, names, wanted)
            held = []
    yield from _listed(options, held, names, wanted)


def _listed(
    options: OpenTsdbOptions, rows: Sequence[Row], names: Names, wanted: Wanted
) -> Iterator[Listed | tuple[bytes, str]]:
    pairs: dict[bytes, Sequence[Pair]] = {}
    for row in rows:
        try:
            pairs[row.key] = tsuids.pairs(options, row.key)
        except ValueError as error:
            yield row.key, str(error)
    found = names.of(pair for of in pairs.values() for pair in of)
    for row in rows:
        of = pairs.get(row.key, ())
        lost = [pair for pair in of if pair not in found]
        if lost:
            yield row.key, f"UID {lost[0][1].hex()} of kind {lost[0][0]} has no name"
        elif of:
            texts = [found[pair] for pair in of]
            series = Series.of(texts[0], dict(zip(texts[1::2], texts[2::2], strict=True)))
            if wanted.takes(series):
                try:
                    yield _with_meta(row, series)
                except ValueError as error:
                    yield row.key, str(error)


def _with_meta(row: Row, series: Series) -> Listed:
    """A series with what its row says.

    Raises:
      ValueError: a cell is damaged.
    """
    cells = {cell.qualifier: cell.value for cell in row.cells if cell.family == ts_meta.FAMILY}
    document, counter = cells.get(ts_meta.DOCUMENT), cells.get(ts_meta.COUNTER)
    return Listed(
        series,
        row.key,
        None if document is None else ts_meta.TsMeta.from_bytes(row.key, document).created,
        None if counter is None else ts_meta.counter_value(counter),
    )
